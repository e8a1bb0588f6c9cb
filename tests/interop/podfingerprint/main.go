// Prints the fingerprint of the pods that are given as NAMESPACE/NAME, by the library of scheduler-plugins and NFD.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/k8stopologyawareschedwg/podfingerprint"
)

func main() {
	pods := podfingerprint.NewFingerprint(len(os.Args) - 1)
	for _, pod := range os.Args[1:] {
		namespace, name, _ := strings.Cut(pod, "/")
		if err := pods.Add(namespace, name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fmt.Println(pods.Sign())
}
