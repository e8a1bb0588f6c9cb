package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	nri "github.com/containerd/nri/pkg/adaptation"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// runtimeSide is a container runtime without containers: it tells plugins about pods that do not exist.
type runtimeSide struct {
	adaptation *nri.Adaptation
}

func newRuntime(opts options) (side, error) {
	nri.SetPluginRequestTimeout(opts.requestTimeout)
	nri.SetPluginRegistrationTimeout(opts.requestTimeout)
	var started atomic.Bool
	synchronize := func(ctx context.Context, send nri.SyncCB) error {
		pods, containers := somePods(opts.pods), someContainers(opts.containers, opts.pods, opts.padding)
		start := time.Now()
		updates, err := send(ctx, pods, containers)
		if !started.Load() {
			return err // the plugins of the plugin directory
		}
		print(result{"number": 0, "synchronized": list(updates), "ms": milliseconds(start), "error": text(err)})
		return err
	}
	update := func(_ context.Context, updates []*nri.ContainerUpdate) ([]*nri.ContainerUpdate, error) {
		print(result{"number": 0, "updated": list(updates)})
		return nil, nil
	}
	nowhere := filepath.Join(filepath.Dir(opts.socket), "nowhere")
	if err := os.MkdirAll(nowhere, 0o755); err != nil {
		return nil, err
	}
	adaptation, err := nri.New("interop", "v0.0.1", synchronize, update,
		nri.WithSocketPath(opts.socket),
		nri.WithPluginPath(cmp.Or(opts.plugins, nowhere)),
		nri.WithPluginConfigPath(cmp.Or(opts.pluginConfigs, nowhere)),
	)
	if err != nil {
		return nil, err
	}
	if err := adaptation.Start(); err != nil {
		return nil, err
	}
	started.Store(true)
	return &runtimeSide{adaptation}, nil
}

func (r *runtimeSide) close() { r.adaptation.Stop() }

// handle calls the method of the adaptation that the command names. Its argument is another type in other
// versions of the module (StateChangeEvent up to 0.11, one type for each event later), but the fields that we
// fill in have the same names in all.
func (r *runtimeSide) handle(c command) result {
	method := reflect.ValueOf(r.adaptation).MethodByName(c.Do)
	if !method.IsValid() {
		return result{"error": "this version has no " + c.Do}
	}
	argument := reflect.New(method.Type().In(1).Elem())
	set := func(field string, value any) {
		if f := argument.Elem().FieldByName(field); f.IsValid() {
			f.Set(reflect.ValueOf(value))
		}
	}
	set("Pod", &nri.PodSandbox{
		Id:          c.Pod,
		Name:        c.Pod,
		Annotations: c.Annotations,
		Linux:       &nri.LinuxPodSandbox{CgroupParent: c.Parent},
	})
	if c.ID != "" {
		container := someContainer(c.ID, c.Pod, c.Padding)
		if c.Linux != nil {
			container.Linux = &nri.LinuxContainer{}
			if err := protojson.Unmarshal(c.Linux, container.Linux); err != nil {
				return result{"error": err.Error()}
			}
		}
		set("Container", container)
	}
	set("LinuxResources", &nri.LinuxResources{Memory: &nri.LinuxMemory{Limit: nri.Int64(int64(4096))}})

	start := time.Now()
	returned := method.Call([]reflect.Value{reflect.ValueOf(context.Background()), argument})
	res := result{"error": "", "ms": milliseconds(start)}
	if err, _ := returned[len(returned)-1].Interface().(error); err != nil {
		res["error"] = err.Error()
	}
	if len(returned) == 2 && !returned[0].IsNil() {
		res["response"] = message(returned[0].Interface().(proto.Message))
	}
	return res
}

func somePods(count int) []*nri.PodSandbox {
	pods := make([]*nri.PodSandbox, count)
	for i := range pods {
		id := fmt.Sprintf("pod%d", i)
		pods[i] = &nri.PodSandbox{Id: id, Name: id, Labels: map[string]string{"pod": id}}
	}
	return pods
}

func someContainers(count, pods, padding int) []*nri.Container {
	containers := make([]*nri.Container, count)
	for i := range containers {
		containers[i] = someContainer(fmt.Sprintf("ctr%d", i), fmt.Sprintf("pod%d", i%max(pods, 1)), padding)
	}
	return containers
}

func someContainer(id, pod string, padding int) *nri.Container {
	c := &nri.Container{Id: id, PodSandboxId: pod, Name: id}
	if padding > 0 {
		c.Env = []string{strings.Repeat("x", padding)}
	}
	return c
}

func list(updates []*nri.ContainerUpdate) []json.RawMessage {
	messages := make([]json.RawMessage, len(updates))
	for i, u := range updates {
		messages[i] = message(u)
	}
	return messages
}

func message(m proto.Message) json.RawMessage {
	data, err := protojson.Marshal(m)
	if err != nil {
		panic(err)
	}
	return data
}

func milliseconds(since time.Time) float64 {
	return float64(time.Since(since).Microseconds()) / 1000
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
