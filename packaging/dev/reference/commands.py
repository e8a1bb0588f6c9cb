"""A parser's commands and options as values, which man pages and completions are made from.

Only this module looks into argparse, whose parsers can be asked for nothing but their own help.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Operand(Enum):
    """What a value on the command line is, for the shell that completes it."""

    TEXT = "text"
    PATH = "path"
    CONTAINER = "container"
    NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or an operand where it has no ``flags``. ``metavar`` is empty for a switch; ``choices`` are
    all the values that there are, or none if there are others."""

    flags: tuple[str, ...]
    metavar: str
    help: str
    choices: tuple[str, ...] = ()
    operand: Operand = Operand.TEXT
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
        tuple(map(str, action.choices or ())),
        _operand(action),
        optional_value=action.nargs in ("?", "*"),
        repeated=action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction),  # noqa: SLF001 - argparse has no other way
    )


def _operand(action: argparse.Action) -> Operand:
    if action.type is Path or action.metavar in ("FILE", "PATH", "DIR"):
        return Operand.PATH
    return {"subject": Operand.CONTAINER, "namespace": Operand.NAMESPACE}.get(action.dest, Operand.TEXT)


def every_option(command: Command) -> Iterator[Option]:
    """The options of *command* and of those below it."""
    yield from command.options
    for one in command.commands:
        yield from every_option(one)
