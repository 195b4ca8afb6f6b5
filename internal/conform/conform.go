// Package conform holds the transports to the words of package transport. What
// the ranks of a world do is a Scenario: the same function on every rank, which
// shares nothing with the others but the endpoint, so that ranks may be
// goroutines of a test or processes of their own.
package conform

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/transport"
)

// Open makes a world of n ranks in this process. It leaves closing them to the
// suite.
type Open func(t *testing.T, n int) []transport.Endpoint

// Scenario is what every rank of a world does; an error says what went against
// the contract.
type Scenario struct {
	Name   string
	Ranks  int
	Memory bool // only for endpoints whose ranks see one another's memory
	Run    func(e transport.Endpoint) error
}

// Scenarios are all of them, in order.
func Scenarios() []Scenario {
	return slices.Concat(messages, disagreements, endings, verbs, memories)
}

// Find gives the scenario of a name, for ranks that are processes and are told
// by name what to do.
func Find(name string) (Scenario, error) {
	for _, s := range Scenarios() {
		if s.Name == name {
			return s, nil
		}
	}
	return Scenario{}, fmt.Errorf("conform: no scenario %q", name)
}

// Test runs all scenarios, each in a world of its own, with a goroutine for
// every rank.
func Test(t *testing.T, open Open) {
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			es := open(t, s.Ranks)
			if s.Memory && !es[0].Can().SharedMemory {
				closeAll(t, es)
				t.Skip("the ranks do not see one another's memory")
			}
			err := Together(len(es), func(r int) error { return s.Run(es[r]) })
			if err != nil {
				t.Error(err)
			}
			closeAll(t, es)
		})
	}
}

// Together runs f once for each of n ranks, each in a goroutine, and joins their
// errors.
func Together(n int, f func(rank int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			if err := f(r); err != nil {
				errs[r] = fmt.Errorf("rank %d: %w", r, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func closeAll(t *testing.T, es []transport.Endpoint) {
	t.Helper()
	for _, e := range es {
		if err := e.Close(); err != nil {
			t.Errorf("close rank %d: %v", e.Rank(), err)
		}
	}
}

// barrier makes ranks wait until all have come to it. It is for scenarios that
// need one outside of what they try, so each has a port of its own.
type barrier struct {
	p    transport.Port
	e    transport.Endpoint
	comm uint32
	seq  uint64
}

func newBarrier(e transport.Endpoint) (*barrier, error) {
	const comm = 0xba
	p, err := e.Port(transport.Group{ID: comm, Epoch: 1, Members: everyone(e)})
	return &barrier{p: p, e: e, comm: comm}, err
}

func (b *barrier) wait() error {
	b.seq++
	b.p.Begin(call(b.comm, b.seq), impatient())
	for r := range b.e.Size() {
		if r == b.e.Rank() {
			continue
		}
		if err := b.p.Send(r, 0, nil); err != nil {
			return fmt.Errorf("barrier %d: %w", b.seq, err)
		}
	}
	for r := range b.e.Size() {
		if r == b.e.Rank() {
			continue
		}
		if err := b.p.Recv(r, 0, nil); err != nil {
			return fmt.Errorf("barrier %d: %w", b.seq, err)
		}
	}
	return nil
}

// everyone is the members of a port over a whole endpoint.
func everyone(e transport.Endpoint) []int {
	m := make([]int, e.Size())
	for r := range m {
		m[r] = r
	}
	return m
}

// patience ends waits that should have ended long before, so that a fault is a
// message and not a hang. No scenario depends on how long it is.
const patience = bounded.Limit

// impatient is a Stop that ends what it is begun with after patience.
func impatient() transport.Stop {
	end := time.Now().Add(patience)
	return func() error {
		if time.Now().After(end) {
			return fmt.Errorf("conform: not done after %s", patience)
		}
		return nil
	}
}
