package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
)

// Gauge is what messages were seen to take where operations ran, before any of these was measured: Predict makes its links of it.
//
//	pair      two ranks of two hosts send one another a message; the others sleep
//	one way   one of them sends, the other receives
//	all       each rank sends to its like on the next host and receives from the one before
//	channels  the same on two channels, and on four, which share the bytes
//	near      each rank sends to the next of its host and receives from the one before
//	inside    the ranks of each host gather in the memory that they share
//	seats     the ranks of each host meet, all exchange a message with their likes on other hosts, and they meet again
//	leaders   the same, of the first ranks of hosts alone
type Gauge struct {
	Pair     []Took         `json:"pair"`
	OneWay   []Took         `json:"one_way"`
	All      []Took         `json:"all"`
	Channels map[int][]Took `json:"channels,omitempty"` // by their number
	Chain    []Took         `json:"chain"`              // of all: several exchanges one after another
	Near     []Took         `json:"near,omitempty"`
	Inside   []Took         `json:"inside,omitempty"`
	Seats    []Took         `json:"seats,omitempty"`
	Leaders  []Took         `json:"leaders,omitempty"`
	Passes   []Took         `json:"passes"` // copies of memory, by all ranks at once
	Spent    float64        `json:"spent_ms"`
}

// Took is how long an operation of some bytes took, in us: the fastest batch, the lower quartile of all, and what all processors did for
// one in the fastest.
type Took struct {
	Bytes  int64   `json:"bytes"`
	Span   int64   `json:"span,omitempty"` // of memory that operations passed over, one after another; 0 is one place
	Least  float64 `json:"least_us"`
	Mostly float64 `json:"mostly_us"`
	CPU    float64 `json:"cpu_us"`

	Batches []float64 `json:"batches_us"`

	agreed float64 // the first time of all ranks, by which all decide alike
}

const (
	gaugeMost    = 8 << 20
	gaugeRoom    = 16 << 20 // bytes of each of two buffers, less where a machine has many ranks
	gaugeBatches = 5
	gaugeTime    = 2 * time.Millisecond // of a batch, or longer
	gaugeLeast   = 4                    // operations of a batch: long ones that follow one another take longer than one by itself
	gaugeSlow    = 8 * time.Millisecond // of an operation; longer ones are not measured
	links        = 4                    // exchanges of a chain
)

// Bytes of messages in one place: short ones, those of a frame, the longest that are copied, and longer ones of which the sender waits.
// Then those of places all over the buffers, and those that several channels share.
var (
	placed = []int64{8, 2 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 2 << 20, gaugeMost}
	spread = []int64{64 << 10, 512 << 10, 2 << 20}
	shared = []int64{64 << 10, 256 << 10, 1 << 20, 4 << 20}
)

// gauger measures a Gauge; all ranks take the same steps.
type gauger struct {
	c        *comm.Comm
	hosts    []int
	src, dst []float32
	at       int        // elements before what the next operation works on
	sub      *comm.Comm // of the host
	first    *comm.Comm // of the hosts' first ranks; nil on others
	m        *meter
}

// gauge measures what messages take.
func gauge(ctx context.Context, c *comm.Comm) (g *Gauge, err error) {
	begin := time.Now()
	x := &gauger{c: c, hosts: c.Hosts(), m: &meter{c: c}}
	room := max(min(gaugeRoom, 1<<28/c.Size()&^4095), gaugeMost)
	if x.src, err = comm.Alloc[float32](c, room/4); err != nil {
		return nil, err
	}
	if x.dst, err = comm.Alloc[float32](c, room/4); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, comm.Free(c, x.src), comm.Free(c, x.dst)) }()
	g = &Gauge{Channels: map[int][]Took{}}
	if err = x.measure(ctx, g); err != nil {
		return nil, err
	}
	g.Spent = float64(time.Since(begin)) / 1e6
	return g, nil
}

