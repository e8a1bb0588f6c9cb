"""Our engines held against recorded answers of kubelet: ``python -m conformance DIR``.

Nothing in the daemon imports this.
"""
