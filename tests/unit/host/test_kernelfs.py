import errno
import os
import resource

import pytest

from bayplan.errors import HostError, ParseError
from bayplan.host.kernelfs import (
    AbsentError,
    RefusedError,
    garbage,
    parse_file,
    parse_number,
    read_optional,
    read_text,
    write_text,
)
from bayplan.sets import CpuSet


def test_a_file_longer_than_any_single_read_is_read_to_its_end(tmp_path):
    path = tmp_path / "cpulist"
    text = ",".join(str(cpu) for cpu in range(0, 60000, 2))
    assert len(text) > 1 << 16
    path.write_text(text)
    assert read_text(str(path)) == text


def test_a_file_that_the_kernel_delivers_in_pieces_is_read_to_its_end():
    """It gives at most a page or so at once, and says that the size is 0."""
    symbols = read_text("/proc/kallsyms")
    assert len(symbols) > 1 << 20
    assert symbols.endswith("\n")


def test_what_is_no_file_is_named_and_holds_up_nobody(tmp_path):
    path = tmp_path / "cpulist"
    os.mkfifo(path)
    with pytest.raises(RefusedError, match="a FIFO"):
        read_text(str(path))


def test_absent_is_an_error_of_its_own_with_the_path(tmp_path):
    path = str(tmp_path / "nowhere" / "cpulist")
    with pytest.raises(AbsentError) as caught:
        read_text(path)
    assert caught.value.subject == path
    assert "not there" in str(caught.value)
    assert read_optional(path) is None
    with pytest.raises(AbsentError):
        write_text(path, "1")
    assert not (tmp_path / "nowhere").exists()


def test_a_write_never_creates_a_file(tmp_path):
    with pytest.raises(AbsentError):
        write_text(str(tmp_path / "memory.max"), "1")
    assert list(tmp_path.iterdir()) == []


def test_what_the_kernel_refuses_keeps_its_errno():
    path = "/proc/self/mem"
    with pytest.raises(RefusedError) as caught:
        read_text(path)
    assert caught.value.errno == errno.EIO
    assert caught.value.subject == path
    assert not isinstance(caught.value, AbsentError)


def test_a_value_that_was_taken_in_part_is_refused(tmp_path):
    path = tmp_path / "memory.max"
    path.touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, hard))
    try:
        with pytest.raises(RefusedError, match="took 60 of the 100 bytes"):
            write_text(str(path), "7" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_garbage_names_path_found_and_expected(tmp_path):
    path = tmp_path / "cpulist"
    path.write_bytes(b"0-3,\xff\xfe\n")
    with pytest.raises(HostError) as caught:
        parse_file(str(path), CpuSet.parse)
    assert caught.value.subject == str(path)
    assert r"'0-3,\\xff\\xfe'" in caught.value.problem


def test_long_garbage_is_shown_in_part():
    message = str(garbage("/x", "y" * 5000, "less"))
    assert "y" * 200 in message
    assert "y" * 201 not in message
    assert "[and 4800 more]" in message


def test_a_number_of_thousands_of_digits_is_garbage_and_not_a_crash(tmp_path):
    path = tmp_path / "nr_hugepages"
    path.write_text("9" * 6000)
    with pytest.raises(HostError) as caught:
        parse_file(str(path), parse_number)
    assert caught.value.subject == str(path)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "0x10", "1 2", "٣", "1_0"])
def test_numbers_are_digits_only(text):
    with pytest.raises(ParseError):
        parse_number(text)


def test_white_space_around_a_number_is_no_part_of_it():
    assert parse_number(" 42\n") == 42
