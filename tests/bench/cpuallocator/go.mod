module cpuallocator-replay

go 1.26.0

require github.com/containers/nri-plugins v0.14.0

require (
	github.com/intel/goresctrl v0.13.0 // indirect
	k8s.io/utils v0.0.0-20241104100929-3ea5e8cea738 // indirect
	sigs.k8s.io/yaml v1.4.0 // indirect
)
