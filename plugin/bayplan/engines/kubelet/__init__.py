"""The engine `kubelet`: kubelet's resource managers (v1.34 to v1.37) as pure functions on immutable values.

The same pods under the same policies get the same placement, the same refusals and the same words as from
kubelet; `tests/conformance` holds the engine against recorded answers. `docs/kubelet-engine.md` has the
rules. What kubelet lays down whichever engine decides is `bayplan.kubelet`.

Theory of operation
===================

**Hints.** A manager says of each resource that is asked for on which sets of NUMA nodes it can be had
now. Such a set is a hint. It is preferred if no set of fewer nodes could hold the amount on a machine
without containers.

**Merge.** The Topology Manager takes one hint of each resource and intersects their nodes, for all
combinations, and keeps the best intersection that is not empty: one of preferred hints on equal nodes, if
there is one.

**Policy.** `best-effort` admits whatever the merge gives, `restricted` preferred answers only,
`single-numa-node` those of one node only. `none` merges nothing.

**Allocation.** Each manager then takes the amount by the merged hint. The CPU Manager takes CPUs of those
nodes first, and others where they do not suffice. The Memory Manager books memory on the nodes of the
hint; if these are several, they become a group: as long as one of them is in use in that way, none of
them is used alone or in another group. Therefore kubelet refuses work that would fit, and the engine does
so with it.

**State.** Invariant: nothing of it is kept. It is made from the ledger for each decision, so that no
state can differ from what was recorded (``managers``).

Which file is which part of kubelet
===================================

==================  ================================================================================
here                in kubelet (pkg/kubelet)
==================  ================================================================================
topology_manager    cm/topologymanager: scopes (scope_*.go), admission
topology_hints      cm/topologymanager/bitmask, and what a hint is
hint_merge          cm/topologymanager: policies (policy*.go)
cpu_manager         cm/cpumanager: static policy (policy_static.go)
cpu_assignment      cm/cpumanager: cpu_assignment.go
cpu_topology        cm/cpumanager/topology
cpu_state           cm/cpumanager/state
cpu_checkpoint      cm/cpumanager/state: the file
memory_manager      cm/memorymanager: Static policy (policy_static.go)
memory_state        cm/memorymanager/state
memory_checkpoint   cm/memorymanager/state: the file
state_files         both files read to take them over; whether a recorded state is this machine's
managers            cm/container_manager: all of them on one state, which is made from the ledger;
                    cm/devicemanager: hints for chosen devices
checkpoint_text     the text of both checkpoint files and their checksum (checkpointmanager)
==================  ================================================================================

What has no counterpart in kubelet: ``engine`` (the engine itself, with a decision about a change and those
without a choice), ``creation`` (one decision, and why not, for people; a whole pod, for the simulator),
``booking`` (amounts on nodes, and room for the rest of a pod).

Order of reading
================

``engine``, ``creation``; then what these call: ``booking``, ``managers``, ``topology_manager``. A manager
answers with hints, the Topology Manager merges them, and each manager allocates by the merged hint:
``topology_hints``, ``memory_manager``, ``cpu_manager``, ``hint_merge``.
``hint_merge`` and ``cpu_assignment`` are the hard ones; both begin with the rule and an example.

Where the code differs from kubelet's on purpose
================================================

* Other algorithms, same answers. kubelet lists all 2^n sets of nodes and walks the cross product of the
  lists; here a manager describes the sets (``topology_hints``), and ``hint_merge`` finds the best one
  from the descriptions. kubelet tries all combinations of nodes to spread CPUs; ``cpu_assignment`` walks the
  nodes once.
* Immutable state. kubelet's managers change maps under locks and remember some things beside them (memory
  that init containers left, the pod's hints), which a restart loses. Here the state has all of it.
* Where kubelet v1.36 damages its own state, never returns or does not start again, this engine does not.
  Each of these places says so in its module: ``memory_manager``, ``state_files``, ``cpu_assignment``. The
  table is in ``docs/kubelet-engine.md``, "Where the answers differ".
"""
