"""Events become decisions, records and replies; and the kernel is kept at what was decided.

Theory of operation
===================

**One owner.** What decisions depend on (machine, policy, ledger) is one immutable value, the `Basis` of the
model; with the engine it is `Current` of `state`. Everybody may read it. It changes only in a
transaction, and there is one at a time: each works out the next value, and makes it current when its promise
is on the disk.

**Promises and facts.** A promise counts once it is recorded: whatever ends its commit early leaves the basis
as it was. A fact (a container has ended, runs, or has another process) counts at once, and is recorded when
the disk takes it. So a CPU is never given to two containers by the record.

**Words and lives.** Runtimes report late, doubled, in another order, or not at all. What a report means
depends on the phase that the container is in (`lives`, by the table of `bayplan.model.life`), and whoever has
ended without a word is looked for (`ended_containers`). Invariant: who holds something is in a phase of
`HELD`, and has an entry in the ledger.

**Three records of a cpuset.** The ledger says what a container should have, the runtime has what it took from
our answers (`lives`), the kernel has what was written last. The kernel is written to at once, and again
where a runtime wrote its own; the runtime learns with its next reply, a few containers at a time, because it
carries out updates one after the other and handles nothing else meanwhile.

**What waits for what.** A runtime waits for the reply to a creation, so that nothing is done in it but the
decision and its commit. It waits for the reply to a start too: then the CPUs of an owner are alone, and its
memory is free or is being freed. All else runs beside that, each in a thread of its own.

The way of a creation: `controller` (the events of NRI) or `bayplan.oci`, `placements` (decide, record,
answer), `state` (the one owner of the ledger, and of what is known beside it: `known_containers` and
`lives`), `recorder` and `threads` (the disk). What a creation goes through between its bytes and its
reply is the body of `Placements.place`: the engine decides, each step of the admission may change or refuse
that, then it is recorded, and answered.

The kernel: `expectations` (what it should have), `cpusets` (written at once), `verify` (compared and
repaired); `promised_nodes` (what moved pages change of it).
"""
