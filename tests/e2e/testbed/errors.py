"""What can go wrong with the bed itself, as opposed to what a scenario checks.

Every message is one sentence that names the thing and what to do; a scenario that needs the bed fails with
it.
"""


class TestBedError(Exception):
    """The bed could not do what it was asked; never the fault of the program under test."""


class MissingError(TestBedError):
    """Something of the machine is missing: root, a program, a package source."""


class BuildError(TestBedError):
    """An artefact could not be built; carries the end of what the build said."""

    def __init__(self, what: str, command: str, output: str) -> None:
        self.what, self.command, self.output = what, command, output
        last = "\n".join(output.strip().splitlines()[-12:])
        super().__init__(f"{what} could not be built: `{command}` failed:\n{last}")


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
