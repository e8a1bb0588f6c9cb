"""What kubelet says of its pods: from its Pods service where that is on (`watch`), else from its HTTP
endpoint `/pods` (`endpoint`); read by `pod_spec`.

kubelet away, or refusing: what it said last stays known.
"""
