"""The engine `kubelet`: kubelet's resource managers (v1.36) as pure functions on immutable values.

The same pods under the same policies get the same placement, the same refusals and the same words as from
kubelet; `tests/conformance` holds the engine against recorded answers. `docs/kubelet-engine.md` has the
rules. What kubelet lays down whichever engine decides is `bayplan.kubelet`.

Which file is which part of kubelet
===================================

==================  ================================================================================
here                in kubelet (pkg/kubelet)
==================  ================================================================================
topology/           cm/topologymanager: hints, merge (policy*.go), scopes (scope_*.go)
cpu/                cm/cpumanager: static policy (policy_static.go), cpu_assignment.go, checkpoint
memory/             cm/memorymanager: Static policy (policy_static.go), state, checkpoint
attached_devices    cm/devicemanager: its hints, for devices that were chosen already
checkpoint_text     the text of both checkpoint files and their checksum (checkpointmanager)
managers            cm/container_manager: all managers on one state
==================  ================================================================================

What has no counterpart in kubelet: ``engine`` (the engine itself), ``trivial_decision``, ``creation`` and
``resize`` (one decision each), ``pod_admission`` (a whole pod, for the simulator), ``ledger_state`` (the
managers' state, made from the ledger),
``kept_for_pods`` (room for the rest of a pod), ``booking`` (amounts on nodes), ``state_files`` (kubelet's own
two files, read to take them over), ``topology/refusals`` (why, for people).

Order of reading
================

``engine``, ``trivial_decision``, ``creation``; then what these call: ``ledger_state``, ``managers``,
``topology/manager``. A manager answers with hints, the Topology Manager merges them, and each manager
allocates by the merged hint: ``topology/hints``, ``memory/manager``, ``cpu/manager``, ``topology/merge``.
``topology/merge`` and ``cpu/balance`` are the hard ones; both begin with the rule and an example.

Where the code differs from kubelet's on purpose
================================================

* Other algorithms, same answers. kubelet lists all 2^n sets of nodes and walks the cross product of the
  lists; here a manager describes the sets (``topology/hints``), and ``topology/merge`` finds the best one
  from the descriptions. kubelet tries all combinations of nodes to spread CPUs; ``cpu/balance`` walks the
  nodes once.
* Immutable state. kubelet's managers change maps under locks and remember some things beside them (memory
  that init containers left, the pod's hints), which a restart loses. Here the state has all of it.
* Where kubelet v1.36 damages its own state, never returns or does not start again, this engine does not.
  Each of these places says so in its module: ``memory/manager``, ``memory/state`` (releases),
  ``memory/restore``, ``cpu/assignment``, ``cpu/distribution``. The table is in ``docs/kubelet-engine.md``,
  "Where the answers differ".
"""
