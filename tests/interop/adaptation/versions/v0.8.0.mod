module bayplan/interop

go 1.25.0

require (
	github.com/containerd/nri v0.8.0
	github.com/containerd/ttrpc v1.2.6-0.20240827082320-b5cd6e4b3287
	google.golang.org/grpc v1.81.1
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/containerd/log v0.1.0 // indirect
	github.com/opencontainers/runtime-spec v1.0.3-0.20220825212826-86290f6a00fb // indirect
	github.com/sirupsen/logrus v1.9.4 // indirect
	golang.org/x/sys v0.46.0 // indirect
	golang.org/x/tools v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260226221140-a57be14db171 // indirect
	k8s.io/cri-api v0.25.3 // indirect
)

replace k8s.io/cri-api => ./cri
