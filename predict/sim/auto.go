package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// slots is how many messages may be under way between two ranks, as many as
// NCCL has buffers (NCCL_STEPS): fewer would make long ways slower than their links.
const slots = 8

// Domain is the number of GPUs of one host, or of one accelerator network where
// that is larger, among the first n of a graph; n if all are in one.
func Domain(g *topo.Graph, n int) int {
	return DomainOf(g, g.First(topo.GPU, n))
}

// DomainOf is how many of some GPUs, from the first on, are in its host or
// accelerator network.
func DomainOf(g *topo.Graph, gpus []topo.NodeID) int {
	n := len(gpus)
	var way []topo.Use
	for k := 1; k < n; k++ {
		var err error
		if way, err = g.Route(topo.Flow{From: gpus[0], To: gpus[k]}, way[:0]); err != nil {
			return k
		}
		for _, u := range way {
			if g.Class(u.Link).Kind.Network() {
				return k
			}
		}
	}
	return max(n, 1)
}

// Spec fills in what an algorithm should know of the machine it runs on.
func Spec(g *topo.Graph, op sched.Collective, n int) algo.Spec {
	return algo.Spec{Op: op, Ranks: n, Slots: slots, Local: Domain(g, n)}
}

// Place gives rings the orders that suit the machine, a channel each, a torus its
// dimensions and the ranks in their order, sharp the ranks by the switch they hang
// on, and hierarchical the copies that keep both its levels busy: four of them
// reach 0.78 of the NICs' rate on 128 hosts, one 0.49.
func Place(a *algo.Algorithm, s algo.Spec, g *topo.Graph, c *catalog.Catalog) algo.Spec {
	return placedOn(a, s, g, g.First(topo.GPU, s.Ranks), c)
}

// sideBySide is how many copies of an algorithm keep a machine busy. Beside a short domain, what this sends and what it
// receives overlap but for one copy, so more copies are faster. They take longer to simulate, as nothing folds.
func sideBySide(a *algo.Algorithm, s algo.Spec) int {
	switch {
	case !a.Outer || len(s.Short) == 0 && s.Ranks%max(s.Local, 1) == 0:
		return a.Copies
	case s.Ranks <= many:
		return 24
	case s.Ranks <= 2048:
		return 8
	}
	return a.Copies
}

// placedOn is Place for ranks on chosen GPUs. Only the first GPUs of a graph are known to be a torus, or to hang on full leaves.
func placedOn(a *algo.Algorithm, s algo.Spec, g *topo.Graph, gpus []topo.NodeID, c *catalog.Catalog) algo.Spec {
	if a.Copies > 0 && (!a.Layers || s.Local < s.Ranks) {
		s.Channels = sideBySide(a, s)
	}
	switch {
	case a.Ring:
		s.Orders = Orders(g, gpus, c)
		s.Channels = max(len(s.Orders), 1)
	case !slices.Equal(gpus, g.First(topo.GPU, s.Ranks)):
	case a.Grid:
		if dims, order := grid(g, s.Ranks); dims != nil {
			s.Dims, s.Orders = dims, [][]sched.Rank{order}
		}
	case a.ByLeaf:
		if local, order := leafOrder(g, s.Ranks); order != nil {
			s.Local, s.Orders = local, [][]sched.Rank{order}
		}
	}
	return s
}

// Pieces is how finely to cut a buffer that passes many hops one after the other.
// With D hops of latency A and B bytes at rate R, p pieces take about
// (p + D) (A + B/(p R)), least for p = sqrt(D B / (R A)). Taken for 20 hops of 5
// us at 48 GB/s, and rounded to a power of two up to 64, and to fewer where many
// ranks would take long to simulate.
func Pieces(a *algo.Algorithm, s algo.Spec, size unit.Bytes) int {
	switch a.Cut {
	case algo.CutNone:
		return 0
	case algo.CutShare, algo.CutEach:
		size /= unit.Bytes(max(min(s.Local, s.Ranks), 1))
	case algo.CutWhole:
		if s.Op != sched.Broadcast && s.Op != sched.Reduce {
			return 0 // a block of each rank is a piece
		}
	}
	const best = 12 << 10 // bytes: R A / 20
	share := float64(size) / float64(max(s.Channels, 1))
	messages := float64(s.Ranks) // for each piece, about
	if a.Cut == algo.CutEach {
		messages *= float64(min(s.Local, s.Ranks))
	}
	most := min(max(17-math.Log2(messages), 2), 6)
	return 1 << int(min(max(math.Round(math.Log2(share/best)/2), 0), most))
}

