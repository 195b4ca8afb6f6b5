package comm

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/transport/mem"
)

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
			w := &world{process: &process{cfg: own, majority: cfg.Quorum == "majority", started: time.Now()}, ep: eps[r], hosts: make([]int, n), pids: make([]int, n), local: n}
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
