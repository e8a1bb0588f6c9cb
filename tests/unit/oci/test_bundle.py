"""A bundle's config.json: read and replaced at its very place, whatever lies around it."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from bayplan.oci.bundle import read_config, replace_config, sibling_config
from bayplan.oci.documents import OciError
from bayplan.oci.protocol import MAX_BODY_BYTES

TEXT = b'{"linux": {}}'
OTHER = b'{"linux": {"x": 1}}'


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    directory = tmp_path / "containers" / "c1" / "userdata"
    directory.mkdir(parents=True)
    (directory / "config.json").write_bytes(TEXT)
    (directory / "config.json").chmod(0o600)
    return directory


def test_it_is_read_and_replaced(bundle: Path) -> None:
    assert read_config(str(bundle)) == TEXT
    assert read_config(f"{bundle}/") == TEXT
    inode = (bundle / "config.json").stat().st_ino
    replace_config(str(bundle), TEXT, OTHER)
    assert read_config(str(bundle)) == OTHER
    assert (bundle / "config.json").stat().st_ino != inode
    assert stat.S_IMODE((bundle / "config.json").stat().st_mode) == 0o600
    assert [file.name for file in bundle.iterdir()] == ["config.json"]


def test_a_directory_above_it_may_be_a_link(bundle: Path, tmp_path: Path) -> None:
    """/var/run is one, and /var/lib/containers may be on another disk."""
    (tmp_path / "elsewhere").symlink_to(tmp_path / "containers")
    assert read_config(str(tmp_path / "elsewhere" / "c1" / "userdata")) == TEXT


def test_what_a_killed_daemon_left_is_no_obstacle(bundle: Path) -> None:
    (bundle / ".config.json.bayplan").write_text("half of it")
    replace_config(str(bundle), TEXT, OTHER)
    assert [file.name for file in bundle.iterdir()] == ["config.json"]
    assert read_config(str(bundle)) == OTHER


def test_a_link_in_the_place_of_the_new_file_leads_nowhere(bundle: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (bundle / ".config.json.bayplan").symlink_to(victim)
    replace_config(str(bundle), TEXT, OTHER)
    assert victim.read_text() == "untouched"
    assert not (bundle / "config.json").is_symlink()


def test_what_somebody_else_wrote_meanwhile_stays(bundle: Path) -> None:
    (bundle / "config.json").write_bytes(OTHER)
    with pytest.raises(OciError, match="was changed by somebody else meanwhile"):
        replace_config(str(bundle), TEXT, b"ours")
    assert read_config(str(bundle)) == OTHER


def test_a_full_disk_leaves_the_old_one(bundle: Path) -> None:
    """A directory in the place of the new file stands for whatever stops the writing of it."""
    (bundle / ".config.json.bayplan").mkdir()
    with pytest.raises(OciError, match="cannot be replaced"):
        replace_config(str(bundle), TEXT, OTHER)
    assert read_config(str(bundle)) == TEXT


def _link(bundle: Path) -> None:
    bundle.rename(bundle.with_name("real"))
    bundle.symlink_to("real")


def _file(bundle: Path) -> None:
    (bundle / "config.json").unlink()
    bundle.rmdir()
    bundle.write_text("")


def _config_link(bundle: Path) -> None:
    (bundle / "config.json").rename(bundle / "real.json")
    (bundle / "config.json").symlink_to("real.json")


def _config_directory(bundle: Path) -> None:
    (bundle / "config.json").unlink()
    (bundle / "config.json").mkdir()


def _device(bundle: Path) -> None:
    (bundle / "config.json").unlink()
    os.mkfifo(bundle / "config.json", 0o600)


def _large(bundle: Path) -> None:
    with (bundle / "config.json").open("wb") as file:
        file.truncate(MAX_BODY_BYTES + 1)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_link, "is not a bundle: it is a symbolic link"),
        (_file, "is not a bundle: Not a directory"),
        (_config_link, "config.json: cannot be read: a symbolic link"),
        (_config_directory, "config.json: cannot be read: a directory"),
        (_device, "config.json: cannot be read: a FIFO"),
        (_large, "config.json: cannot be read: "),
        (lambda bundle: (bundle / "config.json").chmod(0o602), "writable by others (mode 602)"),
        (lambda bundle: (bundle / "config.json").chmod(0o620), "writable by others (mode 620)"),
        (lambda bundle: (bundle / "config.json").unlink(), "config.json: cannot be read: No such file"),
    ],
)
def test_what_is_no_plain_bundle_is_neither_read_nor_replaced(
    bundle: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(bundle)
    for act in (lambda: read_config(str(bundle)), lambda: replace_config(str(bundle), TEXT, OTHER)):
        with pytest.raises(OciError) as caught:
            act()
        assert words in str(caught.value)


@pytest.mark.parametrize("path", ["", "b", "./b", "/a/../b", "/a/./b", "/a//b", "/a\0b", "/.."])
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(OciError, match="expected an absolute path"):
        read_config(path)


def test_bundles_lie_side_by_side(bundle: Path, tmp_path: Path) -> None:
    sandbox = tmp_path / "containers" / "s1" / "userdata"
    sandbox.mkdir(parents=True)
    (sandbox / "config.json").write_bytes(OTHER)
    (sandbox / "config.json").chmod(0o600)
    assert sibling_config(str(bundle), "s1", "c1") == OTHER
    assert sibling_config(str(bundle), "nobody", "c1") is None
    assert sibling_config(str(bundle), "../s1", "c1") is None
    assert sibling_config(str(bundle), "s1", "another") is None
    containerd = tmp_path / "containers" / "c2"
    containerd.mkdir()
    (tmp_path / "containers" / "s1" / "config.json").write_bytes(TEXT)
    (tmp_path / "containers" / "s1" / "config.json").chmod(0o600)
    assert sibling_config(str(containerd), "s1", "c2") == TEXT
