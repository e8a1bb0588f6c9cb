"""Where the devices of a container are, found while the runtime waits, for at most the deadline.

Blocking looks run in a thread; interfaces of a pod are looked up when its sandbox starts, once. Whatever
fails or takes too long is a problem in the findings and gives no hint: no container is refused for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from bayplan.control.threads import InThread
from bayplan.engines.device_hints import NOTHING_FOUND, Findings, has_devices
from bayplan.errors import HostError
from bayplan.host.devices import HostDevices
from bayplan.host.netlink import Interface, interfaces_in
from bayplan.model.claims import CDI_KIND, ClaimedDevice
from bayplan.model.decision import DeviceHint
from bayplan.model.workload import Container, Pod

logger = logging.getLogger(__name__)

INTERFACES: Final = "net"
"""The kind of interfaces, and before a slash the first part of their names, as in /sys/class."""
MOST_CLAIMING: Final = 4096
"""Pods with claims of devices that are remembered: a node has some hundreds."""


class DeviceSearch:
    """Looks for the devices of containers and pods; *in_thread* runs what blocks."""

    def __init__(
        self,
        devices: HostDevices,
        in_thread: InThread,
        deadline_s: float,
        interfaces: Callable[[str], Awaitable[tuple[Interface, ...]]] = interfaces_in,
    ) -> None:
        self.deadline_s = deadline_s
        self._devices = devices
        self._in_thread = in_thread
        self._interfaces = interfaces
        self._pods: dict[str, asyncio.Task[Findings]] = {}
        self._claimed: dict[str, Mapping[str, tuple[ClaimedDevice, ...]]] = {}
        """By the pod's uid and the container's name; the pod that was last heard of is the last one."""
        self._heard = asyncio.Event()

    async def prepare(self) -> None:
        """Do now what the first container would have to wait for."""
        try:
            await self._in_thread(self._devices.prepare)
        except HostError as error:
            logger.warning("the CDI specs cannot be read", extra={"problem": str(error)})

    def pod_started(self, pod: Pod) -> None:
        """Begin to look at a pod's interfaces, so that its containers need not wait for that."""
        if pod.network_namespace and pod.id not in self._pods:
            self._pods[pod.id] = asyncio.get_running_loop().create_task(self._of_pod(pod))

    def pod_gone(self, pod_id: str) -> None:
        """Forget a pod."""
        task = self._pods.pop(pod_id, None)
        if task is not None:
            task.cancel()

    def keep(self, pod_ids: Collection[str]) -> None:
        """Forget all other pods."""
        for pod_id in [known for known in self._pods if known not in pod_ids]:
            self.pod_gone(pod_id)

    def know_claimed(self, uid: str, devices: Mapping[str, tuple[ClaimedDevice, ...]]) -> None:
        """What the containers of a pod have, by their names, through claims that other drivers serve."""
        self._claimed.pop(uid, None)
        self._claimed[uid] = devices
        if len(self._claimed) > MOST_CLAIMING:
            del self._claimed[next(iter(self._claimed))]
        self._heard.set()

    def may_have(self, pod: Pod, container: Container) -> bool:
        """Whether there is anything to be looked for."""
        return bool(pod.network_namespace or pod.uid in self._claimed) or has_devices(container)

    async def find(self, pod: Pod, container: Container) -> Findings:
        """What the devices of *container* and the interfaces of its pod say; by the deadline. What its claims
        of other drivers' devices say is mostly known by then; it is waited for where a CDI device led to no
        node."""
        looks: dict[str, asyncio.Task[Findings]] = {}
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.deadline_s
        if has_devices(container):
            looks["the container's devices"] = loop.create_task(self._of_container(container))
        if pod.network_namespace:
            self.pod_started(pod)
            looks["the pod's interfaces"] = self._pods[pod.id]
        if looks:
            await asyncio.wait(looks.values(), timeout=self.deadline_s)
        found = [
            one.result() if one.done() and not one.cancelled() else self._late(what)
            for what, one in looks.items()
        ]
        hints = [hint for one in found for hint in one.hints]
        problems = [problem for one in found for problem in one.problems]
        if pod.uid not in self._claimed and self._claimed and _leads_nowhere(container, hints):
            await self._hear_of(pod.uid, until_s)
        if claimed := self._claimed.get(pod.uid, {}).get(container.name):
            more = await _logged(container.id, self._in_thread(partial(self._devices.claimed, claimed)))
            hints += [one for one in more.hints if not any(_is_same(one, other) for other in hints)]
            problems += more.problems
        return Findings(tuple(hints), tuple(problems)) if hints or problems else NOTHING_FOUND

    async def _hear_of(self, uid: str, until_s: float) -> None:
        """Wait until it is known what the pod *uid* has claimed, at most until the moment *until_s*."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                while uid not in self._claimed:
                    self._heard.clear()
                    await self._heard.wait()

    def _late(self, what: str) -> Findings:
        problem = f"{what} were not found within {self.deadline_s * 1000:g} ms"
        logger.warning("no device hint", extra={"problem": problem})
        return Findings(problems=(problem,))

    async def _of_container(self, container: Container) -> Findings:
        return await _logged(container.id, self._in_thread(partial(self._devices.find, container)))

    async def _of_pod(self, pod: Pod) -> Findings:
        return await _logged(pod.id, self._of_interfaces(pod.network_namespace))

    async def _of_interfaces(self, namespace: str) -> Findings:
        interfaces = await self._interfaces(namespace)
        return await self._in_thread(partial(self._parents, interfaces)) if interfaces else NOTHING_FOUND

    def _parents(self, interfaces: tuple[Interface, ...]) -> Findings:
        hints = (
            self._devices.hint_of_parent(f"{INTERFACES}/{one.name}", INTERFACES, one.bus, one.device)
            for one in interfaces
        )
        return Findings(tuple(hint for hint in hints if hint is not None))


def _leads_nowhere(container: Container, hints: Collection[DeviceHint]) -> bool:
    """Whether a CDI device of *container* is in none of *hints*, and is not one of ours."""
    named = {hint.device for hint in hints}
    return any(not one.startswith(f"{CDI_KIND}=") and one not in named for one in container.cdi_devices)


def _is_same(claimed: DeviceHint, found: DeviceHint) -> bool:
    """Whether a device that was *claimed* was *found* by the spec as well: by its PCI address, or, where that
    is not known, on the same nodes through a CDI device of its driver."""
    if len(claimed.names) > 1:
        return not set(claimed.names).isdisjoint(found.names)
    return claimed.nodes == found.nodes and claimed.kind in found.kind.partition("/")[0]


async def _logged(owner: str, look: Awaitable[Findings]) -> Findings:
    """The findings of *look*, with their problems in the log; if it fails, findings with that problem."""
    try:
        findings = await look
    except HostError as error:
        findings = Findings(problems=(str(error),))
    except Exception as error:
        # Placing containers does not depend on it.
        logger.exception("the devices could not be looked at", extra={"owner": owner})
        return Findings(problems=(f"the devices could not be looked at: {error!r}",))
    for problem in findings.problems:
        logger.warning("no device hint", extra={"owner": owner, "problem": problem})
    return findings
