// Package outside is an agent of package xfer for a program in another language, which tells it, a line of JSON at a
// time, what to do. Memory stays the program's own. The agent lives in the program itself (libweft calls Do) or in a child
// of it, which reads and writes the program's memory through the kernel (Main). python/weft/nixl.py is such a program.
//
//	{"id": 1, "do": "register", "name": "pool", "addr": 139637976727552, "len": 1048576}
//	{"id": 1}
//	{"id": 2, "do": "open", "blob": "..."}
//	{"id": 2, "name": "decode0"}
package outside

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/weft-fabric/weft/run/gpu"
)

// call is what the program says.
type call struct {
	ID int    `json:"id"`
	Do string `json:"do"`

	Name   string   `json:"name"`   // of the agent, a region or a peer
	Token  string   `json:"token"`  // new
	Listen []string `json:"listen"` // new
	Addr   uint64   `json:"addr"`   // register: memory of the program
	FD     *int     `json:"fd"`     // register: a file that the program has open
	GPU    *int     `json:"gpu"`    // register: Addr is memory of this GPU
	Len    int64    `json:"len"`
	Blob   []byte   `json:"blob"`  // open
	Descs  []desc   `json:"descs"` // prepare
	List   int      `json:"list"`  // release
	Op     string   `json:"op"`    // post: READ, WRITE
	Local  int      `json:"local"` // lists
	Far    int      `json:"far"`
	LI     []byte   `json:"li"`    // index: which of the local descriptors, as 32-bit little-endian numbers
	FI     []byte   `json:"fi"`    // index: which of the far ones
	Index  int      `json:"index"` // post: the number of an index; 0: all descriptors
	Data   *[]byte  `json:"data"`  // notice
	Limit  float64  `json:"limit"`
	Req    int      `json:"req"`
	Peer   string   `json:"peer"`

	Key  string            `json:"key"`  // register, query: an object of the store; etcd: what is put, got, deleted
	Env  map[string]string `json:"env"`  // store: where it is and who we are, in the variables that S3 clients read
	Etcd []string          `json:"etcd"` // endpoints
}

// desc is bytes of a region by its name.
type desc struct {
	Region string `json:"r"`
	Off    int64  `json:"o"`
	Len    int64  `json:"n"`
}

// answer is what the agent says.
type answer struct {
	ID      int                 `json:"id"`
	Error   string              `json:"error,omitempty"`
	Kind    string              `json:"kind,omitempty"` // of the error
	Name    string              `json:"name,omitempty"`
	Blob    []byte              `json:"blob,omitempty"`
	Number  int                 `json:"number,omitempty"`
	State   string              `json:"state,omitempty"` // DONE, PROC, ERR
	Path    string              `json:"path,omitempty"`
	Bytes   int64               `json:"bytes,omitempty"`
	Took    float64             `json:"took_us,omitempty"`
	Notices map[string][][]byte `json:"notices,omitempty"`
	Failed  []string            `json:"failed,omitempty"` // writes of peers that did not land
}

// index says which descriptors of two lists requests move. It is sent once for many requests.
type index struct{ local, far []int }

