package fit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/run/comm"
)

// candidate is a program that was made for the links.
type candidate struct {
	Form      string    `json:"form"`
	Text      string    `json:"text"`
	Predicted unit.Time `json:"predicted_ps"`

	program *sched.Program
}

// offer is what rank 0 made for an operation and a size.
type offer struct {
	Bound      unit.Time   `json:"bound_ps"`
	Candidates []candidate `json:"candidates"`
	Why        string      `json:"why"` // there are none
}

// trial is one operation at one size.
type trial struct {
	c       *comm.Comm
	cfg     *Config
	op      sched.Collective
	size    unit.Bytes
	offer   offer
	in, out []float32
}

// newTrial makes programs on rank 0 and tells all ranks.
func newTrial(ctx context.Context, c *comm.Comm, cfg *Config, op sched.Collective, size unit.Bytes, m *rates) (*trial, error) {
	t := &trial{c: c, cfg: cfg, op: op, size: size}
	var text []byte
	if c.Rank() == 0 {
		t.offer = propose(m, op, size, cfg.Channels, c.Links())
		var err error
		if text, err = json.Marshal(t.offer); err != nil {
			return nil, err
		}
	}
	length := []int64{int64(len(text))}
	if err := comm.Broadcast(ctx, c, length, 0); err != nil {
		return nil, err
	}
	if c.Rank() != 0 {
		text = make([]byte, length[0])
	}
	if err := comm.Broadcast(ctx, c, text, 0); err != nil {
		return nil, err
	}
	t.offer = offer{}
	if err := json.Unmarshal(text, &t.offer); err != nil {
		return nil, err
	}
	for i := range t.offer.Candidates {
		p, err := sched.Parse(t.offer.Candidates[i].Text)
		if err != nil {
			return nil, err
		}
		t.offer.Candidates[i].program = p
	}
	n := elements(size, c.Size())
	t.in, t.out = make([]float32, n), make([]float32, n)
	for i := range t.in {
		t.in[i] = float32(i%7 + c.Rank())
	}
	return t, nil
}

// elements are the float32 of a size, as many for each rank.
func elements(size unit.Bytes, ranks int) int { return max(int(size)/4/ranks, 1) * ranks }

// propose makes programs for links as they were measured, of few trees and of many, the fastest by simulation first.
func propose(m *rates, op sched.Collective, size unit.Bytes, channels int, links *comm.Links) offer {
	o := offer{}
	net, err := synth.Read("measured", m.text())
	if err != nil {
		return offer{Why: err.Error()}
	}
	g, ranks, even := net.Graph()
	if !even {
		return offer{Why: "links differ by direction"}
	}
	if b, err := net.Bounds(op, 0, false); err == nil {
		o.Bound = b.Time(size)
	}
	far := links.Far
	if len(m.hosts) == 1 {
		far = links.Near
	}
	// A message keeps a rank's goroutine, which sends nothing meanwhile, until the other side is awake.
	opts := sim.Options{Costs: sim.Costs{Local: unit.Time((far.Alpha + 2*far.Post) * float64(unit.Microsecond))}}
	// Messages of some ten KiB keep several hops busy; shorter ones cost a rank more than they bring. Small operations are made in every form.
	pieces := 0
	if size >= 512*unit.KiB {
		pieces = min(int(math.Sqrt(float64(size/(64*unit.KiB)))), 32)
	}
	seen := map[string]bool{}
	for _, wish := range []sim.SynthWish{{Loss: 0.05, Trees: 4 * net.Ranks}, {Loss: 0.35, Trees: net.Ranks},
		{Loss: 0.5, Trees: max(net.Ranks/2, 2)}, {Loss: 0.5, Channels: 8}} {
		wish.Pieces = pieces
		if channels > 0 && (wish.Channels == 0 || wish.Channels > channels) {
			wish.Channels = channels
		}
		s, err := sim.Synthesise(g, ranks, op, size, opts, wish)
		if err != nil || s.Result == nil {
			if err != nil && o.Why == "" {
				o.Why = err.Error()
			}
			continue
		}
		if d := s.Program.Digest(); !seen[d] {
			seen[d] = true
			o.Candidates = append(o.Candidates, candidate{Form: s.Form, Text: s.Program.String(), Predicted: s.Result.Time})
		}
	}
	slices.SortStableFunc(o.Candidates, func(a, b candidate) int { return cmp.Compare(a.Predicted, b.Predicted) })
	if len(o.Candidates) > 0 {
		o.Why = ""
	}
	return o
}

// slowest is how many times as long as the runtime's choice a program may take in its first turn to have others.
const slowest = 1.5

