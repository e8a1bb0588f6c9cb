"""Pure decisions: values in, values out.

No clock, no IO, no logging, no randomness; ties are broken by id.
"""