func numbers(b []byte) []int {
	out := make([]int, len(b)/4)
	for i := range out {
		out[i] = int(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// Agent is the agent of one program.
type Agent struct {
	// GPU opens a GPU by its number. Without it the program's GPU memory cannot be reached, as from a child of it.
	GPU func(ordinal int) (gpu.Device, error)

	a        *xfer.Agent
	pid      int
	regions  map[string]*xfer.Region
	peers    map[string]*xfer.Peer
	lists    map[int]*xfer.List
	requests map[int]*posted
	indices  map[int]index
	hosts    map[string]span // regions of memory in this process
	next     int
	store    blob.Place // what objects lie in
	entries  entries

	mu   sync.Mutex
	lost []string // notices that did not reach their peers, for the next look at those that came
}

// noticeTime is how long a call waits for the acknowledgement of a notice. Later ones are told when the program asks for notices: a peer
// that was stopped must not hold up the program, which has others to talk to.
const noticeTime = time.Second

// callTime is how long a call may take that waits for others.
const callTime = 30 * time.Second

// pollTime is how long a look at a request waits for its end.
const pollTime = 100 * time.Microsecond

// New makes the agent of a process: the caller's own, or another one of this host.
func New(pid int) *Agent {
	return &Agent{pid: pid, regions: map[string]*xfer.Region{}, peers: map[string]*xfer.Peer{}, lists: map[int]*xfer.List{},
		requests: map[int]*posted{}, indices: map[int]index{}, hosts: map[string]span{}}
}

// Close ends the agent.
func (g *Agent) Close() {
	if g.a != nil {
		g.a.Close()
	}
	for name := range g.hosts {
		g.unpin(name)
	}
	g.entries.close()
}

// Do does what a line says, and answers with a line. Calls do not overlap.
func (g *Agent) Do(line []byte) []byte {
	var c call
	r := answer{}
	if err := json.Unmarshal(line, &c); err != nil {
		r.Error, r.Kind = err.Error(), "parameter"
	} else if err := g.do(c, &r); err != nil {
		r.Error, r.Kind = err.Error(), kind(err)
	}
	r.ID = c.ID
	out, err := json.Marshal(r)
	if err != nil {
		panic(err) // text, bytes and numbers
	}
	return append(out, '\n')
}

// Main serves the program that started this process, until it closes in.
func Main(in io.Reader, out io.Writer) error {
	g := New(os.Getppid())
	defer g.Close()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 256<<20)
	for lines.Scan() {
		if _, err := out.Write(g.Do(lines.Bytes())); err != nil {
			return err
		}
	}
	return lines.Err()
}

// kind is an error in the words of other libraries.
func kind(err error) string {
	for _, x := range []struct {
		err  error
		kind string
	}{{errParameter, "parameter"}, {xfer.ErrBounds, "parameter"}, {xfer.ErrOverlap, "parameter"}, {xfer.ErrLength, "mismatch"},
		{xfer.ErrRegion, "not found"}, {xfer.ErrAgent, "not found"}, {xfer.ErrAccess, "not allowed"},
		{xfer.ErrKey, "not allowed"}, {xfer.ErrStale, "disconnected"}, {xfer.ErrGone, "disconnected"}, {xfer.ErrLost, "disconnected"},
		{xfer.ErrCancelled, "cancelled"}, {xfer.ErrKind, "unsupported"}, {xfer.ErrPath, "unsupported"}} {
		if errors.Is(err, x.err) {
			return x.kind
		}
	}
	return "backend"
}

var errParameter = errors.New("wrong use")

// calls are what a program may ask of an agent, by the call's name. Apart from "new" each needs an agent.
var calls = map[string]func(g *Agent, ctx context.Context, c call, r *answer) error{
	"store":       func(g *Agent, _ context.Context, c call, _ *answer) error { return g.openStore(c) },
	"query":       (*Agent).query,
	"etcd put":    etcd,
	"etcd get":    etcd,
	"etcd delete": etcd,
	"register":    func(g *Agent, _ context.Context, c call, _ *answer) error { return g.register(c) },
	"deregister":  func(g *Agent, ctx context.Context, c call, _ *answer) error { return g.deregister(ctx, c) },
	"describe":    func(g *Agent, _ context.Context, _ call, r *answer) error { r.Blob = g.a.Describe(); return nil },
	"open":        func(g *Agent, _ context.Context, c call, r *answer) error { return g.open(c, r) },
	"forget":      func(g *Agent, _ context.Context, c call, _ *answer) error { return g.forget(c) },
	"prepare":     func(g *Agent, _ context.Context, c call, r *answer) error { return g.prepare(c, r) },
	"drop":        func(g *Agent, _ context.Context, c call, _ *answer) error { return g.drop(c) },
	"index": func(g *Agent, _ context.Context, c call, r *answer) error {
		g.next++
		g.indices[g.next], r.Number = index{numbers(c.LI), numbers(c.FI)}, g.next
		return nil
	},
	"unindex": func(g *Agent, _ context.Context, c call, _ *answer) error { delete(g.indices, c.Index); return nil },
	"post":    func(g *Agent, _ context.Context, c call, r *answer) error { return g.post(c, r) },
	"poll": func(g *Agent, _ context.Context, c call, r *answer) error {
		s, err := g.Look(c.Req)
		if err == nil {
			s.tell(r)
		}
		return err
	},
	"release": func(g *Agent, _ context.Context, c call, _ *answer) error { return g.release(c.Req) },
	"notify":  func(g *Agent, _ context.Context, c call, _ *answer) error { return g.say(c) },
	"notices": func(g *Agent, _ context.Context, _ call, r *answer) error { g.notices(r); return nil },
}

func etcd(g *Agent, ctx context.Context, c call, r *answer) error { return g.entries.do(ctx, c, r) }

// do answers one call of the program, within callTime.
func (g *Agent) do(c call, r *answer) (err error) {
	if c.Do == "new" {
		if g.a != nil {
			return fmt.Errorf("the agent is there already: %w", errParameter)
		}
		g.a, err = xfer.New(xfer.Config{Name: c.Name, Token: c.Token, Listen: c.Listen})
		return err
	}
	if g.a == nil {
		return fmt.Errorf("%s before new: %w", c.Do, errParameter)
	}
	f := calls[c.Do]
	if f == nil {
		return fmt.Errorf("%q is not a call: %w", c.Do, errParameter)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	return f(g, ctx, c, r)
}

// register makes a region of the program's memory, file or object. Host memory is pinned for the GPU, if there is one.
func (g *Agent) register(c call) error {
	s, access, err := g.storage(c)
	if err != nil {
		return err
	}
	if g.regions[c.Name] != nil {
		return fmt.Errorf("region %q is there already; deregister it first: %w", c.Name, errParameter)
	}
	x, err := g.a.Register(c.Name, s, access)
	if err != nil {
		return err
	}
	g.regions[c.Name] = x
	if g.GPU != nil && s.Kind() == xfer.Host {
		g.hosts[c.Name] = span{c.Addr, c.Len}
		pinned.add(g.hosts[c.Name])
	}
	return nil
}

// deregister waits until no peer reads the region. Where that takes too long the region stays, pinned, and can be
// deregistered again: a peer may still be reading it.
func (g *Agent) deregister(ctx context.Context, c call) error {
	x := g.regions[c.Name]
	if x == nil {
		return fmt.Errorf("region %q: %w", c.Name, xfer.ErrRegion)
	}
	if err := x.Release(ctx); err != nil {
		return err
	}
	delete(g.regions, c.Name)
	g.unpin(c.Name)
	return nil
}

func (g *Agent) open(c call, r *answer) error {
	p, err := g.a.Open(c.Blob)
	if err != nil {
		return err
	}
	g.peers[p.ID().Name] = p
	r.Name = p.ID().Name
	return nil
}

func (g *Agent) forget(c call) error {
	p := g.peers[c.Name]
	if p == nil {
		return fmt.Errorf("agent %q: %w", c.Name, xfer.ErrAgent)
	}
	g.a.Forget(p)
	delete(g.peers, c.Name)
	return nil
}

func (g *Agent) drop(c call) error {
	l := g.lists[c.List]
	if l == nil {
		return fmt.Errorf("list %d: %w", c.List, xfer.ErrRegion)
	}
	l.Release()
	delete(g.lists, c.List)
	return nil
}

func (g *Agent) say(c call) error {
	p := g.peers[c.Peer]
	if p == nil {
		return fmt.Errorf("agent %q: %w", c.Peer, xfer.ErrAgent)
	}
	var data []byte
	if c.Data != nil {
		data = *c.Data
	}
	return g.notify(p, data)
}

// notices hands over the notices that have come, and the errors since the last call.
func (g *Agent) notices(r *answer) {
	r.Notices = map[string][][]byte{}
	g.mu.Lock()
	r.Failed, g.lost = g.lost, nil
	g.mu.Unlock()
	for _, n := range g.a.Notices() {
		if n.Err != nil {
			r.Failed = append(r.Failed, n.Err.Error())
			continue
		}
		r.Notices[n.From.Name] = append(r.Notices[n.From.Name], n.Data)
	}
}

// storage is what a region is made of, memory or a file of the program, or an object, and what peers may do with it.
func (g *Agent) storage(c call) (s xfer.Storage, access xfer.Access, err error) {
	switch {
	case c.FD != nil:
		o := xfer.FileOptions{Size: c.Len}
		if o.ReadOnly, err = readOnly(g.pid, *c.FD); err != nil {
			return nil, 0, err
		}
		if o.ReadOnly {
			access = xfer.MayRead
		}
		s, err = xfer.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", g.pid, *c.FD), o)
		return s, access, err
	case c.GPU != nil:
		s, err = g.device(c)
		return s, 0, err
	case c.Key != "" || (c.Addr == 0 && g.store != nil):
		if g.store == nil {
			return nil, 0, fmt.Errorf("object %q: no store was given: %w", c.Key, errParameter)
		}
		if c.Len < 1 || c.Key == "" {
			return nil, 0, fmt.Errorf("object %q of %d bytes: want a key and at least one byte: %w", c.Key, c.Len, xfer.ErrBounds)
		}
		s, err = xfer.NewObject(g.store, c.Key, c.Len, xfer.ObjectOptions{})
		return s, 0, err
	}
	s, err = memoryOf(g.pid, c.Addr, c.Len)
	return s, 0, err
}

// device is memory of a GPU.
func (g *Agent) device(c call) (xfer.Storage, error) {
	if g.GPU == nil {
		return nil, fmt.Errorf("GPU %d: an agent in a process of its own cannot reach GPU memory; build libweft ('make lib'): %w",
			*c.GPU, xfer.ErrKind)
	}
	d, err := g.GPU(*c.GPU)
	if err != nil {
		return nil, fmt.Errorf("GPU %d: %w: %w", *c.GPU, xfer.ErrKind, err)
	}
	pinned.use(d)
	return xfer.NewDevice(d, gpu.Ptr(c.Addr), c.Len)
}

// unpin is for a region that is no longer registered: its memory may be freed now.
func (g *Agent) unpin(name string) {
	if s, ok := g.hosts[name]; ok {
		pinned.remove(s)
		delete(g.hosts, name)
	}
}

// readOnly reports whether the program opened a file for reading alone: then it is not written here either.
func readOnly(pid, fd int) (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return false, fmt.Errorf("file descriptor %d is not open: %w: %w", fd, errParameter, err)
	}
	for line := range strings.Lines(string(text)) {
		if flags, ok := strings.CutPrefix(line, "flags:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64)
			return n&syscall.O_ACCMODE == syscall.O_RDONLY, err
		}
	}
	return false, fmt.Errorf("file descriptor %d: how it was opened is not known", fd)
}

// openStore takes an object store. This process has one, as its settings are those of the environment.
func (g *Agent) openStore(c call) error {
	for k, v := range c.Env {
		if !strings.HasPrefix(k, "AWS_") {
			return fmt.Errorf("setting %s of a store: want AWS_...: %w", k, errParameter)
		}
		if err := os.Setenv(k, v); err != nil {
			return fmt.Errorf("setting %s: %w", k, err)
		}
	}
	p, err := blob.Open(c.Name)
	if err != nil {
		return fmt.Errorf("%w: %w", errParameter, err)
	}
	if g.store != nil {
		g.store.Close()
	}
	g.store = p
	return nil
}

// query says whether an object is there (State) and how large it is (Bytes).
func (g *Agent) query(ctx context.Context, c call, r *answer) error {
	if g.store == nil || c.Key == "" {
		return fmt.Errorf("object %q: want a store and a key: %w", c.Key, errParameter)
	}
	found, err := g.store.List(ctx, c.Key)
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.Name == c.Key {
			r.State, r.Bytes = "there", f.Size
		}
	}
	return nil
}

// notify sends a notice and waits a moment for it. If it takes longer the call returns, and an error is reported with
// the next notices.
func (g *Agent) notify(p *xfer.Peer, data []byte) error {
	done := make(chan error)
	over, late := context.WithCancel(context.Background())
	defer late()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err := g.a.Notify(ctx, p, data)
		select {
		case done <- err:
		case <-over.Done():
			if err != nil {
				g.mu.Lock()
				g.lost = append(g.lost, err.Error())
				g.mu.Unlock()
			}
		}
	}()
	t := time.NewTimer(noticeTime)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return nil
	}
}
