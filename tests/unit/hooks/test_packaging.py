"""Hook definitions, drop-ins and the installer: what lands on a node, and that it fits together."""

import ctypes
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bayplan.oci.container_engines import read_container_engines
from bayplan.oci.doctor import DaemonState, Examination, parse_wrapper_settings
from support.oci_daemon import OciDaemon

if TYPE_CHECKING:
    from conftest import Installation

REPOSITORY = Path(__file__).parents[3]
INSTALLER = REPOSITORY / "packaging" / "install-hooks"
DEFINITIONS = sorted((REPOSITORY / "hooks").glob("*.d/*.json"))
FORMS = ("hook", "podman-precreate", "podman-wrapper", "crio-wrapper")

# The 1.0.0 schema of oci-hooks(5), and of a hook in the runtime specification's config.
TOP = {"version", "hook", "when", "stages"}
HOOK_KEYS = {"path": str, "args": list, "env": list, "timeout": int}
CONDITIONS = {"always": bool, "annotations": dict, "commands": list, "hasBindMounts": bool}
STAGES = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}


def problems_of(definition: Any, extension_stages: frozenset[str]) -> list[str]:
    """What oci-hooks readers would not take, or would silently never run."""
    problems = []
    if set(definition) != TOP:
        problems.append(f"keys {sorted(definition)}")
    if definition.get("version") != "1.0.0":
        problems.append("version")
    hook, when, stages = (definition.get(name) for name in ("hook", "when", "stages"))
    if not isinstance(hook, dict) or any(type(hook[key]) is not HOOK_KEYS.get(key) for key in hook):
        problems.append("hook")
    else:
        if not str(hook.get("path", "")).startswith("/"):
            problems.append("hook.path is not absolute")
        if "args" in hook and not (hook["args"] and all(isinstance(one, str) for one in hook["args"])):
            problems.append("hook.args lacks the name of the program")
        if hook.get("timeout", 0) <= 0:
            problems.append("hook.timeout")
    if not isinstance(when, dict) or any(type(when[key]) is not CONDITIONS.get(key) for key in when):
        problems.append("when")
    elif not when:
        problems.append("an empty when never matches")
    else:
        patterns = [
            *when.get("annotations", {}),
            *when.get("annotations", {}).values(),
            *when.get("commands", []),
        ]
        problems += [f"pattern {one}" for one in patterns if not _is_pattern(one)]
    if not isinstance(stages, list) or not stages or not set(stages) <= STAGES | extension_stages:
        problems.append("stages")
    return problems


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


GOOD = {
    "version": "1.0.0",
    "hook": {"path": "/x", "args": ["x"], "timeout": 1},
    "when": {"always": True},
    "stages": ["poststop"],
}


@pytest.mark.parametrize(
    "change",
    [
        {"version": "0.1.0"},
        {"hook": {"path": "x", "timeout": 1}},
        {"hook": {"path": "/x", "timeout": "1"}},
        {"hook": {"path": "/x", "args": [], "timeout": 1}},
        {"hook": {"path": "/x"}},
        {"hook": {"path": "/x", "timeout": 1, "arguments": []}},
        {"when": {}},
        {"when": {"annotations": {"[": "a"}}},
        {"stages": []},
        {"stages": ["precreate"]},
        {"more": 1},
    ],
)
def test_the_check_of_definitions_finds_what_is_wrong(change: dict[str, Any]) -> None:
    assert problems_of(GOOD, frozenset()) == []
    assert problems_of(GOOD | change, frozenset()) != []


def test_there_are_definitions_for_all_stages() -> None:
    found = {(path.parent.name, path.name): json.loads(path.read_text())["stages"] for path in DEFINITIONS}
    assert found == {
        ("hooks.d", "90-bayplan.json"): ["createRuntime"],
        ("hooks.d", "90-bayplan-poststop.json"): ["poststop"],
        ("podman-hooks.d", "90-bayplan.json"): ["precreate"],
        ("podman-hooks.d", "90-bayplan-poststop.json"): ["poststop"],
    }


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_definitions_are_valid_and_the_hook_understands_them(
    path: Path, installed: "Installation", daemon: OciDaemon
) -> None:
    definition = json.loads(path.read_text())
    extensions = frozenset({"precreate"}) if path.parent.name == "podman-hooks.d" else frozenset[str]()
    assert problems_of(definition, extensions) == []
    hook = definition["hook"]
    assert hook["path"] == "/usr/libexec/bayplan/oci-hook"
    assert Path(hook["path"]).name == hook["args"][0]
    timeout_s = float(hook["args"][hook["args"].index("--timeout") + 1])
    # In a throttled cgroup the interpreter takes 2 s to start; the runtime must not kill the hook meanwhile.
    assert hook["timeout"] >= timeout_s + 10
    assert hook["args"][-1] == definition["stages"][0]
    assert installed.run_hook("--timeout", "60", *hook["args"][3:]).returncode == 0
    assert [question.verb for question in daemon.questions] == definition["stages"]