// Wish narrows down what Best tries.
type Wish struct {
	Channels   int    // copies of the pattern side by side; 0 for as many as suit the machine
	Pieces     int    // how finely to cut; 0 for what suits the size
	NoSwitches bool   // no algorithm that computes in switches
	Plain      bool   // no program made for the machine
	Outer      string // hierarchical: the algorithm between domains; empty for ring, and for Best to choose

	On []topo.NodeID // the GPUs that ranks stand on; nil for the first ones of the graph

	bad *network // with dead or slow parts, around which rings go; nil if there are none, or not to
}

// gpus are those of the first n ranks.
func (w *Wish) gpus(g *topo.Graph, n int) []topo.NodeID {
	if w.On != nil {
		return w.On[:n]
	}
	return g.First(topo.GPU, n)
}

// domain is how many of the first n ranks share a host or an accelerator network, in the largest one that has all its ranks in a row.
func (w *Wish) domain(g *topo.Graph, n int) int {
	if w.On == nil {
		return Domain(g, n)
	}
	return slices.Max(rows(g, w.gpus(g, n)))
}

// Name is what an algorithm is called together with the one that stands between
// its domains: hierarchical/rabenseifner. Named reads it.
func Name(a *algo.Algorithm, outer string) string {
	if outer == "" {
		return a.Name
	}
	return a.Name + "/" + outer
}

// Named finds an algorithm by the name that Name gives it.
func Named(name string) (a *algo.Algorithm, outer string, err error) {
	name, outer, _ = strings.Cut(name, "/")
	if a, err = algo.Find(name); err != nil {
		return nil, "", err
	}
	if outer == "" {
		return a, "", nil
	}
	if !a.Outer {
		return nil, "", fmt.Errorf("%s/%s: only hierarchical has an algorithm between domains", name, outer)
	}
	if _, err = algo.Find(outer); err != nil {
		return nil, "", err
	}
	return a, outer, nil
}

// Program builds an algorithm's program for the first n GPUs of a graph, or of those wished for.
func (w Wish) Program(a *algo.Algorithm, g *topo.Graph, op sched.Collective, n int, size unit.Bytes,
	c *catalog.Catalog) (*sched.Program, error) {
	if w.On != nil {
		return w.PlacedOn(a, g, op, w.On[:n], size, c)
	}
	s := Place(a, Spec(g, op, n), g, c)
	if a.Ring && w.bad != nil {
		if orders := ringsAround(g, w.bad, w.gpus(g, n), s.Local); orders != nil {
			s.Orders, s.Channels = orders, len(orders)
		}
	}
	return w.suited(a, s, size)
}

// PlacedOn builds an algorithm's program for ranks on chosen GPUs with what suits the machine, as Program does for the first.
func (w Wish) PlacedOn(a *algo.Algorithm, g *topo.Graph, op sched.Collective, gpus []topo.NodeID, size unit.Bytes,
	c *catalog.Catalog) (*sched.Program, error) {
	s := algo.Spec{Op: op, Ranks: len(gpus), Slots: slots}
	order, short := fullFirst(g, gpus)
	if order == nil {
		s.Local = DomainOf(g, gpus)
		return w.suited(a, placedOn(a, s, g, gpus, c), size)
	}
	moved := make([]topo.NodeID, len(gpus))
	for at, r := range order {
		moved[at] = gpus[r]
	}
	s.Local = DomainOf(g, moved)
	if a.Outer {
		s.Short = short
	}
	s = placedOn(a, s, g, moved, c)
	for i, o := range s.Orders {
		s.Orders[i] = make([]sched.Rank, len(o))
		for at, r := range o {
			s.Orders[i][at] = order[r]
		}
	}
	if s.Orders == nil && !a.Shares {
		s.Orders = slices.Repeat([][]sched.Rank{order}, max(s.Channels, 1))
	}
	return w.suited(a, s, size)
}

// rows are the numbers of GPUs, one after another, that share a host or an accelerator network.
func rows(g *topo.Graph, gpus []topo.NodeID) []int {
	var sizes []int
	for at := 0; at < len(gpus); at += sizes[len(sizes)-1] {
		sizes = append(sizes, DomainOf(g, gpus[at:]))
	}
	return sizes
}

