"""Which kubelet a node runs: by the program of its process or of its unit, and by no other."""

import os
from pathlib import Path

import pytest

from bayplan.host.kubelet_program import flags_in, kubelet_flags, kubelet_of_node

SAYS = "#!/bin/sh\necho 'Kubernetes v1.36.3'\n"
UNIT = "etc/systemd/system/kubelet.service"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root's programs are started")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node without kubelet, on which only root may write."""
    for directory in ("proc/1/ns", "usr/bin", "etc/systemd/system"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "proc/1/ns/mnt").symlink_to("mnt:[1]")
    return tmp_path


def program(root: Path, path: str = "usr/bin/kubelet", text: str = SAYS, mode: int = 0o755) -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)
    return target


def process(root: Path, exe: Path, name: str = "kubelet", namespace: str = "mnt:[1]", pid: int = 42) -> Path:
    directory = root / f"proc/{pid}"
    (directory / "ns").mkdir(parents=True)
    (directory / "comm").write_text(f"{name}\n")
    (directory / "ns/mnt").symlink_to(namespace)
    (directory / "exe").symlink_to(exe)
    return directory


def unit(root: Path, text: str, path: str = UNIT) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"[Service]\n{text}\n")


def version(root: Path) -> str | None:
    found = kubelet_of_node(root, limit_s=5)
    return None if found is None else found.version


def test_a_node_without_kubelet(root: Path) -> None:
    assert kubelet_of_node(root) is None
    assert kubelet_of_node(root / "nowhere") is None


def test_the_program_of_the_process_comes_before_the_units(root: Path) -> None:
    program(root, text="#!/bin/sh\necho 'Kubernetes v1.37.2'\n")
    unit(root, "ExecStart=/usr/bin/kubelet $ARGS")
    assert version(root) == "v1.37.2"
    process(root, program(root, "opt/kubelet"))
    assert version(root) == "v1.36.3"
    found = kubelet_of_node(root)
    assert found is not None
    assert found.known_by == f"{root}/proc/42/exe --version"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Kubernetes v1.35.1-gke.1256000", "v1.35.1-gke.1256000"),
        ("Kubernetes v1.31.2-eks-94953ac", "v1.31.2-eks-94953ac"),
        ("Kubernetes v1.34.2+rke2r1", "v1.34.2+rke2r1"),
        ("k3s version v1.36.3+k3s1 (a562d090)", "v1.36.3+k3s1"),
        ("kubelet 5", None),
        ("", None),
    ],
)
def test_what_vendors_programs_say(root: Path, answer: str, expected: str | None) -> None:
    process(root, program(root, text=f"#!/bin/sh\necho '{answer}'\n"), "k3s-server")
    assert version(root) == expected


def test_a_process_of_a_container_is_not_asked(root: Path) -> None:
    process(root, program(root), namespace="mnt:[2]")
    assert version(root) is None


def test_without_the_right_to_see_the_nodes_namespace_our_own_counts(root: Path) -> None:
    process(root, program(root), namespace="mnt:[3]")
    (root / "proc/1/ns/mnt").unlink()
    assert version(root) is None
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/mnt").symlink_to("mnt:[3]")
    assert version(root) == "v1.36.3"


def test_a_process_of_another_user_is_not_asked(root: Path) -> None:
    os.chown(process(root, program(root)), 1000, 1000)
    assert version(root) is None


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o644])
def test_a_program_that_others_may_write_or_nobody_may_start(root: Path, mode: int) -> None:
    started = root / "started"
    process(root, program(root, text=f"#!/bin/sh\ntouch {started}\n{SAYS}", mode=mode))
    assert version(root) is None
    assert not started.exists()


