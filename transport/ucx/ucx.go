//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/transport/wait"
)

// Endpoint is a rank's worker of UCX and its connections.
type Endpoint struct {
	rank, size int
	world      uint64
	lib        *library
	log        *slog.Logger
	id         uintptr // among the endpoints of this process, for callbacks
	name       string
	crowded    bool // ranks outnumber cores
	backoff    wait.Backoff

	role    sync.Mutex // of sleeping on the worker's descriptor
	fds     []unix.PollFd
	watched []int // the ranks of fds, from the third on
	kick    int   // an event descriptor that ends a sleep

	users      sync.WaitGroup // calls under way
	waits      atomic.Uint64  // how many have begun
	ending     atomic.Bool
	keeper     sync.WaitGroup
	stopKeeper chan struct{}
	once       sync.Once

	mu      sync.Mutex // guards everything below, and all of UCX
	context uintptr
	worker  uintptr
	inside  bool // of a callback
	moved   bool // since the lock was taken
	asleep  bool // somebody sleeps on the descriptor
	parked  int
	changed chan struct{}
	closed  bool
	self    *peer   // of this rank
	peers   []*peer // nil for this rank
	ports   map[portKey]*port
	epochs  map[uint32]uint32
	gone    []portKey // that have ended, the last of them
	goneSet map[portKey]bool

	slots   slots
	todo    []func()
	flying  []*slot
	offered []*inbound
	dying   []*inbound
	buffers [][]byte

	regions    map[uint64]*region
	sorted     []*region // by address
	lastRegion uint64
	lastTicket transport.Ticket
	running    []*op
	flushing   []*peer
	parting    []parting
	done       []transport.Completion

	count struct{ sent, received, bytesOut, bytesIn, refused, old, stale, mismatch uint64 }
}

// peer is another rank.
type peer struct {
	rank     int
	pid      int
	ep       uintptr
	gone     atomic.Pointer[transport.Gone]
	told     uint64 // number of the last message to it
	heard    uint64 // number up to which all have come from it
	early    map[uint64]*inbound
	open     map[uint64]*inbound // long messages that are still with it
	hello    bool
	heardBye bool
	cut      bool
	ended    bool // its process has

	ops       []*op // that have not begun
	far       map[uint64]*remote
	unflushed bool
	lanes     []lane
}

// card is what ranks tell one another to connect.
type card struct {
	Version string `json:"version"`
	World   uint64 `json:"world"`
	Machine string `json:"machine"`
	PID     int    `json:"pid"`
	Address []byte `json:"address"`
	Error   string `json:"error,omitempty"`
}

// Open connects a rank with all others. All ranks must call it at the same time.
func Open(ctx context.Context, c Config) (*Endpoint, error) {
	switch {
	case c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size:
		return nil, fmt.Errorf("ucx: rank %d of %d; ranks are 0 to size-1", c.Rank, c.Size)
	case c.Gather == nil && c.Size > 1:
		return nil, fmt.Errorf("ucx: rank %d of %d has no Gather to find the others by", c.Rank, c.Size)
	}
	e, err := start(c)
	mine := card{PID: os.Getpid(), Machine: machine()}
	if err != nil {
		mine.Error = err.Error()
	} else {
		mine.Version, mine.World = e.lib.version, e.world
		mine.Address, err = e.address()
	}
	if c.Size == 1 {
		if err != nil {
			return nil, err
		}
		e.name = "ucx"
		e.run()
		return e, nil
	}
	// A rank that cannot take part says so to all, or they would wait for it.
	cards, gerr := gather[card](ctx, c.Gather, mine)
	if gerr == nil && err == nil {
		gerr = e.connect(ctx, c, cards)
	}
	if err = firstOf(err, gerr); err != nil {
		if e != nil {
			_ = e.Close()
		}
		return nil, err
	}
	return e, nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func machine() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	pids, _ := os.Readlink("/proc/self/ns/pid")
	return strings.TrimSpace(string(boot)) + " " + pids
}

