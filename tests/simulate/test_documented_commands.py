"""Every command that a page shows is run: here, on a node (tests/e2e/test_documented_commands.py), or by the
test that the page names. ``make`` is only asked what it would do.
"""

import asyncio
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.cli.bayplan import EXIT_STATUSES
from support.console_blocks import FILE, NODE, PAGES, PROJECT, Fenced, commands, fenced
from support.coroutines import PATIENCE_S
from support.flavors import CONTAINERD_2_1
from support.runtime import FakeRuntime
from support.workloads import GUARANTEED, make_container, make_pod

BLOCKS = tuple(block for page in PAGES for block in fenced(page))
PROGRAMS = "bayplan|baypland|bayplan-agent|make|systemctl|journalctl|apt|python|helm|kubectl"
COMMAND = re.compile(rf"^(?: {{4}}|\$ )(?:\$ )?(?:sudo )?({PROGRAMS}) [a-z-]")
POD = """\
kind: Pod
metadata: {name: web}
spec: {containers: [{name: main, image: web, resources: {limits: {memory: 64Mi, cpu: 1}}}]}
"""


class Site:
    """A directory in which commands find the daemon, which a runtime with the pod ``web`` asks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._programs = directory / "bin"
        self._sockets = {name: directory / f"{name}.sock" for name in ("nri", "admin", "oci", "agent")}

    def begin(self) -> None:
        self._programs.mkdir()
        environment = Path(sys.prefix, "bin")
        for name, more in (
            ("bayplan", f"--admin-socket {self._sockets['admin']}"),
            ("baypland", "--check-config"),
        ):
            self._program(name, f'exec {environment / name} {more} "$@"')
        self._program("python", f'cd {PROJECT} && exec {sys.executable} "$@"')
        self._program("make", f'exec /usr/bin/make --no-print-directory -n -C {PROJECT} "$@"')
        self._thread.start()
        self._run(self._begin())
        flags = [f"--{name}-socket={path}" for name, path in self._sockets.items()]
        self._daemon = subprocess.Popen(
            [environment / "baypland", *flags, f"--state-dir={self.directory}/state", "--memory-pressure=off"]
        )
        self._run(self._create_web())

    def end(self) -> None:
        self._daemon.terminate()
        assert self._daemon.wait(PATIENCE_S) == 0
        self._run(self._runtime.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        """What a reader would get who types *command* in this directory."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env={"PATH": f"{self._programs}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def _program(self, name: str, script: str) -> None:
        path = self._programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _begin(self) -> None:
        self._runtime = FakeRuntime(CONTAINERD_2_1)
        await self._runtime.listen(self._sockets["nri"])

    async def _create_web(self) -> None:
        await self._runtime.synchronized()
        pod = make_pod("web", qos=GUARANTEED)
        await self._runtime.run_pod(pod)
        container = make_container(pod, memory_limit_bytes=64 << 20, cpu_shares=102, cpu_quota_us=10_000)
        await self._runtime.create_container(pod, container)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    site.begin()
    yield site
    site.end()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_runs_anywhere_runs_here(page: Path, site: Site) -> None:
    (site.directory / "pod.yaml").write_text(POD)
    blocks = fenced(page)
    for block in blocks:
        if block.word == FILE:
            (site.directory / block.said).write_text(block.text)
    failed = []
    for command in (command for block in blocks if block.word == "" for command in block.commands):
        finished = site.run(command)
        # The doctor's word about this machine is its own matter.
        allowed = EXIT_STATUSES if command.split()[:2] == ["bayplan", "doctor"] else {0}
        if finished.returncode not in allowed:
            failed.append(f"$ {command}\n{finished.stdout}")
    assert failed == []


def test_no_command_is_shown_that_nothing_runs() -> None:
    """Commands are in fenced blocks of the language console, and every word above these is known."""
    loose = [
        f"{page.name}: {line}"
        for page in PAGES
        for line in re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
        if COMMAND.match(line)
    ]
    assert loose == []
    for block in BLOCKS:
        assert block.language, f"{block.page.name}: a fenced block without a language"
        if block.language == "console":
            assert block.commands, f"{block.page.name}: no command in\n{block.text}"
            assert block.word in {"", NODE} or _other_test(block), f"{block.page.name}: {block.word}"
        if block.word:
            assert block.said, f"{block.page.name}: {block.word} without a reason"


def _other_test(block: Fenced) -> bool:
    path = PROJECT / block.word.removeprefix("run by ")
    return block.word.startswith("run by ") and f'commands("{block.word}")' in path.read_text()


def test_what_needs_a_node_is_run_on_one() -> None:
    assert commands(NODE)
    assert "commands(NODE)" in (PROJECT / "tests/e2e/test_documented_commands.py").read_text()


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "toml"], ids=lambda b: b.page.stem
)
def test_configuration_that_is_shown_can_be_read(block: Fenced) -> None:
    tomllib.loads(block.text.replace('{{ template "base" . }}', ""))


def test_every_link_between_pages_leads_somewhere() -> None:
    def anchors(page: Path) -> set[str]:
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
        return {heading.replace(" ", "-") for heading in plain}

    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            name, _, anchor = target.partition("#")
            if "://" in target:
                continue
            path = (page.parent / name).resolve() if name else page
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append(f"{page.name}: {target}")
    assert broken == []
