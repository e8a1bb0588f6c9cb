"""What the daemon shows of itself: a snapshot of its state, and documents made of it.

Pure functions of immutable values: the daemon answers its admin socket with them, and the agent, which
follows the daemon's state, makes the same documents in a process of its own.
"""
