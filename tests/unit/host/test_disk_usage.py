"""Where a container's files are, and how much they take, also of a container that plays tricks."""

import os
from pathlib import Path

import pytest

from bayplan.host.eviction_signals import MOST_LEVELS, DiskUsage, disk_usage, log_directory, writable_layer
from bayplan.quantity import KIB, MIB

FOR_EVER = float("inf")
PROC = "22 1 0:21 / /proc rw - proc proc rw\n"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def overlay(upper: str) -> str:
    return f"57 22 0:50 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/a:/b,{upper}workdir=/w\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROC + overlay("upperdir=/var/lib/x/fs,"), "var/lib/x/fs"),
        (overlay("upperdir=/var/lib/a\\040b/fs,"), "var/lib/a b/fs"),
        # The last mount on / is the one that the process sees.
        (overlay("upperdir=/first,") + overlay("upperdir=/second,"), "second"),
        (overlay("upperdir=/first,") + "58 57 8:1 / / rw - ext4 /dev/sda1 rw\n", None),
        (overlay(""), None),
        (overlay("upperdir=12/fs,"), None),
        (PROC, None),
        ("garbage\n", None),
    ],
)
def test_the_writable_layer_is_that_of_the_overlay_at_the_root(
    tmp_path: Path, text: str, expected: str | None
) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/mountinfo").write_text(text)
    assert writable_layer(7, tmp_path) == (None if expected is None else tmp_path / expected)
    assert writable_layer(8, tmp_path) is None


def test_logs_are_where_kubelet_has_them_and_names_lead_nowhere_else(tmp_path: Path) -> None:
    directory = tmp_path / "var/log/pods/shop_web_u-1/main"
    directory.mkdir(parents=True)
    assert log_directory("shop", "web", "u-1", "main", tmp_path) == directory
    (tmp_path / "var/log/other").mkdir()
    for names in (
        ("shop", "web", "u-2", "main"),
        ("shop", "web", "u-1", ".."),
        ("shop", "web", "u-1", "../../other"),
        ("../other", "web", "u-1", "main"),
        ("shop", "web", "", "main"),
    ):
        assert log_directory(*names, root=tmp_path) is None


def test_what_is_below_counts_once_and_nothing_else(tmp_path: Path) -> None:
    layer, outside = tmp_path / "layer", tmp_path / "outside"
    (layer / "a/b").mkdir(parents=True)
    outside.mkdir()
    (outside / "large").write_bytes(bytes(4 * MIB))
    empty = disk_usage(layer, FOR_EVER)
    assert empty.inodes == 3
    (layer / "a/file").write_bytes(bytes(MIB))
    os.link(layer / "a/file", layer / "a/b/same")
    (layer / "sparse").touch()
    os.truncate(layer / "sparse", 64 * MIB)
    (layer / "a/link").symlink_to(outside)
    (layer / "file-link").symlink_to(outside / "large")
    found = disk_usage(layer, FOR_EVER)
    assert found.inodes == empty.inodes + 4
    assert MIB <= found.used_bytes - empty.used_bytes < MIB + 64 * KIB
    assert disk_usage(tmp_path / "gone", FOR_EVER) == DiskUsage()


def test_a_look_ends_however_much_there_is(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).touch()
    assert disk_usage(tmp_path, FOR_EVER, most_entries=20).inodes == 21
    now_s = iter(range(1000))
    assert disk_usage(tmp_path, 10.0, clock_s=lambda: float(next(now_s))).inodes == 11
    deep = tmp_path / "deep"
    deep.joinpath(*["d"] * (MOST_LEVELS + 20)).mkdir(parents=True)
    before = open_descriptors()
    assert disk_usage(deep, FOR_EVER).inodes == MOST_LEVELS + 1
    assert open_descriptors() == before
