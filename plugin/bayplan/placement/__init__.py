"""From a decision to what is sent to the runtime; and the ledger compared with runtime and kernel.

Pure, as the engines are.
"""
