package xfer

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/meter"
	"github.com/weft-fabric/weft/run/transport/shm"
)

// Config says who an agent is and how it is reached. The zero value of each field but Name is usable.
type Config struct {
	Name       string
	Generation uint64 // of this life of the name, larger than those before; 0 to draw one (life.go)

	// Listen are the addresses at which peers reach this agent, one for each interface that shall carry data:
	// host:port, port 0 for any. Empty for 127.0.0.1:0.
	Listen  []string
	Token   string      // of the cluster; may be empty only where all addresses are loopback
	NoToken bool        // an empty token is meant on any address
	TLS     *tls.Config // if set, connections between hosts are encrypted and both ends show certificates

	Streams int           // connections that carry data, for each address of a peer; 0 for one
	Path    string        // the path that every request takes, or its post fails; empty to choose (path.go)
	Floor   string        // the longest path that may be taken, in the order of Paths; where only longer ones can, a request fails
	Timeout time.Duration // of requests that do not say; 0 for DefaultTimeout
	Lease   time.Duration // how long a lease lasts unless it is renewed; 0 for DefaultLease
	Limits  Limits        // of what classes may send
	NoSums  bool          // what is sent and taken on sockets has no checksums of its bytes; both ends must say so
	Apart   bool          // collectives of this host use other links: none of what is sent waits for them
	Private bool          // no memory that other processes can map
	Log     *slog.Logger  // connections that were turned away or lost; nil for silence
}

// Agent is one end of transfers.
type Agent struct {
	id  ID
	cfg Config

	listeners []net.Listener
	entrance  *auth.Listener
	entrances []*auth.Listener // of each address; one of its own with TLS
	local     net.Listener     // of this host; nil if there is none
	gate      *gate
	wg        sync.WaitGroup
	base      context.Context // ends with the agent
	end       context.CancelFunc
	word      *uint64 // whoever can read it may read this process's memory

	calls   atomic.Uint64             // requests and calls so far
	crowded atomic.Pointer[time.Time] // until when no copy is made by whoever posts it; nil or past for no such time

	mu         sync.Mutex
	closed     bool
	share      *shm.Share
	slots      *[leaseSlots]leaseSlot
	slotMem    []byte
	nextSlot   int
	regions    map[uint32]*Region
	names      map[string]*Region
	lastRegion uint32
	leases     map[uint64]*lease
	lastLease  uint64
	lives      lives
	peers      map[string]*Peer
	links      map[linkKey]*link
	guests     map[ID]*guest
	conns      map[*conn]struct{}
	active     map[uint64]*Request // by number; nil for notices without data
	holds      map[holdKey]*hold   // leases of peers' memory

	inbox notices
}

// agents are those of this process, which reach one another without a connection.
var agents struct {
	sync.Mutex
	by map[ID]*Agent
}