// fullFirst gives the ranks with those of hosts first that have as many as any, and the numbers of ranks of the others; nil if they stand
// so, or if they are not numbered host by host.
func fullFirst(g *topo.Graph, gpus []topo.NodeID) (order []sched.Rank, short []int) {
	sizes := rows(g, gpus)
	most := slices.Max(sizes)
	at := slices.IndexFunc(sizes, func(n int) bool { return n < most })
	if at < 0 || at == len(sizes)-1 || most == 1 {
		return nil, nil
	}
	var rest []sched.Rank
	first := 0
	for _, n := range sizes {
		for r := first; r < first+n; r++ {
			if n == most {
				order = append(order, sched.Rank(r))
			} else {
				rest = append(rest, sched.Rank(r))
			}
		}
		if first += n; n < most {
			short = append(short, n)
		}
	}
	return append(order, rest...), short
}

// suited builds a program as the wish says, and as the machine suggests where the wish is silent.
func (w Wish) suited(a *algo.Algorithm, s algo.Spec, size unit.Bytes) (*sched.Program, error) {
	if w.Channels > 0 {
		s.Channels = w.Channels
		if orders := s.Orders; len(orders) > 0 {
			s.Orders = nil
			for i := range s.Channels {
				s.Orders = append(s.Orders, orders[i%len(orders)])
			}
		}
	}
	if s.Pieces = w.Pieces; s.Pieces == 0 {
		s.Pieces = Pieces(a, s, size)
	}
	s.Outer = w.Outer
	return a.Program(s)
}

// Job is an algorithm on the first n GPUs of a graph. Rings come with Fewer: around a bad part very many ranks are simulated
// with some of them.
func (w Wish) Job(a *algo.Algorithm, g *topo.Graph, op sched.Collective, n int, size unit.Bytes, c *catalog.Catalog) (Job, error) {
	p, err := w.Program(a, g, op, n, size, c)
	if err != nil {
		return Job{}, err
	}
	j := Job{Program: p, Size: size}
	if w.On != nil {
		if j.Place, err = PlaceOn(g, p, w.On[:n]); err != nil {
			return Job{}, err
		}
	}
	if a.Ring && w.On == nil {
		j.Fewer = &Fewer{Grain: w.domain(g, n), Program: func(ranks int) (*sched.Program, error) {
			return w.Program(a, g, op, ranks, size, c)
		}}
	}
	return j, nil
}

// ProgramOn builds an algorithm's program for ranks that stand on chosen GPUs.
func (w Wish) ProgramOn(a *algo.Algorithm, g *topo.Graph, op sched.Collective, gpus []topo.NodeID,
	size unit.Bytes) (*sched.Program, error) {
	s := algo.Spec{Op: op, Ranks: len(gpus), Slots: slots, Local: DomainOf(g, gpus), Channels: w.Channels, Pieces: w.Pieces, Outer: w.Outer}
	if s.Pieces == 0 {
		s.Pieces = Pieces(a, s, size)
	}
	return a.Program(s)
}

// many is the number of ranks from which an algorithm with messages between all
// pairs is not tried where another does the same: with a message for each pair it
// takes longer than one that takes part of the ways for all.
const many = 256

// maxBroken is the number of actions beyond which an algorithm is not simulated on a
// fabric with a bad part, or with switches that add, where another was: no two ranks
// do the same there, and nothing is folded.
const maxBroken = 1 << 22

// vast is the number of ranks from which only algorithms are tried that send few
// messages a rank or are the same for all ranks: the others take minutes.
const vast = 8192

// fewer is the part of the ranks that an algorithm in switches is simulated with first: it is often late with these already.
const fewer = 32

// Tried is an algorithm that Best looked at.
type Tried struct {
	Algo string    // as Name gives it
	Time unit.Time // 0 if it was given up, being slower than another
	Why  string    // why it was left out; empty if it was simulated
	Cost bool      // it was left out only because simulating it takes too much memory or time: it may be faster

	digest string // of the program, where it was synthesised
}

// Found is the fastest algorithm, and what it was compared with.
type Found struct {
	Algo    string // as Name gives it
	Program *sched.Program
	Result  *Result
	Tried   []Tried // in the order of the names
	Actions int64   // carried out to find it, those folded left out
}

