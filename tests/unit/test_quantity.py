"""Kubernetes quantities and byte amounts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.errors import ParseError
from bayplan.quantity import (
    format_bytes,
    format_page_size,
    parse_bytes,
    parse_milli_cpus,
    parse_page_size,
    whole_number,
)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("1Gi", 1 << 30),
        ("2148Mi", 2148 << 20),
        ("1.5Gi", 3 << 29),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("128974848", 128974848),
        ("129M", 129_000_000),
        ("500m", 1),
        ("1.", 1),
        (".5k", 500),
        ("+5", 5),
    ],
)
def test_bytes(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    "text", ["", "1GiB", "1Gb", "Gi", "1 Gi", "1e", "1ki", "0x10", "1mi", "-1", "9Ei", "nan", "1i"]
)
def test_wrong_bytes_name_the_value(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(("text", "milli"), [("1", 1000), ("1500m", 1500), ("0.5", 500), ("0.0001", 1)])
def test_cpus(text: str, milli: int) -> None:
    assert parse_milli_cpus(text) == milli


@pytest.mark.parametrize("text", ["-1", "1e99", "9" * 5000])
def test_wrong_cpus_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_milli_cpus(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("9223372036854775807", (1 << 63) - 1),
        ("9223372036854775808", None),
        ("9" * 5000, None),
        ("²", None),
        ("٣", None),
        ("-1", None),
        ("max", None),
        ("", None),
    ],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1500, "1.46Ki"),
        (3 << 30, "3Gi"),
        (600 << 20, "600Mi"),
        (1536 << 20, "1536Mi"),
        ((1 << 30) + 5, "1.00Gi"),
        (-(2 << 20), "-2Mi"),
        (1 << 70, "1024Ei"),
    ],
)
def test_amounts_for_humans(amount: int, text: str) -> None:
    assert format_bytes(amount) == text


@given(st.integers(0, 1 << 62))
def test_short_exact_amounts_are_read_back(amount: int) -> None:
    text = format_bytes(amount)
    if "." not in text:
        assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    ("text", "size"),
    [("2MB", 2 << 20), ("1GB", 1 << 30), ("64KB", 64 << 10), ("2Mi", 2 << 20), ("2MiB", 2 << 20)],
)
def test_page_sizes(text: str, size: int) -> None:
    assert parse_page_size(text) == size
    assert parse_page_size(format_page_size(size)) == size


@pytest.mark.parametrize("text", ["", "0MB", "MB", "2mb", "2 MB", "-2MB", "9" * 5000 + "MB"])
def test_wrong_page_sizes(text: str) -> None:
    with pytest.raises(ParseError):
        parse_page_size(text)