// New starts an agent.
func New(cfg Config) (*Agent, error) {
	if cfg.Name == "" || len(cfg.Name) > maxName {
		return nil, fmt.Errorf("agent: name of %d bytes, want 1 to %d", len(cfg.Name), maxName)
	}
	for _, path := range []string{cfg.Path, cfg.Floor} {
		if path != "" && !slices.Contains(Paths, path) {
			return nil, fmt.Errorf("agent %s: %w: %q; want one of %v", cfg.Name, ErrPath, path, Paths)
		}
	}
	if cfg.Generation == 0 {
		cfg.Generation = nextGeneration(time.Now())
	}
	if len(cfg.Listen) == 0 {
		cfg.Listen = []string{"127.0.0.1:0"}
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	if cfg.Streams == 0 {
		cfg.Streams = 1
	}
	a := &Agent{id: ID{cfg.Name, cfg.Generation}, cfg: cfg, gate: newGate(cfg.Limits, nil), word: newWord(),
		regions: map[uint32]*Region{}, names: map[string]*Region{}, leases: map[uint64]*lease{},
		peers: map[string]*Peer{}, links: map[linkKey]*link{}, guests: map[ID]*guest{}, conns: map[*conn]struct{}{},
		active: map[uint64]*Request{}, holds: map[holdKey]*hold{}}
	if !cfg.Apart {
		a.gate.beside = meter.Open()
	}
	a.base, a.end = context.WithCancel(context.Background())
	a.inbox.more = make(chan struct{})
	agents.Lock()
	other := agents.by[a.id]
	if other == nil {
		if agents.by == nil {
			agents.by = map[ID]*Agent{}
		}
		agents.by[a.id] = a
	}
	agents.Unlock()
	if other != nil {
		return nil, fmt.Errorf("agent %s is there already in this process", a.id)
	}
	if err := a.open(); err != nil {
		a.Close()
		return nil, fmt.Errorf("agent %s: %w", cfg.Name, err)
	}
	return a, nil
}

// open gets shared memory and listens. Without shared memory the agent still works, over sockets; an address that
// cannot be listened at is an error.
func (a *Agent) open() error {
	if !a.cfg.Private {
		if s, err := shm.NewShare(); err == nil {
			a.share = s
			if a.slotMem, err = s.Alloc(slotBytes); err != nil {
				return err
			}
			a.slots = slotsOf(a.slotMem)
		}
	}
	a.entrance = &auth.Listener{Token: a.cfg.Token, Log: a.cfg.Log, Admit: func(h auth.Hello) error {
		if h.Purpose != auth.Move {
			return errors.New("agents move data here; ranks do not meet at this address")
		}
		return nil
	}, Enter: a.enter}
	for _, addr := range a.cfg.Listen {
		if err := a.listenAt(addr); err != nil {
			return err
		}
	}
	if ln := listenLocal(); ln != nil {
		a.local = ln
		a.wg.Go(func() { a.entrance.Serve(ln) })
	}
	return nil
}

// listenAt answers agents of other hosts at an address. With TLS each has an entrance of its own, as agents of this host come without.
func (a *Agent) listenAt(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen at %q: %w; want HOST:PORT", addr, err)
	}
	if err := auth.CheckToken(a.cfg.Token, host, a.cfg.NoToken); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	a.listeners = append(a.listeners, ln)
	entrance := a.entrance
	if a.cfg.TLS != nil {
		entrance = &auth.Listener{Token: a.cfg.Token, Log: a.cfg.Log, TLS: a.cfg.TLS, Admit: a.entrance.Admit, Enter: a.enter}
	}
	a.entrances = append(a.entrances, entrance)
	a.wg.Go(func() { entrance.Serve(ln) })
	return nil
}

// ID is the agent's name and generation.
func (a *Agent) ID() ID { return a.id }

// Done is closed when the agent is.
func (a *Agent) Done() <-chan struct{} { return a.base.Done() }

// Addrs are the addresses at which it listens.
func (a *Agent) Addrs() []string {
	var out []string
	for _, l := range a.listeners {
		out = append(out, l.Addr().String())
	}
	return out
}

// Turned counts connections that were turned away, by kind.
func (a *Agent) Turned() []transport.Counter { return a.entrance.Counters() }

