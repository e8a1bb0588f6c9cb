// Command libmem-replay puts the memory allocator of nri-plugins behind a pipe, so that the same trace can be
// replayed on it. One JSON object per line in, one per line out, in order:
//
//	{"nodes": [{"id": 0, "bytes": 68719476736, "cpus": "0-7", "distances": [10, 20]}]}  starts anew
//	{"allocate": "a", "bytes": 1073741824, "affinity": "0"}
//	{"release": "a"}
//
// The answer has the zones of all containers that this step placed or moved, or an error:
//
//	{"zones": {"a": "0", "b": "0-1"}}
//	{"error": "not enough memory"}
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	libmem "github.com/containers/nri-plugins/pkg/resmgr/lib/memory"
	"github.com/containers/nri-plugins/pkg/utils/cpuset"
)

type node struct {
	ID        int    `json:"id"`
	Bytes     int64  `json:"bytes"`
	CPUs      string `json:"cpus"`
	Distances []int  `json:"distances"`
}

type step struct {
	Nodes    []node `json:"nodes"`
	Allocate string `json:"allocate"`
	Bytes    int64  `json:"bytes"`
	Affinity string `json:"affinity"`
	Release  string `json:"release"`
}

type answer struct {
	Zones map[string]string `json:"zones"`
	Error string            `json:"error,omitempty"`
}

func newAllocator(nodes []node) (*libmem.Allocator, error) {
	var made []*libmem.Node
	for _, one := range nodes {
		cpus, err := cpuset.Parse(one.CPUs)
		if err != nil {
			return nil, fmt.Errorf("node %d: CPUs %q: %w", one.ID, one.CPUs, err)
		}
		fresh, err := libmem.NewNode(one.ID, libmem.TypeDRAM, one.Bytes, true, cpus, one.Distances)
		if err != nil {
			return nil, fmt.Errorf("node %d: %w", one.ID, err)
		}
		made = append(made, fresh)
	}
	return libmem.NewAllocator(libmem.WithNodes(made))
}

func take(allocator *libmem.Allocator, do step) (map[string]string, error) {
	if allocator == nil {
		return nil, fmt.Errorf("no nodes were given yet")
	}
	if do.Release != "" {
		return nil, allocator.Release(do.Release)
	}
	affinity, err := libmem.ParseNodeMask(do.Affinity)
	if err != nil {
		return nil, err
	}
	zone, moved, err := allocator.Allocate(
		libmem.Container(do.Allocate, do.Allocate, "Guaranteed", do.Bytes, affinity))
	if err != nil {
		return nil, err
	}
	zones := map[string]string{do.Allocate: zone.MemsetString()}
	for id, mask := range moved {
		zones[id] = mask.MemsetString()
	}
	return zones, nil
}

func main() {
	var allocator *libmem.Allocator
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<20)
	output := json.NewEncoder(os.Stdout)
	for input.Scan() {
		var do step
		err := json.Unmarshal(input.Bytes(), &do)
		var zones map[string]string
		switch {
		case err != nil:
		case do.Nodes != nil:
			allocator, err = newAllocator(do.Nodes)
		default:
			zones, err = take(allocator, do)
		}
		said := answer{Zones: zones}
		if err != nil {
			said.Error = err.Error()
		}
		if err := output.Encode(said); err != nil {
			slog.Error("no reader is left", "problem", err)
			os.Exit(1)
		}
	}
	if err := input.Err(); err != nil {
		slog.Error("the input ended in a line that cannot be read", "problem", err)
		os.Exit(1)
	}
}
