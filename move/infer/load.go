package infer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Load is what users ask of a cluster.
type Load struct {
	Users  int // each asks again when it has its answer; 0: only others ask, until the end
	Prompt int // tokens
	Alike  int // tokens at the beginning of every prompt that are the same, as of instructions to a model
	Answer int // tokens
	Mode   Mode
	Seed   uint64
	Most   int  // requests; 0: until the end
	Check  bool // compare every answer with that of one process
}

// Fits reports what is wrong with a load on a model.
func (l Load) Fits(m Model) error {
	if l.Users < 0 || l.Users > 1000 || l.Most < 0 || l.Users == 0 && l.Most > 0 {
		return fmt.Errorf("infer: %d users, %d requests; want 1 to 1000 users, or 0 users and no number of requests", l.Users, l.Most)
	}
	if !slices.Contains(Modes, l.Mode) {
		return fmt.Errorf("infer: mode %q; known: %v", l.Mode, Modes)
	}
	if l.Alike < 0 || l.Alike > l.Prompt {
		return fmt.Errorf("infer: %d tokens of %d are alike; want 0 to %d", l.Alike, l.Prompt, l.Prompt)
	}
	return m.check(make([]byte, max(l.Prompt, 0)), l.Answer)
}

// prompt is the n-th prompt of a load.
func (l Load) prompt(n int, vocab int) []byte {
	common, r := rand.New(rand.NewPCG(l.Seed, 1<<40)), rand.New(rand.NewPCG(l.Seed, uint64(n)))
	b := make([]byte, l.Prompt)
	for i := range b {
		if i < l.Alike {
			b[i] = byte(common.IntN(vocab))
		} else {
			b[i] = byte(r.IntN(vocab))
		}
	}
	return b
}

// Tally is how a load went.
type Tally struct {
	Requests int `json:"answered"`
	Failed   int `json:"failed"`
	Checked  int `json:"checked"`
	Wrong    int `json:"wrong"` // answers that differ from one process's
}

// Drive puts a load on a cluster until it is done or ctx ends.
func (c *Cluster) Drive(ctx context.Context, l Load) (Tally, error) {
	if err := l.Fits(c.o.Model); err != nil {
		return Tally{}, err
	}
	var reference loaded
	if l.Check {
		var err error
		if reference, err = c.o.Model.load(); err != nil {
			return Tally{}, err
		}
	}
	var mu sync.Mutex
	var t Tally
	var first error
	n := 0
	var wg sync.WaitGroup
	for range l.Users {
		wg.Go(func() {
			for {
				mu.Lock()
				k := n
				over := l.Most > 0 && n >= l.Most || ctx.Err() != nil
				n++
				mu.Unlock()
				if over {
					return
				}
				text := l.prompt(k, c.o.Model.Config.Vocab)
				r, err := c.Ask(ctx, text, l.Answer, l.Mode)
				if ctx.Err() != nil && err != nil {
					return
				}
				wrong := false
				if err == nil && l.Check {
					want, _, _, e := reference.answer(text, l.Answer)
					wrong = e != nil || !slices.Equal(want, r.Tokens)
				}
				mu.Lock()
				t.Requests++
				if err != nil {
					t.Failed++
					if first == nil {
						first = err
					}
				} else if l.Check {
					t.Checked++
				}
				if wrong {
					t.Wrong++
				}
				mu.Unlock()
			}
		})
	}
	if l.Users == 0 {
		<-ctx.Done()
	}
	wg.Wait()
	if t.Wrong > 0 {
		first = errors.Join(first, fmt.Errorf("%d of %d answers differ from those of one process", t.Wrong, t.Checked))
	}
	return t, first
}

// live are the names of the workers that answer.
func (c *Cluster) live() (names []string) {
	for _, w := range c.Status().Workers {
		if w.Live {
			names = append(names, w.Name)
		}
	}
	return names
}

