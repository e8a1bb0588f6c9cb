"""Man pages as roff text (man(7)) from the commands' values."""

from collections.abc import Iterable, Iterator, Mapping

from bayplan.cli.reference.commands import Command, Option


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
