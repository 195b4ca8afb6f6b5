// Package choice decides which program a call runs: algorithm, pieces and channels,
// from the request and the measured cost of the ranks' links.
//
//	Measure   the cost of messages, meetings and memory, in under 200 ms
//	Find      the same from a cache, measured and stored if missing
//	Table     the program for an operation, root and size; the same on every rank
//	Explain   the table as text, with times and reasons
//
// A choice depends only on the links, the transport's abilities and the ranks' hosts, so
// ranks that agree on these agree on every program. For message programs link costs are
// rounded to coarse steps, so that runs agree too.
package choice

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/transport"
)

// Pick is the program for a call, and why.
type Pick struct {
	Program   *sched.Program
	Algo      string    // "ring"; "hierarchical direct/ring" for direct inside hosts and ring between them
	Pieces    int       // how finely a pipelined algorithm cuts a share; 1 is not at all
	Channels  int       // copies of the pattern side by side
	Predicted unit.Time // at the smallest size of the size class
	Reason    string

	next string    // the runner-up and its parameters, empty if there is none
	then unit.Time // its time
}

// Table holds the choices of a communicator. It is safe for concurrent use;
// choices are made when first asked for, and one that was made before is found
// without a lock and without allocating.
type Table struct {
	links   cost.Links
	can     transport.Capabilities
	n       int
	hosts   []int
	many    int          // hosts
	local   int          // ranks of each host, 0 where hosts have different numbers
	order   []sched.Rank // ranks host by host, nil where they are so already
	own     int          // cores of each rank: a channel without one waits for its turn, which costs more than it brings
	crowd   bool         // some host has more ranks than cores
	packed  bool         // and more than three for each
	visible bool         // ranks see one another's memory
	single  bool         // programs have one channel, to be part of another one
	rows    [][2][]row   // by collective and canonical: one row, or one for each root
	mu      sync.Mutex   // held while a choice is made
	built   map[way]*sched.Program
	curves  map[part][]cost.Replayed
	fields  map[contest]*field
	chosen  map[plain]*Pick // of root 0
}

// row is the choices by size class.
type row struct {
	picks atomic.Pointer[[classes]atomic.Pointer[Pick]]
}

// plain is what a choice depends on.
type plain struct {
	op        sched.Collective
	canonical bool
	class     int
}

// Size classes: two a power of two, [2^k, 1.5*2^k) and [1.5*2^k, 2^(k+1)), so
// that a power of two is the smallest of its class. Class 0 is no bytes, class 1
// one byte.
const classes = 2 * 63

func classOf(bytes int64) int {
	if bytes <= 1 {
		return int(max(bytes, 0))
	}
	k := bits.Len64(uint64(bytes)) - 1 // at least 1
	return 2*k + int(bytes>>(k-1)&1)
}

// smallest is the smallest size of a class.
func smallest(class int) int64 {
	if class <= 1 {
		return int64(class)
	}
	return 1<<(class/2) + int64(class%2)<<(class/2-1)
}

// longest is what a meeting in memory takes at most for each of its ranks, in us,
// where ranks outnumber cores and have to be woken (0.6 to 0.7 us were measured
// for 4 and 8 ranks on 2 cores that yield). What passes beyond that while links
// are measured is the time of other processes.
const longest = 2

// shortest is what such a meeting takes at least, likewise: the ranks of a core come
// one after another. What is measured are single meetings, of which the shortest is
// one for which all ranks happened to be awake.
const shortest = 0.6

// Message is how long the messages of an operation are at most, in bytes: a large one is carried out
// run by run. Long ones need fewer calls; but what is received, added and sent again
// should stay in the second-level cache, which ranks on one core share. 8 ranks on 2
// cores with 2 MiB of it each take 80 ms for 16 MiB with messages of 512 KiB and 66
// with 128, 4 ranks 5.3 and 6.2 for 4 MiB (2026-11-15), 6 ranks 3.7 and 4.2 for 2 MiB
// and 7 ranks as long (2026-11-16).
//
// Between hosts the sender of a message waits until it is acknowledged, once a message, and the kernel's copies
// cost more than the cache saves: there messages are long. On 2 cores beside other work, 16 MiB over two hosts, in turns
// with 512 KiB or 128 KiB: all-to-all of 4 ranks a host 231 and 195 ms, 413 and 357 with short ones; all-reduce of 1 rank a
// host 89 ms and 129 (2026-11-17). Broadcasts and the like are passed on from rank to rank while more follows, so theirs stay short where
// there are more than two ranks.
func (t *Table) Message(op sched.Collective) int {
	switch {
	case t.many > 1 && (t.n == 2 || !op.Rooted()):
		return farMessage
	case t.packed:
		return 128 << 10
	}
	return 512 << 10
}