def install(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    argv = [INSTALLER, "--root", root, *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True)


def tree(root: Path) -> dict[str, int]:
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in files}


PROGRAMS = {
    "usr/libexec/bayplan/oci-hook": 0o755,
    "usr/libexec/bayplan/oci_hook.py": 0o644,
    "usr/libexec/bayplan/bayplan-runtime": 0o755,
}
EXPECTED = {
    "hook": {
        "usr/share/containers/oci/hooks.d/90-bayplan.json": 0o644,
        "usr/share/containers/oci/hooks.d/90-bayplan-poststop.json": 0o644,
    },
    "podman-precreate": {
        "usr/share/bayplan/podman-hooks.d/90-bayplan.json": 0o644,
        "usr/share/bayplan/podman-hooks.d/90-bayplan-poststop.json": 0o644,
        "etc/containers/containers.conf.d/90-bayplan-precreate.conf": 0o644,
    },
    "podman-wrapper": {
        "etc/containers/containers.conf.d/90-bayplan-wrapper.conf": 0o644,
        "etc/bayplan/oci-runtime.conf": 0o644,
    },
    "crio-wrapper": {
        "etc/crio/crio.conf.d/90-bayplan-wrapper.conf": 0o644,
        "etc/bayplan/oci-runtime.conf": 0o644,
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_installed_again_and_removed(tmp_path: Path, form: str) -> None:
    old = os.umask(0o077)
    try:
        for _ in range(2):
            finished = install(tmp_path, form)
            assert tree(tmp_path) == PROGRAMS | EXPECTED[form]
            assert len(list(tmp_path.rglob("usr/libexec/bayplan/__pycache__/oci_hook.*.pyc"))) == 1
    finally:
        os.umask(old)
    removed = install(tmp_path, "--remove", form)
    for said in (finished.stderr, removed.stderr):
        assert (form == "crio-wrapper") == ("drain the node and restart CRI-O" in said)
    # Other forms may still need the programs, and settings belong to the operator.
    assert set(tree(tmp_path)) - {"etc/bayplan/oci-runtime.conf"} == set(PROGRAMS)


def test_the_operators_settings_are_never_replaced(tmp_path: Path) -> None:
    settings = tmp_path / "etc/bayplan/oci-runtime.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text("runtime = /opt/runc\n")
    install(tmp_path, "crio-wrapper", "podman-wrapper")
    assert settings.read_text() == "runtime = /opt/runc\n"


def test_wrong_words_install_nothing(tmp_path: Path) -> None:
    for words in ((), ("hook", "dance")):
        finished = subprocess.run(
            [INSTALLER, "--root", tmp_path, *words], capture_output=True, text=True, check=False
        )
        assert finished.returncode == 2
        assert "expected" in finished.stderr
    assert tree(tmp_path) == {}


IN_CREATE, IN_MOVED_TO, IN_MODIFY = 0x100, 0x80, 0x2


def test_removal_gives_containers_back_once_the_daemon_is_stopped(tmp_path: Path) -> None:
    """The programs that it calls only write down their words."""
    programs, said = tmp_path / "bin", tmp_path / "said"
    programs.mkdir()
    for name in ("systemctl", "bayplan", "rm"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{said}\n')
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    subprocess.run([INSTALLER.with_name("remove")], env={"PATH": path}, capture_output=True, check=True)
    calls = said.read_text().splitlines()
    assert calls[:5] == [
        "systemctl cat bayplan-agent.service",
        "systemctl disable --now bayplan-agent.service",
        "systemctl cat bayplan.service",
        "systemctl disable --now bayplan.service",
        "bayplan release --yes",
    ]
    assert calls[5] == "rm -f /usr/share/containers/oci/hooks.d/90-bayplan.json"


def test_definitions_appear_whole(tmp_path: Path) -> None:
    """CRI-O reads the directory at every event in it: a definition that is half written is an error."""
    directory = tmp_path / "usr/share/containers/oci/hooks.d"
    directory.mkdir(parents=True)
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert libc.inotify_add_watch(watch, os.fsencode(directory), IN_CREATE | IN_MOVED_TO | IN_MODIFY) >= 0
    install(tmp_path, "hook")
    install(tmp_path, "hook")
    events = os.read(watch, 1 << 16)
    os.close(watch)
    seen: dict[str, set[int]] = {}
    while events:
        _, mask, _, length = struct.unpack_from("iIII", events)
        name = events[16 : 16 + length].rstrip(b"\0").decode()
        seen.setdefault(name, set()).add(mask)
        events = events[16 + length :]
    assert {name: masks for name, masks in seen.items() if name.endswith(".json")} == {
        "90-bayplan.json": {IN_MOVED_TO},
        "90-bayplan-poststop.json": {IN_MOVED_TO},
    }


@pytest.mark.parametrize(
    ("forms", "active"),
    [
        (("hook",), {"CRI-O": ("hook",), "podman": ("hook",)}),
        (("hook", "podman-precreate"), {"CRI-O": ("hook",), "podman": ("precreate",)}),
        (("crio-wrapper",), {"CRI-O": ("wrapper",), "podman": ()}),
        (("crio-wrapper", "podman-wrapper"), {"CRI-O": ("wrapper",), "podman": ("wrapper",)}),
        (("podman-precreate",), {"CRI-O": (), "podman": ("precreate",)}),
    ],
)
def test_the_doctor_finds_what_was_installed_and_nothing_wrong_with_it(
    tmp_path: Path, forms: tuple[str, ...], active: dict[str, tuple[str, ...]]
) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/podman").touch()
    (tmp_path / "usr/bin/crio").touch()
    (tmp_path / "usr/bin/python3").symlink_to("/usr/bin/python3")
    install(tmp_path, *forms)
    examination = Examination(tmp_path, DaemonState())
    assert {one.engine: one.active for one in examination.forms} == active
    # A file system without a daemon has no socket.
    assert {finding.subject for finding in examination.findings} == {"/run/bayplan/oci.sock"}


def test_drop_ins_name_what_is_installed(tmp_path: Path) -> None:
    install(tmp_path, *FORMS)
    (tmp_path / "etc/docker").mkdir()
    shutil.copy(REPOSITORY / "packaging/docker/daemon.json", tmp_path / "etc/docker")
    wrapper = "/usr/libexec/bayplan/bayplan-runtime"
    for engine in read_container_engines(tmp_path):
        assert engine.problems == ()
        assert engine.runtimes[engine.default] == wrapper
    hook = tomllib.loads((REPOSITORY / "packaging/crio/90-bayplan-hook.conf").read_text())
    assert hook["crio"]["runtime"]["hooks_dir"] == ["/usr/share/containers/oci/hooks.d"]
    crio = tomllib.loads((REPOSITORY / "packaging/crio/90-bayplan-wrapper.conf").read_text())
    # systemd removes /run/bayplan whenever the daemon stops.
    assert not crio["crio"]["runtime"]["runtimes"]["bayplan"]["runtime_root"].startswith("/run/bayplan/")
    settings = parse_wrapper_settings((REPOSITORY / "packaging/oci/oci-runtime.conf").read_text())
    assert (settings.values, settings.problems) == ({}, ())


def test_the_settings_file_shows_the_defaults() -> None:
    lines = (REPOSITORY / "packaging/oci/oci-runtime.conf").read_text().splitlines()
    shown = parse_wrapper_settings("\n".join(line.removeprefix("# ") for line in lines if " = " in line))
    assert shown.problems == ()
    assert set(shown.values) == {"runtime", "socket", "timeout", "on-failure"}
    source = (REPOSITORY / "hooks/oci_hook.py").read_text()
    for name in ("socket", "timeout", "on-failure"):
        assert f'"{name}": "{shown.values[name]}"' in source


def test_the_wheel_brings_all_of_it() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    for source, target in shared.items():
        assert (REPOSITORY / source).exists()
        # The installer finds its files by where they are in this tree, shells and man in their own places.
        of_the_command = source.startswith(("docs/man/", "packaging/completions/"))
        assert target.startswith("share/")
        assert of_the_command or target == f"share/bayplan/{source}"
    needed = re.findall(r"put \d+ (\S+)", INSTALLER.read_text())
    assert len(needed) > 4
    for source in needed:
        assert any(source == one or source.startswith(f"{one}/") for one in shared), source


def test_help_says_what_the_forms_are() -> None:
    shown = subprocess.run(["sh", INSTALLER, "--help"], capture_output=True, text=True, check=True)
    assert all(form in shown.stdout for form in FORMS)
    assert shown.stderr == ""


def test_crio_is_to_restart_only_where_something_of_it_changed(tmp_path: Path) -> None:
    def said(*words: str) -> str:
        command = ["sh", INSTALLER, "--root", str(tmp_path), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert "CRI-O" not in said("--remove", *FORMS)
    assert "restart crio" in said("crio-wrapper")
    assert "restart crio" in said("--remove", *FORMS)
    assert said("--remove", *FORMS) == ""
