"""The error for everything that an OCI runtime or its caller hands over and that cannot be used."""

from bayplan.errors import BayplanError


class OciError(BayplanError):
    """*what* (a file, a field, a message) is not what it should be; nothing was changed."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what = what
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.what}: {self.problem}"