// gather hands every rank what each gives.
func gather[T any](ctx context.Context, g transport.Gather, mine T) ([]T, error) {
	b, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	blobs, err := g(ctx, b)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(blobs))
	for r, b := range blobs {
		if err := json.Unmarshal(b, &all[r]); err != nil {
			return nil, fmt.Errorf("ucx: what rank %d said about itself: %w", r, err)
		}
	}
	return all, nil
}

// endpoints are those of this process, for callbacks, which carry a number.
var endpoints struct {
	sync.RWMutex
	byID map[uintptr]*Endpoint
	last uintptr
}

// The callbacks, made once: there is no giving them back.
var (
	onMessage = sync.OnceValue(func() uintptr {
		return purego.NewCallback(func(id, head, headLength, data, length, param uintptr) uintptr {
			endpoints.RLock()
			e := endpoints.byID[id]
			endpoints.RUnlock()
			if e == nil {
				return 0
			}
			const rendezvous = 1 << 17
			attr := *(*uint64)(ptr(param))
			e.inside = true
			r := e.arrived(head, headLength, data, length, attr&rendezvous != 0)
			e.inside = false
			return r
		})
	})
	onError = sync.OnceValue(func() uintptr {
		return purego.NewCallback(func(arg, ep uintptr, status uintptr) uintptr {
			endpoints.RLock()
			e := endpoints.byID[arg>>32]
			endpoints.RUnlock()
			if e == nil {
				return 0
			}
			p := e.peers[arg&(1<<32-1)]
			code := int32(status)
			e.later(func() { e.lost(p, "UCX: "+e.lib.words(code)) })
			return 0
		})
	})
)

// start makes context and worker.
func start(c Config) (*Endpoint, error) {
	lib, err := load()
	if err != nil {
		return nil, err
	}
	machine := c.Machine
	if machine == 0 {
		machine = c.Size
	}
	e := &Endpoint{rank: c.Rank, size: c.Size, lib: lib, log: c.Log, crowded: machine > runtime.NumCPU(), kick: -1,
		changed: make(chan struct{}), stopKeeper: make(chan struct{}), peers: make([]*peer, c.Size), self: &peer{rank: c.Rank, open: map[uint64]*inbound{}},
		ports: map[portKey]*port{}, epochs: map[uint32]uint32{}, goneSet: map[portKey]bool{}, regions: map[uint64]*region{}}
	e.backoff.Ranks = machine
	var secret [8]byte
	_, _ = rand.Read(secret[:])
	e.world = binary.LittleEndian.Uint64(secret[:])
	m := page()
	defer m.free()
	if err := lib.status("ucp_config_read", 0, 0, m.at()); err != nil {
		return nil, fmt.Errorf("ucx: %w", err)
	}
	config := m.pointer(0)
	defer lib.call("ucp_config_release", config)
	if here, err := lib.transports(); err == nil {
		if err := missing(c.Transports, here); err != nil {
			return nil, err
		}
	}
	alive := c.Alive
	if alive == 0 {
		alive = time.Second
	}
	options := [][2]string{
		{"KEEPALIVE_INTERVAL", fmt.Sprintf("%dms", max(alive.Milliseconds(), 1))},
		{"ATOMIC_MODE", "cpu"},                       // atomics of network cards and of processors do not see one another
		{"ALLOC_PRIO", "md:sysv,md:posix,md:*,mmap"}, // what is new and zeroed
	}
	if len(c.Transports) > 0 {
		options = append(options, [2]string{"TLS", strings.Join(append(slices.Clone(c.Transports), "self"), ",")})
	}
	for _, o := range options {
		name, value := cstring(o[0]), cstring(o[1])
		err := lib.status("ucp_config_modify", config, name.at(), value.at())
		name.free()
		value.free()
		if err != nil && o[0] == "TLS" {
			return nil, fmt.Errorf("ucx: transports %s: %w", o[1], err)
		}
	}
	const features = 2 | 8 | 16 | 64 // one-sided, 64-bit atomics, wake-up, active messages
	m.set(0, 1|1<<6)
	m.set(8, features)
	m.set(56, uintptr(c.Size))
	if err := lib.status("ucp_init_version", 1, least, m.at(), config, m.at()+512); err != nil {
		why := ""
		if len(c.Transports) > 0 {
			why = fmt.Sprintf(" with transports %s (ucx_info -d lists those of this machine)", strings.Join(c.Transports, ", "))
		}
		return nil, fmt.Errorf("ucx: start%s: %w", why, err)
	}
	e.context = m.pointer(512)
	clear(m.b)
	const serialized = 1
	m.set(0, 1)
	m.setU32(8, serialized)
	if err := lib.status("ucp_worker_create", e.context, m.at(), m.at()+512); err != nil {
		e.destroy()
		return nil, fmt.Errorf("ucx: %w", err)
	}
	e.worker = m.pointer(512)
	endpoints.Lock()
	if endpoints.byID == nil {
		endpoints.byID = map[uintptr]*Endpoint{}
	}
	endpoints.last++
	e.id = endpoints.last
	endpoints.byID[e.id] = e
	endpoints.Unlock()
	clear(m.b)
	m.set(0, 1|2|4|8)
	m.setU32(8, 0)
	m.setU32(12, 1) // whole messages
	m.set(16, onMessage())
	m.set(24, e.id)
	if err := lib.status("ucp_worker_set_am_recv_handler", e.worker, m.at()); err != nil {
		e.destroy()
		return nil, fmt.Errorf("ucx: %w", err)
	}
	if err := lib.status("ucp_worker_get_efd", e.worker, m.at()); err != nil {
		e.destroy()
		return nil, fmt.Errorf("ucx: no transport can wake a sleeper: %w", err)
	}
	fd := int32(m.u32(0))
	if e.kick, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		e.destroy()
		return nil, fmt.Errorf("ucx: %w", err)
	}
	e.fds = []unix.PollFd{{Fd: fd, Events: unix.POLLIN}, {Fd: int32(e.kick), Events: unix.POLLIN}}
	return e, nil
}

