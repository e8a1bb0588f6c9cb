// Allocates devices to claims as Kubernetes' scheduler does, by its own allocator. Each line on the standard input is a
// question: the slices, the classes, the claims that are allocated already, and those of a pod that are to be. Each line
// on the standard output is the answer: their allocations, null where there are none, or an error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// As the gates of Kubernetes 1.37 are by default.
var features = structured.Features{
	AdminAccess:             true,
	ConsumableCapacity:      true,
	DeviceBindingAndStatus:  true,
	DeviceTaints:            true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true,
	PrioritizedList:         true,
}

type question struct {
	Node      string                       `json:"node"`
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Classes   classes                      `json:"classes"`
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`
}

type answer struct {
	Allocations []resourceapi.AllocationResult `json:"allocations"`
	Error       string                         `json:"error,omitempty"`
}

type classes []*resourceapi.DeviceClass

func (all classes) List() ([]*resourceapi.DeviceClass, error) { return all, nil }

func (all classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, one := range all {
		if one.Name == name {
			return one, nil
		}
	}
	return nil, fmt.Errorf("no class %s", name)
}

// state is what pkg/scheduler/framework/plugins/dynamicresources gathers of the claims that are allocated.
func state(claims []*resourceapi.ResourceClaim) structured.AllocatedState {
	found := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				found.AllocatedDevices.Insert(id)
				continue
			}
			found.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			found.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
		}
	}
	return found
}

func allocate(asked question, cache *cel.Cache) answer {
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx, features, state(asked.Allocated), asked.Classes, asked.Slices, cache)
	if err != nil {
		return answer{Error: err.Error()}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: asked.Node}}
	found, err := allocator.Allocate(ctx, node, asked.Claims)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Allocations: found}
}

func main() {
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	input := bufio.NewReader(os.Stdin)
	decoder, encoder := json.NewDecoder(input), json.NewEncoder(os.Stdout)
	for decoder.More() {
		var asked question
		if err := decoder.Decode(&asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := encoder.Encode(allocate(asked, cache)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
