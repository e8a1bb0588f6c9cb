"""Only regular files of a bounded size are read; whatever else lies there is named, and holds up nobody."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.files import read_file, read_small_file, read_text


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def make_fifo_with_text(path: Path) -> None:
    os.mkfifo(path)
    FILLED.append(os.open(path, os.O_RDWR))
    os.write(FILLED[-1], b"0-3\n")


FILLED: list[int] = []


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    yield
    while FILLED:
        os.close(FILLED.pop())


@pytest.mark.parametrize("read", [read_file, read_small_file])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_fifo, "a FIFO, which is no regular file"),
        (make_fifo_with_text, "a FIFO, which is no regular file"),
        (make_socket, "a socket, which is no regular file|No such device or address"),
        (Path.mkdir, "a directory, which is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "a device, which is no regular file"),
        (
            lambda path: path.symlink_to("/dev/tty"),
            "a device, which is no regular file|No such device or address",
        ),
        (lambda path: path.symlink_to("/dev/null"), "a device, which is no regular file"),
        (lambda path: path.symlink_to("/dev/full"), "a device, which is no regular file"),
        (lambda path: path.symlink_to("/dev/urandom"), "a device, which is no regular file"),
        (lambda path: path.symlink_to("/dev/ptmx"), "a device, which is no regular file"),
        (lambda path: path.symlink_to(path.name), "symbolic links"),
        (lambda path: path.write_bytes(b"x" * 101), "a file of more than 100 bytes"),
        (lambda path: path.symlink_to("/proc/kallsyms"), "a file of more than 100 bytes"),
        (lambda path: None, "No such file"),
    ],
)
def test_what_is_not_read_is_named(tmp_path, make, words, read):
    path = tmp_path / "file"
    make(path)
    with pytest.raises(OSError, match=words) as raised:
        read(path, 100)
    assert raised.value.filename == str(path) or raised.value.filename == path


def test_a_sparse_file_of_any_length_is_not_read(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="a file of more than 16 MiB"):
        read_file(tmp_path / "file")


def test_a_file_is_read_whole_with_its_status(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * (3 << 20))
    content, status = read_file(path)
    assert (len(content), status.st_ino) == (3 << 20, path.stat().st_ino)
    path.write_bytes(b"\xef\xbb\xbf\xc3\xa4")
    assert read_text(path) == "\u00e4"


def test_links_are_followed_unless_told_otherwise(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link").content == b"x"
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert read_file("file", dir_fd=directory, follow=False).content == b"x"
        with pytest.raises(OSError, match="a symbolic link, which is no regular file"):
            read_file("link", dir_fd=directory, follow=False)
    finally:
        os.close(directory)