// farMessage is the longest message between hosts. It bounds what a rank keeps of messages that came before they were asked for.
const farMessage = 8 << 20

// Undivided is how long messages may be, in bytes, for an operation to be carried out in
// one run. The last message of an all-reduce of two ranks waits in the socket, from
// which it overwrites input that need not be kept then: in place, 2 MiB take 0.67 ms
// with messages of 512 KiB and 0.64 in one run, and 4 MiB 1.32 and 1.23 ms; otherwise
// as long (2026-11-15). Reduce-scatters of 2 and 4 MiB take 0.45 and 0.86 ms, and 0.41 and
// 0.80 in one run, all-to-alls 0.37 and 0.74, and 0.36 and 0.69; the others as long
// (2026-11-16).
func (t *Table) Undivided(op sched.Collective) int {
	if t.n == 2 && t.many == 1 && t.can.Holds {
		switch op {
		case sched.AllReduce, sched.ReduceScatter, sched.AllToAll:
			return 2 << 20
		}
	}
	return t.Message(op)
}

// Single is New of programs that run on one channel, each rank at its own place, so that
// they can be phases of another program.
func Single(links cost.Links, can transport.Capabilities, n int, hosts []int) *Table {
	t := New(links, can, n, hosts)
	t.single = true
	return t
}

// New makes the table of n ranks, of which hosts[r] is the host of rank r, from
// 0; nil means that all are on one. can is what the transport can do.
// The links may be those of a larger group that the ranks are part of.
func New(links cost.Links, can transport.Capabilities, n int, hosts []int) *Table {
	if links.Ranks > n { // fewer ranks meet sooner; the others are still there
		links.Sync *= float64(n) / float64(links.Ranks)
	}
	links.Ranks, links.Kind = n, can.Name
	t := &Table{links: links, can: can, n: n, built: map[way]*sched.Program{}, curves: map[part][]cost.Replayed{},
		fields: map[contest]*field{}, chosen: map[plain]*Pick{}}
	t.place(hosts)
	t.visible = can.SharedMemory && t.many == 1
	on := make([]int, t.many)
	for _, h := range t.hosts {
		on[h]++
	}
	own := links.Own(slices.Max(on))
	t.own, t.crowd, t.packed = max(int(own), 1), own < 1, own < 1.0/3
	if !t.visible {
		t.links = rough(t.links, slices.Max(on))
	} else {
		t.links.Sync = min(t.links.Sync, longest*float64(n))
		if t.links.Cores > 0 && t.crowd {
			t.links.Sync = max(t.links.Sync, shortest*float64(n))
		}
	}
	ops := sched.Collectives()
	t.rows = make([][2][]row, len(ops)+1)
	for _, op := range ops {
		roots := 1
		if op.Rooted() {
			roots = n
		}
		t.rows[op] = [2][]row{make([]row, roots), make([]row, roots)}
	}
	return t
}

// place numbers the hosts in the order of their first ranks and finds out
// whether they have equally many ranks, and where.
func (t *Table) place(hosts []int) {
	t.hosts, t.many, t.local = make([]int, t.n), 1, t.n
	if len(hosts) != t.n {
		return
	}
	number := map[int]int{}
	var on [][]sched.Rank
	for r, h := range hosts {
		k, seen := number[h]
		if !seen {
			k = len(number)
			number[h] = k
			on = append(on, nil)
		}
		t.hosts[r] = k
		on[k] = append(on[k], sched.Rank(r))
	}
	t.many, t.local = len(on), len(on[0])
	order := slices.Concat(on...)
	if !slices.IsSorted(order) {
		t.order = order
	}
	for _, ranks := range on {
		if len(ranks) != t.local {
			t.local = 0
			return
		}
	}
}

