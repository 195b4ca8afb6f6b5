// Package measure compares transports between two processes: sockets, shared memory, UCX and RDMA. Two real processes
// exchange messages over each transport available here: short ones for latency, long ones for bandwidth and CPU time. A
// third run, under a tracer, counts system calls. Transports that cannot run here are modelled and marked.
package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Way is one way to exchange bytes.
type Way struct {
	Name      string // for people and for Options.Ways
	Kind      string // sockets, shared memory, UCX, RDMA
	Transport string // tcp, shm, ucx, or empty if it is modelled
	UCX       string // its transports
	Plain     bool   // buffers of the program, where others are of Alloc
	Copies    float64
	Why       string // whose copies those are
}

// Ways are those that are known, in the order of the table.
var Ways = []Way{
	{Name: "tcp", Kind: "sockets", Transport: "tcp", Plain: true, Copies: 2, Why: "into the kernel and out of it"},
	{Name: "shm", Kind: "shared memory", Transport: "shm", Copies: 1,
		Why: "out of the sender's registered memory; a sum reads it in place, without one"},
	{Name: "shm-plain", Kind: "shared memory", Transport: "shm", Plain: true, Copies: 1, Why: "by process_vm_readv"},
	{Name: "ucx-posix", Kind: "UCX", Transport: "ucx", UCX: "posix", Plain: true, Copies: 2, Why: "into shared memory and out of it"},
	{Name: "ucx-cma", Kind: "UCX", Transport: "ucx", UCX: "posix,cma", Plain: true, Copies: 1, Why: "by process_vm_readv"},
	{Name: "ucx-tcp", Kind: "UCX", Transport: "ucx", UCX: "tcp", Plain: true, Copies: 2, Why: "into the kernel and out of it"},
	{Name: "rdma", Kind: "RDMA", Copies: 0, Why: "the cards read and write memory"},
}

// Names are those of the ways.
func Names() (list []string) {
	for _, w := range Ways {
		list = append(list, w.Name)
	}
	return list
}

// Row is what was found of a way. Its keys are stable. Figures that are not known are zero.
type Row struct {
	Name      string   `json:"name"`
	Kind      string   `json:"kind"`
	Over      string   `json:"over,omitempty"` // what the transport says it is
	Origin    string   `json:"origin"`         // measured, modelled, or absent
	Note      string   `json:"note,omitempty"` // why it is absent, or by what it is modelled
	Copies    float64  `json:"copies"`
	CopiesWhy string   `json:"copies_why"`
	Calls     float64  `json:"system_calls_per_mib"` // that move data, of both processes
	CallNames []string `json:"system_calls,omitempty"`
	Counted   bool     `json:"system_calls_counted"`
	CPU       float64  `json:"cpu_seconds_per_gb"` // of both processes
	Latency   float64  `json:"latency_us"`         // one way, 8 bytes, median
	Best      float64  `json:"latency_best_us"`
	Bandwidth float64  `json:"bandwidth_gb_s"` // messages of Message bytes, one way
	Message   int      `json:"message_bytes"`
}

// Options say what is measured.
type Options struct {
	Command []string      // starts a rank: this program, in the verb that calls Main
	Ways    []string      // names; empty for all
	For     time.Duration // for each figure of each way
	Message int           // bytes of a long message
	Trace   bool          // count system calls, which takes ptrace
	Alone   bool          // also what ucx_perftest reaches over the transports of UCX
	Told    func(string)  // hears of each way before it is measured; may be nil
}

// Default are options that take some seconds.
func Default() Options { return Options{For: 300 * time.Millisecond, Message: 1 << 20, Trace: true} }

// Run measures the ways one after the other.
func Run(ctx context.Context, o Options) ([]Row, error) {
	for _, n := range o.Ways {
		if !slices.Contains(Names(), n) {
			return nil, fmt.Errorf("unknown way %q; known: %s", n, strings.Join(Names(), ", "))
		}
	}
	if o.Message < 64 || o.For <= 0 {
		return nil, fmt.Errorf("messages of %d bytes for %s: want at least 64 bytes and some time", o.Message, o.For)
	}
	var rows []Row
	for _, w := range Ways {
		if len(o.Ways) > 0 && !slices.Contains(o.Ways, w.Name) {
			continue
		}
		if o.Told != nil {
			o.Told(w.Name)
		}
		r := Row{Name: w.Name, Kind: w.Kind, Copies: w.Copies, CopiesWhy: w.Why, Message: o.Message}
		if w.Transport == "" {
			modelled(&r)
			rows = append(rows, r)
			continue
		}
		f, err := pair(ctx, o, w, task{Way: w.Name, For: o.For, Message: o.Message}, false)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			r.Origin, r.Note = "absent", err.Error()
			rows = append(rows, r)
			continue
		}
		r.Origin, r.Over, r.Latency, r.Best, r.Bandwidth, r.CPU = "measured", f.Over, f.Latency, f.Best, f.Bandwidth, f.CPU
		if o.Trace {
			const traced = 64 // messages; a tracer makes every call slow
			f, err := pair(ctx, o, w, task{Way: w.Name, Message: o.Message, Messages: traced}, true)
			if err != nil {
				r.Note = "system calls: " + err.Error()
			} else {
				r.count(f.calls, traced)
			}
		}
		rows = append(rows, r)
		if o.Alone && w.UCX != "" {
			rows = append(rows, perftest(ctx, w, o.Message))
		}
	}
	return rows, nil
}

// moves are the system calls that move data; the others wait.
var moves = []string{"read", "write", "readv", "writev", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg",
	"process_vm_readv", "process_vm_writev", "splice", "vmsplice"}

