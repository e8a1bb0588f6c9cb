"""A node whose every step is taken one by one, in any order: the daemon's own parts on a controlled disk,
clock and threads, with runtimes and a kernel around them. For tests of what happens between two steps.
"""