// candidate is an algorithm that Best may try.
type candidate struct {
	a     *algo.Algorithm
	outer string
}

func (c candidate) name() string { return Name(c.a, c.outer) }

// candidates lists what may be tried for a collective. Between many domains a
// ring takes as many steps as there are domains, and halving a logarithm of it.
func candidates(g *topo.Graph, op sched.Collective, n int, wish Wish) []candidate {
	var list []candidate
	for _, a := range algo.All() {
		if !a.Serves(op) {
			continue
		}
		list = append(list, candidate{a, ""})
		if !a.Outer {
			continue
		}
		if wish.Outer != "" {
			list[len(list)-1].outer = wish.Outer
			continue
		}
		if d := wish.domain(g, n); n/d < 4 || n%d > 0 { // ranks do not fold beside a short domain
			continue
		}
		if op == sched.AllReduce {
			list = append(list, candidate{a, "rabenseifner"})
		} else {
			list = append(list, candidate{a, "halving-doubling"})
		}
	}
	return list
}

// Best simulates every algorithm that does a collective on the first n GPUs, or on those wished for, and
// keeps the fastest. What cannot be the fastest is not simulated, or only for as
// long as the fastest so far takes.
func Best(g *topo.Graph, op sched.Collective, n int, size unit.Bytes, o Options, wish Wish) (*Found, error) {
	if o.Catalog == nil {
		o.Catalog = catalog.Default()
	}
	net, err := networkOf(g, o)
	if err != nil {
		return nil, err
	}
	net.quick = true
	s := &search{g: g, net: net, op: op, n: n, size: size, wish: wish, found: &Found{}}
	if (len(o.Fail) > 0 || len(o.Slow) > 0) && n > many {
		whole := o
		whole.Fail, whole.Slow, whole.Trace = nil, nil, 0
		if s.healthy, err = networkOf(g, whole); err != nil {
			return nil, err
		}
		s.healthy.bases = net.bases // they depend on programs alone
	}
	if net.whole != nil {
		s.wish.bad = net
	}
	floor := leastTime(g, wish.gpus(g, n), op, size, o)
	list := candidates(g, op, n, wish)
	// The likely ones first: what is slower than they are is given up early.
	rack := wish.domain(g, n) > 16
	order := func(c candidate) int {
		if op == sched.AllToAll && !c.a.Pairs && n > 8*vast { // messages of all pairs take longer
			return 0
		}
		return likely(c, size, n, rack)
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(order(a), order(b)) })
	if s.healthy != nil && n <= vast && !op.Rooted() { // ranks of trees differ anyway, and nothing is quick to simulate
		first := s.healthyBest(list, floor)
		if at := slices.IndexFunc(list, func(c candidate) bool { return c.name() == first }); at > 0 {
			list = slices.Concat(list[at:at+1], list[:at], list[at+1:])
		}
	}
	for _, c := range list {
		s.found.Tried = append(s.found.Tried, s.attempt(c, floor))
	}
	if err := s.insist(); err != nil {
		return nil, err
	}
	f := s.found
	f.synthesise(g, op, n, size, o, wish)
	if f.Actions = net.work; s.healthy != nil {
		f.Actions += s.healthy.work
	}
	slices.SortFunc(f.Tried, func(a, b Tried) int { return strings.Compare(a.Algo, b.Algo) })
	switch {
	case f.Program != nil:
		return f, nil
	case s.failed != nil:
		return nil, net.unreached([]Job{{Place: wish.gpus(g, n)}}, s.failed)
	}
	return nil, fmt.Errorf("no algorithm does %s with %d ranks", op, n)
}

// healthyBest is the fastest algorithm where nothing is slow or has failed; empty if there is none. It is often the fastest
// with bad parts as well, and then others are known to be slower by what they take without them, which is quick to simulate.
func (s *search) healthyBest(list []candidate, floor unit.Time) string {
	h := &search{g: s.g, net: s.healthy, op: s.op, n: s.n, size: s.size, wish: s.wish, found: &Found{}}
	h.wish.bad = nil
	for _, c := range list {
		h.attempt(c, floor)
	}
	return h.found.Algo
}

