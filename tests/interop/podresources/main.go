// Asks a PodResources service with kubelet's own client code, and prints each answer as a line of JSON.
//
//	podresources -socket PATH list | allocatable | get NAMESPACE POD
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func ask(client podresources.PodResourcesListerClient, words []string) (proto.Message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch {
	case len(words) == 1 && words[0] == "list":
		return client.List(ctx, &podresources.ListPodResourcesRequest{})
	case len(words) == 1 && words[0] == "allocatable":
		return client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	case len(words) == 3 && words[0] == "get":
		return client.Get(ctx, &podresources.GetPodResourcesRequest{PodNamespace: words[1], PodName: words[2]})
	}
	return nil, fmt.Errorf("found %q, expected list, allocatable or get NAMESPACE POD", words)
}

func main() {
	socket := flag.String("socket", "", "the service's socket")
	flag.Parse()
	connection, err := grpc.NewClient("unix:"+*socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		var answer proto.Message
		if answer, err = ask(podresources.NewPodResourcesListerClient(connection), flag.Args()); err == nil {
			var line []byte
			if line, err = protojson.Marshal(answer); err == nil {
				fmt.Println(string(line))
				return
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
