"""Events become decisions, records and replies; and the kernel is kept at what was decided.

`transactions` owns the ledger, `controller` is the only one that writes to it.
"""
