module bayplan/interop

go 1.25.0

require (
	github.com/containerd/nri v0.6.1
	github.com/containerd/ttrpc v1.2.3
	google.golang.org/grpc v1.81.1
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/opencontainers/runtime-spec v1.3.0 // indirect
	github.com/sirupsen/logrus v1.9.4 // indirect
	golang.org/x/sys v0.46.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260226221140-a57be14db171 // indirect
	k8s.io/cri-api v0.25.3 // indirect
)

replace k8s.io/cri-api => ./cri