// Break kills workers (or stops them for a while), one after the other, at instants that follow from the seed.
func (c *Cluster) Break(ctx context.Context, kills, stops int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 5))
	for kills+stops > 0 && ctx.Err() == nil {
		timer := time.NewTimer(time.Duration(300+r.IntN(1200)) * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		live := c.live()
		if len(live) == 0 {
			continue
		}
		name := live[r.IntN(len(live))]
		if r.IntN(kills+stops) < kills {
			if c.Signal(name, syscall.SIGKILL) == nil {
				kills--
			}
			continue
		}
		if c.Signal(name, syscall.SIGSTOP) == nil {
			stops--
			time.AfterFunc(2*time.Second, func() { _ = c.Signal(name, syscall.SIGCONT) })
		}
	}
}

// Row is a mode in a comparison.
type Row struct {
	Mode     Mode          `json:"mode"`
	TTFT     time.Duration `json:"ttft_ns"` // medians
	TPOT     time.Duration `json:"tpot_ns"`
	Prefill  time.Duration `json:"prefill_ns"` // computing the prompt
	Exposed  time.Duration `json:"exposed_ns"` // of the transfer, after computing
	Formula  time.Duration `json:"formula_ns"` // what Exposed should be, from transfer and computing of the others
	Hidden   float64       `json:"hidden"`     // share of the transfer that computing hid
	Bytes    int64         `json:"kv_bytes"`   // of a prompt
	Requests int           `json:"requests"`
	Shared   int           `json:"shared_blocks,omitempty"` // of a prompt, from the cache service
}

// stored waits until the cache service has the blocks of a prompt.
func (c *Cluster) stored(ctx context.Context, text []byte) error {
	hashes, err := c.o.Model.hashes(text)
	if err != nil || len(hashes) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		have, err := c.stats.Match(ctx, hashes)
		if err != nil || len(have) == len(hashes) {
			return err
		}
		time.Sleep(time.Millisecond) // between two looks
	}
}

// Compare runs the modes in turns, one request at a time, and says what streaming hides of the transfer.
func (c *Cluster) Compare(ctx context.Context, l Load, rounds int) ([]Row, error) {
	if err := l.Fits(c.o.Model); err != nil {
		return nil, err
	}
	if c.o.Prefill == 0 || rounds < 1 {
		return nil, fmt.Errorf("infer: a comparison of %d rounds with %d prefill workers; want at least 1 of each", rounds, c.o.Prefill)
	}
	modes := Modes
	if c.stats != nil {
		modes = append(slices.Clone(Modes), Cached)
	}
	all := map[Mode][]Reply{}
	for i := range rounds {
		for k, m := range modes {
			// With a cache service each mode has prompts of its own; the last asks once more for what streaming asked for.
			n, how := i, m
			if c.stats != nil {
				n = i*len(Modes) + k
			}
			if m == Cached {
				n, how = i*len(Modes), Stream
				if err := c.stored(ctx, l.prompt(n, c.o.Model.Config.Vocab)); err != nil {
					return nil, err
				}
			}
			r, err := c.Ask(ctx, l.prompt(n, c.o.Model.Config.Vocab), l.Answer, how)
			if err != nil {
				return nil, err
			}
			all[m] = append(all[m], *r)
		}
	}
	median := func(m Mode, f func(Reply) time.Duration) time.Duration {
		var list []time.Duration
		for _, r := range all[m] {
			list = append(list, f(r))
		}
		return spread(m, list).P50
	}
	compute := func(r Reply) time.Duration { return r.Compute }
	exposed := func(r Reply) time.Duration { return r.Exposed }
	transfer := median(Whole, exposed) // nothing of it is hidden
	var rows []Row
	for _, m := range modes {
		x := Row{Mode: m, Requests: len(all[m]), TTFT: median(m, func(r Reply) time.Duration { return r.First }),
			TPOT: median(m, func(r Reply) time.Duration { return r.Each }), Bytes: all[m][0].Bytes}
		if m != Recompute {
			x.Prefill, x.Exposed = median(m, compute), median(m, exposed)
			x.Formula = transfer
		}
		if m == Cached {
			x.Shared = int(all[m][0].Shared)
		}
		if m == Stream {
			x.Formula = Exposed(transfer, x.Prefill, c.o.Model.Config.Layers)
			if transfer > 0 {
				x.Hidden = 1 - float64(x.Exposed)/float64(transfer)
			}
		}
		rows = append(rows, x)
	}
	return rows, nil
}