// Close ends the agent: its requests fail, peers find it gone, and memory from Alloc may not be used any more.
func (a *Agent) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	a.closed = true
	active := make([]*Request, 0, len(a.active))
	for _, r := range a.active {
		if r != nil {
			active = append(active, r)
		}
	}
	guests := make([]*guest, 0, len(a.guests))
	for _, g := range a.guests {
		guests = append(guests, g)
	}
	regions := make([]*Region, 0, len(a.regions))
	for _, r := range a.regions {
		regions = append(regions, r)
	}
	a.mu.Unlock()
	agents.Lock()
	if agents.by[a.id] == a {
		delete(agents.by, a.id)
	}
	agents.Unlock()
	for _, r := range active {
		r.give(fmt.Errorf("agent %s: %w", a.id.Name, ErrClosed), a.id.Name)
	}
	for _, g := range guests {
		g.failAll(fmt.Errorf("agent %s: %w", a.id.Name, ErrClosed), a.id.Name)
	}
	a.end()
	for _, l := range a.listeners {
		l.Close()
	}
	if a.local != nil {
		a.local.Close()
	}
	for _, e := range append(a.entrances, a.entrance) {
		if e != nil {
			e.Close()
		}
	}
	a.mu.Lock()
	conns := make([]net.Conn, 0, len(a.conns))
	for c := range a.conns {
		conns = append(conns, c.nc)
	}
	var leases []*lease
	for _, l := range a.leases {
		leases = append(leases, l)
	}
	a.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	for _, l := range leases {
		l.end("its owner closed")
	}
	a.wg.Wait()
	for _, r := range regions {
		_ = r.store.Close()
	}
	a.inbox.close()
	if a.share != nil {
		a.share.Close()
	}
	return nil
}

type holdKey struct {
	owner ID
	lease uint64
}

func (a *Agent) keepHold(owner ID, h *hold) {
	a.mu.Lock()
	a.holds[holdKey{owner, h.id}] = h
	a.mu.Unlock()
}

func (a *Agent) dropHold(owner ID, id uint64) {
	a.mu.Lock()
	delete(a.holds, holdKey{owner, id})
	a.mu.Unlock()
}

// revoked hears that an owner wants a lease back. It reports whether this agent has it.
func (a *Agent) revoked(owner ID, id uint64) bool {
	a.mu.Lock()
	h := a.holds[holdKey{owner, id}]
	a.mu.Unlock()
	if h != nil {
		h.giveBack()
	}
	return h != nil
}

// region finds an own region by number.
func (a *Agent) region(id uint32) (*Region, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.regions[id]; r != nil {
		return r, nil
	}
	if id != 0 && id <= a.lastRegion {
		return nil, fmt.Errorf("agent %s: region %d: %w: it was released", a.id.Name, id, ErrRegion)
	}
	return nil, fmt.Errorf("agent %s: region %d: %w", a.id.Name, id, ErrRegion)
}

func (a *Agent) known(id uint32) *Region {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.regions[id]
}

// It changes with what agents say to one another: those of different versions do not meet.
const descriptionVersion = 3

// notices wait for the user.
type notices struct {
	mu     sync.Mutex
	list   []Notice
	more   chan struct{} // closed and made anew when one comes
	closed bool
}

const maxWaiting = 1 << 20

func (n *notices) add(x Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	n.list = append(n.list, x)
	close(n.more)
	n.more = make(chan struct{})
}

func (n *notices) full() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.list) >= maxWaiting
}

// errFull says that nobody takes the notices.
func (a *Agent) errFull() error {
	return fmt.Errorf("agent %s: %w: %d notices wait to be taken", a.id.Name, ErrLimit, maxWaiting)
}

func (n *notices) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	close(n.more)
}

// Notices are those that came since the last call.
func (a *Agent) Notices() []Notice {
	a.inbox.mu.Lock()
	defer a.inbox.mu.Unlock()
	out := a.inbox.list
	a.inbox.list = nil
	return out
}

// NextNotice waits for a notice.
func (a *Agent) NextNotice(ctx context.Context) (Notice, error) {
	for {
		a.inbox.mu.Lock()
		if len(a.inbox.list) > 0 {
			n := a.inbox.list[0]
			a.inbox.list = a.inbox.list[1:]
			a.inbox.mu.Unlock()
			return n, nil
		}
		more, closed := a.inbox.more, a.inbox.closed
		a.inbox.mu.Unlock()
		if closed {
			return Notice{}, fmt.Errorf("agent %s: %w", a.id.Name, ErrClosed)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return Notice{}, fmt.Errorf("agent %s waits for a notice: %w", a.id.Name, ctx.Err())
		}
	}
}

// newSession draws a session's name.
func newSession() (s [16]byte) {
	rand.Read(s[:])
	return s
}
