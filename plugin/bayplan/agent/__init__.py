"""bayplan-agent: the unprivileged process beside the daemon, which may die and start again at any time.

It follows the daemon's state (`mirror`) for those who show it, and tells the daemon what
kubelet says of pods. Everything heavy, gRPC and HTTP, is here; the daemon needs none of it, and never waits
for it.
"""
