package main

import (
	"os"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
)

// printDescriptor writes the FileDescriptorProto of the messages that this version knows.
func printDescriptor() error {
	file := (&api.Empty{}).ProtoReflect().Descriptor().ParentFile()
	data, err := proto.Marshal(protodesc.ToFileDescriptorProto(file))
	if err == nil {
		_, err = os.Stdout.Write(data)
	}
	return err
}
