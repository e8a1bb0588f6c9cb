// Reads a file of device metadata as Kubernetes' own readers do (KEP-5304), validates it, and prints the attributes
// of its devices by request and device.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

func main() {
	var found metadata.DeviceMetadata
	var invalid error
	err := devicemetadata.DecodeMetadataFromStream(
		json.NewDecoder(os.Stdin), &found, devicemetadata.DecodeMetadataWithValidationResult(&invalid))
	if err == nil {
		err = invalid
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	told := map[string]map[string]any{}
	for _, request := range found.Requests {
		told[request.Name] = map[string]any{}
		for _, device := range request.Devices {
			told[request.Name][device.Name] = device.Attributes
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		panic(err)
	}
}
