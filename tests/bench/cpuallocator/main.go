// Command cpuallocator-replay puts the CPU allocator of nri-plugins behind a pipe: pkg/cpuallocator on a machine that
// is read from a directory with sys/ in it. Each line in is a list of free CPUs and a count, each line out the chosen
// CPUs, or an error after an exclamation mark.
package main

import (
	"bufio"
	"fmt"
	"os"

	"github.com/containers/nri-plugins/pkg/cpuallocator"
	"github.com/containers/nri-plugins/pkg/sysfs"
	"github.com/containers/nri-plugins/pkg/utils/cpuset"
)

func main() {
	system, err := sysfs.DiscoverSystemAt(os.Args[1] + "/sys")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	allocator := cpuallocator.NewCPUAllocator(system)
	output := bufio.NewWriter(os.Stdout)
	for input := bufio.NewScanner(os.Stdin); input.Scan(); output.Flush() {
		var list string
		var count int
		if _, err := fmt.Sscan(input.Text(), &list, &count); err != nil {
			fmt.Fprintf(output, "! %v\n", err)
			continue
		}
		from, err := cpuset.Parse(list)
		if err != nil {
			fmt.Fprintf(output, "! %v\n", err)
			continue
		}
		chosen, err := allocator.AllocateCpus(&from, count, cpuallocator.PriorityNone.Option())
		if err != nil {
			fmt.Fprintf(output, "! %v\n", err)
			continue
		}
		fmt.Fprintln(output, chosen.String())
	}
}
