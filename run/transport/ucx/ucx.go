//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"cmp"
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
	"time"

	"github.com/ebitengine/purego"

	"github.com/weft-fabric/weft/run/transport"
)

// Endpoint is a rank's worker of UCX and its connections. It is made of parts, each of which has and knows those below it:
//
//	Endpoint               who the ranks are, how they meet and part
//	ports      verbs       messages of communicators; one-sided operations
//	   │       regions     memory that peers may name
//	   └── waiter ──┘      waiting, sleeping, the keeper
//	       inbox           messages that came
//	       links           peers, and what is sent to them
//	       worker          the lock, requests and progress of UCX
type Endpoint struct {
	w     *waiter
	ports *ports
	verbs *verbs

	id   uintptr // among the endpoints of this process, for callbacks
	name string
	log  *slog.Logger
	once sync.Once
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
		mine.Version, mine.World = e.w.lib.version, e.w.world
		mine.Address, err = e.w.address()
	}
	if c.Size == 1 {
		if err != nil {
			return nil, err
		}
		e.name = "ucx"
		e.w.run()
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
			e.w.inside = true
			r := e.arrived(head, headLength, data, length, attr&rendezvous != 0)
			e.w.inside = false
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
			p := e.w.peers[arg&(1<<32-1)]
			code := int32(status)
			e.w.later(func() { e.w.lost(p, "UCX: "+e.w.lib.words(code)) })
			return 0
		})
	})
)

