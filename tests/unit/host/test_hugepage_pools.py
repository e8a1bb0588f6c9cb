"""The kernel's pools: what is read, sizes reached in portions, and kernels that give less or nothing."""

from pathlib import Path

import pytest

from bayplan.host import shadow_mode
from bayplan.host.hugepage_files import HugepageFiles
from bayplan.host.kernelfs import write_text
from bayplan.quantity import GIB, KIB, MIB
from support.hugepage_kernel import HugepageKernel
from support.machines import machine
from support.sysfs import SysfsTree

SIZE = 2 * MIB
POOLS = {SIZE: 0, GIB: 0}


def kernel(root: Path, free_bytes: int = GIB, **more: object) -> HugepageKernel:
    return HugepageKernel(root, machine(2, hugepages_bytes=POOLS), {0: free_bytes, 1: free_bytes}, **more)  # type: ignore[arg-type]  # as named


def always() -> bool:
    return True


def test_a_size_is_reached_in_portions(tmp_path: Path) -> None:
    one = kernel(tmp_path)
    found = HugepageFiles(one.root, one.write).resize({1: {SIZE: 600 * MIB}}, always)
    assert (found.pools, found.problems) == ({1: {SIZE: 600 * MIB}}, ())
    assert [line.rpartition(" ")[2] for line in one.writes] == ["128", "256", "300"]
    assert one.pages(0, SIZE) == 0


def test_as_many_as_come(tmp_path: Path) -> None:
    one = kernel(tmp_path, 301 * MIB)
    found = HugepageFiles(one.root, one.write).resize({0: {SIZE: 600 * MIB}}, always)
    assert found.pools == {0: {SIZE: 300 * MIB}}
    assert len(one.writes) == 2


def test_no_portion_is_begun_once_it_is_enough(tmp_path: Path) -> None:
    one = kernel(tmp_path)
    left = [True, False]
    found = HugepageFiles(one.root, one.write).resize({0: {SIZE: 600 * MIB}}, lambda: left.pop(0))
    assert found.pools == {0: {SIZE: 256 * MIB}}


def test_pages_that_are_used_or_reserved_stay(tmp_path: Path) -> None:
    one = kernel(tmp_path)
    files = HugepageFiles(one.root, one.write)
    files.resize({0: {SIZE: 200 * MIB}}, always)
    one.use(0, SIZE, 30)
    reserved = one.root / "sys/kernel/mm/hugepages/hugepages-2048kB"
    reserved.mkdir(parents=True)
    (reserved / "resv_hugepages").write_text("10\n")
    assert files.free_bytes(0)[SIZE] == 60 * SIZE
    assert files.resize({0: {SIZE: 0}}, always).pools == {0: {SIZE: 40 * SIZE}}


def test_surplus_pages_are_not_the_pools(tmp_path: Path) -> None:
    one = kernel(tmp_path)
    pool = one.root / "sys/devices/system/node/node0/hugepages/hugepages-2048kB"
    (pool / "nr_hugepages").write_text("7\n")
    (pool / "surplus_hugepages").write_text("3\n")
    assert HugepageFiles(one.root, one.write).resize({0: {SIZE: 4 * SIZE}}, always).pools == {
        0: {SIZE: 4 * SIZE}
    }
    assert one.writes == []


@pytest.mark.parametrize("compaction", [True, False])
def test_a_kernel_with_and_without_compaction(tmp_path: Path, compaction: bool) -> None:
    one = kernel(tmp_path, 10 * MIB, scattered_bytes={0: 90 * MIB}, compaction=compaction)
    files = HugepageFiles(one.root, one.write)
    assert files.is_fragmented(0, SIZE, 100 * MIB)
    assert files.compact(0) is compaction
    assert files.is_fragmented(0, SIZE, 100 * MIB) is not compaction


def test_only_the_machine_as_a_whole_can_be_compacted(tmp_path: Path) -> None:
    one = kernel(tmp_path, compaction=False)
    file = one.root / "proc/sys/vm/compact_memory"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert HugepageFiles(one.root, write_text).compact(1)
    assert file.read_text() == "1"


def test_blocks_of_1gi_are_on_no_list(tmp_path: Path) -> None:
    one = kernel(tmp_path)
    assert HugepageFiles(one.root, one.write).is_fragmented(0, GIB, GIB)


@pytest.mark.parametrize("size", [SIZE, 512 * MIB])
def test_blocks_are_counted_in_the_pages_of_the_kernel(tmp_path: Path, size: int) -> None:
    """As on arm64 with pages of 64 KiB: orders 0 to 13, of which the last is a huge page of 512 MiB."""
    (tmp_path / "proc").mkdir()
    blocks = {5: 4, 6: 2, 13: 2}
    counts = " ".join(str(blocks.get(order, 0)) for order in range(14))
    (tmp_path / "proc/buddyinfo").write_text(f"Node 0, zone   Normal {counts}\n")
    files = HugepageFiles(tmp_path, page_bytes=64 * KIB)
    free = sum(number * (64 * KIB << order) for order, number in blocks.items() if 64 * KIB << order >= size)
    assert not files.is_fragmented(0, size, free)
    assert files.is_fragmented(0, size, free + 1)


def test_a_kernel_that_refuses_is_named_with_the_file(tmp_path: Path) -> None:
    one = kernel(tmp_path)
    one.refuses = "Read-only file system"
    found = HugepageFiles(one.root, one.write).resize({0: {SIZE: 10 * SIZE}, 7: {SIZE: SIZE}}, always)
    assert found.pools == {0: {SIZE: 0}}
    assert "node0/hugepages/hugepages-2048kB/nr_hugepages" in found.problems[0]
    assert "node7" in found.problems[1]


def test_a_kernel_without_numa(tmp_path: Path) -> None:
    root = SysfsTree.without_numa(machine(1, hugepages_bytes=POOLS)).write(tmp_path)
    found = HugepageFiles(root, write_text).resize({0: {SIZE: 5 * SIZE}}, always)
    assert found.pools == {0: {SIZE: 5 * SIZE}}
    assert (root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").read_text() == "5"


def test_shadow_mode_writes_nothing(tmp_path: Path) -> None:
    one = kernel(tmp_path)
    with shadow_mode.shadow_mode():
        found = HugepageFiles(one.root).resize({0: {SIZE: SIZE}}, always)
    assert found.pools == {0: {SIZE: 0}}
    assert len(found.problems) == 1
