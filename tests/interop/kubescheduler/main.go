// kube-scheduler itself, with its default plugins, before nodes that exist only as objects of client-go's fake
// client. Reads one JSON document per line from stdin: first {"strategy", "nodes": [...]}, then a pod to schedule
// {"name", "milli", "bytes", "qos"}, or one to delete {"delete": name}. Answers each pod with {"node": name}, empty
// if none fits. All nodes are looked at, so that the best is chosen among all.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

const namespace = "default"

type node struct {
	Name  string `json:"name"`
	Milli int64  `json:"milli"`
	Bytes int64  `json:"bytes"`
	Pods  int64  `json:"pods"`
}

type head struct {
	Strategy string `json:"strategy"`
	Nodes    []node `json:"nodes"`
}

type event struct {
	Name   string `json:"name"`
	Milli  int64  `json:"milli"`
	Bytes  int64  `json:"bytes"`
	Delete string `json:"delete"`
}

func amounts(milli, bytes, pods int64) v1.ResourceList {
	found := v1.ResourceList{}
	if milli > 0 {
		found[v1.ResourceCPU] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
	}
	if bytes > 0 {
		found[v1.ResourceMemory] = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	if pods > 0 {
		found[v1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
	}
	return found
}

// bindable makes the fake client carry out bindings, as the API server does.
func bindable(client *fake.Clientset) {
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "binding" {
			return false, nil, nil
		}
		binding := action.(clienttesting.CreateAction).GetObject().(*v1.Binding)
		resources := v1.SchemeGroupVersion.WithResource("pods")
		found, err := client.Tracker().Get(resources, namespace, binding.Name)
		if err != nil {
			return true, nil, err
		}
		pod := found.(*v1.Pod).DeepCopy()
		pod.Spec.NodeName = binding.Target.Name
		return true, binding, client.Tracker().Update(resources, pod, namespace)
	})
}

func run() error {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(make([]byte, 1<<16), 1<<26)
	if !input.Scan() {
		return fmt.Errorf("nothing to read")
	}
	var first head
	if err := json.Unmarshal(input.Bytes(), &first); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := fake.NewClientset()
	bindable(client)
	for _, one := range first.Nodes {
		capacity := amounts(one.Milli, one.Bytes, one.Pods)
		object := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: one.Name},
			Status:     v1.NodeStatus{Capacity: capacity, Allocatable: capacity},
		}
		if _, err := client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	configuration, err := latest.Default()
	if err != nil {
		return err
	}
	for index := range configuration.Profiles[0].PluginConfig {
		if arguments, ok := configuration.Profiles[0].PluginConfig[index].Args.(*config.NodeResourcesFitArgs); ok {
			arguments.ScoringStrategy.Type = config.ScoringStrategyType(first.Strategy)
		}
	}
	informers := scheduler.NewInformerFactory(client, 0, nil)
	recorders := profile.NewRecorderFactory(events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()}))
	made, err := scheduler.New(
		ctx, client, informers, nil, recorders,
		scheduler.WithProfiles(configuration.Profiles...),
		scheduler.WithPercentageOfNodesToScore(int32Of(100)),
	)
	if err != nil {
		return err
	}
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	if err := made.WaitForHandlersSync(ctx); err != nil {
		return err
	}
	go made.Run(ctx)
	output := json.NewEncoder(os.Stdout)
	for input.Scan() {
		var next event
		if err := json.Unmarshal(input.Bytes(), &next); err != nil {
			return err
		}
		if next.Delete != "" {
			if err := remove(ctx, client, made, next.Delete); err != nil {
				return err
			}
			continue
		}
		chosen, err := schedule(ctx, client, next)
		if err != nil {
			return err
		}
		if err := output.Encode(map[string]string{"node": chosen}); err != nil {
			return err
		}
	}
	return input.Err()
}

// schedule creates a pod and waits until it is bound or called unschedulable, in which case it is deleted.
func schedule(ctx context.Context, client *fake.Clientset, wanted event) (string, error) {
	requests := amounts(wanted.Milli, wanted.Bytes, 0)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: wanted.Name, Namespace: namespace, UID: types.UID(wanted.Name)},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName,
			Containers:    []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Requests: requests}}},
		},
	}
	if _, err := client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Microsecond) {
		found, err := client.CoreV1().Pods(namespace).Get(ctx, wanted.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if found.Spec.NodeName != "" {
			return found.Spec.NodeName, nil
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == v1.PodScheduled && condition.Reason == v1.PodReasonUnschedulable {
				return "", client.CoreV1().Pods(namespace).Delete(ctx, wanted.Name, metav1.DeleteOptions{})
			}
		}
	}
	return "", fmt.Errorf("pod %s: neither bound nor unschedulable within a minute", wanted.Name)
}

// remove deletes a pod and waits until the scheduler's cache knows.
func remove(ctx context.Context, client *fake.Clientset, made *scheduler.Scheduler, name string) error {
	before, err := made.Cache.PodCount()
	if err != nil {
		return err
	}
	if err := client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Microsecond) {
		if now, err := made.Cache.PodCount(); err != nil || now < before {
			return err
		}
	}
	return fmt.Errorf("pod %s: still known a minute after it was deleted", name)
}

func int32Of(value int32) *int32 { return &value }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
