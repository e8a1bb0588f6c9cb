"""What can go wrong with the bed itself, as opposed to what a scenario checks.

Every message is one sentence that names the thing and what to do; a scenario that needs the bed fails with
it.
"""

from pathlib import Path


class TestBedError(Exception):
    """The bed could not do what it was asked; never the fault of the program under test."""

    __test__ = False
    """Its name begins as those of tests do."""


class MissingError(TestBedError):
    """Something of the machine is missing: root, a program, a package source."""


class EndedError(TestBedError):
    """Set-up was interrupted, or another part of it failed: this part was not begun."""


class BuildError(TestBedError):
    """An artefact could not be built; carries the end of what the build said, where all of it is, and what to
    do about it where that is known.
    """

    def __init__(
        self, what: str, command: str, output: str, *, log: Path | None = None, advice: str = ""
    ) -> None:
        self.what, self.command, self.output, self.log = what, command, output, log
        lines = [f"{what} could not be built: `{command}` failed:"]
        lines += [f"    {line}" for line in output.strip().splitlines()[-12:]]
        lines += [f"(all of it: {log})"] if log else []
        super().__init__("\n".join([*lines, *filter(None, [advice])]))


class GuestError(TestBedError):
    """The virtual machine died, or did not answer in time; the console's end is in the message, all of it
    here.
    """

    def __init__(self, message: str, *, console: str = "") -> None:
        self.console = console
        super().__init__(message)


class CommandError(TestBedError):
    """A command in the guest ended with another exit code than 0."""

    def __init__(self, argv: list[str], exit_code: int, stdout: str, stderr: str) -> None:
        self.argv, self.exit_code, self.stdout, self.stderr = argv, exit_code, stdout, stderr
        said = (stderr.strip() or stdout.strip())[-2000:]
        super().__init__(f"`{' '.join(argv)}` in the guest ended with {exit_code}: {said}")
