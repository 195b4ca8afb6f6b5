package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/mem"
	"github.com/weft-fabric/weft/run/transport/rendezvous"
	"github.com/weft-fabric/weft/run/transport/shm"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Join meets the other ranks and makes the communicator of all of them. It ends
// with an error if they have not all come when ctx ends, or, if ctx has no
// deadline, when the time limit of the configuration has passed.
func Join(ctx context.Context, cfg Config) (*Comm, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if cfg.Transport == "mem" {
		return nil, errors.New(`transport (WEFT_TRANSPORT) "mem" is for ranks that are goroutines, which Local makes; processes have shm and tcp`)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Timeout)
		defer cancel()
	}
	room, err := rendezvous.Join(ctx, rendezvous.Config{Addr: cfg.Addr, Rank: cfg.Rank, Size: cfg.Size, Token: cfg.Token,
		Epoch: cfg.Epoch, TLS: cfg.TLS, Listener: cfg.Listener, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	w := &world{process: &process{cfg: cfg, room: room, started: time.Now()}}
	c, err := w.join(ctx, room.Gather)
	if err != nil {
		if w.ep != nil {
			_ = w.ep.Close()
		}
		w.closeLedger()
		_ = room.Leave(err)
		return nil, fmt.Errorf("rank %d of %d: %w", cfg.Rank, cfg.Size, err)
	}
	giveBack(cfg.Size)
	return c, nil
}

// giveBack gives what finding programs for many ranks took back to the system, at the end of Join. Of 16 MiB that each of
// 64 ranks on 8 hosts had, 3 were in use (2026-11-17).
func giveBack(ranks int) {
	if ranks >= manyRanks {
		debug.FreeOSMemory()
	}
}

const manyRanks = 32

// join meets the others, agrees with them on a transport and opens it.
func (w *world) join(ctx context.Context, gather transport.Gather) (*Comm, error) {
	cfg := &w.cfg
	hellos, err := w.greet(ctx, gather)
	if err != nil {
		return nil, err
	}
	if k := transportKind(hellos[0].Transport); (k == "" || ways[k].memory) && cfg.Size > 1 {
		if w.hosts, w.apart, err = shm.Reach(ctx, cfg.Rank, w.hosts, gather); err != nil {
			return nil, err
		}
	}
	kind, err := w.agree(hellos)
	if err != nil {
		return nil, err
	}
	w.openLedger(&hellos[0])
	for rank := range hellos {
		if hellos[rank].Machine == hellos[cfg.Rank].Machine {
			w.local++
		}
	}
	if cfg.Slice > 0 || cfg.Slice == 0 && w.local > runtime.NumCPU() {
		wait.TimeSlice(cmp.Or(cfg.Slice, leastSlice))
	}
	w.shared = sharers(hellos, w.hosts)
	if err := w.open(ctx, kind, hellos, gather); err != nil {
		return nil, err
	}
	w.logWays(kind)
	if err := w.explainWays(kind); err != nil {
		return nil, err
	}
	return w.first(ctx, gather)
}

// logWays logs how ranks talk.
func (w *world) logWays(kind string) {
	cfg := &w.cfg
	if cfg.Log == nil {
		return
	}
	if cfg.Rank == 0 {
		cfg.Log.Info("transport agreed", "kind", kind, "ranks", cfg.Size, "hosts", slices.Max(w.hosts)+1)
	}
	for r, why := range w.apart {
		if why != "" && (r == cfg.Rank || cfg.Rank == 0) {
			cfg.Log.Warn("a rank shares no memory with its host and uses tcp there", "rank", r, "why", why)
		}
	}
}

// explainWays prints how every pair of ranks talks, and who counts as a host of its own although it says otherwise.
func (w *world) explainWays(kind string) error {
	to := w.cfg.Explain
	if to == nil || w.cfg.Rank != 0 || w.cfg.Size == 1 {
		return nil
	}
	if _, err := fmt.Fprintf(to, "transport %s, %d ranks on %d hosts\n", kind, w.cfg.Size, slices.Max(w.hosts)+1); err != nil {
		return err
	}
	for r, why := range w.apart {
		if why != "" {
			if _, err := fmt.Fprintf(to, "rank %d counts as a host of its own: %s\n", r, why); err != nil {
				return err
			}
		}
	}
	if d, ok := w.ep.(transport.Describer); ok {
		return d.Describe(to)
	}
	return nil
}

// first makes the communicator of all ranks once the endpoint is there.
func (w *world) first(ctx context.Context, gather transport.Gather) (*Comm, error) {
	w.mem, w.all = w.ep.Memory(), w.ep
	w.verbs = newVerbs(w.ep)
	w.tellers.none.L = &w.tellers.mu
	w.divide()
	everyone := make([]int, w.ep.Size())
	for i := range everyone {
		everyone[i] = i
	}
	c, err := w.newComm(0)
	if err != nil {
		return nil, err
	}
	c.enter(everyone)
	c.become(1, w.ep.Rank(), c.group.Members)
	can := byte(0)
	if m := w.memory(); m != nil && m.Pulls() {
		can |= canPull
	}
	if w.ledger != nil || w.mem != nil {
		can |= canKeep
	}
	blobs, err := gather(ctx, append(c.address().Append(nil), can))
	if err != nil {
		return nil, err
	}
	at := make([]board.Address, len(blobs))
	w.pulls = true
	keep := true
	var without []int
	for i, b := range blobs {
		if len(b) != board.AddressSize+1 {
			return nil, fmt.Errorf("rank %d sent %d bytes about itself, %d were expected: do all ranks run the same version?",
				i, len(b), board.AddressSize+1)
		}
		at[i] = board.AddressIn(b)
		if b[board.AddressSize]&canPull == 0 {
			w.pulls, without = false, append(without, i)
		}
		keep = keep && b[board.AddressSize]&canKeep != 0
	}
	if !keep { // some rank could not learn of a decision after the others have ended
		w.closeLedger()
		w.majority = w.majority || w.cfg.Quorum == "" && !w.ep.Can().OneProcess
	}
	if err := w.copies(without); err != nil {
		return nil, err
	}
	if w.inside != nil {
		w.inside.pulls = w.pulls
	}
	c.group.Host.Pulls = w.pulls
	if err := c.meet(at); err != nil {
		return nil, err
	}
	if err := w.measure(ctx, c, gather); err != nil {
		return nil, err
	}
	return c, c.layer(ctx, gather)
}

// What a rank says that it can, in the byte behind its board's address.
const (
	canPull = 1 // read memory of the others
	canKeep = 2 // find out what was decided when all others have ended: it sees their boards, or has the ledger
)

// copies says that some ranks may not read others' memory, so that what is not registered is copied once more.
func (w *world) copies(ranks []int) error {
	if w.mem == nil || len(ranks) == 0 || w.cfg.Size == 1 {
		return nil
	}
	const text = "process_vm_readv is not allowed: buffers that are not from Alloc are copied twice; allow it (kernel.yama.ptrace_scope 0, or SYS_PTRACE for a container)"
	if w.cfg.Log != nil && w.cfg.Rank == ranks[0] {
		w.cfg.Log.Warn(text, "ranks", ranks)
	}
	if w.cfg.Explain != nil && w.cfg.Rank == 0 {
		_, err := fmt.Fprintf(w.cfg.Explain, "ranks %v: %s\n", ranks, text)
		return err
	}
	return nil
}

// Local makes a world of n ranks that are goroutines of this process.
func Local(n int) ([]*Comm, error) {
	return LocalWith(n, Config{})
}

// LocalWith is Local with a time limit, the canonical mode or an explanation;
// the rest of the configuration does not apply.
func LocalWith(n int, cfg Config) ([]*Comm, error) {
	cfg.Size = n
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	eps := mem.New(n)
	comms, errs := make([]*Comm, n), make([]error, n)
	gather := newGathering(n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			own := cfg
			own.Rank = r
			w := &world{process: &process{cfg: own, majority: cfg.Quorum == "majority", started: time.Now()}, ep: eps[r], hosts: make([]int, n),
				pids: make([]int, n), local: n}
			if comms[r], errs[r] = w.first(context.Background(), gather.at(r)); errs[r] != nil {
				_ = eps[r].Close()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return comms, nil
}

// gathering gathers blobs between goroutines.
type gathering struct {
	mu    sync.Mutex
	cond  sync.Cond
	n     int
	round []int
	blobs map[int][][]byte
	got   map[int]int
}

func newGathering(n int) *gathering {
	g := &gathering{n: n, round: make([]int, n), blobs: map[int][][]byte{}, got: map[int]int{}}
	g.cond.L = &g.mu
	return g
}

// at is the Gather of a rank.
func (g *gathering) at(rank int) transport.Gather {
	return func(_ context.Context, mine []byte) ([][]byte, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		k := g.round[rank]
		g.round[rank]++
		if g.blobs[k] == nil {
			g.blobs[k] = make([][]byte, g.n)
		}
		g.blobs[k][rank] = slices.Clone(mine)
		g.got[k]++
		g.cond.Broadcast()
		for g.got[k] < g.n {
			g.cond.Wait()
		}
		return g.blobs[k], nil
	}
}
