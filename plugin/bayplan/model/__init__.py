"""The values that decisions are made of and from: machine, workload, request, policy, ledger, decision.

No clock, no IO, no logging, no randomness; nothing here decides where a container goes.
"""
