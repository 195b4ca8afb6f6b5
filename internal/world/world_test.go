package world

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport"
)

// The world is held to the contract of every transport, under several seeds.
func TestConform(t *testing.T) {
	seeds := uint64(bounded.Times(2, 3))
	if testing.Short() {
		seeds = 1
	}
	for _, s := range conform.Scenarios() {
		if s.Memory {
			continue // its ranks do not see one another's memory
		}
		t.Run(s.Name, func(t *testing.T) {
			for seed := range seeds {
				cfg := Config{Seed: seed, Ranks: s.Ranks, Think: time.Duration(seed) * 300, Delay: time.Duration(1+seed) * time.Microsecond,
					Tail: int(50 * seed), Notice: time.Millisecond,
					Overlaps: seed%2 == 0, Holds: seed%3 == 0, Limit: time.Hour}
				errs := make([]error, s.Ranks)
				r := Run(t, cfg, func(rank int, e transport.Endpoint) {
					errs[rank] = s.Run(e)
					_ = e.Close()
				})
				if err := errors.Join(errs...); err != nil || len(r.Problems) > 0 {
					t.Fatalf("seed %d: %v %v", seed, err, r.Problems)
				}
			}
		})
	}
}

// A run is the same each time.
func TestReplay(t *testing.T) {
	run := func(seed uint64, step int) (log []string, r Result) {
		cfg := Config{Seed: seed, Ranks: 3, Think: 5 * time.Microsecond, Delay: 50 * time.Microsecond, Tail: 5, Notice: time.Millisecond,
			Overlaps: true,
			Faults:   []Fault{{Kind: Kill, Rank: 1, Step: step}}, Limit: time.Minute}
		logs := make([][]string, 3)
		r = Run(t, cfg, func(rank int, e transport.Endpoint) {
			defer e.Close()
			start := time.Now()
			p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1, 2}})
			if err != nil {
				return
			}
			p.Begin(transport.Call{Seq: 1}, nil)
			for k := range 20 {
				in := make([]byte, 100*k)
				err := p.Exchange(transport.Outgoing{To: (rank + 1) % 3, Bytes: make([]byte, 100*k)},
					transport.Incoming{From: (rank + 2) % 3, N: len(in), Dst: in}, nil)
				logs[rank] = append(logs[rank], fmt.Sprint(rank, k, time.Since(start), err))
				if err != nil {
					return
				}
			}
		})
		for _, l := range logs {
			log = append(log, l...)
		}
		return log, r
	}
	distinct := map[string]bool{}
	for seed := range uint64(20) {
		log, r := run(seed, int(seed)*3)
		again, r2 := run(seed, int(seed)*3)
		if !reflect.DeepEqual(log, again) || !reflect.DeepEqual(r, r2) {
			t.Fatalf("seed %d: two runs differ:\n%v\n%v\n%+v %+v", seed, log, again, r, r2)
		}
		if seed > 0 && seed < 20 && !r.Dead[1] && r.Steps[1] >= int(seed)*3 {
			t.Fatalf("seed %d: rank 1 took %d steps and was not killed", seed, r.Steps[1])
		}
		distinct[fmt.Sprint(log)] = true
	}
	if len(distinct) < 20 {
		t.Errorf("20 seeds gave %d runs", len(distinct))
	}
}

// What the world must notice: a rank that changes what it sends, and one that
// never ends.
func TestComplaints(t *testing.T) {
	cfg := Config{Seed: 1, Ranks: 2, Think: time.Microsecond, Delay: time.Millisecond, Limit: time.Second}
	changed := 0
	for seed := range uint64(20) {
		cfg.Seed = seed
		r := Run(t, cfg, func(rank int, e transport.Endpoint) {
			defer e.Close()
			p, _ := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
			b := make([]byte, 8)
			p.Begin(transport.Call{Seq: 1}, func() error { b[0]++; return nil })
			if rank == 0 {
				_ = p.Send(1, 0, b)
			} else {
				_ = p.Recv(0, 0, b)
			}
		})
		changed += len(r.Problems)
	}
	if changed == 0 {
		t.Error("no seed noticed memory that was changed while it was sent")
	}
	r := Run(t, cfg, func(rank int, e transport.Endpoint) {
		p, _ := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
		p.Begin(transport.Call{Seq: 1}, nil)
		if err := p.Recv(1-rank, 0, make([]byte, 8)); !errors.Is(err, errHung) {
			t.Errorf("a hang ended with %v", err)
		}
	})
	if len(r.Problems) != 1 || r.Took < cfg.Limit {
		t.Errorf("two ranks that wait for each other: %v after %s", r.Problems, r.Took)
	}
}
