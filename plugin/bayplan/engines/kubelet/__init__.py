"""kubelet's resource managers as pure functions on immutable values: same answers, other algorithms.

The rules are those of Kubernetes v1.36; `bayplan.conformance.vectors` checks them against recorded answers.
"""
