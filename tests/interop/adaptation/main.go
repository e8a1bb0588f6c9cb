// Command adaptation is the container runtime's side of NRI, made of the real Go modules and driven by a test.
//
// It reads one JSON object per line from standard input and writes one per line to standard output. What it
// can do is in runtime.go (the adaptation library, as runtimes link it) and peer.go (the multiplexer and the
// ttRPC client of the same module alone, to do what no runtime does). Logs of the libraries go to standard
// error. With -noop it is a plugin of such a runtime instead.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// command is what the test asks for.
type command struct {
	Do      string   `json:"do"`
	Pod     string   `json:"pod"`
	ID      string   `json:"id"`
	Padding int      `json:"padding"`
	Count   int      `json:"count"`
	Write   []string `json:"write"`
	// The pod's cgroup parent, and the Linux part of the container as protobuf's JSON.
	Parent string          `json:"parent"`
	Linux  json.RawMessage `json:"linux"`
	// The pod's annotations.
	Annotations map[string]string `json:"annotations"`
}

// result is what it gets. Number says which command it belongs to; 0 is nobody's.
type result map[string]any

type options struct {
	socket         string
	pods           int
	containers     int
	padding        int
	requestTimeout time.Duration
	// Directories of programs that it launches as plugins, NN-NAME, and of their configurations, NAME.conf.
	plugins       string
	pluginConfigs string
}

type side interface {
	// handle does one command. It may run at the same time as others.
	handle(command) result
	close()
}

var (
	outLock sync.Mutex
	out     = json.NewEncoder(os.Stdout)
)

func print(r result) {
	outLock.Lock()
	defer outLock.Unlock()
	if err := out.Encode(r); err != nil {
		fmt.Fprintln(os.Stderr, "standard output:", err)
		os.Exit(1)
	}
}

func main() {
	var (
		opts     options
		peer     bool
		describe bool
		plugin   bool
	)
	flag.BoolVar(&peer, "peer", false, "only the multiplexer and ttRPC")
	flag.BoolVar(&describe, "describe", false, "print the descriptor of the NRI messages and leave")
	flag.BoolVar(&plugin, "noop", false, "be a plugin that does nothing, connected to the socket")
	flag.StringVar(&opts.socket, "socket", "", "path of the unix socket to listen on")
	flag.IntVar(&opts.pods, "pods", 0, "pods that exist")
	flag.IntVar(&opts.containers, "containers", 0, "containers that exist, one after the other in each pod")
	flag.IntVar(&opts.padding, "padding", 0, "bytes of environment in each of them")
	flag.StringVar(&opts.plugins, "plugins", "", "directory of plugins to launch")
	flag.StringVar(&opts.pluginConfigs, "plugin-configs", "", "directory of their configurations")
	flag.DurationVar(&opts.requestTimeout, "request-timeout", 2*time.Second, "time for the plugin to answer")
	flag.Parse()

	if describe {
		if err := printDescriptor(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if plugin {
		if err := runNoop(opts.socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	open := newRuntime
	if peer {
		open = newPeer
	}
	s, err := open(opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer s.close()
	print(result{"number": 0, "listening": opts.socket})

	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	var pending sync.WaitGroup
	for number := 1; ; number++ {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		var c command
		if err == nil {
			err = json.Unmarshal(line, &c)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "standard input:", err)
			os.Exit(2)
		}
		pending.Add(1)
		go func(number int) {
			defer pending.Done()
			r := s.handle(c)
			r["number"] = number
			print(r)
		}(number)
	}
	pending.Wait()
}