// count takes the calls of a traced run.
func (r *Row) count(calls map[string]int, messages int) {
	r.Counted = true
	sum := 0
	for _, n := range moves {
		if c := calls[n]; c > 0 {
			sum += c
			r.CallNames = append(r.CallNames, fmt.Sprintf("%s %d", n, c))
		}
	}
	r.Calls = float64(sum) / (float64(messages) * float64(r.Message) / (1 << 20))
}

// modelled fills in RDMA over one 400 Gb/s card, which no machine of ours has.
func modelled(r *Row) {
	const (
		wire     = 50.0 // GB/s
		share    = 0.97 // of it after headers of 4,096-byte packets
		latency  = 2.0  // us, from one host to another through one switch
		post     = 0.3  // us of a processor to post a message and to take its completion, both ends
		perGB    = 1e9
		microsec = 1e-6
	)
	r.Origin = "modelled"
	r.Note = "one 400 Gb/s card a host, one switch, 4,096-byte packets; a post and a completion a message"
	r.Latency, r.Best, r.Bandwidth = latency, latency, wire*share
	r.CPU = perGB / float64(r.Message) * post * microsec
	r.Counted = true
}

// task is what a rank is told to do.
type task struct {
	Rank     int           `json:"rank"`
	Way      string        `json:"way"`
	For      time.Duration `json:"for"`
	Message  int           `json:"message"`
	Messages int           `json:"messages"` // the number of long messages, and no short ones; 0 for as many as time allows
}

// figures are what a rank found.
type figures struct {
	Over      string  `json:"over"`
	Latency   float64 `json:"latency"`
	Best      float64 `json:"best"`
	Bandwidth float64 `json:"bandwidth"`
	CPU       float64 `json:"cpu"` // seconds a GB
	Error     string  `json:"error,omitempty"`

	calls map[string]int
}

// line is what a rank and its parent say to one another.
type line struct {
	Gather []byte         `json:"gather,omitempty"`
	All    [][]byte       `json:"all,omitempty"`
	Done   *figures       `json:"done,omitempty"`
	Calls  map[string]int `json:"calls,omitempty"`
}

// limit is how long a pair may take besides what it is told to.
const limit = 40 * time.Second

// pair starts two ranks, lets them meet, and takes what they found.
func pair(ctx context.Context, o Options, w Way, t task, traced bool) (figures, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+4*t.For)
	defer cancel()
	var ranks [2]*child
	defer func() {
		cancel()
		for _, r := range ranks {
			if r != nil {
				_ = r.in.Close()
				_ = r.cmd.Wait()
			}
		}
	}()
	command := o.Command
	if traced {
		command = append(slices.Clone(command), "--traced")
	}
	for i := range ranks {
		t.Rank = i
		var err error
		if ranks[i], err = start(ctx, command, t); err != nil {
			return figures{}, err
		}
	}
	calls := map[string]int{}
	for ranks[0].found == nil || ranks[1].found == nil {
		all := make([][]byte, 2)
		for i, r := range ranks {
			var err error
			if all[i], err = r.hear(ctx, calls, traced); err != nil {
				return figures{}, err
			}
		}
		if ranks[0].found != nil && ranks[1].found != nil {
			break
		}
		if all[0] == nil || all[1] == nil {
			return figures{}, firstError([2]*figures{ranks[0].found, ranks[1].found})
		}
		for _, r := range ranks {
			if err := json.NewEncoder(r.in).Encode(line{All: all}); err != nil {
				return figures{}, ended(ctx, r.err.String())
			}
		}
	}
	if err := firstError([2]*figures{ranks[0].found, ranks[1].found}); err != nil {
		return figures{}, err
	}
	f := *ranks[0].found
	f.CPU += ranks[1].found.CPU
	f.calls = calls
	return f, nil
}

// child is a rank in a process of its own.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	err   strings.Builder
	found *figures // nil until it has them
}

// start starts a rank.
func start(ctx context.Context, command []string, t task) (*child, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	r := &child{cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	r.cmd.Env = append(os.Environ(), envTask+"="+string(text))
	r.cmd.WaitDelay = 2 * time.Second
	r.cmd.Stderr = &r.err
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.out = bufio.NewScanner(out)
	r.out.Buffer(nil, 1<<20)
	return r, r.cmd.Start()
}

// hear reads what a rank says until it has something for the other one, which is returned, or its figures. Of a rank that is traced
// what follows them is read, too: how often it called the system.
func (r *child) hear(ctx context.Context, calls map[string]int, traced bool) ([]byte, error) {
	for r.out.Scan() {
		var l line
		if json.Unmarshal(r.out.Bytes(), &l) != nil {
			continue // of a library that prints
		}
		switch {
		case l.Done != nil:
			r.found = l.Done
		case l.Calls != nil:
			for n, c := range l.Calls {
				calls[n] += c
			}
		case l.Gather != nil:
			return l.Gather, nil
		}
		if r.found != nil && !traced {
			return nil, nil
		}
	}
	if r.found == nil {
		return nil, ended(ctx, r.err.String())
	}
	return nil, nil
}

func firstError(found [2]*figures) error {
	for i, f := range found {
		if f != nil && f.Error != "" {
			return fmt.Errorf("process %d: %s", i, f.Error)
		}
	}
	if found[0] == nil || found[1] == nil {
		return errors.New("one of the two processes ended early")
	}
	return nil
}

// ended says why a rank has ended.
func ended(ctx context.Context, text string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("nothing came within %s", limit)
	}
	if text = strings.TrimSpace(text); text != "" {
		return errors.New(text)
	}
	return errors.New("a process ended early")
}