// address is where the worker is found.
func (e *Endpoint) address() ([]byte, error) {
	m := page()
	defer m.free()
	if err := e.lib.status("ucp_worker_get_address", e.worker, m.at(), m.at()+8); err != nil {
		return nil, fmt.Errorf("ucx: %w", err)
	}
	b := append([]byte(nil), bytesAt(m.pointer(0), int(m.u64(8)))...)
	e.lib.call("ucp_worker_release_address", e.worker, m.pointer(0))
	return b, nil
}

// connect makes the connections, and waits until all have heard of all.
func (e *Endpoint) connect(ctx context.Context, c Config, cards []card) error {
	if len(cards) != c.Size {
		return fmt.Errorf("ucx: %d ranks answered, %d were expected", len(cards), c.Size)
	}
	for r, x := range cards {
		if x.Error != "" {
			return fmt.Errorf("rank %d: %s", r, x.Error)
		}
	}
	e.world = cards[0].World
	m := page()
	defer m.free()
	for r, x := range cards {
		if r == e.rank {
			continue
		}
		p := &peer{rank: r, pid: x.PID, open: map[uint64]*inbound{}, far: map[uint64]*remote{}}
		e.peers[r] = p
		at := mapped(len(x.Address))
		copy(at.b, x.Address)
		clear(m.b)
		m.set(0, 1|2|4)
		m.set(8, at.at())
		// Where UCX can tell that a peer is gone it leaves shared memory out. A process of this machine is watched
		// by its descriptor instead; goroutines of one process, as in tests, end together.
		near := x.Machine == cards[e.rank].Machine
		if near && x.PID != os.Getpid() {
			fd, err := unix.PidfdOpen(x.PID, 0)
			if near = err == nil; near {
				e.fds = append(e.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
				e.watched = append(e.watched, r)
			}
		}
		if !near {
			m.setU32(16, 1) // errors of the peer are told
		}
		m.set(24, onError())
		m.set(32, e.id<<32|uintptr(r))
		err := e.lib.status("ucp_ep_create", e.worker, m.at(), m.at()+512)
		at.free()
		if err != nil {
			return fmt.Errorf("ucx: connect with rank %d: %w (transports: %s)", r, err, transportsWanted(c))
		}
		p.ep = m.pointer(512)
	}
	e.run() // what UCX has not sent yet goes out while this rank waits for others elsewhere
	e.mu.Lock()
	for _, p := range e.peers {
		if p != nil {
			e.control(p, header{kind: kindHello}, nil)
		}
	}
	e.unlock()
	silent := func() (list []int) {
		for _, p := range e.peers {
			if p != nil && !p.hello {
				list = append(list, p.rank)
			}
		}
		return list
	}
	err := e.await(ctx.Err, func() (bool, error) {
		for _, p := range e.peers {
			if p != nil {
				if g := p.gone.Load(); g != nil {
					return false, g
				}
			}
		}
		return len(silent()) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("ucx: ranks %v were not heard of (transports: %s): %w", silent(), transportsWanted(c), err)
	}
	return e.agree(ctx, c)
}

func transportsWanted(c Config) string {
	if len(c.Transports) > 0 {
		return strings.Join(c.Transports, ", ")
	}
	if s := os.Getenv("UCX_TLS"); s != "" {
		return "UCX_TLS=" + s
	}
	return "all that there are"
}

// agree finds which transports UCX took, anywhere, and refuses those that are not wanted.
func (e *Endpoint) agree(ctx context.Context, c Config) error {
	type ways struct{ Names, Wrong []string }
	var mine ways
	for _, p := range e.peers {
		if p == nil {
			continue
		}
		p.lanes = e.lanesTo(p)
		for _, n := range names(p.lanes) {
			if !slices.Contains(mine.Names, n) {
				mine.Names = append(mine.Names, n)
			}
		}
		if l := carries(p.lanes); c.Messages != "" && (l == nil || l.name != c.Messages) {
			took := "an unknown transport"
			if l != nil {
				took = l.name + "/" + l.device
			}
			mine.Wrong = append(mine.Wrong, fmt.Sprintf("messages from rank %d to rank %d go over %s, and %s is required", e.rank, p.rank, took, c.Messages))
		}
	}
	all, err := gather[ways](ctx, c.Gather, mine)
	if err != nil {
		return err
	}
	var list []string
	for _, w := range all {
		if len(w.Wrong) > 0 {
			return fmt.Errorf("ucx: %s", w.Wrong[0])
		}
		for _, n := range w.Names {
			if !slices.Contains(list, n) {
				list = append(list, n)
			}
		}
	}
	slices.Sort(list)
	e.name = strings.TrimSpace("ucx " + strings.Join(list, "+"))
	return nil
}

func (e *Endpoint) run() { e.keeper.Go(e.keep) }

// lanesTo asks UCX which ways it took to a peer. It prints them; there is no call before 1.15 that tells.
func (e *Endpoint) lanesTo(p *peer) []lane {
	e.mu.Lock()
	defer e.mu.Unlock()
	return parseLanes(e.lib.printed("ucp_ep_print_info", p.ep))
}

// Describe prints which transports UCX took between this rank and each other one.
func (e *Endpoint) Describe(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "UCX %s\n", e.lib.version); err != nil {
		return err
	}
	for _, p := range e.peers {
		if p == nil {
			continue
		}
		var parts []string
		for _, l := range p.lanes {
			parts = append(parts, fmt.Sprintf("%s/%s (%s)", l.name, l.device, strings.Join(l.uses, " ")))
		}
		if _, err := fmt.Fprintf(w, "rank %d to rank %d: %s\n", e.rank, p.rank, strings.Join(parts, ", ")); err != nil {
			return err
		}
	}
	return nil
}

// enter begins a call; it is an error if the endpoint is closed.
func (e *Endpoint) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return transport.ErrClosed
	}
	e.users.Add(1)
	return nil
}

