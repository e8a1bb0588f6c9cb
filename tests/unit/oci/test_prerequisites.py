"""What is missing on a node before the daemon is started there, and what to do about it."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from bayplan.oci.doctor import prerequisites


def serve(root: Path, path: str = "run/nri/nri.sock") -> socket.socket:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    # Below a long temporary directory the path may be too long for bind.
    directory = os.open(target.parent, os.O_RDONLY)
    serving = socket.socket(socket.AF_UNIX)
    serving.bind(f"/proc/self/fd/{directory}/{target.name}")
    os.close(directory)
    return serving


def configure(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def advice(said: dict[str, Any]) -> str:
    """Of the only finding."""
    assert (said["health"], len(said["findings"])) == ("error", 1)
    return str(said["findings"][0]["advice"])


def test_a_runtime_that_serves_nri_is_all_that_is_needed(tmp_path: Path) -> None:
    configure(tmp_path, "etc/containerd/config.toml", "version = 3\n")
    with serve(tmp_path):
        said = prerequisites(tmp_path)
    assert (said["health"], said["findings"]) == ("ok", [])
    assert [(one["name"], one["nri"]) for one in said["engines"]] == [("containerd", "on")]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("etc/containerd/config.toml", "version = 2\n", "90-bayplan.toml, and restart containerd"),
        ("etc/containerd/config.toml", "version = 3\n", "restart it, and see its log"),
        ("etc/crio/crio.conf", "[crio.nri]\nenable_nri = false\n", "enable_nri = true in [crio.nri]"),
        ("var/lib/rancher/k3s/agent/etc/containerd/config.toml", "version = 2\n", "config.toml.tmpl"),
    ],
)
def test_each_runtime_without_nri_has_its_own_advice(
    tmp_path: Path, path: str, text: str, expected: str
) -> None:
    configure(tmp_path, path, text)
    assert expected in advice(prerequisites(tmp_path))
    assert (tmp_path / path).read_text() == text


def test_a_file_in_the_socket_s_place_serves_nothing(tmp_path: Path) -> None:
    configure(tmp_path, "run/nri/nri.sock", "")
    assert "needs one of them, with NRI switched on" in advice(prerequisites(tmp_path))


def test_a_socket_elsewhere_is_looked_for_there(tmp_path: Path) -> None:
    configure(tmp_path, "etc/containerd/config.toml", "version = 3\n")
    elsewhere = Path("/run/other/nri.sock")
    with serve(tmp_path):
        said = prerequisites(tmp_path, elsewhere)
    assert "serves no /run/other/nri.sock, so" in said["findings"][0]["text"]
    with serve(tmp_path, "run/other/nri.sock"):
        assert prerequisites(tmp_path, elsewhere)["health"] == "ok"


def test_engines_without_nri_are_not_enough(tmp_path: Path) -> None:
    configure(tmp_path, "etc/docker/daemon.json", "{}")
    assert "needs one of them" in advice(prerequisites(tmp_path))


def test_what_is_wrong_with_cgroups_and_kubelet_is_said_too(tmp_path: Path) -> None:
    configure(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    configure(tmp_path, "var/lib/kubelet/config.yaml", "memoryManagerPolicy: Static\n")
    with serve(tmp_path, "var/run/nri/nri.sock"):
        said = prerequisites(tmp_path)
    assert [(one["level"], one["subject"]) for one in said["findings"]] == [
        ("error", "/sys/fs/cgroup"),
        ("warning", "/var/lib/kubelet/config.yaml"),
    ]
