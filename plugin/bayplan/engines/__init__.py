"""The engines that decide where containers go: `exact`, and `kubelet`, which answers as kubelet does.

Pure: machine, policy, ledger and request in, a decision out. No clock, no IO, no logging, no randomness; ties
are broken by id.
"""
