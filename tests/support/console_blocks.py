"""The commands and files that pages show: fenced blocks, and what the comment above one says of it.

``<!-- file: NAME -->`` is a file for the commands of the page. ``<!-- node: REASON -->`` are commands that
need a node, and ``<!-- run by PATH: REASON -->`` such that another test runs; commands without a word run
anywhere.
"""

import re
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGES = (
    PROJECT / "README.md",
    PROJECT / "CONTRIBUTING.md",
    *sorted(path for path in (PROJECT / "docs").glob("*.md")),
)
NODE = "node"
FILE = "file"
_BLOCK = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fenced:
    """A fenced block: its language, what the comment above it says (word and the rest), its text."""

    page: Path
    language: str
    word: str
    said: str
    text: str

    @property
    def commands(self) -> tuple[str, ...]:
        """What a reader would type, of a block in the language ``console``."""
        return tuple(_COMMAND.findall(self.text)) if self.language == "console" else ()


def fenced(page: Path) -> tuple[Fenced, ...]:
    """All fenced blocks of *page*."""
    blocks = []
    for comment, language, text in _BLOCK.findall(page.read_text()):
        word, _, said = comment.partition(": ")
        blocks.append(Fenced(page, language, word, said, text))
    return tuple(blocks)


def commands(word: str) -> tuple[str, ...]:
    """The commands of all pages whose blocks say *word*; nothing is a word, too."""
    return tuple(
        command
        for page in PAGES
        for block in fenced(page)
        if block.word == word
        for command in block.commands
    )
