"""The DRA driver `bayplan.dev` (Kubernetes' Dynamic Resource Allocation): the scheduler is told what claims
can have of each NUMA node (`slices`).

What is promised to a claim is decided and kept by the daemon; nothing here has a state that could be lost.
"""