def test_a_units_program_in_a_directory_of_others(root: Path) -> None:
    unit(root, "ExecStart=/srv/kubelet")
    program(root, "srv/kubelet")
    assert version(root) == "v1.36.3"
    (root / "srv").chmod(0o777)
    assert version(root) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ExecStart=-/usr/bin/kubelet --config=x", "v1.36.3"),
        ("ExecStart=/usr/bin/kubelet \\\n  --config=x", "v1.36.3"),
        ("ExecStart=/bin/sh -c 'exec /usr/bin/kubelet --v=2 2>&1'", "v1.36.3"),
        ("ExecStart=systemd-inhibit --what=shutdown /usr/bin/kubelet --root-dir /var/lib/kubelet", "v1.36.3"),
        ("ExecStart=/usr/bin/podman run --privileged image /usr/bin/kubelet", None),
        ("ExecStart=/opt/kubelet-wrapper --root-dir /var/lib/kubelet", None),
        ("ExecStart=kubelet", None),
        ("ExecStart=$KUBELET", None),
        ("ExecStart='/usr/bin/kubelet", None),
        ("ExecStart=", None),
        ("Description=none", None),
    ],
)
def test_what_a_unit_starts(root: Path, text: str, expected: str | None) -> None:
    program(root)
    (root / "var/lib/kubelet").mkdir(parents=True)
    unit(root, text)
    assert version(root) == expected


def test_a_drop_in_replaces_the_program(root: Path) -> None:
    program(root, text="#!/bin/sh\necho 'Kubernetes v1.37.2'\n")
    program(root, "opt/kubelet")
    unit(root, "ExecStart=/usr/bin/kubelet", "usr/lib/systemd/system/kubelet.service")
    unit(root, "ExecStart=\nExecStart=/opt/kubelet $KUBELET_KUBEADM_ARGS", f"{UNIT}.d/10-kubeadm.conf")
    assert version(root) == "v1.36.3"


@pytest.mark.parametrize("end", ["exit 1", "kill -9 $$"])
def test_a_program_that_fails(root: Path, end: str) -> None:
    process(root, program(root, text=f"{SAYS}{end}\n"))
    assert version(root) is None


def test_a_program_that_does_not_end_is_not_waited_for(root: Path) -> None:
    process(root, program(root, text="#!/bin/sh\nexec sleep 60\n"))
    assert kubelet_of_node(root, limit_s=0.2) is None


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        (
            "kubelet",
            ["--cloud-provider", "external", "--fail_swap_on=false", "-v", "2", "--enable-server", "--v=4"],
            {
                "cloud-provider": ["external"],
                "fail-swap-on": ["false"],
                "v": ["2", "4"],
                "enable-server": ["true"],
            },
        ),
        (
            "k3s-server",
            [
                "server",
                "--kubelet-arg",
                "kube-reserved=cpu=1",
                "--kubelet-arg=eviction-hard=memory.available<5%",
            ],
            {"kube-reserved": ["cpu=1"], "eviction-hard": ["memory.available<5%"]},
        ),
        ("kubelet", [], {}),
        (
            "kubelet",
            ["--node-labels=", "--oom-score-adj", "-999"],
            {"node-labels": [""], "oom-score-adj": ["-999"]},
        ),
    ],
)
def test_the_flags_of_a_kubelet_that_runs(
    root: Path, name: str, words: list[str], expected: dict[str, list[str]]
) -> None:
    directory = process(root, program(root), name)
    (directory / "cmdline").write_text("\0".join(["/usr/bin/" + name, *words, ""]))
    assert kubelet_flags(root) == expected


def test_no_flags_of_others(root: Path) -> None:
    assert kubelet_flags(root) == {}
    directory = process(root, program(root), namespace="mnt:[2]")
    (directory / "cmdline").write_text("kubelet\0--kube-reserved=cpu=1\0")
    assert kubelet_flags(root) == {}
    process(root, program(root), pid=43)  # which has ended since
    assert kubelet_flags(root) == {}


def test_words_that_are_no_flags() -> None:
    assert flags_in(["server", "a=b", "-", "--", ""]) == {}
