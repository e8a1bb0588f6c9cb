"""What no owner can touch, and what lists of CPUs hold: recorded zones, and the forms of other kernels."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.errors import HostError
from bayplan.host.memory_statistics import CpuLists, NodeZones, read_zones

RECORDED = Path(__file__).parents[2] / "data/zoneinfo"
PAGE = 4096

# Kernels before 4.8 have all statistics by zone, and the protection behind them; none has a boost.
OLD = """Node 0, zone      DMA
  pages free     3972
        min      34
        low      42
        high     51
        scanned  0
        spanned  4095
        present  3998
        managed  3977
    nr_free_pages 3972
    nr_inactive_anon 0
        protection: (0, 1383, 63848, 63848)
  pagesets
    cpu: 0
              count: 0
              high:  0
              batch: 1
  vm stats threshold: 12
  all_unreclaimable: 0
Node 0, zone   Normal
  pages free     310887
        min      1000
        low      1250
        high     1500
        managed  16000000
        protection: (0, 0, 0, 0)
  pagesets
    cpu: 0
              count: 339
              high:  378
              batch: 63
    cpu: 1
              count: 25
              high:  378
              batch: 63
"""
UNPOPULATED = """Node 0, zone   Device
  pages free     0
        min      32
        low      32
        high     32
        managed  0
        protection: (0, 0, 0, 0, 0)
