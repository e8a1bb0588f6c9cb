"""Events become decisions, records and replies; and the kernel is kept at what was decided.

The way of a creation: `controller` (the events of NRI) or `bayplan.oci`, `placements` (decide, record,
answer), `transactions` (the one owner of the ledger), `recorder` and `threads` (the disk); beside it
`known_containers` and `notified` (what runtimes described, and what they were sent).

The kernel: `expectations` (what it should have), `cpusets` (written at once), `verify` (compared and
repaired), `narrowing` (memory moved back).
"""
