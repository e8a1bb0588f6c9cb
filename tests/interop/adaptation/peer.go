package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	service = "nri.pkg.api.v1alpha1.Plugin"
	// enough for any answer to arrive; who waits longer waits for ever
	patience = 30 * time.Second
)

// peerSide is a peer that follows no protocol above ttRPC. It takes one connection.
type peerSide struct {
	listener net.Listener
	once     sync.Once
	trunk    net.Conn
	mux      multiplex.Mux
	raw      net.Conn
	frames   *bufio.Reader
	client   *ttrpc.Client
	err      error
}

func newPeer(opts options) (side, error) {
	listener, err := net.Listen("unix", opts.socket)
	return &peerSide{listener: listener}, err
}

func (p *peerSide) close() {
	p.listener.Close()
	if p.mux != nil {
		p.mux.Close()
	}
}

func (p *peerSide) connect(raw bool) error {
	p.once.Do(func() {
		if p.trunk, p.err = p.listener.Accept(); p.err != nil {
			return
		}
		p.mux = multiplex.Multiplex(p.trunk)
		if p.raw, p.err = p.mux.Open(multiplex.PluginServiceConn); p.err != nil {
			return
		}
		if raw {
			p.frames = bufio.NewReaderSize(p.raw, 8<<20)
		} else {
			p.client = ttrpc.NewClient(p.raw)
		}
	})
	return p.err
}

func (p *peerSide) handle(c command) result {
	switch c.Do {
	case "call":
		return p.call(c)
	case "raw":
		return p.write(c)
	case "trunk":
		return p.garbage(c, true)
	case "cut":
		return p.garbage(c, false)
	}
	return result{"error": "a peer can't " + c.Do}
}

// call makes so many calls at once and counts the codes of the answers.
func (p *peerSide) call(c command) result {
	if err := p.connect(false); err != nil {
		return result{"error": err.Error()}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	var (
		lock    sync.Mutex
		wait    sync.WaitGroup
		answers = map[string]int{}
		sizes   = map[int]int{}
		last    string
	)
	for i := 0; i < c.Count; i++ {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			id := fmt.Sprintf("ctr%d", i)
			request := &api.CreateContainerRequest{
				Pod:       &api.PodSandbox{Id: "pod"},
				Container: &api.Container{Id: id, Env: []string{strings.Repeat("x", c.Padding)}},
			}
			response := &api.CreateContainerResponse{}
			err := p.client.Call(ctx, service, "CreateContainer", request, response)
			lock.Lock()
			defer lock.Unlock()
			kind := "OK"
			if s, ok := status.FromError(err); !ok {
				kind = err.Error()
			} else if err != nil {
				kind, last = s.Code().String(), s.Message()
			}
			answers[kind]++
			sizes[proto.Size(response)]++
		}(i)
	}
	wait.Wait()
	return result{"error": "", "answers": answers, "sizes": sizes, "message": last}
}

// write sends bytes on the plugin's logical connection, one frame each, and reads so many answers.
func (p *peerSide) write(c command) result {
	if err := p.connect(true); err != nil {
		return result{"error": err.Error()}
	}
	for _, w := range c.Write {
		data, err := unhex(w)
		if err == nil {
			_, err = p.raw.Write(data)
		}
		if err != nil {
			return result{"error": err.Error()}
		}
	}
	replies := []result{}
	for i := 0; i < c.Count; i++ {
		head := make([]byte, 10)
		if _, err := io.ReadFull(p.frames, head); err != nil {
			return result{"error": err.Error(), "replies": replies}
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(p.frames, body); err != nil {
			return result{"error": err.Error(), "replies": replies}
		}
		response := &ttrpc.Response{}
		if err := proto.Unmarshal(body, response); err != nil {
			return result{"error": err.Error(), "replies": replies}
		}
		replies = append(replies, result{
			"stream":  binary.BigEndian.Uint32(head[4:]),
			"type":    head[8],
			"flags":   head[9],
			"code":    response.GetStatus().GetCode(),
			"message": response.GetStatus().GetMessage(),
		})
	}
	return result{"error": "", "replies": replies}
}

// garbage sends bytes past the multiplexer, then hangs up, or reads until the plugin does.
func (p *peerSide) garbage(c command, wait bool) result {
	trunk, err := p.listener.Accept()
	if err != nil {
		return result{"error": err.Error()}
	}
	defer trunk.Close()
	for _, w := range c.Write {
		data, err := unhex(w)
		if err != nil {
			return result{"error": err.Error()}
		}
		// The plugin may hang up before the last byte: that is an answer, too.
		if _, err := trunk.Write(data); err != nil {
			return result{"error": "", "hung up": true}
		}
	}
	if !wait {
		return result{"error": ""}
	}
	if err := trunk.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return result{"error": err.Error()}
	}
	_, err = io.Copy(io.Discard, trunk)
	timeout, _ := err.(net.Error)
	return result{"error": "", "hung up": timeout == nil || !timeout.Timeout()}
}

// unhex reads hexadecimal digits; "NN*count" is a byte many times.
func unhex(s string) ([]byte, error) {
	if digits, count, many := strings.Cut(s, "*"); many {
		var n int
		if _, err := fmt.Sscanf(count, "%d", &n); err != nil {
			return nil, err
		}
		one, err := hex.DecodeString(digits)
		if err != nil {
			return nil, err
		}
		return []byte(strings.Repeat(string(one), n)), nil
	}
	return hex.DecodeString(s)
}
