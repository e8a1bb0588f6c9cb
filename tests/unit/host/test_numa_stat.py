"""What a container holds on each node, from the text of either cgroup version, and texts that are none."""

import os

import pytest

from bayplan.errors import ParseError
from bayplan.host.memory_statistics import HeldPages, parse_legacy_numa_stat, parse_numa_stat
from support.numa_stat import NUMA_STAT


def test_what_a_container_holds() -> None:
    held = parse_numa_stat(NUMA_STAT)
    assert held == HeldPages({0: 5000, 1: 8193}, {0: 150}, {0: 40960})
    assert held.unreclaimable_bytes == {0: 5150, 1: 8193}


def test_what_a_container_holds_on_cgroup_v1() -> None:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    text = "total=9 N0=9\nanon=1 N0=1\nhierarchical_total=9 N0=9\nhierarchical_file=4 N0=4\n"
    held = parse_legacy_numa_stat(f"{text}hierarchical_anon=3 N0=1 N1=2\nhierarchical_unevictable=1 N0=1\n")
    assert held == HeldPages({0: 2 * page_bytes, 1: 2 * page_bytes}, {}, {0: 4 * page_bytes})


@pytest.mark.parametrize("columns", ["N0", "N0=x", "0=1", "N0=1 banana", "N0=-1"])
def test_a_garbled_line_is_as_one_that_is_missing(columns: str) -> None:
    with pytest.raises(ParseError):
        parse_numa_stat(NUMA_STAT.replace("active_anon N0=904 N1=4096", f"active_anon {columns}"))
    with pytest.raises(ParseError):
        parse_legacy_numa_stat(f"anon=1 N0=1\nhierarchical_anon=3 {columns}\n")


@pytest.mark.parametrize("text", ["", "banana\n", "total=1 N0=1\n"])
def test_what_is_no_statistic_is_an_error(text: str) -> None:
    for parse in (parse_numa_stat, parse_legacy_numa_stat):
        with pytest.raises(ParseError):
            parse(text)


def test_shared_memory_that_nobody_maps_is_known_and_cannot_be_moved() -> None:
    """As Linux 6.12 counts them: 64 MiB mapped on node 0, 64 MiB in a file of a tmpfs on node 1."""
    mib = 1 << 20
    held = parse_numa_stat(
        f"anon N0={mib} N1=0\nfile_mapped N0={66 * mib} N1=0\nshmem N0={64 * mib} N1={64 * mib}\n"
        f"inactive_anon N0={65 * mib} N1={64 * mib}\nactive_anon N0=0 N1=0\nunevictable N0=0 N1=5\n"
    )
    assert held.unmapped_bytes == {1: 64 * mib}
    # What is locked can be moved.
    assert held.movable_bytes == {0: 65 * mib, 1: 5}
