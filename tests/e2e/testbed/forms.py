"""The OCI hook, podman's precreate hook and the runtime wrapper in a guest: installed by the tree's own
installer, and handed to podman and containerd.

What is shipped is used as it is, but for two settings: how long is waited (emulated, everything takes
longer), and what an unreachable daemon means.
"""

import json
from pathlib import Path
from typing import Any

from testbed.containerd import Handler
from testbed.guest import Guest
from testbed.podman import Engine

PROJECT = Path(__file__).parents[3]
SHIPPED = ("hooks", "packaging")
SOURCE = "/run/bayplan-source"
HOOKS_DIR = "/usr/share/containers/oci/hooks.d"
PODMAN_HOOKS_DIR = "/usr/share/bayplan/podman-hooks.d"
LIBEXEC = "/usr/libexec/bayplan"
WRAPPER = f"{LIBEXEC}/bayplan-runtime"
WRAPPER_SETTINGS = "/etc/bayplan/oci-runtime.conf"
PATIENCE_S = 30
PROGRAMS = {"runc": "/usr/sbin/runc", "crun": "/usr/bin/crun"}
FORMS = ("hook", "precreate", "wrapper")


class Forms:
    """The three ways in beside NRI. `install` first; what it says holds for containers made from then on."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._timeout_s: float = PATIENCE_S
        self._on_failure = "allow"

    def install(self, *, timeout_s: float = PATIENCE_S, on_failure: str = "allow") -> None:
        """Install all three forms, which wait so long for the daemon and then do as told."""
        self._timeout_s, self._on_failure = timeout_s, on_failure
        if SOURCE not in self._installed_sources():
            for directory in SHIPPED:
                for file in sorted((PROJECT / directory).rglob("*")):
                    if file.is_file():
                        target = f"{SOURCE}/{file.relative_to(PROJECT)}"
                        self.guest.write(target, file.read_bytes(), mode=file.stat().st_mode & 0o777)
        self.guest.run(f"{SOURCE}/packaging/install-hooks", "hook", "podman-precreate", "podman-wrapper")
        definitions = self.guest.read_files(
            f"{HOOKS_DIR}/90-bayplan*.json", f"{PODMAN_HOOKS_DIR}/90-bayplan*.json", pattern=True
        )
        for path, text in definitions.items():
            definition = json.loads(text)
            self._adapt(definition["hook"])
            self.guest.write(f"{path}.tmp", json.dumps(definition))
            self.guest.run("mv", f"{path}.tmp", path)

    def engine(self, form: str, runtime: str = "runc", driver: str = "systemd") -> Engine:
        """How podman is told to use a form; the wrapper becomes that runtime from now on."""
        if form == "hook":
            return Engine(runtime, driver, HOOKS_DIR)
        if form == "precreate":
            return Engine(runtime, driver, PODMAN_HOOKS_DIR)
        self.wrap(runtime)
        return Engine(WRAPPER, driver)

    def handler(self, form: str, *, name: str, systemd_cgroup: bool = False) -> Handler:
        """A handler of containerd whose containers come by the form; the wrapper becomes runc."""
        if form == "wrapper":
            self.wrap("runc")
            return Handler(name, systemd_cgroup=systemd_cgroup, binary=WRAPPER)
        hooks = {
            stage: self._definition(f"{HOOKS_DIR}/{file}")["hook"]
            for stage, file in (
                ("createRuntime", "90-bayplan.json"),
                ("poststop", "90-bayplan-poststop.json"),
            )
        }
        return Handler(name, systemd_cgroup=systemd_cgroup, hooks=hooks)

    def complaints(self, words: str) -> int:
        """How often hook and wrapper have said these words in the system's log since the machine booted."""
        return len(self.said(words))

    def said(self, words: str) -> list[str]:
        """The lines with these words that hook and wrapper have written to the system's log since then."""
        # What was said a moment ago may still be on its way into the journal.
        self.guest.run("journalctl", "--sync")
        said = self.guest.run("journalctl", "--boot", "--identifier=bayplan", "--output=cat").stdout
        return [line for line in said.splitlines() if words in line]

    def wrap(self, runtime: str) -> None:
        """Let the wrapper become this runtime."""
        settings = {
            "runtime": PROGRAMS[runtime],
            "timeout": self._timeout_s,
            "on-failure": self._on_failure,
        }
        self.guest.write(WRAPPER_SETTINGS, "".join(f"{key} = {value}\n" for key, value in settings.items()))

    def _definition(self, path: str) -> dict[str, Any]:
        definition: dict[str, Any] = json.loads(self.guest.read(path))
        return definition

    def _installed_sources(self) -> str:
        return self.guest.run("sh", "-c", f"ls -d {SOURCE} 2>/dev/null", check=False).stdout

    def _adapt(self, hook: dict[str, Any]) -> None:
        args = hook["args"]
        args[args.index("--timeout") + 1] = str(self._timeout_s)
        if "--on-failure" in args:
            args[args.index("--on-failure") + 1] = self._on_failure
        hook["timeout"] = int(self._timeout_s) + PATIENCE_S