// attempt tries one algorithm, unless there is a reason not to; floor is what none takes less than whose switches do not add.
func (s *search) attempt(c candidate, floor unit.Time) Tried {
	f := s.found
	t := Tried{Algo: c.name(), Why: leftOut(c.a, s.g, s.op, s.n, s.wish)}
	switch {
	case t.Why != "":
		return t
	case f.Result != nil && f.Result.Time <= floor && c.a.Adds == algo.NoSwitch:
		t.Why = fmt.Sprintf("no algorithm without switches that add can take less than %s", floor)
		return t
	case s.net.o.Stop != nil && s.net.o.Stop():
		t.Why, t.Cost, s.failed = ErrBudget.Error(), true, ErrBudget
		return t
	}
	p, res, err := s.try(c)
	if err != nil {
		s.gaveUp(c, &t, err)
		return t
	}
	f.Algo, f.Program, f.Result, t.Time = c.name(), p, res, res.Time
	return t
}

// gaveUp notes why an algorithm has no time.
func (s *search) gaveUp(c candidate, t *Tried, err error) {
	var slower slowerError
	var many manyError
	var memory *MemoryError
	switch {
	case errors.Is(err, ErrLate) && s.net.o.Stop != nil && s.net.o.Stop():
		t.Why, t.Cost, s.failed = ErrBudget.Error(), true, ErrBudget
	case errors.Is(err, ErrLate):
	case errors.As(err, &memory):
		t.Why, t.Cost = err.Error(), true
		s.failed = cmp.Or[error](s.failed, err)
	case errors.Is(err, errProgram), errors.As(err, &slower):
		t.Why = err.Error()
	case errors.As(err, &many):
		t.Why, t.Cost = fmt.Sprintf("%v; --algo %s does", err, c.name()), true
		if s.large == nil || many < s.actions {
			s.large, s.actions = &c, many
		}
	default:
		t.Why, s.failed = err.Error(), err
	}
}

// insist simulates an algorithm that has too many actions, where there is no other: an answer that takes long is better than none.
func (s *search) insist() error {
	f := s.found
	if f.Program != nil || s.large == nil {
		return nil
	}
	s.net.quick = false
	p, res, err := s.try(*s.large)
	if err != nil {
		return err
	}
	f.Algo, f.Program, f.Result = s.large.name(), p, res
	at := slices.IndexFunc(f.Tried, func(t Tried) bool { return t.Algo == f.Algo })
	f.Tried[at].Time, f.Tried[at].Why = res.Time, ""
	return nil
}

var errProgram = errors.New("no program")

// ErrBudget says that Options.Stop ended the search before any algorithm was simulated.
var ErrBudget = errors.New("the time to search was used up before it was simulated")

// slowerError says why an algorithm need not be simulated.
type slowerError string

func (e slowerError) Error() string { return string(e) }

// manyError is a number of actions that a bad part makes too many, as no two ranks do the same.
type manyError int64

func (e manyError) Error() string {
	return fmt.Sprintf("it has %d million actions, too many to simulate where a bad part makes all ranks differ", int64(e)>>20)
}

// search is what Best has found so far, and on what.
type search struct {
	g       *topo.Graph
	net     *network
	healthy *network // without what failed or is slow; nil if nothing is, or if ranks are few
	op      sched.Collective
	n       int
	size    unit.Bytes
	wish    Wish
	found   *Found
	failed  error      // why an algorithm that might have served has no time
	large   *candidate // of those that have too many actions to simulate, the one with the fewest
	actions manyError  // and how many these are
}

// try simulates one algorithm for as long as the fastest so far takes.
func (s *search) try(c candidate) (*sched.Program, *Result, error) {
	wish := s.wish
	wish.Outer = c.outer
	j, err := wish.Job(c.a, s.g, s.op, s.n, s.size, s.net.o.Catalog)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errProgram, err)
	}
	if j, err = j.placed(s.g); err != nil {
		return nil, nil, err
	}
	j.Fewer = nil // a ring over thousands of ranks is left out rather than shortened
	p := j.Program
	deadline := unit.Time(0)
	if best := s.found.Result; best != nil {
		deadline = best.Time - 1
		least, err := s.net.bound(j)
		if err != nil {
			return nil, nil, err
		}
		if least > deadline {
			return nil, nil, slowerError(fmt.Sprintf("it cannot take less than %s", least))
		}
		// Switches that add, and one bad part, make all ranks different, which takes long to
		// simulate. Without a bad part they are alike.
		switch work := j.actions(); {
		case s.healthy != nil && work > maxQuick && !s.net.repeats(j):
			return nil, nil, manyError(work)
		case p.Switches > 0 && work > maxBroken:
			return nil, nil,
				slowerError(fmt.Sprintf("it has %d million actions, too many to simulate where switches add and ranks are not folded; --algo %s does",
					work>>20, c.name()))
		}
		if p.Switches > 0 && s.n > many {
			few := s.n / fewer
			if late, err := s.lateWith(c, few, deadline); err != nil {
				return nil, nil, err
			} else if late {
				return nil, nil, slowerError(fmt.Sprintf("with the first %d GPUs alone it takes longer than %s", few, best.Time))
			}
		}
	}
	if res, err := s.unhurt(c, j, deadline); res != nil || err != nil {
		return p, res, err
	}
	res, err := s.net.run([]Job{j}, deadline)
	return p, res, err
}