func (e *Endpoint) leave() { e.users.Done() }

// post sends a message; the caller holds the lock, outside of UCX.
func (e *Endpoint) post(p *peer, h header, b []byte) *slot {
	s := e.slot(b)
	s.to = p
	p.told++
	h.world, h.number, h.rank = e.world, p.told, uint32(e.rank)
	h.put(&s.header)
	if h.kind != kindData {
		s.param.mask |= attrFlags
		s.param.flags = amEager
	}
	e.count.sent++
	e.count.bytesOut += uint64(len(b))
	data := address(b)
	if len(b) == 0 {
		data = 0
	}
	s.begin(e.lib.send, p.ep, 0, ptrOf(&s.header), headerSize, data, uintptr(len(b)), s.params())
	return s
}

// sending reports whether UCX is at work for a rank that is still there.
func (e *Endpoint) sending() bool {
	return slices.ContainsFunc(e.flying, func(s *slot) bool { return s.to == nil || !s.to.ended })
}

// control sends what has no user.
func (e *Endpoint) control(p *peer, h header, b []byte) {
	if p == nil || p.ep == 0 || p.cut || p.gone.Load() != nil && h.kind != kindByeAck {
		return
	}
	e.forget(e.post(p, h, b))
}

// lost notes that a rank can no longer be reached.
func (e *Endpoint) lost(p *peer, why string) {
	if p == nil || !p.gone.CompareAndSwap(nil, &transport.Gone{Rank: p.rank, Why: why}) {
		return
	}
	e.parts(p)
}