"""


def zones(root: Path, text: str, cpus: str | None = None, fraction: int | None = 0) -> dict[int, NodeZones]:
    (root / "proc/sys/vm").mkdir(parents=True, exist_ok=True)
    (root / "proc/zoneinfo").write_text(text)
    if fraction is not None:
        (root / "proc/sys/vm/percpu_pagelist_high_fraction").write_text(f"{fraction}\n")
    for node in range(6):
        directory = root / f"sys/devices/system/node/node{node}"
        directory.mkdir(parents=True, exist_ok=True)
        if cpus is not None:
            (directory / "cpulist").write_text(f"{cpus}\n")
    return read_zones(root)


def test_the_low_zones_keep_more_than_they_have(tmp_path: Path) -> None:
    found = zones(tmp_path, OLD)[0]
    assert found.low_bytes == (42 + 1250) * PAGE
    assert found.reserve_bytes == (3977 + 1500) * PAGE
    assert found.lists == CpuLists(364 * PAGE, 364 * PAGE)


def raised_by(boost: int, managed: int = 90_000) -> str:
    """A zone whose min and high watermark, 1000 and 1500 pages, are higher by that at the moment."""
    marks = {"min": 1000, "low": 1250, "high": 1500}
    lines = [f"        {name:<8} {mark + boost}" for name, mark in marks.items()]
    lines = ["Node 1, zone  Movable", f"        boost    {boost}", *lines, f"        managed  {managed}"]
    return "\n".join([*lines, "        protection: (0, 0, 0, 0, 0)", ""])


@pytest.mark.parametrize(("boost", "reserve"), [(4000, 5000), (501, 1501), (500, 1500), (100, 1500)])
def test_what_watermarks_are_raised_by_counts_beyond_what_is_between_them(
    tmp_path: Path, boost: int, reserve: int
) -> None:
    """Where nothing can be reclaimed it may stay."""
    found = zones(tmp_path, raised_by(boost))[1]
    assert found == NodeZones(1250 * PAGE, reserve * PAGE, reserve * PAGE, 90_000 * PAGE)


# An owner alone on 2 GiB of a machine with pages of 64 KiB, or of 16 KiB: as in linux-mm 2020, "Limit
# boost_watermark on small zones", and in raspberrypi/linux 7085, whose node 3 had 32 MiB more in its marks.
@pytest.mark.parametrize(
    ("block_bytes", "factor", "managed", "reserve"),
    [
        (512 << 20, 15_000, 600_000, 1000 + 131_072),
        (512 << 20, 0, 600_000, 1500),
        (512 << 20, None, 600_000, 1500),
        (32 << 20, 15_000, 90_000, 1000 + 8192),
        (32 << 20, 15_000, 8192 * 4 - 1, 1500),
        # Between the marks there is room for the block of x86.
        (1 << 20, 15_000, 90_000, 1500),
        (2 << 20, 15_000, 90_000, 1512),
    ],
)
def test_one_block_by_which_the_marks_are_raised_at_once_is_not_promised(
    tmp_path: Path, block_bytes: int, factor: int | None, managed: int, reserve: int
) -> None:
    pages = tmp_path / "sys/kernel/mm/transparent_hugepage"
    pages.mkdir(parents=True)
    (pages / "hpage_pmd_size").write_text(f"{block_bytes}\n")
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    if factor is not None:
        (tmp_path / "proc/sys/vm/watermark_boost_factor").write_text(f"{factor}\n")
    found = zones(tmp_path, raised_by(0, managed))[1]
    assert found.reserve_bytes == found.unusable_bytes == reserve * PAGE
    assert found.low_bytes == 1250 * PAGE


@given(
    boost=st.integers(0, 1 << 20),
    least=st.integers(0, 1 << 20),
    gap=st.integers(0, 1 << 18),
    protection=st.integers(0, 1 << 20),
    managed=st.integers(0, 1 << 24),
)
def test_nobody_is_promised_what_is_below_the_mark_at_which_the_kernel_kills(
    tmp_path_factory: pytest.TempPathFactory,
    boost: int,
    least: int,
    gap: int,
    protection: int,
    managed: int,
) -> None:
    text = (
        f"Node 0, zone Normal\n  boost {boost}\n  min {least + boost}\n  low {least + gap + boost}\n"
        f"  high {least + 2 * gap + boost}\n  managed {managed}\n  protection: (0, {protection})\n"
    )
    found = zones(tmp_path_factory.mktemp("marks"), text)[0]
    assert found.reserve_bytes >= min(managed, protection + least + boost) * PAGE
    assert found.low_bytes == (least + gap) * PAGE


def test_what_the_kernel_can_use_for_itself_is_not_movable(tmp_path: Path) -> None:
    found = zones(tmp_path, OLD + raised_by(0))
    assert {node: one.kernel_bytes for node, one in found.items()} == {0: (3977 + 16_000_000) * PAGE, 1: 0}


def test_a_zone_without_memory_keeps_none(tmp_path: Path) -> None:
    assert zones(tmp_path, UNPOPULATED)[0].unusable_bytes == 0


def lists(*counts: int, high_min: int | None = None, high: int = 9999) -> str:
    least = "" if high_min is None else f"              high_min: {high_min}\n"
    return raised_by(0).replace("Node 1", "Node 0") + "".join(
        f"    cpu: {cpu}\n     count: {count}\n     high: {high}\n     batch: 63\n{least}"
        for cpu, count in enumerate(counts)
    )


@pytest.mark.parametrize(
    ("text", "cpus", "fraction", "lasting"),
    [
        (lists(2000, 100, high_min=300), "0-1", 0, 400),
        # The low watermark of 1250 pages, or a hundredth of the zone, shared by the CPUs of the node.
        (lists(2000, 100), "0-1", 0, 725),
        (lists(2000, 100), "0-1", 100, 550),
        # Of a node without CPUs, by all of them; never less than four batches.
        (lists(2000, 100, 0, 0), "", 0, 412),
        (lists(2000, 100), "0-99", 0, 352),
        (lists(2000, 100), "0-1", 100_000, 352),
    ],
)
def test_of_a_list_stays_what_the_kernel_keeps_it_at(
    tmp_path: Path, text: str, cpus: str, fraction: int | None, lasting: int
) -> None:
    found = zones(tmp_path, text, cpus, fraction)[0]
    assert found.lists.lasting_bytes == lasting * PAGE
    assert found.lists.now_bytes >= found.lists.lasting_bytes


@pytest.mark.parametrize("count", [0, 400, 9000])
def test_short_lists_fit_between_the_watermarks_and_long_ones_do_not(tmp_path: Path, count: int) -> None:
    """Whatever they have at the moment: who touches memory there fills them."""
    short, long = (zones(tmp_path, lists(count, high_min=least))[0] for least in (500, 501))
    assert (short.unusable_bytes, long.unusable_bytes) == (1500 * PAGE, 1501 * PAGE)
    assert (short.reserve_bytes, long.reserve_bytes) == (1500 * PAGE, 1500 * PAGE)


@pytest.mark.parametrize(
    ("cpus", "unusable"),
    [
        ("0-3", 1000 + 4 * 312),
        # All four may leave a list on a node that has none; one of another node is seen once it has pages.
        ("", 1000 + 4 * 312),
        ("0-1", 1000 + 2 * 625),
    ],
)
def test_each_cpu_of_the_node_may_keep_a_list(tmp_path: Path, cpus: str, unusable: int) -> None:
    """As on a tier of 1 GiB without CPUs where the owner of all that was promised had others killed."""
    assert zones(tmp_path, lists(0, 0, 0, 0), cpus)[0].unusable_bytes == unusable * PAGE
    assert zones(tmp_path, lists(9000, 9000, 9000, 9000), "0-1")[0].unusable_bytes == (1000 + 4 * 625) * PAGE


@pytest.mark.parametrize(
    ("high", "fraction", "kept"), [(378, None, 378), (0, 0, 625), (63, 0, 625), (2329, 0, 625)]
)
def test_before_linux_5_14_lists_are_kept_at_six_batches(
    tmp_path: Path, high: int, fraction: int | None, kept: int
) -> None:
    """As performancecopilot/pcp 1615 shows. Later kernels print what a list may be at the moment, which is
    nothing where it was never used, and grows by a batch each time that pages are taken from it."""
    found = zones(tmp_path, lists(9000, 0, high=high), "0-1", fraction)[0]
    assert found.lists.lasting_bytes == kept * PAGE
    assert found.unusable_bytes == max(1500, 1000 + 2 * kept) * PAGE


def test_the_tier_on_which_the_kernel_killed_containerd_beside_an_owner(tmp_path: Path) -> None:
    """Node 2 of a machine whose four CPUs are on other nodes, in KiB as the kernel logged it: 28528 free,
    which is below the min watermark, 37692 on lists, the rest of 993360 with processes and the kernel."""
    marks = {"min": 29_816, "low": 37_268, "high": 44_720, "managed": 993_360}
    lines = "".join(f"        {name:<8} {kib // 4}\n" for name, kib in marks.items())
    text = f"Node 2, zone   Normal\n{lines}        protection: (0, 0, 0, 0, 0)\n" + "".join(
        f"    cpu: {cpu}\n     count: 0\n     high: 2329\n     batch: 63\n" for cpu in range(4)
    )
    assert zones(tmp_path, text, "")[2].unusable_bytes >= (28_528 + 37_692) * 1024


def test_six_nodes_of_which_the_kernel_killed_an_owner_above_these_numbers(tmp_path: Path) -> None:
    """On this machine a process bound to one node was killed with so much left free there, one node after the
    other, the DMA zone included: less than the reserve, and more than no reserve at all."""
    left_free_kib = {0: 26_476, 1: 34_276, 2: 24_668, 3: 15_588, 4: 50_064, 5: 30_968}
    found = zones(tmp_path, (RECORDED / "six-nodes-6.12.txt").read_text(), "0-1")
    assert found.keys() == left_free_kib.keys()
    for node, one in found.items():
        assert left_free_kib[node] * 1024 < one.reserve_bytes <= one.unusable_bytes
        assert one.low_bytes < one.reserve_bytes
        assert 0 < one.lists.lasting_bytes <= one.lists.now_bytes


REPORTED = {
    "LTP oom02 on a node of 128 GiB, linux-mm 2017": [("Normal", 19_500, 0, 33_804, 298_028, 0)],
    "150 cgroups on one of two nodes, linux-mm 2017": [("Normal", 44_744, 0, 45_108, 111_028, 0)],
    "a cpuset of node 1 with 15.7 GiB free on node 0, Alibaba Cloud Linux 4.19": [
        ("Normal", 43_636, 0, 45_148, 837_700, 0)
    ],
    "bound to a node of 4 GiB, linux-mm 2022": [("Normal", 45_100, 0, 45_576, 68_360, 0)],
    "slab of a kernel with PREEMPT_RT": [
        ("DMA", 15_360, 0, 28, 52, 3915),
        ("DMA32", 11_696, 0, 3_960, 7_928, 1975),
        ("Normal", 5_692, 0, 4_032, 8_072, 0),
    ],
    "a guest of 3.4 GiB with watermarks of 81 and 20 MiB": [
        ("DMA32", 58_152, 0, 54_108, 81_156, 661),
        ("Normal", 12_900, 0, 13_164, 19_740, 0),
    ],
    "msgctl11 on Linux 2.6.31, above the low watermark": [
        ("DMA", 4_036, 0, 60, 88, 994),
        ("DMA32", 5_832, 0, 4_000, 6_000, 0),
    ],
    "bound to the last of four nodes, with swap, Rocky Linux 4.18": [
        ("Normal", 36_376, 0, 34_644, 51_964, 0)
    ],
    "bound to the second of two nodes of a cloud": [("DMA32", 34_068, 0, 32_016, 48_024, 0)],
    "stress-ng on sparc64, with a boost": [("Normal", 99_400, 16_384, 106_496, 151_552, 0)],
    "the same, thirteen seconds later, with all of it": [("Normal", 230_984, 202_752, 292_864, 337_920, 0)],
    "a validator of Sui on 64 GiB": [
        ("DMA32", 249_524, 0, 2_384, 7_008, 61_795),
        ("Normal", 65_140, 0, 65_180, 191_732, 0),
    ],
    "fio with 15 GiB of locked memory": [
        ("DMA", 15_892, 0, 64, 96, 15_866),
        ("DMA32", 64_188, 0, 12_044, 18_064, 13_035),
        ("Normal", 55_200, 0, 55_468, 83_200, 0),
    ],
}
"""Of kernel logs of others: zones in which nobody got a page any more, and somebody was killed. What was free
there, a boost, the min and the high watermark in KiB, and the reserve for user memory in pages."""


@pytest.mark.parametrize("kill", REPORTED)
def test_everywhere_somebody_was_killed_the_zones_had_less_than_what_is_not_promised(
    tmp_path: Path, kill: str
) -> None:
    for zone, free_kib, boost_kib, min_kib, high_kib, protection in REPORTED[kill]:
        text = (
            f"Node 0, zone {zone:>8}\n  pages free     {free_kib // 4}\n        boost    {boost_kib // 4}\n"
            f"        min      {min_kib // 4}\n        low      {high_kib // 4}\n"
            f"        high     {high_kib // 4}\n        managed  {1 << 20}\n"
            f"        protection: (0, {protection}, {protection})\n"
        )
        assert free_kib * 1024 <= zones(tmp_path, text)[0].reserve_bytes


def test_a_file_of_garbage_says_nothing_and_a_fraction_of_garbage_is_named(tmp_path: Path) -> None:
    assert zones(tmp_path, "garbage\n  min 7\n") == {}
    (tmp_path / "proc/sys/vm/percpu_pagelist_high_fraction").write_text("x\n")
    with pytest.raises(HostError, match="percpu_pagelist_high_fraction"):
        read_zones(tmp_path)


def test_without_the_file_nothing_is_known(tmp_path: Path) -> None:
    assert read_zones(tmp_path) == {}


@given(st.text(alphabet="Node 0123456789,zone\nminhighlowcpu:cout()b_", max_size=400))
def test_nothing_is_negative_whatever_is_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    for one in zones(tmp_path_factory.mktemp("zones"), f"Node 0, zone\n{text}").values():
        assert 0 <= one.reserve_bytes <= one.unusable_bytes
        assert 0 <= one.lists.lasting_bytes <= one.lists.now_bytes


def test_this_machine() -> None:
    found = read_zones()[0]
    assert 0 < found.low_bytes < found.reserve_bytes <= found.unusable_bytes
