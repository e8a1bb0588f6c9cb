"""What the engine was asked and what it answered, in a file, and asked again by another version.

An engine is a pure function: machine, policy, ledger and request are all that a decision depends on. So a
recording needs no runtime and no kernel. `recording` has its lines, makes them, and
bounds and protects their file, `replay` reads it. docs/replay.md is the operator's page.
"""
