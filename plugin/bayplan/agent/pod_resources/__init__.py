"""The service `v1.PodResourcesLister`: its answers, kubelet's own service, and the socket."""