// unhurt simulates an algorithm without what is slow or has failed, which is quick where ranks fold. If it is late even so,
// that is an error. If none of its flows passes a bad part, as of rings around it, that is its result, and exact. Nil means
// that it has to be simulated with the bad parts.
func (s *search) unhurt(c candidate, j Job, deadline unit.Time) (*Result, error) {
	if s.healthy == nil || j.Program.Switches > 0 || deadline == 0 && !c.a.Ring {
		return nil, nil
	}
	res, err := s.healthy.run([]Job{j}, deadline)
	switch {
	case errors.Is(err, ErrLate) && deadline > 0:
		return nil, slowerError(fmt.Sprintf("it takes longer than %s even where nothing is slow or has failed", deadline+1))
	case err == nil && s.net.spares(res):
		return res, nil
	}
	return nil, nil
}

// lateWith reports whether an algorithm is late with fewer ranks already: with more of them, none is faster.
func (s *search) lateWith(c candidate, ranks int, deadline unit.Time) (bool, error) {
	wish := s.wish
	wish.Outer = c.outer
	p, err := wish.Program(c.a, s.g, s.op, ranks, s.size, s.net.o.Catalog)
	if err != nil {
		return false, nil // it has no program for so few, and may have one for all
	}
	j := Job{Program: p, Size: s.size}
	if s.wish.On != nil {
		j.Place, err = PlaceOn(s.g, p, s.wish.On[:ranks])
	}
	if err == nil {
		j, err = j.placed(s.g)
	}
	if err != nil {
		return false, err
	}
	if _, err = s.net.run([]Job{j}, deadline); errors.Is(err, ErrLate) {
		return true, nil
	}
	return false, err
}

// lastTries is where algorithms come that are not among the first to try.
const lastTries = 100

// likely orders algorithms by how fast they tend to be at a size; rack means that
// many GPUs share NVSwitches.
func likely(c candidate, size unit.Bytes, n int, rack bool) int {
	at := c.a.Long
	if size < 256*unit.KiB {
		at = c.a.Short
	}
	switch {
	case rack && c.a.Adds == algo.NVSwitch && c.a.Vast || c.outer != "" && n > many:
		return 0
	case at > 0:
		return at
	case c.a.Pairs:
		return lastTries + 1
	}
	return lastTries
}

// leftOut says why an algorithm is not tried; empty if it is.
func leftOut(a *algo.Algorithm, g *topo.Graph, op sched.Collective, n int, wish Wish) string {
	switch {
	case a.Grid && !torus(g):
		return "the machine is no torus"
	case a.Shares:
		return "it is for hosts whose ranks share memory; ask for it by name"
	case a.Adds != algo.NoSwitch && wish.NoSwitches:
		return "algorithms in switches were not wanted"
	case a.Adds == algo.NVSwitch && !accelerates(g):
		return "there are no NVSwitches that add"
	case a.Adds == algo.FabricSwitch && !aggregates(g):
		return "there are no InfiniBand switches that add"
	}
	all := a.Pairs && op != sched.Gather && op != sched.Scatter && op != sched.Broadcast && op != sched.Reduce && op != sched.SendRecv
	alone := op == sched.AllToAll && a.Staged
	if alone && a.Twin != "" && n > many && n&(n-1) == 0 {
		return a.Twin + " sends the same bytes between the same pairs, and its ranks fold; ask for it by name"
	}
	if n > many && all && !alone {
		return fmt.Sprintf("it has messages between all pairs, too many to simulate from %d ranks on", many+1)
	}
	if n > many && (a.Outer || a.Twin != "") {
		if why := besideShort(a, op, n, wish.domain(g, n)); why != "" {
			return why
		}
	}
	if n > vast {
		if !a.Vast && op != sched.AllToAll {
			return fmt.Sprintf("it takes minutes to simulate from %d ranks on", vast+1)
		}
	}
	return ""
}

