"""What is known of containers is forgotten with them."""

from bayplan.control.known_containers import KnownContainers
from bayplan.model.decision import QosClass
from support.machines import container, pod

POD = pod("p", QosClass.BURSTABLE)


def test_a_pod_is_known_until_its_last_container_is_gone() -> None:
    known = KnownContainers()
    for name in ("a", "b", "a"):
        known.add(POD, container(name, POD))
    known.forget("a")
    known.forget("a")
    assert (set(known.pods), set(known.containers)) == ({POD.id}, {"b"})
    known.forget("b")
    assert known == KnownContainers()
