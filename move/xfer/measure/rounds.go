package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/xfer"
)

// measure fills a row. Rounds of our requests alternate with rounds of whatever is compared, and ratios are of
// neighbouring rounds, so that a busy machine slows both. All bouts and threads run at once.
func (c *Config) measure(ctx context.Context, row *Row, bouts []*bout, children []*Child, block int64, batch int, total int64) error {
	states := make([]state, len(bouts))
	for i, b := range bouts {
		s, err := lists(b, block, batch, total)
		if err != nil {
			return err
		}
		defer s.local.Release()
		defer s.remote.Release()
		states[i] = s
	}
	threads := max(1, c.Threads)
	if n := len(states[0].index); threads > n {
		return fmt.Errorf("%d requests at once of %d blocks of %v: the buffer of %v has room for %d",
			threads, batch, unit.Bytes(block), unit.Bytes(total), n)
	}
	bytesPer := block * int64(batch)
	var posts, txs, preps []time.Duration
	var mu sync.Mutex
	run := func(iters int, keep bool) (time.Duration, error) {
		errs := make([]error, len(bouts)*threads)
		began := time.Now()
		var wg sync.WaitGroup
		for i, b := range bouts {
			for th := range threads {
				wg.Go(func() {
					for k := range iters {
						t, err := c.request(ctx, b, &states[i], k*threads+th)
						if err != nil {
							errs[i*threads+th] = err
							return
						}
						if keep {
							mu.Lock()
							posts, txs = append(posts, t.post), append(txs, t.tx)
							if c.Recreate {
								preps = append(preps, t.prep)
							}
							row.Path = t.path
							mu.Unlock()
						}
					}
				})
			}
		}
		wg.Wait()
		return time.Since(began), errors.Join(errs...)
	}
	if _, err := run(c.Warmup, false); err != nil {
		return err
	}
	beside, stop, err := c.beside(ctx, bouts[0], children, block, batch, total)
	if err != nil {
		return err
	}
	defer stop()
	cpu := func() float64 {
		sum := processTime().Seconds()
		for _, k := range children {
			s, _ := k.CPU(ctx)
			sum += s
		}
		return sum
	}
	per := max(1, c.Iters/c.Rounds)
	if block > 1<<20 {
		per = max(1, per/max(1, c.Large))
	}
	var spent time.Duration
	var used, moved float64
	ratios := make([][]float64, len(beside))
	theirCPU := make([]float64, len(beside))
	rates := make([][]float64, len(beside))
	for range c.Rounds {
		before := cpu()
		d, err := run(per, true)
		if err != nil {
			return err
		}
		used += cpu() - before
		spent += d
		n := float64(per) * float64(len(bouts)*threads) * float64(bytesPer)
		moved += n
		for k, o := range beside {
			if o.run == nil {
				continue
			}
			before := cpu()
			t, err := o.run(per)
			theirCPU[k] += cpu() - before
			if err != nil {
				beside[k].Why, beside[k].run = err.Error(), nil
				continue
			}
			theirs := float64(per) * float64(bytesPer) / t.Seconds()
			rates[k] = append(rates[k], theirs)
			ratios[k] = append(ratios[k], n/d.Seconds()/theirs)
		}
	}
	row.Rate = unit.Rate(moved / spent.Seconds())
	row.Latency = spent.Seconds() * 1e6 * float64(len(bouts)*threads) / float64(len(posts))
	row.Descs = moved / float64(block) / spent.Seconds()
	if moved > 0 && used > 0 {
		row.CPU = used / (moved / 1e9)
	}
	for _, s := range states {
		if !c.Recreate {
			preps = append(preps, s.prep)
		}
	}
	row.Prep, row.PrepP99 = spread(preps)
	row.Post, row.PostP99 = spread(posts)
	row.Tx, row.TxP99 = spread(txs)
	for k, o := range beside {
		x := Beside{Name: o.name, Why: o.Why}
		if len(rates[k]) > 0 {
			x.Rate, x.Ratio = unit.Rate(median(rates[k])), median(ratios[k])
			if o.inside {
				x.CPU = theirCPU[k] / (float64(len(rates[k])*per) * float64(bytesPer) / 1e9)
			}
		}
		row.Beside = append(row.Beside, x)
	}
	if c.Check {
		return c.check(ctx, bouts, states[0].local, states[0].remote)
	}
	return nil
}

// state is the prepared lists of an initiator, and which of their descriptors its requests take in turn.
type state struct {
	local, remote *xfer.List
	index         [][]int
	prep          time.Duration
	here, there   []xfer.Desc
}

// took is how long one request took.
type took struct {
	prep, post, tx time.Duration
	path           string
}

// request makes the k-th request of an initiator, with lists of its own if it is to.
func (c *Config) request(ctx context.Context, b *bout, s *state, k int) (t took, err error) {
	window := s.index[k%len(s.index)]
	x := xfer.Transfer{Op: c.Op, Local: s.local, LocalIndex: window, Remote: s.remote, RemoteIndex: window, Class: c.Class}
	t0 := time.Now()
	if c.Recreate {
		here, there := make([]xfer.Desc, len(window)), make([]xfer.Desc, len(window))
		for i, w := range window {
			here[i], there[i] = s.here[w], s.there[w]
		}
		if x.Local, err = b.agent.Prepare(nil, here); err != nil {
			return t, err
		}
		defer x.Local.Release()
		if x.Remote, err = b.agent.Prepare(b.peer, there); err != nil {
			return t, err
		}
		defer x.Remote.Release()
		x.LocalIndex, x.RemoteIndex = nil, nil
		t.prep = time.Since(t0)
		t0 = time.Now()
	}
	q, err := b.agent.Post(x)
	t1 := time.Now()
	if err == nil {
		err = q.Wait(ctx)
	}
	if err != nil {
		return t, err
	}
	t.post, t.tx, t.path = t1.Sub(t0), time.Since(t1), q.Poll().Path
	return t, nil
}

// check writes, reads back and compares.
func (c *Config) check(ctx context.Context, bouts []*bout, local, remote *xfer.List) error {
	b := bouts[0]
	m := b.local.Bytes()
	if m == nil {
		return errors.New("check_consistency needs host memory at the initiator")
	}
	for i := range m {
		m[i] = byte(i*31 + i>>9)
	}
	want := bytes.Clone(m)
	for _, op := range []xfer.Op{xfer.Write, xfer.Read} {
		q, err := b.agent.Post(xfer.Transfer{Op: op, Local: local, Remote: remote})
		if err == nil {
			err = q.Wait(ctx)
		}
		if err != nil {
			return fmt.Errorf("check: %w", err)
		}
		if op == xfer.Write {
			clear(m)
		}
	}
	if !bytes.Equal(m, want) {
		return errors.New("check: what was written is not what was read back")
	}
	return nil
}

func spread(d []time.Duration) (average, p99 float64) {
	if len(d) == 0 {
		return 0, 0
	}
	slices.Sort(d)
	sum := time.Duration(0)
	for _, x := range d {
		sum += x
	}
	return sum.Seconds() * 1e6 / float64(len(d)), d[min(len(d)-1, len(d)*99/100)].Seconds() * 1e6
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
