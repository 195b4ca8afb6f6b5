package comm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/comm/choice"
	"github.com/weft-fabric/weft/run/transport"
)

// Where ranks of a host share memory and hosts do not, a collective runs in phases
// (algo.Levels), each on a communicator of its own: that of the ranks of this host, which
// runs flat programs in shared memory, or that of the ranks of one number on all hosts,
// which sends messages; of as many ranks of each host as the smallest one has, where hosts have different numbers of them. The program of
// all phases is the one that is proven and simulated; the phases' programs are the parts that it is made of.

// divided is an endpoint whose ranks see the memory of some and not of others.
type divided interface {
	Inside() transport.Endpoint
	Mates() []int
	Across() transport.Endpoint
}

// divide makes the worlds inside this host and between hosts, where they differ.
func (w *world) divide() {
	d, ok := w.ep.(divided)
	if !ok {
		return
	}
	in := d.Inside()
	w.inside = &world{process: w.process, ep: in, mem: in.Memory(), hosts: make([]int, in.Size()), local: w.local, mates: d.Mates()}
	for _, r := range d.Mates() {
		w.inside.pids = append(w.inside.pids, w.pids[r])
	}
	w.across = &world{process: w.process, ep: d.Across(), hosts: w.hosts, pids: w.pids, local: w.local}
}

// memory is that which ranks of this host see; nil if there is none.
func (w *world) memory() transport.Memory {
	if w.inside != nil {
		return w.inside.mem
	}
	return w.mem
}

// enter takes a communicator that is alone so far to the world in which its members reach
// one another best. Members are ranks of the world it is in.
func (p *peers) enter(members []int) {
	p.group.Members = members
	w := p.world
	if w.inside == nil {
		return
	}
	seen := map[int]bool{}
	here, apart := true, true
	for _, m := range members {
		here = here && w.hosts[m] == w.hosts[w.ep.Rank()]
		apart = apart && !seen[w.hosts[m]]
		seen[w.hosts[m]] = true
	}
	switch {
	case here:
		list := make([]int, len(members))
		for i, m := range members {
			list[i] = slices.Index(w.inside.mates, m)
		}
		p.world, p.group.Members = w.inside, list
	case apart:
		p.world = w.across
	}
}

// findInside derives what links cost inside hosts, and between them, from what was measured of all. All ranks know
// the same, so they choose the same.
func (w *world) findInside() {
	if w.inside == nil {
		return
	}
	w.inside.links = w.linksOf(w.inside.ep.Size())
	w.across.links = w.links
}

// linksOf is what links cost inside a host of n ranks.
func (w *world) linksOf(n int) cost.Links {
	in, near := w.links, w.links.Near
	in.Kind, in.Ranks, in.Far = w.inside.ep.Can().Name, n, cost.Link{}
	in.Sync = float64(bits.Len(uint(n-1))) * (near.Alpha + 2*near.Post)
	return in
}