// Pick gives the program for a call with that number of bytes in the larger of its
// buffers. root counts only for collectives that have one. canonical asks for
// sums in the canonical order (package sched), so that their bits depend on the ranks' numbers alone.
func (t *Table) Pick(op sched.Collective, root int, bytes int64, canonical bool) (*Pick, error) {
	if int(op) >= len(t.rows) || op == 0 {
		return nil, fmt.Errorf("no program for %s", op)
	}
	if !op.Rooted() {
		root = 0
	}
	if root < 0 || root >= t.n {
		return nil, fmt.Errorf("root %d is not among %d ranks", root, t.n)
	}
	if bytes < 0 {
		return nil, fmt.Errorf("%s of %d bytes", op, bytes)
	}
	which := 0
	if canonical {
		which = 1
	}
	row, class := &t.rows[op][which][root], classOf(bytes)
	if picks := row.picks.Load(); picks != nil {
		if p := picks[class].Load(); p != nil {
			return p, nil
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.choose(plain{op, canonical, class})
	if err != nil {
		return nil, err
	}
	if root != 0 {
		at := *p
		if at.Program, err = t.program(way{p.Algo, op, root, p.Pieces, p.Channels, canonical && sums(op)}); err != nil {
			return nil, err
		}
		p = &at
	}
	if row.picks.Load() == nil {
		row.picks.Store(new([classes]atomic.Pointer[Pick]))
	}
	row.picks.Load()[class].CompareAndSwap(nil, p)
	return row.picks.Load()[class].Load(), nil
}

// Predict is how long a call should take with the program that Pick gives for it, by the links that were measured; 0 where
// that is not known.
func (t *Table) Predict(op sched.Collective, bytes int64, canonical bool) unit.Time {
	p, err := t.Pick(op, 0, bytes, canonical)
	class := classOf(bytes)
	if err != nil || class+1 >= classes {
		return 0
	}
	from, to := smallest(class), smallest(class+1)
	if bytes == from {
		return p.Predicted
	}
	next, err := t.Pick(op, 0, to, canonical)
	if err != nil {
		return 0
	}
	return p.Predicted + unit.Time(float64(next.Predicted-p.Predicted)*float64(bytes-from)/float64(to-from))
}

// Across is how long what a program of these ranks passes between hosts should take, by the same replay as those that Pick chooses among:
// messages inside hosts take no time.
func (t *Table) Across(p *sched.Program, bytes int64) (unit.Time, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	links := t.links
	links.Near, links.Run = cost.Link{}, unit.Bytes(max(t.Message(p.Op), t.Undivided(p.Op)))
	curve, err := links.Curve(p, []unit.Bytes{unit.Bytes(smallest(classOf(bytes)))}, t.hosts, nil)
	if err != nil {
		return 0, err
	}
	return curve[0].Time, nil
}

// Post is what a message between hosts takes of a core, as choices count it: what was measured on a busy machine may be far from it.
func (t *Table) Post() unit.Time { return cost.Span(t.links.Far.Post) }

// choose makes a choice for root 0, which stands for the others: hosts are alike.
func (t *Table) choose(key plain) (*Pick, error) {
	if p := t.chosen[key]; p != nil {
		return p, nil
	}
	var p *Pick
	var err error
	if t.visible || t.n == 1 {
		p, err = t.flat(key)
	} else {
		p, err = t.messages(key)
	}
	if err != nil {
		return nil, err
	}
	t.chosen[key] = p
	return p, nil
}

// fresh is tune's model of flat programs for memory that another core has just
// written, as inputs are: the first bytes of a buffer come line by line, 8 GB/s,
// and then at 33 GB/s until prefetching has caught up. Measured on two Xeons with 2 to 8 ranks, a core
// each (2026-11-15): one-shot is faster up to 512 bytes, equal at 1 KiB, and takes
// 1.5 to 2 times as long as rank-order at 4 KiB. Ranks that share cores find much
// of it in their own cache, and meetings are what takes long: with 4 on 2 cores
// one-shot is 1.8 times as fast at 4 KiB and 1.4 times as slow at 32 KiB.
type fresh struct{ cost.Flat }

func (f fresh) Time(c cost.Work) unit.Time {
	const slow, caught = 1.2e-4, 3e-5 // us a byte
	late := caught * min(c.Wire, 256<<10)
	if f.Own(f.Ranks) >= 1 {
		late = slow*min(c.Wire, 32<<10) + caught*min(max(c.Wire-32<<10, 0), 96<<10)
	}
	return f.Flat.Time(c) + unit.Time(late*float64(unit.Microsecond))
}

// flat picks among the programs that read straight out of others' memory. All of
// them sum in the canonical order.
func (t *Table) flat(key plain) (*Pick, error) {
	algos, err := cost.FlatAlgos(key.op, t.n)
	if err != nil {
		return nil, err
	}
	s, err := cost.Select(fresh{cost.Flat{Links: &t.links}}, algos, unit.Bytes(smallest(key.class)))
	if err != nil {
		return nil, err
	}
	p := &Pick{Algo: s.Name, Pieces: 1, Channels: 1, Predicted: s.Time}
	if p.Program, err = t.program(way{s.Name, key.op, 0, 1, 1, true}); err != nil {
		return nil, err
	}
	p.Reason = meetings(s.Ranked)
	if len(s.Others) > 0 {
		p.next, p.then = s.Others[0].Name, s.Others[0].Time
		p.Reason += "; " + p.next + ": " + meetings(s.Others[0])
	}
	if t.n == 1 {
		p.Reason = "one rank"
	}
	return p, nil
}

// meetings says what a flat program costs.
func meetings(r cost.Ranked) string {
	times := "1 meeting"
	if r.Cost.Steps != 1 {
		times = fmt.Sprintf("%g meetings", r.Cost.Steps)
	}
	return fmt.Sprintf("%s, %s through memory a rank", times, unit.Bytes(r.Cost.Wire))
}
