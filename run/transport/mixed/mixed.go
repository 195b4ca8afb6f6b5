// Package mixed combines shared memory and tcp behind one endpoint: ranks on one host
// use shared memory, others tcp.
//
//	host 0        host 1
//	0 ═══ 1       2 ═══ 3        ═  shared memory
//	│ ╲ ╱ │       │             ─  tcp
//	└──┴──┴───────┘
//
// Verbs.Alloc allocates in shared memory: ranks on the host reach it there, others by the
// same key over tcp. It is thus registered for both.
//
// A caller that knows its group can ask for less: Inside is the shared-memory endpoint of
// this host's ranks; Across is tcp alone, for groups with no two ranks on one host.
package mixed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/ring"
	"github.com/weft-fabric/weft/run/transport/shm"
	"github.com/weft-fabric/weft/run/transport/tcp"
)

// Config says who takes part, and where.
type Config struct {
	Rank, Size int
	Hosts      []int            // the host of each rank; equal on all ranks: see shm.Reach
	Machine    int              // ranks that share the cores of this machine: see shm.Config
	Gather     transport.Gather // among all ranks

	TCP tcp.Config // its settings; who takes part is filled in
}

// Endpoint is a rank's ways to all others.
type Endpoint struct {
	rank, size int
	near       *shm.Endpoint
	far        *tcp.Endpoint
	local      []int // by rank: its number among those of this host, or -1
	mates      []int // the ranks of this host, by that number
	verbs      *verbs
	hosts      []int // of all ranks
}

// Describe prints how every pair of ranks talks.
func (e *Endpoint) Describe(w io.Writer) error {
	return errors.Join(WriteMatrix(w, e.hosts), e.far.Describe(w))
}

// Open connects a rank with all others. All ranks must call it at the same time.
func Open(ctx context.Context, c Config) (*Endpoint, error) {
	switch {
	case c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size:
		return nil, fmt.Errorf("mixed: rank %d of %d; ranks are 0 to size-1", c.Rank, c.Size)
	case len(c.Hosts) != c.Size:
		return nil, fmt.Errorf("mixed: hosts of %d ranks for %d", len(c.Hosts), c.Size)
	case c.Gather == nil:
		return nil, fmt.Errorf("mixed: rank %d of %d has no Gather to find the others by", c.Rank, c.Size)
	}
	e := &Endpoint{rank: c.Rank, size: c.Size, local: make([]int, c.Size), hosts: c.Hosts}
	reached := make([]bool, c.Size)
	for r, h := range c.Hosts {
		e.local[r] = -1
		if h == c.Hosts[c.Rank] {
			e.local[r] = len(e.mates)
			e.mates = append(e.mates, r)
			reached[r] = true
		}
	}
	inside := func(ctx context.Context, mine []byte) ([][]byte, error) {
		all, err := c.Gather(ctx, mine)
		if err != nil || len(all) != c.Size {
			return all, err
		}
		some := make([][]byte, len(e.mates))
		for i, r := range e.mates {
			some[i] = all[r]
		}
		return some, nil
	}
	near, err := shm.Open(ctx, shm.Config{Rank: e.local[c.Rank], Size: len(e.mates), Gather: inside, Machine: c.Machine})
	if err != nil {
		return nil, err
	}
	wire := c.TCP
	wire.Rank, wire.Size, wire.Gather, wire.Reached = c.Rank, c.Size, c.Gather, reached
	// All ranks decide alike, also one that is alone on its host.
	if wire.Streams == 0 && crowded(c.Hosts) && !wire.AllRails && len(wire.Interfaces) < 2 {
		wire.Streams = 1 // the ranks of a host fill its way out together; 64 B over two streams take twice as long
	}
	wire.Lazy = true // phases talk to a few ranks of other hosts, not to all
	far, err := tcp.OpenNamed(ctx, wire, func(k transport.Key, n int) ([]byte, error) { return named(near, k, n) })
	if err != nil {
		_ = near.Close()
		return nil, err
	}
	e.near, e.far = near, far
	e.verbs = newVerbs(e)
	return e, nil
}