// measure measures everything.
func (x *gauger) measure(ctx context.Context, g *Gauge) error {
	steps := []func(context.Context, *Gauge) error{x.passes}
	if hostsOf(x.hosts) > 1 {
		steps = append(steps, x.away)
	}
	if widest(x.hosts) > 1 {
		steps = append(steps, x.near)
	}
	if x.c.Transport() == "mixed" {
		steps = append(steps, x.together)
	}
	for _, do := range steps {
		if err := do(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// away measures messages between hosts.
func (x *gauger) away(ctx context.Context, g *Gauge) error {
	next, before := x.around(false)
	pair := func(r int) bool { return r == 0 || r == next[0] }
	swap := func(channels, times int, on func(int) bool) *sched.Program {
		return x.program(channels, func(r int) string {
			if next[r] < 0 || !on(r) {
				return ""
			}
			to, from := next[r], before[r]
			switch {
			case on(to) && on(from):
			case r == 0: // of two ranks among more
				from = to
			default:
				to, from = 0, 0
			}
			return fmt.Sprintf("repeat k < %d:\n      send in[c] to %d\n      recv -> out[c] from %d", times, to, from)
		})
	}
	oneWay := x.program(1, func(r int) string {
		switch r {
		case 0:
			return fmt.Sprintf("send in[c] to %d", next[0])
		case next[0]:
			return "recv -> out[c] from 0"
		}
		return ""
	})
	err := x.curve(ctx, &g.Pair, swap(1, 1, pair), pair, placed, false)
	if err == nil {
		err = x.curve(ctx, &g.OneWay, oneWay, pair, placed, false)
	}
	for _, wide := range []bool{false, true} {
		if err == nil {
			err = x.curve(ctx, &g.All, swap(1, 1, everybody), everybody, sizesOf(wide), wide)
		}
	}
	if err == nil {
		err = x.curve(ctx, &g.Chain, swap(1, links, everybody), everybody, placed[:1], false)
	}
	for _, channels := range []int{2, 4} {
		if err == nil && x.c.Links().Own(widest(x.hosts)) >= float64(channels) {
			list := g.Channels[channels]
			err = x.curve(ctx, &list, swap(channels, 1, everybody), everybody, shared, false)
			g.Channels[channels] = list
		}
	}
	return err
}

func everybody(int) bool { return true }

// sizesOf are the sizes of messages in one place, or in places all over the buffers.
func sizesOf(wide bool) []int64 {
	if wide {
		return spread
	}
	return placed
}

// add adds what was measured to a list, or to what was measured of the same size before.
func add(list *[]Took, t Took) {
	for i := range *list {
		if was := &(*list)[i]; was.Bytes == t.Bytes && was.Span == t.Span {
			if t.Least < was.Least {
				was.Least, was.CPU = t.Least, t.CPU
			}
			was.Batches = slices.Sorted(slices.Values(append(was.Batches, t.Batches...)))
			was.Mostly = was.Batches[(len(was.Batches)-1)/4]
			return
		}
	}
	slices.Sort(t.Batches)
	t.Mostly = t.Batches[(len(t.Batches)-1)/4]
	at, _ := slices.BinarySearchFunc(*list, t, func(a,
		b Took) int {
		return cmp.Or(cmp.Compare(a.Span, b.Span), cmp.Compare(a.Bytes, b.Bytes))
	})
	*list = slices.Insert(*list, at, t)
}

// Add adds what was measured another time: what else runs does so for some time, and ranks happen to be on other cores.
func (g *Gauge) Add(more *Gauge) {
	for _, x := range []struct{ to, from *[]Took }{{&g.Pair, &more.Pair}, {&g.OneWay, &more.OneWay}, {&g.All, &more.All},
		{&g.Chain, &more.Chain},
		{&g.Near, &more.Near}, {&g.Inside, &more.Inside}, {&g.Seats, &more.Seats}, {&g.Leaders, &more.Leaders}, {&g.Passes, &more.Passes}} {
		for _, t := range *x.from {
			add(x.to, t)
		}
	}
	for n, from := range more.Channels {
		list := g.Channels[n]
		for _, t := range from {
			add(&list, t)
		}
		if g.Channels == nil {
			g.Channels = map[int][]Took{}
		}
		g.Channels[n] = list
	}
	g.Spent += more.Spent
}

// near measures messages inside hosts.
func (x *gauger) near(ctx context.Context, g *Gauge) error {
	next, before := x.around(true)
	p := x.program(1, func(r int) string {
		if next[r] < 0 {
			return ""
		}
		return fmt.Sprintf("send in[c] to %d\n    recv -> out[c] from %d", next[r], before[r])
	})
	if err := x.curve(ctx, &g.Near, p, everybody, placed, false); err != nil {
		return err
	}
	return x.curve(ctx, &g.Near, p, everybody, spread, true)
}

// together measures what the ranks of a host do in the memory that they share.
func (x *gauger) together(ctx context.Context, g *Gauge) (err error) {
	me := x.hosts[x.c.Rank()]
	if x.sub, err = x.c.Split(ctx, me, x.c.Rank()); err != nil {
		return err
	}
	color := -1
	if x.sub.Rank() == 0 {
		color = 0
	}
	if x.first, err = x.c.Split(ctx, color, x.c.Rank()); err != nil {
		return err
	}
	defer func() {
		if x.first != nil {
			err = errors.Join(err, x.first.Close())
		}
		err = errors.Join(err, x.sub.Close())
	}()
	n := x.sub.Size()
	gather := func(bytes int) error {
		count := max(bytes/4/n, 1)
		return comm.AllGather(ctx, x.sub, x.dst[x.at:][:count*n], x.src[x.at:][:count])
	}
	for _, wide := range []bool{false, true} {
		if err := x.sizes(ctx, &g.Inside, everybody, sizesOf(wide), wide, gather); err != nil {
			return err
		}
	}
	exchange := func(c *comm.Comm, p *sched.Program) func(bytes int) error {
		return func(bytes int) error {
			if err := comm.Barrier(ctx, x.sub); err != nil {
				return err
			}
			if c != nil {
				if err := comm.AllReduceTo(ctx, c, x.dst[:bytes/4], x.src[:bytes/4], comm.Sum, comm.Unproven(p)); err != nil {
					return err
				}
			}
			return comm.Barrier(ctx, x.sub)
		}
	}
	next, before := x.around(false)
	all := x.program(1, func(r int) string {
		if next[r] < 0 {
			return ""
		}
		return fmt.Sprintf("send in[c] to %d\n    recv -> out[c] from %d", next[r], before[r])
	})
	if err := x.sizes(ctx, &g.Seats, everybody, placed[:6], false, exchange(x.c, all)); err != nil {
		return err
	}
	var few *sched.Program
	if x.first != nil {
		if few, err = sched.Parse(fmt.Sprintf("weft 1\nname gauge\nop all-reduce\nranks %d\nchunks 1\nslots 1\nchannels 1:\n  send in[0] to (r+1)%%n\n  recv -> out[0] from (r-1)%%n\n",
			x.first.Size())); err != nil {
			return err
		}
	}
	return x.sizes(ctx, &g.Leaders, everybody, placed[:6], false, exchange(x.first, few))
}

// passes measures copies.
func (x *gauger) passes(ctx context.Context, g *Gauge) error {
	do := func(bytes int) error {
		copy(x.dst[x.at:][:bytes/4], x.src[x.at:][:bytes/4])
		return nil
	}
	if err := x.sizes(ctx, &g.Passes, everybody, placed, false, do); err != nil {
		return err
	}
	return x.sizes(ctx, &g.Passes, everybody, spread, true, do)
}

// around is, of each rank, the one that it sends to and the one that it receives from: the same rank of the next host and of the one
// before, or its neighbours on its own host; -1 where there is none.
func (x *gauger) around(inside bool) (next, before []int) {
	var on [][]int
	number := map[int]int{}
	seat := make([]int, len(x.hosts))
	for r, h := range x.hosts {
		if _, known := number[h]; !known {
			number[h] = len(on)
			on = append(on, nil)
		}
		seat[r] = len(on[number[h]])
		on[number[h]] = append(on[number[h]], r)
	}
	least := len(x.hosts)
	for _, l := range on {
		least = min(least, len(l))
	}
	for r, h := range x.hosts {
		k, mates := number[h], on[number[h]]
		switch {
		case inside && len(mates) > 1:
			next, before = append(next, mates[(seat[r]+1)%len(mates)]), append(before, mates[(seat[r]+len(mates)-1)%len(mates)])
		case !inside && len(on) > 1 && seat[r] < least:
			next, before = append(next, on[(k+1)%len(on)][seat[r]]), append(before, on[(k+len(on)-1)%len(on)][seat[r]])
		default:
			next, before = append(next, -1), append(before, -1)
		}
	}
	return next, before
}

// program is one in which each rank does what is said of it, on each of some channels.
func (x *gauger) program(channels int, of func(rank int) string) *sched.Program {
	var b strings.Builder
	fmt.Fprintf(&b, "weft 1\nname gauge\nop all-reduce\nranks %d\nchunks %d\nslots 1\nchannels %d:\n", x.c.Size(), channels, channels)
	for r := range x.c.Size() {
		if does := of(r); does != "" {
			fmt.Fprintf(&b, "  if r == %d:\n    %s\n", r, does)
		}
	}
	p, err := sched.Parse(b.String())
	if err != nil {
		panic(err) // it was written above
	}
	return p
}

// curve measures a program at several sizes.
func (x *gauger) curve(ctx context.Context, list *[]Took, p *sched.Program, on func(int) bool, sizes []int64, wide bool) error {
	option := comm.Unproven(p)
	return x.sizes(ctx, list, on, sizes, wide, func(bytes int) error {
		return comm.AllReduceTo(ctx, x.c, x.dst[x.at:][:bytes/4], x.src[x.at:][:bytes/4], comm.Sum, option)
	})
}

// sizes measures an operation at several sizes, up to the first that takes long.
func (x *gauger) sizes(ctx context.Context, list *[]Took, on func(int) bool, sizes []int64, wide bool, do func(bytes int) error) error {
	for i, bytes := range sizes {
		t, err := x.time(ctx, on, int(bytes), wide, do)
		if err != nil {
			return err
		}
		add(list, t)
		if i+1 < len(sizes) && t.agreed*float64(sizes[i+1])/float64(bytes) > float64(gaugeSlow)/1e3 && bytes >= wireSize {
			break
		}
	}
	return nil
}

// time measures an operation of the ranks that take part; the others sleep meanwhile, as those that wait want cores, too. wide lets
// operations work on one part of the buffers after another.
func (x *gauger) time(ctx context.Context, on func(int) bool, bytes int, wide bool, do func(bytes int) error) (Took, error) {
	mine := on(x.c.Rank())
	x.at = 0
	batch := func(iters int, each int64) (int64, int64, error) {
		if err := comm.Barrier(ctx, x.c); err != nil {
			return 0, 0, err
		}
		used, start, ns := processorTime(), time.Now(), int64(0)
		for range iters {
			if wide {
				if x.at += bytes / 4; x.at+bytes/4 > len(x.src) {
					x.at = 0
				}
			}
			if err := do(bytes); err != nil {
				return 0, 0, err
			}
		}
		if ns = int64(time.Since(start)); !mine { // it did nothing
			ns = 0
			time.Sleep(time.Duration(int64(iters) * each))
		}
		used = processorTime() - used
		ns, err := x.m.all(ctx, []int64{ns}, comm.Max)
		if err != nil {
			return 0, 0, err
		}
		used, err = x.m.all(ctx, []int64{used}, comm.Sum)
		return ns, used, err
	}
	iters, each := 1, int64(0)
	for range 3 {
		ns, _, err := batch(iters, each)
		if err != nil {
			return Took{}, err
		}
		each = max(ns/int64(iters), 1)
		if iters = int(min(max(int64(gaugeTime)/each, gaugeLeast), int64(iters*20))); each > int64(gaugeTime) {
			break
		}
	}
	t := Took{Bytes: int64(bytes), Least: math.Inf(1), agreed: float64(each) / 1e3}
	if wide {
		t.Span = int64(8 * len(x.src))
	}
	batches := gaugeBatches
	if each > int64(gaugeTime) {
		batches = 2
	}
	for range batches {
		ns, used, err := batch(iters, each)
		if err != nil {
			return Took{}, err
		}
		us := float64(ns) / 1e3 / float64(iters)
		t.Batches = append(t.Batches, us)
		if us < t.Least {
			t.Least, t.CPU = us, float64(used)/1e3/float64(iters)
		}
	}
	x.at = 0
	return t, nil
}
