"""What containers really get: pods made with crictl, checked in the kernel, on each containerd."""

import time
from dataclasses import replace

import pytest
from testbed.channel import LIMIT_S
from testbed.errors import CommandError
from testbed.node import Node
from testbed.pods import MIB, Container, Pod, best_effort, burstable, guaranteed
from testbed.scenario import on
from testbed.topology import FAR_MEMORY, FOUR_NODES, TWO_NODES


@on(FOUR_NODES)
def test_one_guaranteed_pod_per_node_until_full_then_a_refusal_then_reuse(node: Node) -> None:
    node.bayplan.start("--topology-manager-policy", "restricted")
    node.bayplan.await_synchronized()
    pods = [node.launch(guaranteed(f"full-{i}", 0.5, "600Mi").touching("300Mi")) for i in range(4)]
    for i, pod in enumerate(pods):
        node.crictl.await_log(pod, "touched")
        view = node.view(pod)
        assert view.mems_allowed == {i}
        assert view.oom_score_adj == -997
        assert view.memory_max_bytes == 600 * MIB
        assert view.oom_group
        resident = {place: amount for place, amount in view.numa_stat["anon"].items() if amount}
        assert set(resident) == {i}
        assert resident[i] >= 300 * MIB
    refusal = node.crictl.refused(guaranteed("one-too-many", 0.5, "600Mi"))
    assert "TopologyAffinityError: default/one-too-many/main: " in refusal
    assert [fact for fact in ("600Mi", "one node", "default/full-") if fact not in refusal] == []
    node.crictl.remove_sandbox(pods[2].sandbox_id)
    again = node.launch(guaranteed("reuse", 0.5, "600Mi"))
    assert node.view(again).mems_allowed == {2}


