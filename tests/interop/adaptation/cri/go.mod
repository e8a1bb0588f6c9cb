module k8s.io/cri-api

go 1.24
