"""How the memory of a pod with pod-level resources is shared out among its containers.

Containers that are Guaranteed by themselves get what they request. All others share: regular init containers,
which run alone, what the sidecars started so far leave of the pod's memory; the rest what all sidecars and
containers leave.
"""

from collections.abc import Mapping

from bayplan.engines.kubelet.memory.errors import EmptyPodSharedPoolError
from bayplan.engines.kubelet.memory.requests import Wanted, container_wants
from bayplan.kubelet.pod import FeatureGates, PodSpec


def check_shared_pool(pod: PodSpec, wanted: Wanted, gates: FeatureGates) -> None:
    """Make sure that *wanted*, the pod's memory, leaves something for the containers that share.

    Raises:
        EmptyPodSharedPoolError: it does not.
    """
    who = pod.name or pod.uid
    running: dict[str, int] = {}
    sharing = False
    for init in pod.init_containers:
        own = container_wants(pod, init, gates)
        if init.restartable:
            sharing = sharing or not own
            _take(running, own)
            continue
        for name, total in wanted.items():
            if not own and running.get(name, 0) >= total:
                problem = f"pod has shared init containers but no {name} available for them"
                raise EmptyPodSharedPoolError(who, problem)
    for container in pod.containers:
        own = container_wants(pod, container, gates)
        sharing = sharing or not own
        _take(running, own)
    for name, total in wanted.items():
        if sharing and running.get(name, 0) >= total:
            problem = (
                f"sum of exclusive container {name} requests equals pod budget, "
                "leaving no memory for shared containers"
            )
            raise EmptyPodSharedPoolError(who, problem)


def shared_out(pod: PodSpec, wanted: Wanted, gates: FeatureGates) -> Mapping[str, Wanted]:
    """What each container of the pod may use, by container name; amounts of zero are left out."""
    sizes: dict[str, Wanted] = {}
    running: dict[str, int] = {}
    sharing: list[str] = []
    for init in pod.init_containers:
        own = container_wants(pod, init, gates)
        if init.restartable and not own:
            sharing.append(init.name)
        else:
            sizes[init.name] = _positive(own or _left(wanted, running))
        if init.restartable:
            _take(running, own)
    for container in pod.containers:
        own = container_wants(pod, container, gates)
        if own:
            sizes[container.name] = _positive(own)
            _take(running, own)
        else:
            sharing.append(container.name)
    rest = _positive(_left(wanted, running))
    sizes.update(dict.fromkeys(sharing, rest))
    return {each.name: sizes[each.name] for each in pod.all_containers}


def _take(running: dict[str, int], sizes: Wanted) -> None:
    for name, size in sizes.items():
        running[name] = running.get(name, 0) + size


def _left(wanted: Wanted, taken: Wanted) -> Wanted:
    return {name: size - taken.get(name, 0) for name, size in wanted.items()}


def _positive(sizes: Wanted) -> Wanted:
    return {name: size for name, size in sizes.items() if size > 0}
