"""Man pages as roff text (man(7)) from the parsers of the commands.

A parser becomes values first, as argparse can be asked for nothing but its own help. argparse-manpage has no
exit statuses, no other pages to see, and the day of its run in the page.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or an operand where it has no ``flags``. ``metavar`` is empty for a switch."""

    flags: tuple[str, ...]
    metavar: str
    help: str
    optional_value: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Options under one heading."""

    heading: str
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its operands, its options by heading, and the commands below it."""

    name: str
    description: str
    operands: tuple[Option, ...]
    groups: tuple[Group, ...]
    commands: tuple["Command", ...] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        """All options, whatever their heading."""
        return tuple(option for group in self.groups for option in group.options)


def command_of(
    parser: argparse.ArgumentParser, name: str = "", common: frozenset[str] = frozenset()
) -> Command:
    """What *parser* understands, without the options of *common* flags, which a command above it has."""
    operands: list[Option] = []
    groups: list[Group] = []
    below: list[Command] = []
    for group in parser._action_groups:  # noqa: SLF001 - argparse has no other way
        options = []
        for action in group._group_actions:  # noqa: SLF001 - argparse has no other way
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no other way
                known = frozenset(parser._option_string_actions)  # noqa: SLF001 - argparse has no other way
                below += [command_of(one, verb, known) for verb, one in action.choices.items()]
            elif not action.option_strings:
                operands.append(_option(parser, action))
            elif common.isdisjoint(action.option_strings):
                options.append(_option(parser, action))
        if options:
            groups.append(Group(group.title or "options", tuple(options)))
    description = " ".join((parser.description or "").split())
    return Command(name or parser.prog, description, tuple(operands), tuple(groups), tuple(below))


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Option:
    help_text = parser._get_formatter()._expand_help(action)  # noqa: SLF001 - argparse has no other way
    metavar = ""
    if action.nargs != 0:
        metavar = (
            "|".join(map(str, action.choices))
            if action.choices
            else str(action.metavar or action.dest.upper())
        )
    return Option(
        tuple(action.option_strings),
        metavar,
        " ".join(help_text.split()),
        optional_value=action.nargs in ("?", "*"),
        repeated=action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction),  # noqa: SLF001 - argparse has no other way
    )


def every_option(command: Command) -> Iterator[Option]:
    """The options of *command* and of those below it."""
    yield from command.options
    for one in command.commands:
        yield from every_option(one)


def man_page(
    command: Command, section: int, version: str, statuses: Mapping[int, str], see_also: Iterable[str]
) -> str:
    """The page of *command*; *statuses* are its exit statuses, *see_also* other pages such as
    ``bayplan(1)``."""
    lines = [
        f'.TH {command.name.upper()} {section} "" "bayplan {_text(version)}"',
        ".SH NAME",
        f"{command.name} \\- {_text(_summary(command.description))}",
        ".SH SYNOPSIS",
        *_synopsis(command),
        ".SH DESCRIPTION",
        _text(command.description),
    ]
    if command.commands:
        lines.append(".SH COMMANDS")
    for one in command.commands:
        lines += [f".SS {' '.join([_text(one.name), *map(_operand, one.operands)])}", _text(one.description)]
        lines += _options([*one.operands, *one.options])
    for group in command.groups:
        lines += [f".SH {_text(group.heading.upper())}", *_options(group.options)]
    lines.append(".SH EXIT STATUS")
    for status, meaning in statuses.items():
        lines += [".TP", f".B {status}", _text(meaning)]
    lines += [".SH SEE ALSO", _text(", ".join(see_also))]
    return "\n".join(lines) + "\n"


def _summary(description: str) -> str:
    return description.partition(". ")[0].rstrip(".")


def _synopsis(command: Command) -> Iterator[str]:
    yield f".B {command.name}"
    yield "[\\fIOPTION\\fR]..."
    if command.commands:
        yield "\\fICOMMAND\\fR [\\fIARGUMENT\\fR]..."


def _operand(option: Option) -> str:
    shown = f"\\fI{_text(option.metavar)}\\fR" + ("..." if option.repeated else "")
    return f"[{shown}]" if option.optional_value else shown


def _options(options: Iterable[Option]) -> Iterator[str]:
    for option in options:
        yield ".TP"
        flags = ", ".join(f"\\fB{_text(flag)}\\fR" for flag in option.flags)
        value = _operand(option) if option.metavar else ""
        yield f"{flags} {value}".strip()
        yield _text(option.help)


def _text(words: str) -> str:
    """*words* as roff shows them: a hyphen that can be copied, and no line that is a request."""
    escaped = words.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