// left notes that a rank has closed its endpoint.
func (e *Endpoint) left(p *peer) {
	if p.gone.CompareAndSwap(nil, &transport.Gone{Rank: p.rank, Why: "it closed its endpoint", Left: true}) {
		e.parts(p)
	}
}

// parts ends what waits for a rank that is gone.
func (e *Endpoint) parts(p *peer) {
	e.moved = true
	e.later(func() {
		e.issue(p)
		for _, r := range e.regions {
			if r.holders[p.rank] {
				delete(r.holders, p.rank)
				e.unmap(r)
			}
		}
	})
}

// cut ends the connection with a peer, and everything that is under way with it.
func (e *Endpoint) cut(p *peer) {
	if p == nil || p.ep == 0 || p.cut {
		return
	}
	p.cut = true
	for _, f := range p.far {
		if f.rkey != 0 && f.using == 0 {
			e.lib.call("ucp_rkey_destroy", f.rkey)
			f.rkey, f.gone = 0, true
		}
	}
	s := e.slot(nil)
	s.param.mask |= attrFlags
	s.param.flags = 1 // by force
	s.begin(e.lib.at["ucp_ep_close_nbx"], p.ep, s.params())
	e.forget(s)
}

// Rank is this endpoint's.
func (e *Endpoint) Rank() int { return e.rank }

// Size is the number of ranks.
func (e *Endpoint) Size() int { return e.size }

// Verbs are the one-sided operations.
func (e *Endpoint) Verbs() transport.Verbs { return e }

// Memory is nil: UCX gives ranks calls, not one another's memory.
func (e *Endpoint) Memory() transport.Memory { return nil }

// Can says what UCX took.
func (e *Endpoint) Can() transport.Capabilities { return transport.Capabilities{Name: e.name} }

// Alive is nil, or why a rank can no longer be reached.
func (e *Endpoint) Alive(rank int) error {
	if rank < 0 || rank >= e.size {
		return fmt.Errorf("rank %d of %d", rank, e.size)
	}
	if p := e.peers[rank]; p != nil {
		if g := p.gone.Load(); g != nil {
			return g
		}
	}
	return nil
}

