// Package topology has the names by which nri-plugins' resource managers ask where a device is. Its own module of
// that name is not published: theirs replaces it by a directory, which the archive of a module leaves out. This one
// knows of no device, and no container of these tests has any.
package topology

import "errors"

// Hint says which CPUs, NUMA nodes and sockets are near a device.
type Hint struct {
	Provider, CPUs, NUMAs, Sockets string
}

// Hints are those of devices, by their paths in sysfs.
type Hints map[string]Hint

// Logger is what a logger has.
type Logger interface {
	Debugf(format string, values ...any)
}

var errUnknown = errors.New("no device is known")

func SetLogger(logger Logger) Logger { return logger }

func SetSysRoot(string) {}

func FindSysFsDevice(string) (string, error) { return "", errUnknown }

func FindGivenSysFsDevice(string, int64, int64) (string, error) { return "", errUnknown }

func NewTopologyHints(string) (Hints, error) { return nil, errUnknown }

// MergeTopologyHints leaves what a device has already.
func MergeTopologyHints(known, found Hints) Hints {
	merged := Hints{}
	for _, hints := range []Hints{found, known} {
		for device, hint := range hints {
			merged[device] = hint
		}
	}
	return merged
}

// ResolvePartialHints leaves hints as they are: what is found here says all it knows.
func (hints Hints) ResolvePartialHints(func(NUMAs string) string) {}

func (h *Hint) String() string { return h.Provider }
