"""Builds everything that the virtual machines need into the cache, so that the tests find it there.

python tests/e2e/prepare.py [--count] [--done N] [--total N] run|e2e|cluster

What was built stays whatever happens: the next call goes on from there. `--count` builds nothing and prints
how many steps it would take; `--done` and `--total` are the steps of the set-up that this one is part of.
"""

import argparse
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import NamedTuple

from testbed import progress, shell
from testbed.acceleration import acceleration
from testbed.cache import cache_root, missing_steps
from testbed.containerd import DEFAULT_VERSIONS
from testbed.errors import MissingError, TestBedError
from testbed.gobuild import allocator, crio, helm, kubectl
from testbed.kubernetes import (
    KUBERNETES_VERSION,
    api_server,
    controller_manager,
    kube_scheduler,
    kubelet,
    scheduler,
)
from testbed.progress import Step
from testbed.supplies import disks, missing


class Purpose(NamedTuple):
    """The containerd versions, whether there is a machine with systemd too, and other programs."""

    versions: tuple[str, ...]
    systemd: bool = False
    programs: tuple[Callable[[], Path], ...] = ()


PURPOSES = {
    "run": Purpose(("2.1",)),
    "e2e": Purpose(DEFAULT_VERSIONS, systemd=True, programs=(crio,)),
    "cluster": Purpose(
        ("2.3",),
        programs=(
            api_server,
            controller_manager,
            kube_scheduler,
            scheduler,
            partial(kubelet, KUBERNETES_VERSION),
            helm,
            kubectl,
            allocator,
        ),
    ),
}
LOGS_KEPT = 20
# What is unpacked and copied meanwhile, and the compilers' own caches, beside what is kept.
SCRATCH_FACTOR = 2
SCRATCH_MB = 1000


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Builds what the virtual machines of the tests need.")
    parser.add_argument("purpose", choices=PURPOSES)
    parser.add_argument("--count", action="store_true", help="only print how many steps there are to take")
    parser.add_argument("--done", type=int, default=0, help="steps that were taken before")
    parser.add_argument("--total", type=int, default=0, help="steps of the whole set-up")
    arguments = parser.parse_args(argv)
    purpose = PURPOSES[arguments.purpose]
    steps = [*missing(*purpose.versions, systemd=purpose.systemd), *missing_steps(*purpose.programs)]
    if arguments.count:
        print(len(steps))
        return 0
    progress.interrupt_once()
    with progress.shown(arguments.done, max(arguments.total, arguments.done + len(steps))):
        try:
            _require_space(steps)
            _build(purpose)
        except TestBedError as error:
            problem = str(error)
        except KeyboardInterrupt:
            problem = "interrupted"
        else:
            return 0
    print(
        f"setup: {problem}\nsetup: run the same command again: it goes on where this one ended",
        file=sys.stderr,
    )
    return 130 if problem == "interrupted" else 1


def _build(purpose: Purpose) -> None:
    pool = ThreadPoolExecutor()
    try:
        parts: list[Future[object]] = [pool.submit(disks, *purpose.versions)]
        if purpose.systemd:
            parts.append(pool.submit(disks, systemd=True, with_bayplan=False))
        parts += [pool.submit(program) for program in purpose.programs]
        done, _ = wait(parts, return_when=FIRST_EXCEPTION)
        for part in done:
            part.result()
        acceleration()
    except BaseException:
        shell.end_all()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        _forget_logs()


def _require_space(steps: list[Step]) -> None:
    directory = cache_root()
    directory.mkdir(parents=True, exist_ok=True)
    free_mb = shutil.disk_usage(directory).free // 1_000_000
    needed_mb = SCRATCH_FACTOR * sum(step.size_mb for step in steps) + SCRATCH_MB
    if steps and free_mb < needed_mb:
        raise MissingError(
            f"{directory} has {free_mb} MB free, expected {needed_mb} MB for what is to be built: "
            "make room, or set BAYPLAN_CACHE to a directory elsewhere"
        )


def _forget_logs() -> None:
    logs = sorted((cache_root() / "logs").glob("*.log"), key=lambda log: log.stat().st_mtime)
    for log in logs[:-LOGS_KEPT]:
        log.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