// besideShort says why an algorithm of two levels is not tried for many ranks where the last domain has fewer than the others: none folds.
func besideShort(a *algo.Algorithm, op sched.Collective, n, local int) string {
	short := n % local
	switch {
	case short == 0:
	case op == sched.AllToAll && a.Staged:
		return "hosts have different numbers of GPUs, which takes minutes to simulate; ask for it by name"
	case op != sched.AllReduce:
	case n > vast:
		return "the last host has fewer GPUs than the others, which takes minutes to simulate; ask for it by name"
	case 2*short >= local:
		return "the last host has half of the others' NICs or more, which rings use as well; ask for it by name"
	}
	return ""
}

// Needs is what an algorithm needs of a machine beyond links that carry bytes; empty for nothing.
func Needs(name string) string {
	a, err := algo.Find(name)
	switch {
	case err != nil:
	case a.Adds == algo.NVSwitch:
		return "NVSwitches that add (NVLink SHARP, from NVLink 4 on)"
	case a.Adds == algo.FabricSwitch:
		return "InfiniBand switches that add: SHARP, enabled on the fabric and in NCCL by NCCL_COLLNET_ENABLE=1"
	}
	return ""
}

// leastTime is what any algorithm takes whose switches only pass bytes on: a GPU
// must send its share of the bytes over all its links, and it has no more links than it
// has. All GPUs are taken for the best of them.
func leastTime(g *topo.Graph, gpus []topo.NodeID, op sched.Collective, size unit.Bytes, o Options) unit.Time {
	n := len(gpus)
	share := float64(size) / float64(n) * float64(n-1)
	switch op {
	case sched.AllReduce:
		share *= 2
	case sched.ReduceScatter, sched.AllGather, sched.AllToAll:
	case sched.Broadcast, sched.Reduce, sched.SendRecv, sched.Gather, sched.Scatter:
		share = float64(size) / float64(n) * float64(n-1)
	default:
		return 0
	}
	net := &network{g: g, o: o}
	for i := range g.Classes {
		net.reach = append(net.reach, net.efficiency(&g.Classes[i]))
	}
	most := 0.0
	for _, id := range gpus {
		rate := 0.0
		for _, e := range g.Edges(id) {
			rate += float64(net.capacity(wire(e.Link) << 1))
		}
		most = max(most, rate)
	}
	if most == 0 {
		return 0
	}
	return unit.Time(share / most * 1e12)
}

// accelerates reports whether NVSwitches of the graph add up what passes them:
// those of NVLink 4 and later do.
func accelerates(g *topo.Graph) bool {
	found := false
	g.Each(topo.NVSwitch, func(n topo.NodeID, _ *topo.Node) {
		for _, e := range g.Edges(n) {
			if g.Nodes[e.Peer].Kind == topo.GPU {
				found = strings.Compare(g.Class(e.Link).Gen, "nvlink4") >= 0
				return
			}
		}
	})
	return found
}

// aggregates reports whether network switches at the GPUs' NICs add up what
// passes them: those of InfiniBand from HDR on do (SHARP version 2).
func aggregates(g *topo.Graph) bool {
	found := false
	g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) {
		if found {
			return
		}
		nic := g.Near(n)
		if nic == topo.None {
			return
		}
		for _, e := range g.Edges(nic) {
			if c := g.Class(e.Link); c.Kind == topo.InfiniBand && g.Nodes[e.Peer].Kind == topo.Switch {
				found = strings.HasPrefix(c.Gen, "hdr") || strings.HasPrefix(c.Gen, "ndr") || strings.HasPrefix(c.Gen, "xdr")
			}
		}
	})
	return found
}

// torus reports whether a graph's accelerators or switches form a torus.
func torus(g *topo.Graph) bool {
	for _, f := range g.Fabrics {
		if f.Family == topo.Torus {
			return true
		}
	}
	return false
}