// start makes the parts.
func start(c Config) (*Endpoint, error) {
	lib, err := load()
	if err != nil {
		return nil, err
	}
	ranks := c.Machine
	if ranks == 0 {
		ranks = c.Size
	}
	worker, err := newWorker(c, lib)
	if err != nil {
		return nil, err
	}
	l := &links{worker: worker, rank: c.Rank, size: c.Size, peers: make([]*peer, c.Size),
		self: &peer{rank: c.Rank, open: map[uint64]*inbound{}}}
	var secret [8]byte
	_, _ = rand.Read(secret[:])
	l.world = binary.LittleEndian.Uint64(secret[:])
	w := newWaiter(&inbox{links: l}, ranks)
	w.patience = cmp.Or(c.Patience, patience)
	worker.swept = w.sweep
	e := &Endpoint{w: w, log: c.Log,
		ports: &ports{waiter: w},
		verbs: &verbs{regions: &regions{waiter: w, numbered: map[uint64]*region{}}, crowded: ranks > runtime.NumCPU()}}
	l.parted = e.verbs.parted
	endpoints.Lock()
	if endpoints.byID == nil {
		endpoints.byID = map[uintptr]*Endpoint{}
	}
	endpoints.last++
	e.id = endpoints.last
	endpoints.byID[e.id] = e
	endpoints.Unlock()
	if err := worker.listen(onMessage(), e.id); err != nil {
		e.destroy()
		return nil, err
	}
	return e, nil
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
	e.w.world = cards[0].World
	m := page()
	defer m.free()
	for r, x := range cards {
		if r == e.w.rank {
			continue
		}
		p := &peer{rank: r, pid: x.PID, open: map[uint64]*inbound{}, far: map[uint64]*remote{}}
		e.w.peers[r] = p
		at := mapped(len(x.Address))
		copy(at.b, x.Address)
		clear(m.b)
		m.set(0, 1|2|4)
		m.set(8, at.at())
		// Where UCX can tell that a peer is gone it leaves shared memory out. A process of this machine is watched
		// by its descriptor instead; goroutines of one process, as in tests, end together.
		near := x.Machine == cards[e.w.rank].Machine
		if near && x.PID != os.Getpid() {
			near = e.w.attend(r, x.PID)
		}
		if !near {
			m.setU32(16, 1) // errors of the peer are told
		}
		m.set(24, onError())
		m.set(32, e.id<<32|uintptr(r))
		err := e.w.lib.status("ucp_ep_create", e.w.handle, m.at(), m.at()+512)
		at.free()
		if err != nil {
			return fmt.Errorf("ucx: connect with rank %d: %w (transports: %s)", r, err, transportsWanted(c))
		}
		p.ep = m.pointer(512)
	}
	e.w.run() // what UCX has not sent yet goes out while this rank waits for others elsewhere
	e.w.mu.Lock()
	for _, p := range e.w.peers {
		if p != nil {
			e.w.control(p, header{kind: kindHello}, nil)
		}
	}
	e.w.unlock()
	silent := func() (list []int) {
		for _, p := range e.w.peers {
			if p != nil && !p.hello {
				list = append(list, p.rank)
			}
		}
		return list
	}
	err := e.w.await(ctx.Err, func() (bool, error) {
		for _, p := range e.w.peers {
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
	for _, p := range e.w.peers {
		if p == nil {
			continue
		}
		p.lanes = e.w.lanesTo(p)
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
			mine.Wrong = append(mine.Wrong, fmt.Sprintf("messages from rank %d to rank %d go over %s, and %s is required",
				e.w.rank, p.rank, took, c.Messages))
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

// Describe prints which transports UCX took between this rank and each other one.
func (e *Endpoint) Describe(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "UCX %s\n", e.w.lib.version); err != nil {
		return err
	}
	for _, p := range e.w.peers {
		if p == nil {
			continue
		}
		var parts []string
		for _, l := range p.lanes {
			parts = append(parts, fmt.Sprintf("%s/%s (%s)", l.name, l.device, strings.Join(l.uses, " ")))
		}
		if _, err := fmt.Fprintf(w, "rank %d to rank %d: %s\n", e.w.rank, p.rank, strings.Join(parts, ", ")); err != nil {
			return err
		}
	}
	return nil
}

// Rank is this endpoint's.
func (e *Endpoint) Rank() int { return e.w.rank }

// Size is the number of ranks.
func (e *Endpoint) Size() int { return e.w.size }

// Port makes the port of a communicator.
func (e *Endpoint) Port(g transport.Group) (transport.Port, error) { return e.ports.port(g) }

// Verbs are the one-sided operations.
func (e *Endpoint) Verbs() transport.Verbs { return e.verbs }

// Memory is nil: UCX gives ranks calls, not one another's memory.
func (e *Endpoint) Memory() transport.Memory { return nil }

// Can says what UCX took.
func (e *Endpoint) Can() transport.Capabilities { return transport.Capabilities{Name: e.name} }

// Alive is nil, or why a rank can no longer be reached.
func (e *Endpoint) Alive(rank int) error { return e.w.alive(rank) }

// Counters are what happened so far.
func (e *Endpoint) Counters() []transport.Counter { return e.w.counters() }

// Register makes memory of the caller's, which may be a GPU's, one that peers may name, and names it. Peers write and read
// there; this rank's own processor does not, if it is a GPU's. Unregister takes it back.
func (e *Endpoint) Register(at uintptr, n int, kind Memory) (transport.Key, error) {
	return e.verbs.register(at, n, kind)
}

// Unregister ends what Register began. The memory must stay until it returns.
func (e *Endpoint) Unregister(at uintptr) error { return e.verbs.unregister(at) }

// arrived is called by UCX for every message, with the lock held by whoever lets UCX work. It answers whether UCX
// shall keep what it has of the message.
func (e *Endpoint) arrived(head uintptr, headLength uintptr, data uintptr, length uintptr, rendezvous bool) uintptr {
	in := &inbound{}
	if err := in.h.parse(bytesAt(head, int(headLength)), e.w.world, e.w.size, int(length)); err != nil {
		e.w.count.refused++
		if e.log != nil && e.w.count.refused == 1 {
			e.log.Warn("ucx: a message was refused; more are counted", "why", err)
		}
		return 0
	}
	p := e.w.peers[in.h.rank]
	if p == nil {
		e.w.count.refused++
		return 0
	}
	in.from = p
	e.w.count.received++
	e.w.count.bytesIn += uint64(length)
	var answer uintptr
	if rendezvous {
		in.desc, answer = data, inProgress
	} else {
		// A message that is waited for, and next in order, is put where it belongs at once.
		if in.h.number != p.heard+1 || !e.ports.direct(in, bytesAt(data, int(length))) {
			in.parcel, in.whole = append(e.w.buffer(int(length)), bytesAt(data, int(length))...), true
		}
	}
	if in.h.number != p.heard+1 {
		if p.early == nil {
			p.early = map[uint64]*inbound{}
		}
		p.early[in.h.number] = in
		return answer
	}
	for in != nil {
		p.heard++
		e.deliver(in)
		if in = p.early[p.heard+1]; in != nil {
			delete(p.early, p.heard+1)
		}
	}
	return answer
}

// deliver takes a message, in the order of its sender.
func (e *Endpoint) deliver(in *inbound) {
	p, h := in.from, &in.h
	switch h.kind {
	case kindData, kindCall, kindCredit:
		e.ports.dispatch(in)
		return
	case kindHello:
		p.hello = true
	case kindBye:
		e.w.left(p)
		e.w.later(func() { e.w.control(p, header{kind: kindByeAck}, nil) })
	case kindByeAck:
		p.heardBye = true
	case kindRevoke:
		if x := p.open[h.length]; x != nil {
			e.ports.revoked(x)
		}
	case kindNotice:
		e.verbs.done = append(e.verbs.done, transport.Completion{Peer: p.rank, Notice: uint32(h.length)})
	case kindAsk:
		number := h.length
		e.w.later(func() { e.verbs.tellKey(p, number) })
	case kindKey:
		packed := append([]byte(nil), in.parcel...)
		number, base := h.length, h.word
		e.w.later(func() { e.verbs.learnKey(p, number, base, packed) })
	case kindForget:
		number := h.length
		e.w.later(func() { e.verbs.dropKey(p, number) })
	case kindForgot:
		number := h.length
		e.w.later(func() { e.verbs.forgotten(p, number) })
	}
	e.w.discard(in)
}

// Close says goodbye. What was sent before still arrives.
func (e *Endpoint) Close() error {
	e.once.Do(func() {
		e.w.mu.Lock()
		e.w.closed = true
		for p := range e.ports.open.All() {
			p.failed(transport.ErrClosed)
		}
		e.w.moved = true
		e.w.unlock()
		e.w.users.Wait() // they are told by their ports
		e.w.dismiss()
		e.bye()
		e.destroy()
	})
	return nil
}

// goodbye is how long peers may take to hear that a rank leaves.
const goodbye = 2 * time.Second

// bye tells all peers, and waits until they have heard all that was sent.
func (e *Endpoint) bye() {
	e.w.mu.Lock()
	for _, p := range e.w.peers {
		if p != nil {
			e.w.control(p, header{kind: kindBye}, nil)
		}
	}
	e.w.unlock()
	end := time.Now().Add(goodbye)
	_ = e.w.await(func() error {
		if time.Now().After(end) {
			return errGivenUp
		}
		return nil
	}, func() (bool, error) {
		e.w.sweep()
		for _, p := range e.w.peers {
			if p != nil && p.gone.Load() == nil && !p.heardBye {
				return false, nil
			}
		}
		return !e.w.sending() && len(e.w.dying) == 0 || time.Now().After(end.Add(-goodbye/2)), nil
	})
}

// destroy gives everything back to UCX.
func (e *Endpoint) destroy() {
	w := e.w
	w.mu.Lock()
	w.closed = true
	for p := range e.ports.open.All() {
		for _, in := range p.ahead {
			w.discard(in)
		}
	}
	for _, p := range w.peers {
		w.cut(p)
	}
	// What is under way with processes that are gone never ends.
	for end := time.Now().Add(100 * time.Millisecond); w.sending() && time.Now().Before(end); {
		if !w.progress(looks) {
			time.Sleep(100 * time.Microsecond)
		}
	}
	e.verbs.unmapAll()
	w.free()
	w.mu.Unlock()
	endpoints.Lock()
	delete(endpoints.byID, e.id)
	endpoints.Unlock()
	w.inattentive()
}

var _ transport.Endpoint = (*Endpoint)(nil)
