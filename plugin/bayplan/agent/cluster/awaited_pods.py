"""Pods that are bound to this node and hold no promise yet, since their containers are still to be created.

A scheduler that compares fingerprints counts what it has placed itself until the publisher knows the same
pods. It compares with running pods only: were these not in the fingerprint, it would stop counting a pod
between its binding and its creation, and give its room to another one.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

LIMIT_S: Final = 60.0
"""Then a pod is counted no more: one that never starts would keep the scheduler from comparing at all."""

PodName = tuple[str, str]
"""Namespace and name."""


class AwaitedPods:
    """``names`` are those of now, each for *limit_s* at most."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.names: frozenset[PodName] = frozenset()
        self._limit_s = limit_s
        self._pending: dict[str, PodName | None] = {}
        """By uid; None after the limit."""
        self._news = asyncio.Event()

    def keep(self, pending: Mapping[str, PodName]) -> None:
        """All pods of the node that are pending, by uid."""
        for uid in pending.keys() - self._pending.keys():
            asyncio.get_running_loop().call_later(self._limit_s, self._give_up, uid)
        self._pending = {uid: self._pending.get(uid, name) for uid, name in pending.items()}
        self._look()

    async def wait_for_change(self, seen: frozenset[PodName]) -> None:
        """Wait until ``names`` are not *seen*."""
        while self.names == seen:
            await self._news.wait()

    def _give_up(self, uid: str) -> None:
        if uid in self._pending:
            self._pending[uid] = None
            self._look()

    def _look(self) -> None:
        names = frozenset(name for name in self._pending.values() if name is not None)
        if names != self.names:
            self.names = names
            self._news.set()
            self._news = asyncio.Event()
