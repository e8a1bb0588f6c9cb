"""From a decision to what the runtime is told; and the ledger held against what runtime and kernel say.

Pure, as the engines are.
"""