// crowded says that a host has several ranks.
func crowded(hosts []int) bool {
	for i, h := range hosts {
		if slices.Contains(hosts[:i], h) {
			return true
		}
	}
	return false
}

// Rank is this endpoint's.
func (e *Endpoint) Rank() int { return e.rank }

// Size is the number of ranks of all hosts.
func (e *Endpoint) Size() int { return e.size }

// Verbs are the one-sided operations.
func (e *Endpoint) Verbs() transport.Verbs { return e.verbs }

// Memory is nil: not all ranks see one another's memory. Those of a host do: Inside.
func (e *Endpoint) Memory() transport.Memory { return nil }

// Can is what all pairs can do.
func (e *Endpoint) Can() transport.Capabilities {
	far := e.far.Can()
	return transport.Capabilities{Name: "mixed", Overlaps: true, Depth: ring.Depth, Rails: far.Rails, Copies: far.Copies}
}

// Alive is nil, or why a rank can no longer be reached.
func (e *Endpoint) Alive(rank int) error {
	switch {
	case rank < 0 || rank >= e.size:
		return fmt.Errorf("rank %d of %d", rank, e.size)
	case e.local[rank] >= 0:
		return e.named(e.near.Alive(e.local[rank]))
	}
	return e.far.Alive(rank)
}

// Counters are those of shared memory, as shm.*, and those of tcp.
func (e *Endpoint) Counters() []transport.Counter {
	var all []transport.Counter
	for _, c := range e.near.Counters() {
		all = append(all, transport.Counter{Name: "shm." + c.Name, Value: c.Value})
	}
	return append(all, e.far.Counters()...)
}

// Close ends both. What was sent before still arrives.
func (e *Endpoint) Close() error {
	err := e.far.Close()
	if e := e.near.Close(); err == nil {
		err = e
	}
	return err
}

// Inside is the endpoint of the ranks of this host, which see one another's memory.
// Its ranks are numbers among Mates. It is closed with e.
func (e *Endpoint) Inside() transport.Endpoint { return inside{e.near, e} }

type inside struct {
	*shm.Endpoint
	e *Endpoint
}

// Verbs are those of e, whose completions come in one stream, for ranks of this host.
func (i inside) Verbs() transport.Verbs { return mates{i.e.verbs} }

// Mates are the ranks of this host, in order.
func (e *Endpoint) Mates() []int { return e.mates }

// Across is e for groups of which no two ranks are on one host: all that tcp can do.
// It is closed with e.
func (e *Endpoint) Across() transport.Endpoint { return across{e} }

type across struct{ *Endpoint }

// Can is what tcp can do.
func (a across) Can() transport.Capabilities { return a.far.Can() }

// Port is one of tcp.
func (a across) Port(g transport.Group) (transport.Port, error) { return a.far.Port(g) }

// letter is how two ranks talk.
func letter(hosts []int, a, b int) byte {
	switch {
	case a == b:
		return '.'
	case hosts[a] == hosts[b]:
		return 's'
	}
	return 't'
}

// writeHosts prints a line for each run of ranks of one host.
func writeHosts(w io.Writer, hosts []int) error {
	for from := 0; from < len(hosts); {
		to := from + 1
		for to < len(hosts) && hosts[to] == hosts[from] {
			to++
		}
		if _, err := fmt.Fprintf(w, "host %d: ranks %d to %d, shared memory inside, tcp to the others\n", hosts[from], from, to-1); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// WriteMatrix prints how every pair of ranks talks: a line a rank, with a letter for
// each other one. Ranks of more than 64 are summed up host by host.
func WriteMatrix(w io.Writer, hosts []int) error {
	n := len(hosts)
	if n > 64 {
		return writeHosts(w, hosts)
	}
	if _, err := fmt.Fprintln(w, "ways between ranks: s shared memory, t tcp"); err != nil {
		return err
	}
	for a := range n {
		row := make([]byte, 0, 2*n)
		for b := range n {
			row = append(row, ' ', letter(hosts, a, b))
		}
		if _, err := fmt.Fprintf(w, "%6d  host %-3d%s\n", a, hosts[a], row); err != nil {
			return err
		}
	}
	return nil
}

var _ transport.Endpoint = (*Endpoint)(nil)
