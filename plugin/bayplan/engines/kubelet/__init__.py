"""The engine `kubelet`: kubelet's resource managers (v1.36) as pure functions on immutable values.

The same pods under the same policies get the same placement, the same refusals and the same words as from
kubelet; `tests/conformance` holds the engine against recorded answers. `docs/kubelet-engine.md` has the
rules. What kubelet lays down whichever engine decides is `bayplan.kubelet`.

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
memory_restore      cm/memorymanager: whether a recorded state is this machine's
memory_checkpoint   cm/memorymanager/state: the file
managers            cm/container_manager: all of them on one state; cm/devicemanager: hints for chosen devices
checkpoint_text     the text of both checkpoint files and their checksum (checkpointmanager)
==================  ================================================================================

What has no counterpart in kubelet: ``engine`` (the engine itself, with a decision about a change and those
without a choice), ``creation`` (one decision, and why not, for people), ``pod_admission`` (a whole pod, for
the simulator), ``ledger_state`` (the managers' state, made from the ledger, amounts on nodes, and room for
the rest of a pod), ``state_files`` (kubelet's own two files, read to take them over).

Order of reading
================

``engine``, ``creation``; then what these call: ``ledger_state``, ``managers``, ``topology_manager``. A
manager answers with hints, the Topology Manager merges them, and each manager allocates by the merged hint:
``topology_hints``, ``memory_manager``, ``cpu_manager``, ``hint_merge``. ``hint_merge`` and ``cpu_assignment``
are the hard ones; both begin with the rule and an example.

Where the code differs from kubelet's on purpose
================================================

* Other algorithms, same answers. kubelet lists all 2^n sets of nodes and walks the cross product of the
  lists; here a manager describes the sets (``topology_hints``), and ``hint_merge`` finds the best one
  from the descriptions. kubelet tries all combinations of nodes to spread CPUs; ``cpu_assignment`` walks the
  nodes once.
* Immutable state. kubelet's managers change maps under locks and remember some things beside them (memory
  that init containers left, the pod's hints), which a restart loses. Here the state has all of it.
* Where kubelet v1.36 damages its own state, never returns or does not start again, this engine does not.
  Each of these places says so in its module: ``memory_manager``, ``memory_state`` (releases),
  ``memory_restore``, ``cpu_assignment``. The table is in ``docs/kubelet-engine.md``,
  "Where the answers differ".
"""
