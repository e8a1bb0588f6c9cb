"""Which containers a word on a command line means."""

import pytest

from bayplan.model.workload import names_container

NAME, ID = "default/web-0/nginx", "3f9c1d2e4b5a69788796a5b4c3d2e1f0"


@pytest.mark.parametrize(
    ("subject", "meant"),
    [
        ("default/web-0/nginx", True),
        ("default/web-0", True),
        ("web-0/nginx", True),
        ("web-0", True),
        (ID, True),
        (ID[:12], True),
        (ID[:11], False),
        ("default", False),
        ("nginx", False),
        ("web", False),
        ("default/web-0/nginx/x", False),
        ("default/nginx", False),
        ("", False),
    ],
)
def test_whom_a_subject_means(subject: str, *, meant: bool) -> None:
    assert names_container(subject, NAME, ID) is meant