// Counters are what happened so far.
func (e *Endpoint) Counters() []transport.Counter {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &e.count
	return []transport.Counter{{Name: "messages_sent", Value: c.sent}, {Name: "messages_received", Value: c.received}, {Name: "bytes_sent", Value: c.bytesOut},
		{Name: "bytes_received", Value: c.bytesIn}, {Name: "messages_refused", Value: c.refused}, {Name: "messages_of_old_epochs", Value: c.old},
		{Name: "messages_dropped", Value: c.stale}, {Name: "messages_of_other_calls", Value: c.mismatch}}
}

// Close says goodbye. What was sent before still arrives.
func (e *Endpoint) Close() error {
	e.once.Do(func() {
		e.mu.Lock()
		e.closed = true
		for _, p := range e.ports {
			p.failed(transport.ErrClosed)
		}
		e.moved = true
		e.unlock()
		e.users.Wait() // they are told by their ports
		e.ending.Store(true)
		close(e.stopKeeper)
		e.mu.Lock()
		e.moved = true
		e.unlock()
		e.keeper.Wait()
		e.bye()
		e.destroy()
	})
	return nil
}

// goodbye is how long peers may take to hear that a rank leaves.
const goodbye = 2 * time.Second

// bye tells all peers, and waits until they have heard all that was sent.
func (e *Endpoint) bye() {
	e.mu.Lock()
	for _, p := range e.peers {
		if p != nil {
			e.control(p, header{kind: kindBye}, nil)
		}
	}
	e.unlock()
	end := time.Now().Add(goodbye)
	_ = e.await(func() error {
		if time.Now().After(end) {
			return errGivenUp
		}
		return nil
	}, func() (bool, error) {
		e.sweep()
		for _, p := range e.peers {
			if p != nil && p.gone.Load() == nil && !p.heardBye {
				return false, nil
			}
		}
		return !e.sending() && len(e.dying) == 0 || time.Now().After(end.Add(-goodbye/2)), nil
	})
}

// destroy gives everything back to UCX.
func (e *Endpoint) destroy() {
	e.mu.Lock()
	e.closed = true
	if e.worker != 0 {
		for _, p := range e.ports {
			for _, in := range p.ahead {
				e.discard(in)
			}
		}
		for _, p := range e.peers {
			e.cut(p)
		}
		// What is under way with processes that are gone never ends.
		for end := time.Now().Add(100 * time.Millisecond); e.sending() && time.Now().Before(end); {
			if !e.progress(looks) {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	for _, r := range e.regions {
		_ = e.lib.status("ucp_mem_unmap", e.context, r.memh)
	}
	clear(e.regions)
	e.sorted = nil
	if e.worker != 0 {
		e.lib.call("ucp_worker_destroy", e.worker)
	}
	if e.context != 0 {
		e.lib.call("ucp_cleanup", e.context)
	}
	e.worker, e.context = 0, 0
	for _, m := range e.slots.chunks {
		m.free()
	}
	e.slots = slots{}
	e.mu.Unlock()
	endpoints.Lock()
	delete(endpoints.byID, e.id)
	endpoints.Unlock()
	if e.kick >= 0 {
		unix.Close(e.kick)
		e.kick = -1
	}
	for i := 2; i < len(e.fds); i++ {
		if e.fds[i].Fd >= 0 {
			unix.Close(int(e.fds[i].Fd))
		}
	}
	e.fds = nil
}

// end notes a port that has ended, so that what comes late for it is dropped. The last few thousand are known.
func (e *Endpoint) end(k portKey) {
	const most = 4096
	if len(e.gone) >= most {
		delete(e.goneSet, e.gone[0])
		e.gone = e.gone[1:]
	}
	e.gone = append(e.gone, k)
	e.goneSet[k] = true
}

func (e *Endpoint) isEnded(k portKey) bool { return e.goneSet[k] }

func (e *Endpoint) reopen(k portKey) { delete(e.goneSet, k) }

var _ transport.Endpoint = (*Endpoint)(nil)
