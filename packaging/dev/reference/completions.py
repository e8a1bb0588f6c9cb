"""Completions for bash, zsh and fish from the commands' values.

What the daemon knows, names of containers and namespaces, is asked from it at the moment of completion.
"""

from collections.abc import Iterable

from bayplan.cli.reference.commands import Command, Operand, Option, every_option

_NAMES = "{program} status -o name 2>/dev/null"
_NAMESPACES = f"{_NAMES} | cut -d/ -f1 | sort -u"


def bash(command: Command) -> str:
    """A file for bash-completion."""
    name, function = command.name, f"_{command.name}"
    lines = [
        f"# Completion of {name} for bash. Made by `make reference`.",
        f"{function}() {{",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" verb="" one',
        '  for one in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        f'    case "$one" in {"|".join(one.name for one in command.commands)}) verb="$one"; break ;; esac',
        "  done",
        '  case "$before" in',
        *_bash_values(command),
        "  esac",
        '  case "$verb" in',
        f'    "") {_bash_words([*_flags(command.options), *(one.name for one in command.commands)])} ;;',
    ]
    for one in command.commands:
        words = _bash_words(_flags([*one.options, *command.options]))
        lines.append(f'    {one.name}) [[ "$word" == -* ]] && {{ {words}; return; }}')
        lines += [f"      {_bash_operand(name, operand)}" for operand in one.operands]
        lines.append("      ;;")
    return "\n".join([*lines, "  esac", "}", f"complete -F {function} {name}", ""])


def _bash_values(command: Command) -> Iterable[str]:
    """What comes behind each option that takes a value."""
    seen: dict[str, str] = {}
    for option in every_option(command):
        if option.metavar and not option.optional_value:
            for flag in option.flags:
                seen.setdefault(flag, _bash_operand(command.name, option))
    for flag, action in seen.items():
        yield f"    {flag}) {action}; return ;;"


def _bash_operand(program: str, option: Option) -> str:
    if option.choices:
        return _bash_words(option.choices)
    if option.operand is Operand.PATH:
        return 'COMPREPLY=($(compgen -f -- "$word"))'
    if option.operand is Operand.CONTAINER:
        return f'COMPREPLY=($(compgen -W "$({_NAMES.format(program=program)})" -- "$word"))'
    if option.operand is Operand.NAMESPACE:
        return f'COMPREPLY=($(compgen -W "$({_NAMESPACES.format(program=program)})" -- "$word"))'
    return "COMPREPLY=()"


def _bash_words(words: Iterable[str]) -> str:
    return f'COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word"))'


def zsh(command: Command) -> str:
    """A file for a directory of $fpath, named with an underscore before the command."""
    name = command.name
    lines = [
        f"#compdef {name}",
        f"# Completion of {name} for zsh. Made by `make reference`.",
        "local -a verbs",
        "verbs=(",
        *(f"  {_quoted(f'{one.name}:{_colons(one.description)}')}" for one in command.commands),
        ")",
        "local context state state_descr line",
        "typeset -A opt_args",
        "_arguments -C \\",
        *(f"  {spec} \\" for option in command.options for spec in _zsh_option(name, option)),
        "  '1:command:->verb' \\",
        "  '*::argument:->rest'",
        'case "$state" in',
        "  verb) _describe command verbs ;;",
        "  rest)",
        '    case "$line[1]" in',
    ]
    for one in command.commands:
        specs = [spec for option in (*one.options, *command.options) for spec in _zsh_option(name, option)]
        specs += [_zsh_operand(name, operand) for operand in one.operands]
        lines.append(f"      {one.name}) _arguments {' '.join(specs)} ;;")
    return "\n".join([*lines, "    esac ;;", "esac", ""])


def _zsh_option(program: str, option: Option) -> Iterable[str]:
    value = ""
    if option.metavar:
        colons = "::" if option.optional_value else ":"
        value = f"{colons}{_colons(option.metavar.lower())}:{_zsh_action(program, option)}"
    for flag in option.flags:
        repeat = "*" if option.repeated else ""
        yield _quoted(f"{repeat}{flag}[{_colons(option.help).replace('[', '(').replace(']', ')')}]{value}")


def _zsh_operand(program: str, option: Option) -> str:
    head = "*" if option.repeated else "1"
    return _quoted(f"{head}:{_colons(option.metavar.lower())}:{_zsh_action(program, option)}")


def _zsh_action(program: str, option: Option) -> str:
    if option.choices:
        return f"({' '.join(option.choices)})"
    return {
        Operand.PATH: "_files",
        Operand.CONTAINER: f'{{compadd -- ${{(f)"$({_NAMES.format(program=program)})"}}}}',
        Operand.NAMESPACE: f'{{compadd -- ${{(f)"$({_NAMESPACES.format(program=program)})"}}}}',
        Operand.TEXT: " ",
    }[option.operand]


def fish(command: Command) -> str:
    """A file for a directory of fish's completions."""
    name = command.name
    every = " ".join(one.name for one in command.commands)
    lines = [f"# Completion of {name} for fish. Made by `make reference`.", f"complete -c {name} -f"]
    lines += [
        f"complete -c {name} -n {_quoted(f'not __fish_seen_subcommand_from {every}')} "
        f"-a {one.name} -d {_quoted(one.description)}"
        for one in command.commands
    ]
    lines += [f"complete -c {name} {_fish_option(name, option)}" for option in command.options]
    for one in command.commands:
        seen = f"-n {_quoted(f'__fish_seen_subcommand_from {one.name}')}"
        lines += [f"complete -c {name} {seen} {_fish_option(name, option)}" for option in one.options]
        lines += [
            f"complete -c {name} {seen} {value}"
            for operand in one.operands
            if (value := _fish_value(name, operand))
        ]
    return "\n".join([*lines, ""])


def _fish_option(program: str, option: Option) -> str:
    flags = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    takes = ""
    if option.metavar and not option.optional_value:
        # An option that takes a value offers files, unless it is said to be exclusive.
        takes = "-r" if option.operand is Operand.PATH else "-x"
    value = _fish_value(program, option) if option.metavar else ""
    return " ".join(part for part in (*flags, takes, value, f"-d {_quoted(option.help)}") if part)


def _fish_value(program: str, option: Option) -> str:
    if option.choices:
        return f"-a {_quoted(' '.join(option.choices))}"
    return {
        Operand.PATH: "-F",
        Operand.CONTAINER: f"-a {_quoted(f'({_NAMES.format(program=program)})')}",
        Operand.NAMESPACE: f"-a {_quoted(f'({_NAMESPACES.format(program=program)})')}",
        Operand.TEXT: "",
    }[option.operand]


def _flags(options: Iterable[Option]) -> list[str]:
    return list(dict.fromkeys(flag for option in options for flag in option.flags))


def _quoted(text: str) -> str:
    """*text* as one word of each of the shells."""
    return "'" + text.replace("'", "'\\''") + "'"


def _colons(text: str) -> str:
    return text.replace(":", "\\:")