@pytest.mark.matrix
@on(FOUR_NODES)
def test_a_pod_larger_than_a_node_gets_the_two_nearest(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    pod = node.launch(guaranteed("wide", 0.5, "1200Mi").touching("1000Mi"))
    node.crictl.await_log(pod, "touched")
    view = node.view(pod)
    assert view.mems_allowed == {0, 1}
    assert {place for place, amount in view.numa_stat["anon"].items() if amount} <= {0, 1}
    assert node.bayplan.decided(pod.container_id)["outcome"] == "placed"


@on(FOUR_NODES, "2.3", "2.4", "2.1", "1.7")
def test_the_other_classes_share_the_cpus_and_the_pool_shrinks_and_grows(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    total = node.kernel.memory_total_bytes()
    shared = [
        node.launch(burstable("web", node_memory_bytes=total, memory="100Mi", memory_limit="200Mi")),
        node.launch(best_effort("batch")),
    ]
    scores = [node.view(pod).oom_score_adj for pod in shared]
    assert scores == [1000 - 1000 * 100 * MIB // total, 1000]
    before = [node.view(pod) for pod in shared]
    assert all(view.cpus_allowed == set(range(8)) and view.mems_allowed == {0, 1, 2, 3} for view in before)
    assert all(view.oom_group for view in before)

    exclusive = node.launch(guaranteed("pinned", 2, "100Mi"))
    view = node.view(exclusive)
    assert view.mems_allowed == {1}
    assert view.cpus_allowed == {2, 3}
    rest = set(range(8)) - {2, 3}
    assert all(node.view(pod).cpus_allowed == rest for pod in shared)

    node.crictl.stop(exclusive.container_id)
    for pod in shared:
        node.await_view(pod, lambda view: view.cpus_allowed == set(range(8)))


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_named_pools_grow_and_shrink_with_their_members_and_wishes_for_cpus_count(node: Node) -> None:
    node.bayplan.start(config="cpuPools = { db = { maximum = 2 } }\n")
    node.bayplan.await_synchronized()
    total = node.kernel.memory_total_bytes()
    in_pool, own = {"bayplan.dev/cpus": "pool=db"}, {"bayplan.dev/cpus": "exclusive"}
    shared = node.launch(best_effort("shared"))
    first = node.launch(burstable("first", node_memory_bytes=total, cpus=1, annotations=in_pool))
    pool = node.view(first).cpus_allowed
    assert len(pool) == 1
    second = node.launch(burstable("second", node_memory_bytes=total, cpus=1, annotations=in_pool))
    both = node.view(second).cpus_allowed
    assert len(both) == 2
    assert pool < both
    node.await_view(first, lambda view: view.cpus_allowed == both)
    wished = node.launch(burstable("wished", node_memory_bytes=total, cpus=1, annotations=own))
    alone = node.view(wished).cpus_allowed
    assert len(alone) == 1
    node.await_view(shared, lambda view: view.cpus_allowed == set(range(8)) - both - alone)
    # The daemon is killed, and goes on with what it recorded.
    node.bayplan.kill()
    node.bayplan.start_again()
    node.bayplan.await_synchronized()
    assert node.view(first).cpus_allowed == both
    node.crictl.stop(second.container_id)
    node.await_view(first, lambda view: len(view.cpus_allowed) == 1)
    left = node.view(first).cpus_allowed
    assert left < both
    node.await_view(shared, lambda view: view.cpus_allowed == set(range(8)) - left - alone)


@on(TWO_NODES, "2.4", "2.3", "2.1", "1.7")
def test_a_plain_crictl_user_is_served_like_kubelet(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    limits = Container(memory_limit_bytes=300 * MIB, cpu_quota_us=100_000, cpu_period_us=100_000)
    alike_guaranteed = node.launch(Pod("alike-guaranteed", (limits,)))
    half = node.launch(Pod("alike-burstable", (Container(memory_limit_bytes=200 * MIB),)))
    nothing = node.launch(Pod("alike-best-effort"))
    total = node.kernel.memory_total_bytes()
    view = node.view(alike_guaranteed)
    assert len(view.cpus_allowed) == 1
    assert len(view.mems_allowed) == 1
    assert view.oom_score_adj == -997
    assert node.view(half).oom_score_adj == 1000 - 1000 * 200 * MIB // total
    assert node.view(nothing).oom_score_adj == 1000
    for pod, qos in ((alike_guaranteed, "Guaranteed"), (half, "Burstable"), (nothing, "BestEffort")):
        entry = node.bayplan.decided(pod.container_id)
        assert (entry["qosClass"], entry["qosInferred"]) == (qos, True)
        assert entry["oomScoreAdj"] == node.view(pod).oom_score_adj


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_limits_from_annotations_and_configuration(node: Node) -> None:
    node.bayplan.start(config='defaultMemoryLimit = { BestEffort = "150Mi" }\n')
    node.bayplan.await_synchronized()
    annotated = node.launch(best_effort("annotated", annotations={"bayplan.dev/memory-limit": "80Mi"}))
    plain = node.launch(best_effort("plain"))
    wrong = node.launch(best_effort("wrong", annotations={"bayplan.dev/memory-limit": "much"}))
    limits = [node.view(pod).memory_max_bytes for pod in (annotated, plain, wrong)]
    assert limits == [80 * MIB, 150 * MIB, 150 * MIB]
    reasons = node.bayplan.decided(wrong.container_id)["reasons"]
    assert any("annotation bayplan.dev/memory-limit: found 'much'" in reason["text"] for reason in reasons)


@on(TWO_NODES, "2.4")
def test_memory_qos(node: Node) -> None:
    node.bayplan.start(
        "--feature-gates", "MemoryQoS=true", "--memory-reservation-policy", "TieredReservation"
    )
    node.bayplan.await_synchronized()
    protected = node.launch(guaranteed("protected", 0.5, "200Mi"))
    throttled = node.launch(Pod("throttled", (Container(memory_limit_bytes=200 * MIB, oom_score_adj=960),)))
    assert node.view(protected).files["memory.min"].strip() == str(200 * MIB)
    view = node.view(throttled)
    low, high = int(view.files["memory.low"]), int(view.files["memory.high"])
    assert 0 < low < high < 200 * MIB
    node.crictl.update(throttled.container_id, memory=400 * MIB)
    assert 200 * MIB < int(node.view(throttled).files["memory.high"]) < 400 * MIB


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_a_cpuset_of_somebody_else_is_left_alone(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    pinned = node.launch(Pod("pinned", (Container(cpuset_cpus="3", cpuset_mems="1"),)))
    exclusive = node.launch(guaranteed("exclusive", 1, "100Mi"))
    view = node.view(pinned)
    assert (view.cpus_allowed, view.mems_allowed) == ({3}, {1})
    assert node.view(exclusive).cpus_allowed == {1}
    assert node.bayplan.decided(pinned.container_id)["cpusPinnedByOthers"] is True
    assert node.bayplan.decided(exclusive.container_id)["cpusAlsoOf"] == []
    # Somebody moves it there, past every runtime: from the next comparison on nobody is said to be alone.
    node.guest.run("sh", "-c", f"echo 1 >/sys/fs/cgroup{view.cgroup}/cpuset.cpus")
    deadline = time.monotonic() + LIMIT_S
    while not (sharers := node.bayplan.decided(exclusive.container_id)["cpusAlsoOf"]):
        assert time.monotonic() < deadline
        time.sleep(1)
    assert len(sharers) == 1
    own, *_ = [one["cpus"] for one in node.bayplan.nodes()["nodes"] if one["cpus"]["contested"]]
    assert (own["exclusive"], own["contested"]) == ("", "1")
    assert node.view(pinned).cpus_allowed == {1}


@pytest.mark.matrix
@on(TWO_NODES, "2.3")
def test_keys_of_unified_are_read_as_the_kernel_takes_them(node: Node) -> None:
    """From NRI 0.10 on runtimes show them."""
    node.bayplan.start()
    node.bayplan.await_synchronized()
    chosen = {"cpuset.cpus": "2-3:1/2,", "cpuset.mems": "1", "memory.min": "100000"}
    pinned = node.launch(Pod("pinned", (Container(memory_limit_bytes=200 * MIB, unified=chosen),)))
    view = node.view(pinned)
    assert (view.cpus_allowed, view.mems_allowed) == ({2}, {1})
    entry = node.bayplan.decided(pinned.container_id)
    assert (entry["cpusPinnedByOthers"], entry["memsPinnedByOthers"]) == (True, True)
    protected = guaranteed("protected", 1, "300Mi")
    (container,) = protected.containers
    added = replace(container, unified={"memory.min": "102400"})
    placed = node.launch(protected.with_containers(added))
    view = node.view(placed)
    assert len(view.cpus_allowed) == 1
    assert len(view.mems_allowed) == 1
    assert view.cpus_allowed.isdisjoint({2})
    assert view.files["memory.min"].strip() == "102400"


@pytest.mark.matrix
@on(FAR_MEMORY, "2.3")
def test_a_cpu_less_node_of_ordinary_memory_comes_last(node: Node) -> None:
    """Without a rating of the firmware the kernel takes it for memory like any other."""
    node.bayplan.start("--topology-manager-policy", "single-numa-node")
    node.bayplan.await_synchronized()
    names = (("small", "100Mi"), ("first", "650Mi"), ("second", "700Mi"), ("third", "350Mi"))
    pods = [node.launch(guaranteed(name, 0.5, size)) for name, size in names]
    assert [node.view(pod).mems_allowed for pod in pods] == [{0}, {0}, {1}, {2}]
    assert node.bayplan.decided(pods[3].container_id)["outcome"] == "placed"
    assert "TopologyAffinityError" in node.crictl.refused(guaranteed("fourth", 0.5, "350Mi"))


@on(FOUR_NODES, "2.3")
def test_huge_pages_and_memory_come_from_one_node(node: Node) -> None:
    node.bayplan.start("--topology-manager-policy", "restricted")
    node.bayplan.await_synchronized()
    pages = {"2MB": 64 * MIB}
    pods = [node.launch(guaranteed(f"huge-{i}", 0.5, "100Mi", hugepages=pages)) for i in range(2)]
    assert [node.view(pod).mems_allowed for pod in pods] == [{0}, {1}]
    assert node.view(pods[0]).files["hugetlb.2MB.max"].strip() == str(64 * MIB)


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_huge_pages_lie_evenly_on_as_many_nodes_as_are_asked_for(node: Node) -> None:
    node.bayplan.start("--topology-manager-policy", "restricted")
    node.bayplan.await_synchronized()
    over_four = {"bayplan.dev/hugepages-over-nodes": "4"}
    even = node.launch(guaranteed("even", 0.5, "100Mi", hugepages={"2MB": 64 * MIB}, annotations=over_four))
    assert node.view(even).mems_allowed == {0, 1, 2, 3}
    booked = node.bayplan.decided(even.container_id)["bookedBytes"]
    assert {place: row["hugepages-2Mi"] for place, row in booked.items()} == dict.fromkeys("0123", 16 * MIB)
    pages = {"2MB": 48 * MIB}
    pods = [node.launch(guaranteed(f"rest-{i}", 0.5, "100Mi", hugepages=pages)) for i in range(4)]
    assert [node.view(pod).mems_allowed for pod in pods] == [{0}, {1}, {2}, {3}]
    refusal = node.crictl.refused(guaranteed("more", 0.5, "100Mi", hugepages={"2MB": 2 * MIB}))
    assert "64Mi of hugepages-2Mi; 64Mi are promised to default/rest-" in refusal
    refusal = node.crictl.refused(
        guaranteed("even-more", 0.5, "100Mi", hugepages={"2MB": 8 * MIB}, annotations=over_four)
    )
    assert "its huge pages evenly" in refusal
    assert "on 4 nodes" in refusal


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_a_pool_of_huge_pages_grows_for_a_container_and_shrinks_after_it(node: Node) -> None:
    """Each node has 32 pages of 2Mi, and 1 GiB with what the kernel holds of it."""
    node.bayplan.start(
        *("--topology-manager-policy", "single-numa-node"),
        *("--hugepage-pools", "0-3:hugepages-2Mi=64Mi-512Mi"),
    )
    node.bayplan.await_synchronized()
    before = node.bayplan.nodes()["nodes"][0]["resources"]
    pages = {"2MB": 200 * MIB}
    owner = node.launch(guaranteed("owner", 0.5, "50Mi", hugepages=pages).touching("190Mi", hugepages="2Mi"))
    node.crictl.await_log(owner, "touched")
    assert node.view(owner).mems_allowed == {0}
    assert node.kernel.hugepages_of_nodes() == {0: 100, 1: 32, 2: 32, 3: 32}
    assert "grew by 136Mi" in node.bayplan.command("explain", "default/owner").stdout
    now = node.bayplan.nodes()["nodes"][0]["resources"]
    assert now["hugepages-2Mi"]["allocatableBytes"] == 200 * MIB
    assert now["memory"]["allocatableBytes"] <= before["memory"]["allocatableBytes"] - 136 * MIB
    # Memory that is promised becomes no huge page, and is there for who was promised it.
    holders = []
    for place in "0123":
        wish = {"bayplan.dev/required-nodes": place}
        memory = "350Mi" if place == "0" else "500Mi"
        pod = guaranteed(f"holder-{place}", 0.5, memory, annotations=wish)
        holders.append(node.launch(pod.touching(int(int(memory[:-2]) * 0.9) * MIB)))
    for one in holders:
        node.crictl.await_log(one, "touched")
    refusal = node.crictl.refused(guaranteed("more", 0.5, "10Mi", hugepages={"2MB": 500 * MIB}))
    assert "hugepages-2Mi" in refusal
    assert node.kernel.hugepages_of_nodes() == {0: 100, 1: 32, 2: 32, 3: 32}
    # What the kernel has is the record.
    node.bayplan.kill()
    node.bayplan.start_again()
    node.bayplan.await_synchronized()
    later = guaranteed("second", 0.5, "50Mi", hugepages={"2MB": 100 * MIB})
    second = node.launch(later.touching("90Mi", hugepages="2Mi"))
    node.crictl.await_log(second, "touched")
    (home,) = node.view(second).mems_allowed
    assert node.kernel.hugepages_of_nodes()[home] == (150 if home == 0 else 50)
    running = [node.crictl.state(one.container_id) for one in (owner, second, *holders)]
    assert running == ["CONTAINER_RUNNING"] * 6
    for one in (owner, second):
        node.crictl.stop(one.container_id)
        node.crictl.remove(one.container_id)
    until_s = time.monotonic() + LIMIT_S
    while set(node.kernel.hugepages_of_nodes().values()) != {32} and time.monotonic() < until_s:
        time.sleep(2)
    assert set(node.kernel.hugepages_of_nodes().values()) == {32}


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_a_pool_of_huge_pages_grows_for_a_resize_or_it_is_refused(node: Node) -> None:
    node.bayplan.start(
        *("--topology-manager-policy", "single-numa-node"),
        *("--hugepage-pools", "0-3:hugepages-2Mi=64Mi-256Mi"),
    )
    node.bayplan.await_synchronized()
    owner = node.launch(guaranteed("owner", 0.5, "50Mi", hugepages={"2MB": 60 * MIB}))
    assert node.kernel.hugepages_of_nodes() == {0: 32, 1: 32, 2: 32, 3: 32}
    node.crictl.resize_hugepages(owner.container_id, "2MB", 200 * MIB)
    assert node.kernel.hugepages_of_nodes() == {0: 100, 1: 32, 2: 32, 3: 32}
    booked = node.bayplan.decided(owner.container_id)["bookedBytes"]
    assert booked == {"0": {"memory": 50 * MIB, "hugepages-2Mi": 200 * MIB}}
    with pytest.raises(CommandError, match="it could have 256Mi on each of nodes 0-3 of hugepages-2Mi"):
        node.crictl.resize_hugepages(owner.container_id, "2MB", 300 * MIB)
    assert node.kernel.hugepages_of_nodes() == {0: 100, 1: 32, 2: 32, 3: 32}
    assert node.bayplan.decided(owner.container_id)["bookedBytes"] == booked
    # What it gives back shrinks again.
    node.crictl.resize_hugepages(owner.container_id, "2MB", 20 * MIB)
    until_s = time.monotonic() + LIMIT_S
    while set(node.kernel.hugepages_of_nodes().values()) != {32} and time.monotonic() < until_s:
        time.sleep(2)
    assert set(node.kernel.hugepages_of_nodes().values()) == {32}


@on(TWO_NODES, "2.4")
def test_a_resize_is_decided_again_or_refused(node: Node) -> None:
    node.bayplan.start("--topology-manager-policy", "single-numa-node")
    node.bayplan.await_synchronized()
    pod = node.launch(guaranteed("resized", 0.5, "200Mi"))
    node.crictl.update(pod.container_id, memory=500 * MIB)
    assert node.view(pod).memory_max_bytes == 500 * MIB
    booked = node.bayplan.decided(pod.container_id)["bookedBytes"]
    assert booked == {"0": {"memory": 500 * MIB}}
    with pytest.raises(CommandError, match="TopologyAffinityError"):
        node.crictl.update(pod.container_id, memory=3000 * MIB)
    assert node.view(pod).memory_max_bytes == 500 * MIB
    assert node.bayplan.decided(pod.container_id)["bookedBytes"] == booked