// within is the table of choices for n ranks of a host that carry out phases. It is the same on all hosts, also on those that have
// more ranks besides: all must take the same programs.
func (w *world) within(n int) *choice.Table {
	if n == w.inside.links.Ranks {
		return w.inside.tables().For(make([]int, n))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hostTables[n] == nil {
		if w.hostTables == nil {
			w.hostTables = map[int]*choice.Table{}
		}
		w.hostTables[n] = choice.New(w.linksOf(n), w.inside.ep.Can(), n, nil)
	}
	return w.hostTables[n]
}

// levels is how a communicator of several hosts runs collectives.
type levels struct {
	inner, outer *Comm // outer is nil on ranks that do not talk to other hosts
	sizes        []int // ranks of each host, one after the other
	order        []int // the ranks, host by host
	base         []int // by host, where it begins in order
	places       []int // the host of each rank; nil where ranks are numbered host by host
	local, hosts int   // local is 0 where hosts have different numbers of ranks
	least        int   // ranks of the smallest host
	seat, home   int   // this rank's number on its host, and its host's
	spare        []byte
	table        *choice.Table                 // of the phases between hosts
	within       func(ranks int) *choice.Table // of those inside a host, by its ranks
	whole        *choice.Table                 // of calls that do not run in phases
	post         unit.Time                     // what a message between hosts takes of a core
	copies       float64                       // what a byte takes that a rank copies
	canonical    bool                          // sums are in the canonical order
	built        map[string]*sched.Program
	known        sync.Map // how long calls take, as they were predicted
}

// leveled is a call in phases, ready to run.
type leveled struct {
	*algo.Levels
	leader bool
	outer  []*sched.Program // by phase; nil for those inside hosts

	programs  map[part]*sched.Program // of all phases
	predicted unit.Time
}

// layer makes the communicators of the phases, if there are to be phases: where there are several hosts, some with several ranks.
// With a gather among all ranks these meet by it, and need not find programs for that.
func (c *Comm) layer(ctx context.Context, gather transport.Gather) error {
	w := c.world
	if w.inside == nil {
		return nil
	}
	places := c.Hosts()
	sizes, order, err := algo.InDomains(places)
	if err != nil {
		return err
	}
	if len(sizes) < 2 || len(sizes) == len(places) {
		return nil
	}
	explains := w.cfg.Explain != nil && w.all.Rank() == 0 && c.id == 1
	l := &levels{sizes: sizes, order: order, hosts: len(sizes), within: w.within, canonical: w.cfg.Canonical,
		built: map[string]*sched.Program{}}
	if !slices.IsSorted(order) {
		l.places = places
	}
	if l.least = slices.Min(sizes); slices.Max(sizes) == l.least {
		l.local = sizes[0]
	}
	at := slices.Index(order, c.Rank())
	for first, h := 0, 0; h < l.hosts; h++ {
		if l.base = append(l.base, first); first <= at {
			l.home, l.seat = h, at-first
		}
		first += sizes[h]
	}
	split := func(color, key int) (*Comm, error) { return c.split(ctx, color, key, gather) }
	if l.inner, err = split(l.home, l.seat); err != nil {
		return err
	}
	color := l.seat
	if l.seat >= l.least {
		color = -1
	}
	if l.outer, err = split(color, l.home); err != nil {
		_ = l.inner.Close()
		return err
	}
	l.inner.above, l.inner.library.choices = c, w.within(sizes[l.home])
	if l.outer != nil {
		l.outer.above = c
	}
	each := make([]int, l.hosts)
	for i := range each {
		each[i] = i
	}
	l.table, l.whole = choice.Single(w.across.links, w.across.ep.Can(), l.hosts, each), c.library.table()
	l.post = l.table.Post()
	l.copies = float64(cost.Span(w.across.links.Near.Beta))
	c.levels = l
	if explains {
		return l.explain(w.cfg.Explain)
	}
	return nil
}

// last reports whether no other communicator of the process is left, but for those of phases.
func (c *Comm) last() bool {
	refs := int32(1)
	if c.above != nil {
		c = c.above
	}
	if c.levels != nil {
		if refs++; c.levels.outer != nil {
			refs++
		}
	}
	return c.world.refs.Load() <= refs
}

// close gives back what the phases need.
func (l *levels) close() error {
	var err error
	if l.spare != nil {
		err = l.inner.world.ep.Verbs().Free(l.spare)
		l.spare = nil
	}
	if l.outer != nil {
		err = errors.Join(err, l.outer.Close())
	}
	return errors.Join(err, l.inner.Close())
}

// serves reports whether a call can run in phases. Canonical sums can if the sum of a host is part of them: hosts of 2^k ranks, one
// after the other, have one each.
func (l *levels) serves(r *request) bool {
	if l.local == 0 {
		_, err := l.phases(r.Op, max(r.Root, 0), true)
		return err == nil && r.Counts == nil && !l.canonical
	}
	switch r.Op {
	case sched.AllReduce, sched.ReduceScatter, sched.Reduce:
		return r.Counts == nil && (!l.canonical || l.places == nil && l.local&(l.local-1) == 0)
	case sched.AllGather, sched.AllToAll, sched.Broadcast, sched.Barrier:
		return r.Counts == nil
	}
	return false
}

// part is a program of a phase, for hosts of this number of ranks, or for this number of hosts.
type part struct{ phase, ranks int }

// parts are the programs of phases.
type parts struct {
	*leveled
	names []string // of the algorithms, by phase
	took  unit.Time
	apart unit.Time // of took, what passes between hosts
}

// ragged reports whether the parts of a call's buffer that ranks of a host speak for differ in length.
func (l *levels) ragged(r *request) bool {
	return l != nil && r.Counts == nil && !r.Op.Blocks() && r.Op != sched.Barrier && l.least*cellOf(r.Count, r.Type.Size(), l.least) != r.Count
}

// cellOf is how many elements all parts of a buffer but the last have: whole lines of memory, where they are longer than one.
func cellOf(count, size, parts int) int {
	cell := (count + parts - 1) / parts
	if align := max(64/size, 1); cell > align {
		cell = (cell + align - 1) / align * align
	}
	return cell
}

// fastest finds the phases that take least time, and says how long each form of them takes.
func (l *levels) fastest(op sched.Collective, root int, bytes int64, ragged bool) (*parts, []string, error) {
	var best *parts
	var reasons []string
	for _, leader := range []bool{false, true} {
		if leader && op == sched.AllToAll || !leader && l.local == 0 && (op != sched.AllReduce || l.least == 1) {
			continue
		}
		x, err := l.plan(op, root, bytes, leader, ragged && !leader)
		if err != nil {
			return nil, nil, err
		}
		reasons = append(reasons, map[bool]string{false: "every rank in ", true: "leaders in "}[leader]+x.took.String())
		if best == nil || x.took < best.took {
			best = x
		}
	}
	return best, reasons, nil
}

// predict is how long a call should take with what choose gives for it; 0 where that is not known.
func (l *levels) predict(op sched.Collective, bytes int64) unit.Time {
	if !l.serves(&request{Op: op}) {
		return l.whole.Predict(op, bytes, l.canonical)
	}
	if bytes <= 0 {
		return l.takes(op, 0)
	}
	from := int64(1) << (bits.Len64(uint64(bytes)) - 1) // choices are for powers of two
	t := l.takes(op, from)
	return t + unit.Time(float64(l.takes(op, 2*from)-t)*float64(bytes-from)/float64(from))
}

// takes is how long a call of a power of two should take.
func (l *levels) takes(op sched.Collective, bytes int64) unit.Time {
	type call struct {
		op    sched.Collective
		bytes int64
	}
	if t, ok := l.known.Load(call{op, bytes}); ok {
		return t.(unit.Time)
	}
	x, _, err := l.fastest(op, 0, bytes, false)
	if err != nil {
		return 0
	}
	x.predicted = x.took
	if whole, err := l.instead(op, 0, bytes, x.leveled); err == nil && whole != nil {
		x.took = whole.Predicted
	}
	l.known.Store(call{op, bytes}, x.took)
	return x.took
}

// choose finds the phases for a call of the given size, and their program. Ragged parts go straight to their ranks.
func (l *levels) choose(op sched.Collective, root int, bytes int64, ragged bool) (*leveled, *sched.Program, string, error) {
	best, reasons, err := l.fastest(op, root, bytes, ragged)
	if err != nil {
		return nil, nil, "", err
	}
	program, err := l.compose(best)
	if err != nil {
		return nil, nil, "", err
	}
	best.predicted = best.took
	how := ""
	for k := range best.Phases {
		sep, where := " + ", "inside"
		if k == 0 {
			sep = ""
		}
		if best.Phases[k].Across {
			where = "between"
		}
		if best.Phases[k].Moves != 0 {
			how += sep + "blocks put in order"
			continue
		}
		how += fmt.Sprintf("%s%s %s by %s", sep, best.Phases[k].Op, where, best.names[k])
	}
	return best.leveled, program, how + "; " + strings.Join(reasons, ", "), nil
}

// phases are those of a call.
func (l *levels) phases(op sched.Collective, root int, leader bool) (*algo.Levels, error) {
	switch {
	case l.places != nil:
		return algo.NewPlaced(op, l.places, root, leader)
	case l.local == 0:
		return algo.NewUneven(op, l.sizes, root, leader)
	}
	return algo.NewLevels(op, l.local*l.hosts, l.local, root, leader)
}

// plan finds the programs of the phases of a call, by leaders or by all ranks.
func (l *levels) plan(op sched.Collective, root int, bytes int64, leader, ragged bool) (*parts, error) {
	phases, err := l.phases(op, root, leader)
	if err != nil {
		return nil, err
	}
	n := len(phases.Phases)
	x := &parts{leveled: &leveled{Levels: phases, leader: leader, outer: make([]*sched.Program, n), programs: map[part]*sched.Program{}},
		names: make([]string, n)}
	for k := range phases.Phases {
		ph := &phases.Phases[k]
		size := bytes * int64(ph.Cells) / int64(phases.Cells)
		if ph.Moves != 0 {
			x.took += unit.Time(float64(size) * l.copies)
			continue
		}
		if !ph.Across {
			if err := l.planInside(x, k, size, ragged); err != nil {
				return nil, err
			}
			continue
		}
		if ph.Only < 0 { // the ranks of a host share its way out, and send one after another
			size *= int64(l.least)
			x.took += unit.Time(l.least-1) * l.post
			x.apart += unit.Time(l.least-1) * l.post
		} else if l.least > 1 { // one rank of a host fills half of its way out, where others would fill the rest: 8 ranks on 2 hosts, 1 MiB, 2026-11-16
			size *= 2
		}
		pick, err := l.table.Pick(ph.Op, ph.Root, size, l.canonical)
		if err != nil {
			return nil, err
		}
		x.programs[part{k, l.hosts}], x.outer[k], x.names[k] = pick.Program, pick.Program, pick.Algo
		x.apart += pick.Predicted * unit.Time(ph.Times)
		x.took += pick.Predicted * unit.Time(ph.Times)
	}
	return x, l.alike(x, bytes)
}

// alike gives an all-to-all the price between hosts that it has among programs of all ranks at once, with which it is compared (see
// instead). The links of one rank a host, which the phases are chosen by, were measured on their own, and on a busy machine differ by
// half: 4 ranks on 2 hosts that share two cores take 1.0 ms for 1 MiB in phases and 0.6 paired up, 8 ranks 1.9 and 1.3, and 8 of them
// 0.05 and 0.10 for 1 KiB (2026-11-19).
func (l *levels) alike(x *parts, bytes int64) error {
	if x.Op != sched.AllToAll {
		return nil
	}
	p, err := l.compose(x)
	if err != nil {
		return err
	}
	apart, err := l.whole.Across(p, bytes)
	x.took += apart - x.apart
	return err
}

// planInside finds the programs of a phase inside hosts, one for each number of ranks. The slowest host counts.
func (l *levels) planInside(x *parts, k int, bytes int64, ragged bool) error {
	ph := &x.Phases[k]
	var longest unit.Time
	for _, ranks := range x.Distinct() {
		if ranks == 1 { // it copies
			p, err := alone(ph.Op)
			if err != nil {
				return err
			}
			x.programs[part{k, 1}] = p
			continue
		}
		pick, err := l.within(ranks).Pick(ph.Op, ph.Root, bytes, l.canonical)
		if err != nil {
			return err
		}
		took := pick.Predicted
		if ragged && ph.Op.Blocks() || ph.Blocks > 0 {
			if pick.Program, pick.Algo, err = straight(ph.Op, ranks, ph.Root, ph.Op.Reduces()); err != nil {
				return err
			}
		}
		if ph.Blocks > 0 && ph.Op.Reduces() { // not all ranks have a part to sum
			took = took * unit.Time(ranks) / unit.Time(ph.Blocks)
		}
		x.programs[part{k, ranks}], x.names[k] = pick.Program, pick.Algo
		longest = max(longest, took)
	}
	x.took += longest * unit.Time(ph.Times)
	return nil
}

// alone is the program of a phase on a host of one rank.
func alone(op sched.Collective) (*sched.Program, error) {
	a, err := algo.Find("direct")
	if err == nil && !a.Serves(op) {
		a, err = algo.Find("rank-order")
	}
	if err != nil {
		return nil, err
	}
	return a.Program(algo.Spec{Op: op, Ranks: 1})
}

// compose is the program of phases, built once.
func (l *levels) compose(x *parts) (*sched.Program, error) {
	name := "two-level"
	if x.leader {
		name = "leader"
	}
	key := fmt.Sprint(name, x.Op, x.Root)
	for k := range x.Phases {
		for _, ranks := range append(x.Distinct(), l.hosts) {
			if p := x.programs[part{k, ranks}]; p != nil {
				key += fmt.Sprintf(" %s", p.Digest())
			}
		}
	}
	if p := l.built[key]; p != nil {
		return p, nil
	}
	p, err := x.Compose(name, func(phase, ranks int) *sched.Program { return x.programs[part{phase, ranks}] })
	if err == nil {
		l.built[key] = p
	}
	return p, err
}

// explain prints which phases run at which sizes.
func (l *levels) explain(w io.Writer) error {
	of := fmt.Sprint(l.local)
	if l.local == 0 {
		of = strings.Trim(strings.ReplaceAll(fmt.Sprint(l.sizes), " ", ", "), "[]")
	}
	numbered := ""
	if l.places != nil {
		numbered = ", which are not numbered host by host"
	}
	if _, err := fmt.Fprintf(w, "phases on %d hosts of %s ranks%s:\n", l.hosts, of, numbered); err != nil {
		return err
	}
	for _, op := range []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.Broadcast, sched.Reduce, sched.AllToAll,
		sched.Barrier} {
		if !l.serves(&request{Op: op}) {
			continue
		}
		last := ""
		for bytes := int64(8); bytes <= 1<<30; bytes *= 2 {
			x, p, reason, err := l.choose(op, 0, max(bytes, int64(l.local*l.hosts)), false)
			if err != nil {
				return err
			}
			how := p.Name
			if whole, err := l.instead(op, 0, bytes, x); err != nil {
				return err
			} else if whole != nil {
				how, reason, x = "no phases, "+whole.Algo, whole.Reason, &leveled{}
			}
			for k, part := range x.outer {
				if part != nil {
					how += fmt.Sprintf(", %s between hosts by %s", x.Phases[k].Op, part.Name)
				}
			}
			if how != last {
				if _, err := fmt.Fprintf(w, "%-15s from %-8s %s (%s)\n", op, unit.Bytes(bytes), how, reason); err != nil {
					return err
				}
				last = how
			}
			if op == sched.Barrier {
				break
			}
		}
	}
	return nil
}

// instead is the program of all ranks at once if it is faster than phases: of an all-to-all, which in phases copies what leaves a host once
// more, where leaders must do for hosts of different sizes, and where blocks are copied as ranks are not numbered host by host. Else it is
// nil.
func (l *levels) instead(op sched.Collective, root int, bytes int64, x *leveled) (*choice.Pick, error) {
	if op != sched.AllToAll && l.local > 0 && l.places == nil {
		return nil, nil
	}
	whole, err := l.whole.Pick(op, root, bytes, false)
	if err != nil || whole.Predicted >= x.predicted {
		return nil, err
	}
	return whole, nil
}