// run takes turns. The row has the median of each, over the slowest rank; the program's text is that of the best one.
func (t *trial) run(ctx context.Context) (*Row, string, error) {
	row := &Row{Op: t.op, Bytes: t.size, Bound: us(t.offer.Bound), Why: t.offer.Why}
	// The first call of each is checked; it also finds and proves the programs.
	if err := t.check(ctx, nil); err != nil {
		return nil, "", err
	}
	if r := t.c.Flight().Records(); len(r) > 0 {
		row.Own = r[len(r)-1].Program
	}
	for i := range t.offer.Candidates {
		if err := t.check(ctx, t.offer.Candidates[i].program); err != nil {
			return nil, "", err
		}
	}
	took, err := t.time(ctx, nil, 1)
	if err != nil {
		return nil, "", err
	}
	calls := min(max(int(20e-3/took), 1), 1000)
	var own []float64
	times := make([][]float64, len(t.offer.Candidates))
	for turn := range t.cfg.Turns {
		took, err := t.time(ctx, nil, calls)
		if err != nil {
			return nil, "", err
		}
		own = append(own, took)
		for i := range t.offer.Candidates {
			if turn > 0 && times[i][0] > slowest*own[0] {
				continue
			}
			took, err := t.time(ctx, t.offer.Candidates[i].program, calls)
			if err != nil {
				return nil, "", err
			}
			times[i] = append(times[i], took)
		}
	}
	row.OwnUS = 1e6 * median(own)
	best := -1
	for i, list := range times {
		if best < 0 || median(list) < median(times[best]) {
			best = i
		}
	}
	if best < 0 {
		return row, "", nil
	}
	x := &t.offer.Candidates[best]
	row.Form, row.Predicted, row.Took = x.Form, us(x.Predicted), 1e6*median(times[best])
	row.Kept = row.Took < 0.95*row.OwnUS && len(times[best]) == t.cfg.Turns
	return row, x.Text, nil
}

func us(t unit.Time) float64 { return float64(t) / float64(unit.Microsecond) }

func median(list []float64) float64 {
	s := slices.Sorted(slices.Values(list))
	return s[(len(s)-1)/2]
}

// time is what one of some calls takes the slowest rank, in seconds. All ranks get the same.
func (t *trial) time(ctx context.Context, p *sched.Program, calls int) (float64, error) {
	if err := comm.Barrier(ctx, t.c); err != nil {
		return 0, err
	}
	start := time.Now()
	for range calls {
		if err := t.call(ctx, p); err != nil {
			return 0, err
		}
	}
	took := []float64{time.Since(start).Seconds() / float64(calls)}
	err := comm.AllReduce(ctx, t.c, took, comm.Max)
	return took[0], err
}

// call makes the call with a program, or with the runtime's choice.
func (t *trial) call(ctx context.Context, p *sched.Program) error {
	var opts []comm.Option
	if p != nil {
		opts = append(opts, comm.Using(p))
	}
	per := len(t.in) / t.c.Size()
	switch t.op {
	case sched.AllReduce:
		return comm.AllReduceTo(ctx, t.c, t.out, t.in, comm.Sum, opts...)
	case sched.AllGather:
		return comm.AllGather(ctx, t.c, t.out, t.in[:per], opts...)
	case sched.ReduceScatter:
		return comm.ReduceScatter(ctx, t.c, t.out[:per], t.in, comm.Sum, opts...)
	case sched.Broadcast:
		return comm.Broadcast(ctx, t.c, t.in, 0, opts...)
	case sched.Reduce:
		return comm.Reduce(ctx, t.c, t.out, t.in, comm.Sum, 0, opts...)
	}
	return fmt.Errorf("no trial of %s", t.op)
}

// errWrong is a result that is not right.
var errWrong = errors.New("wrong result")

// check makes one call and looks at every element of the result.
func (t *trial) check(ctx context.Context, p *sched.Program) error {
	n, rank := t.c.Size(), t.c.Rank()
	per := len(t.in) / n
	for i := range t.in {
		t.in[i] = float32(i%7 + rank)
	}
	clear(t.out)
	if err := t.call(ctx, p); err != nil {
		return err
	}
	sum := func(i int) float32 { return float32(n*(i%7) + n*(n-1)/2) }
	result, want := t.out, sum
	switch t.op {
	case sched.AllGather:
		want = func(i int) float32 { return float32(i%per%7 + i/per) }
	case sched.ReduceScatter:
		result, want = t.out[:per], func(i int) float32 { return sum(rank*per + i) }
	case sched.Broadcast:
		result, want = t.in, func(i int) float32 { return float32(i % 7) }
	case sched.Reduce:
		if rank != 0 {
			return nil
		}
	}
	for i, v := range result {
		if v != want(i) {
			return fmt.Errorf("%w: %s at element %d: %g, want %g (program %v)", errWrong, t.op, i, v, want(i), p != nil)
		}
	}
	return nil
}
