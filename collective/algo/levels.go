package algo

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

//	 domain 0      domain 1
//	0  1  2  3    4  5  6  7     two-level: inside, each rank gets its part of what the
//	│  │  │  └────┼──┼──┼──┘     domain has to say; between, rank l talks with the ranks l
//	│  │  └───────┼──┼──┘        of the other domains, each over its own rail; inside, all
//	│  └──────────┼──┘           parts are shared out
//	└─────────────┘
//
//	 domain 0      domain 1
//	1─┐           5─┐            leader: one rank of a domain speaks for it, which takes
//	2─┼─► 0 ◄───► 4 ◄─┼─6        the fewest messages between domains
//	3─┘              └─7
//
// The all-to-all of two-level is what NCCL calls PXN: what goes to rank l of another
// domain goes to rank l of the own one first, which sends what all its mates have for
// that rank in one message over its rail.
//
// A sum is that of the domains' sums. Both are lists of phases (Levels), each of which is
// a collective of its own, inside domains or between them. A runtime may carry each out
// in its own way; the program is all of them one after another.
func init() {
	const reference = "HiCCL, Hidayetoglu et al. 2024; PXN: NCCL 2.12"
	build := func(leader bool) func(Spec) (string, error) {
		return func(s Spec) (string, error) {
			l, err := NewLevels(s.Op, s.Ranks, s.domain(), s.Root, leader)
			if err != nil {
				return "", err
			}
			parts, err := l.parts(s.Inner, s.Outer)
			if err != nil {
				return "", err
			}
			p, err := l.Program("phases", parts)
			if err != nil {
				return "", err
			}
			_, text, _ := strings.Cut(p.String(), fmt.Sprintf("ranks %d\n", s.Ranks))
			return text, nil
		}
	}
	fits := func(s Spec) error {
		if s.Channels > 1 {
			return errors.New("its phases follow one another on one channel")
		}
		if blocks := s.Op == sched.ReduceScatter || s.Op == sched.AllGather || s.Op == sched.AllToAll; blocks && len(s.Orders) > 0 {
			return errors.New("its messages hold blocks of several ranks, whose places are those of the domains; leave the order out")
		}
		return whole(s)
	}
	register(&Algorithm{
		Name: "two-level", Traits: Traits{Shares: true},
		Ops: []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.Broadcast, sched.Reduce, sched.AllToAll,
			sched.Barrier},
		Summary:   "large messages over several hosts: shared memory inside, every rank and rail of a host between",
		Steps:     "those of its phases; all-reduce 1 + 2 + 1 by default",
		Sent:      "S inside; between D domains 2S(D-1)/(D Local), half for reduce-scatter, all-gather; S(D-1)/D for all-to-all",
		Reference: reference, Build: build(false), Fits: fits,
	})
	register(&Algorithm{
		Name: "leader", Traits: Traits{Shares: true},
		Ops:       []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.Broadcast, sched.Reduce, sched.Barrier},
		Summary:   "small messages over several hosts: one rank of each talks",
		Steps:     "those of its phases; all-reduce 1 + 2 + 1 by default",
		Sent:      "S by all but leaders; leaders 2S(D-1)/D between D domains and S(Local-1) inside",
		Reference: "Open MPI's HAN, Luo et al. 2020", Build: build(true), Fits: fits,
	})
}

// Levels is a collective over domains of Local ranks each, or of Sizes where these differ, as
// phases. Buffers are measured in cells: a block where ranks have blocks, a slice of 1/Local or
// the whole buffer elsewhere.
type Levels struct {
	Op                 sched.Collective
	Ranks, Local, Root int
	Sizes              []int // ranks of each domain, one after the other; nil where all have Local
	Places             []int // the domain of each rank; nil where ranks are numbered domain by domain
	Cells              int   // of the larger of in and out
	Scratch            int   // cells
	Phases             []Phase
}

// Phase is a collective inside every domain, or between the ranks of one number in all
// domains.
type Phase struct {
	Op     sched.Collective
	Moves  Moves // it is no collective: each rank puts its own blocks in another order
	Across bool
	Root   int // of the phase's ranks
	Only   int // inside: the one domain that takes part; across: the one number; -1 for all
	Times  int // how often it is done, each time a step further
	Cells  int // of the larger of its buffers
	Blocks int // inside, of a reduce-scatter or an all-gather: how many ranks of a domain have a block, the first of them; 0 for all
	In     Span
	Out    Span
}

// Moves is an order that blocks are put in where ranks are not numbered domain by domain.
type Moves int

// Blocks in the order of ranks become blocks in that of the domains, or the other way round.
const (
	ToDomains Moves = 1 + iota
	ToRanks
)

// Span is where a phase's buffer begins: at a cell of in, out or scratch, and Step
// cells further each time.
type Span struct {
	Buf      sched.Buffer
	At, Step int
}

// NewLevels lists the phases of a collective. With leader one rank of each domain speaks
// for it, else every rank for its part.
func NewLevels(op sched.Collective, ranks, local, root int, leader bool) (*Levels, error) {
	if ranks < 1 || local < 1 || ranks%local != 0 {
		return nil, fmt.Errorf("%d ranks in domains of %d: every domain must have the same number", ranks, local)
	}
	l := &Levels{Op: op, Ranks: ranks, Local: local, Root: root}
	if leader {
		seat := 0
		if op.Rooted() {
			seat = root % local
		}
		return l, l.byLeaders(root/local, seat)
	}
	return l, l.byAll(root/local, root%local)
}

// NewUneven lists the phases of a collective over domains that have different numbers of ranks. With leader the first rank of each
// speaks for it, and a root must be one of these. Else as many ranks of each domain speak as the smallest one has, each for its part.
func NewUneven(op sched.Collective, sizes []int, root int, leader bool) (*Levels, error) {
	l := &Levels{Op: op, Root: root, Sizes: sizes}
	home := -1
	for d, n := range sizes {
		if n < 1 {
			return nil, fmt.Errorf("domain %d has %d ranks", d, n)
		}
		if l.Ranks == root {
			home = d
		}
		l.Ranks += n
	}
	if !leader {
		return l, l.byParts()
	}
	switch op {
	case sched.AllReduce, sched.Barrier:
	case sched.Broadcast, sched.Reduce:
		if home < 0 {
			return nil, fmt.Errorf("root %d is not the first rank of its domain", root)
		}
	default:
		return nil, fmt.Errorf("%s has no phases over domains of different sizes", op)
	}
	return l, l.byLeaders(home, 0)
}

// NewPlaced lists the phases of a collective over ranks that are not numbered domain by domain: rank r is in domain places[r], from 0
// as they come. They are those of ranks that are, with a table of who is where; where ranks have blocks, these are put in the order of the
// domains first, or in that of the ranks last.
func NewPlaced(op sched.Collective, places []int, root int, leader bool) (*Levels, error) {
	sizes, order, err := InDomains(places)
	if err != nil {
		return nil, err
	}
	at := max(slices.Index(order, root), 0)
	var l *Levels
	if slices.Min(sizes) != slices.Max(sizes) {
		l, err = NewUneven(op, sizes, at, leader)
	} else {
		l, err = NewLevels(op, len(places), sizes[0], at, leader)
	}
	if err != nil {
		return nil, err
	}
	l.Root, l.Places = root, places
	l.arrange()
	return l, nil
}

// InDomains is how many ranks each domain has, and the ranks domain by domain.
func InDomains(places []int) (sizes, order []int, err error) {
	for r, d := range places {
		if d < 0 || d > len(sizes) {
			return nil, nil, fmt.Errorf("rank %d is in domain %d, and there are %d before it: domains are numbered from 0 as they come",
				r, d, len(sizes))
		}
		if d == len(sizes) {
			sizes = append(sizes, 0)
		}
		sizes[d]++
	}
	if len(sizes) == 0 {
		return nil, nil, errors.New("no ranks")
	}
	for d := range sizes {
		for r, p := range places {
			if p == d {
				order = append(order, r)
			}
		}
	}
	return sizes, order, nil
}

// arrange adds the phases that put blocks in order.
func (l *Levels) arrange() {
	if !l.Op.Blocks() {
		return
	}
	n := l.Ranks
	if l.Op != sched.AllGather { // in has a block a rank
		room := tmpSpan(l.Scratch)
		l.Scratch += n
		for i := range l.Phases {
			if l.Phases[i].In.Buf == sched.In {
				l.Phases[i].In = Span{sched.Tmp, room.At + l.Phases[i].In.At, l.Phases[i].In.Step}
			}
		}
		l.Phases = slices.Insert(l.Phases, 0, Phase{Moves: ToDomains, Only: -1, Times: 1, Cells: n, In: inSpan, Out: room})
	}
	if l.Op != sched.ReduceScatter { // and so has out
		room := tmpSpan(l.Scratch)
		l.Scratch += n
		for i := range l.Phases {
			if l.Phases[i].Out.Buf == sched.Out {
				l.Phases[i].Out = Span{sched.Tmp, room.At + l.Phases[i].Out.At, l.Phases[i].Out.Step}
			}
		}
		l.Phases = append(l.Phases, Phase{Moves: ToRanks, Only: -1, Times: 1, Cells: n, In: room, Out: outSpan})
	}
}

// inside adds a phase in all domains, across one between the ranks of one number in all domains.
func (l *Levels) inside(op sched.Collective, root, cells int, a, b Span) *Phase {
	l.Phases = append(l.Phases, Phase{Op: op, Root: root, Only: -1, Times: 1, Cells: cells, In: a, Out: b})
	return &l.Phases[len(l.Phases)-1]
}

func (l *Levels) across(op sched.Collective, root, cells int, a, b Span) *Phase {
	p := l.inside(op, root, cells, a, b)
	p.Across = true
	return p
}

var inSpan, outSpan = Span{Buf: sched.In}, Span{Buf: sched.Out}

func tmpSpan(at int) Span { return Span{Buf: sched.Tmp, At: at} }

// byLeaders lists the phases in which the ranks of one seat speak for their domains. Home is the root's domain.
func (l *Levels) byLeaders(home, seat int) error {
	ranks, local := l.Ranks, l.Local
	in, out, tmp := inSpan, outSpan, tmpSpan
	l.Cells = 1
	if l.Op.Blocks() {
		l.Cells = ranks
	}
	switch l.Op {
	case sched.AllReduce:
		l.inside(sched.Reduce, 0, 1, in, tmp(0))
		l.across(sched.AllReduce, 0, 1, tmp(0), tmp(1)).Only = seat
		l.inside(sched.Broadcast, 0, 1, tmp(1), out)
		l.Scratch = 2
	case sched.Barrier:
		l.inside(sched.Barrier, 0, 1, in, tmp(0))
		l.across(sched.Barrier, 0, 1, tmp(0), tmp(1)).Only = seat
		l.inside(sched.Broadcast, 0, 1, tmp(1), out)
		l.Scratch = 2
	case sched.ReduceScatter:
		l.inside(sched.Reduce, 0, ranks, in, tmp(0))
		l.across(sched.ReduceScatter, 0, ranks, tmp(0), tmp(ranks)).Only = seat
		l.inside(sched.Scatter, 0, local, tmp(ranks), out)
		l.Scratch = ranks + local
	case sched.AllGather:
		l.inside(sched.Gather, 0, local, in, tmp(0))
		l.across(sched.AllGather, 0, ranks, tmp(0), tmp(local)).Only = seat
		l.inside(sched.Broadcast, 0, ranks, tmp(local), out)
		l.Scratch = ranks + local
	case sched.Broadcast:
		l.across(sched.Broadcast, home, 1, in, tmp(0)).Only = seat
		l.inside(sched.Broadcast, seat, 1, tmp(0), out)
		l.Scratch = 1
	case sched.Reduce:
		l.inside(sched.Reduce, seat, 1, in, tmp(0))
		l.across(sched.Reduce, home, 1, tmp(0), out).Only = seat
		l.Scratch = 1
	default:
		return fmt.Errorf("no leader can do %s for its domain", l.Op)
	}
	return nil
}

// byParts lists the phases in which the first ranks of each domain, as many as the smallest has, speak for a part each. Inside, the blocks
// of the other ranks are empty.
func (l *Levels) byParts() error {
	l.Local = slices.Min(l.Sizes)
	switch {
	case l.Op != sched.AllReduce:
		return fmt.Errorf("%s has no parts over domains of different sizes", l.Op)
	case l.Local < 2:
		return errors.New("a domain of one rank has one part only")
	}
	l.Cells, l.Scratch = l.Local, 2
	l.inside(sched.ReduceScatter, 0, l.Local, inSpan, tmpSpan(0)).Blocks = l.Local
	l.across(sched.AllReduce, 0, 1, tmpSpan(0), tmpSpan(1))
	l.inside(sched.AllGather, 0, l.Local, tmpSpan(1), outSpan).Blocks = l.Local
	return nil
}

// byAll lists the phases in which every rank speaks for its part. The root is rank seat of domain home.
func (l *Levels) byAll(home, seat int) error {
	ranks, local, domains := l.Ranks, l.Local, l.Ranks/l.Local
	in, out, tmp := inSpan, outSpan, tmpSpan
	rows := func(p *Phase, a, b int) { // the phase is done for each domain's row of blocks
		p.Times, p.In.Step, p.Out.Step = domains, a, b
	}
	l.Cells = local
	if l.Op.Blocks() {
		l.Cells = ranks
	}
	switch l.Op {
	case sched.AllReduce:
		l.inside(sched.ReduceScatter, 0, local, in, tmp(0))
		l.across(sched.AllReduce, 0, 1, tmp(0), tmp(1))
		l.inside(sched.AllGather, 0, local, tmp(1), out)
		l.Scratch = 2
	case sched.Barrier:
		l.Cells = 1
		l.inside(sched.Barrier, 0, 1, in, tmp(0))
		l.across(sched.Barrier, 0, 1, tmp(0), out)
		l.Scratch = 1
	case sched.ReduceScatter:
		rows(l.inside(sched.ReduceScatter, 0, local, in, tmp(0)), local, 1)
		l.across(sched.ReduceScatter, 0, domains, tmp(0), out)
		l.Scratch = domains
	case sched.AllGather:
		l.across(sched.AllGather, 0, domains, in, tmp(0))
		rows(l.inside(sched.AllGather, 0, local, tmp(0), out), 1, local)
		l.Scratch = domains
	case sched.AllToAll:
		rows(l.inside(sched.AllToAll, 0, local, in, tmp(0)), local, local)
		l.across(sched.AllToAll, 0, ranks, tmp(0), out)
		l.Scratch = ranks
	case sched.Broadcast:
		l.inside(sched.Scatter, seat, local, in, tmp(0)).Only = home
		l.across(sched.Broadcast, home, 1, tmp(0), tmp(0))
		l.inside(sched.AllGather, 0, local, tmp(0), out)
		l.Scratch = 1
	case sched.Reduce:
		l.inside(sched.ReduceScatter, 0, local, in, tmp(0))
		l.across(sched.Reduce, home, 1, tmp(0), tmp(1))
		l.inside(sched.Gather, seat, local, tmp(1), out).Only = home
		l.Scratch = 2
	default:
		return fmt.Errorf("%s has no two levels", l.Op)
	}
	return nil
}

// Of is how many ranks take part in a phase; inside domains of different sizes, in that of the first.
func (l *Levels) Of(p *Phase) int {
	switch {
	case p.Across && l.Sizes != nil:
		return len(l.Sizes)
	case p.Across:
		return l.Ranks / l.Local
	case l.Sizes != nil:
		return l.Sizes[0]
	}
	return l.Local
}

// Distinct are the sizes of domains, each once.
func (l *Levels) Distinct() []int {
	if l.Sizes == nil {
		return []int{l.Local}
	}
	return slices.Compact(slices.Sorted(slices.Values(l.Sizes)))
}

// parts are the phases' programs by algorithms of these names, or plain ones where an
// algorithm does not do what a phase needs.
func (l *Levels) parts(inner, outer string) ([]*sched.Program, error) {
	used := map[string]bool{}
	var list []*sched.Program
	for i := range l.Phases {
		ph := &l.Phases[i]
		if ph.Moves != 0 {
			list = append(list, nil)
			continue
		}
		name := inner
		if ph.Across {
			name = outer
		}
		a, err := Find("direct")
		if ph.Op.Reduces() && ph.Op != sched.Barrier && !ph.Across {
			a, err = Find("rank-order")
		}
		if name != "" {
			b, e := Find(name)
			if e != nil {
				return nil, e
			}
			if b.Nests && b.Serves(ph.Op) {
				a, used[name] = b, true
			}
		}
		if err != nil {
			return nil, err
		}
		p, err := a.Program(Spec{Op: ph.Op, Ranks: l.Of(ph), Root: ph.Root, flat: true})
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	for _, name := range []string{inner, outer} {
		if name != "" && !used[name] {
			return nil, fmt.Errorf("%s can do no phase of %s on one channel", name, l.Op)
		}
	}
	return list, nil
}

// Program is the program of all phases, whose programs are parts. They must run on one
// channel without switches, each rank at its own place.
func (l *Levels) Program(called string, parts []*sched.Program) (*sched.Program, error) {
	if len(parts) != len(l.Phases) {
		return nil, fmt.Errorf("%d programs for %d phases", len(parts), len(l.Phases))
	}
	return l.Compose(called, func(phase, size int) *sched.Program { return parts[phase] })
}

// Compose is Program where a phase inside domains has a program for each size of them.
func (l *Levels) Compose(called string, part func(phase, size int) *sched.Program) (*sched.Program, error) {
	m, err := l.common(part)
	if err != nil {
		return nil, err
	}
	num, at := sched.N, l.standing()
	all := &sched.Program{Name: called, Op: l.Op, Ranks: l.Ranks, Root: l.Root, Slots: 1, Chunks: num(m * l.Cells), Tables: at.tables}
	if !l.Op.Rooted() {
		all.Root = 0
	}
	scratch := m * l.Scratch
	var body []sched.Stmt
	for i := range l.Phases {
		ph := &l.Phases[i]
		if ph.Moves != 0 {
			body = append(body, l.move(ph, m, &at))
			continue
		}
		for _, size := range l.sizesOf(ph) {
			p := part(i, size)
			k := m * ph.Cells / larger(p) // chunks for one of the phase
			if ph.Blocks > 0 {
				k = m
			}
			steps := l.steps(ph, p, m, k, &at)
			if l.Sizes != nil && !ph.Across && len(steps) > 0 {
				steps = []sched.Stmt{{If: &sched.If{Cond: op(sched.Eq, at.size, num(size)), Then: steps}}}
			}
			body = append(body, steps...)
			all.Slots = max(all.Slots, p.Slots)
			scratch = max(scratch, m*l.Scratch+k*p.NumChunks(sched.Tmp))
		}
	}
	all.Scratch = num(scratch)
	all.Groups = []sched.Group{{Count: 1, Body: body}}
	return sched.Parse(all.String())
}

// move is the loop that puts blocks in another order, of m chunks each.
func (l *Levels) move(ph *Phase, m int, at *standing) sched.Stmt {
	num, b := sched.N, name("b")
	place := func(s Span, cell *sched.Expr) sched.Ref {
		return sched.Ref{Buf: s.Buf, Index: op(sched.Mul, op(sched.Add, num(s.At), cell), num(m)), Count: num(m)}
	}
	from, to := b, at.place(b)
	if ph.Moves == ToRanks {
		from, to = to, from
	}
	return sched.Stmt{Loop: &sched.Loop{Var: "b", Count: num(l.Ranks),
		Body: []sched.Stmt{{Step: &sched.Step{Op: sched.Copy, Src: place(ph.In, from), Dst: place(ph.Out, to)}}}}}
}

// sizesOf are the numbers of ranks for which a phase has a program.
func (l *Levels) sizesOf(ph *Phase) []int {
	if ph.Moves != 0 {
		return nil
	}
	if ph.Across {
		return []int{l.Of(ph)}
	}
	return l.Distinct()
}

// common is how many chunks a cell has, so that those of all phases are whole ones.
func (l *Levels) common(part func(phase, size int) *sched.Program) (int, error) {
	m := 1
	for i := range l.Phases {
		ph := &l.Phases[i]
		for _, size := range l.sizesOf(ph) {
			p := part(i, size)
			switch {
			case p.Op != ph.Op || p.Ranks != size || p.Op.Rooted() && p.Root != ph.Root:
				return 0, fmt.Errorf("phase %d is %s of %d ranks, its program %s of %d", i, ph.Op, size, p.Op, p.Ranks)
			case p.Switches > 0 || len(p.Groups) != 1 || p.Groups[0].Count != 1 || len(p.Orders) > 0 || len(p.Tables) > 0:
				return 0, fmt.Errorf("program %s of phase %d has several channels, switches, tables or an order of ranks", p.Name, i)
			case ph.Blocks > 0 && larger(p) != size:
				return 0, fmt.Errorf("program %s of phase %d divides blocks, of which some are empty", p.Name, i)
			case ph.Blocks > 0:
				continue
			}
			need := larger(p) / gcd(larger(p), ph.Cells)
			m = m / gcd(m, need) * need
		}
	}
	if m > 1<<20 {
		return 0, fmt.Errorf("the phases' chunks have %d common parts", m)
	}
	return m, nil
}

// standing is where a rank is, as expressions: its number in its domain, its domain, how many ranks that has, and which rank
// another one of its domain, or the same one of another domain, is.
type standing struct {
	seat, home, size *sched.Expr
	mate, twin       func(*sched.Expr) *sched.Expr
	place            func(*sched.Expr) *sched.Expr // of a rank's block among those of all domains
	tables           []sched.Table
}

func (l *Levels) standing() standing {
	r, num := name("r"), sched.N
	if l.Places != nil {
		return l.placed()
	}
	if l.Sizes == nil {
		seat, home := op(sched.Mod, r, num(l.Local)), op(sched.Div, r, num(l.Local))
		return standing{seat: seat, home: home, size: num(l.Local),
			mate: func(e *sched.Expr) *sched.Expr { return op(sched.Add, op(sched.Mul, home, num(l.Local)), e) },
			twin: func(e *sched.Expr) *sched.Expr { return op(sched.Add, op(sched.Mul, e, num(l.Local)), seat) }}
	}
	tables := []sched.Table{{Name: "seat"}, {Name: "home"}, {Name: "size"}, {Name: "first"}}
	for d, n := range l.Sizes {
		tables[3].Values = append(tables[3].Values, int64(len(tables[0].Values)))
		for s := range n {
			for i, v := range []int{s, d, n} {
				tables[i].Values = append(tables[i].Values, int64(v))
			}
		}
	}
	seat := look("seat", r)
	return standing{seat: seat, home: look("home", r), size: look("size", r), tables: tables,
		mate: func(e *sched.Expr) *sched.Expr { return op(sched.Add, op(sched.Sub, r, seat), e) },
		twin: func(e *sched.Expr) *sched.Expr { return op(sched.Add, look("first", e), seat) }}
}

func look(table string, e *sched.Expr) *sched.Expr {
	return &sched.Expr{Kind: sched.Look, Name: table, L: e}
}

// placed is standing where ranks are not numbered domain by domain: at lists the ranks so, and base says where a domain begins in it.
func (l *Levels) placed() standing {
	sizes, order, _ := InDomains(l.Places)
	tables := []sched.Table{{Name: "seat", Values: make([]int64, l.Ranks)}, {Name: "home"}, {Name: "base"}, {Name: "at"}, {Name: "size"}}
	first := 0
	for _, n := range sizes {
		for s := range n {
			tables[0].Values[order[first+s]] = int64(s)
		}
		tables[2].Values = append(tables[2].Values, int64(first))
		first += n
	}
	for r, d := range l.Places {
		tables[1].Values, tables[4].Values = append(tables[1].Values, int64(d)), append(tables[4].Values, int64(sizes[d]))
		tables[3].Values = append(tables[3].Values, int64(order[r]))
	}
	r := name("r")
	s := standing{seat: look("seat", r), home: look("home", r), size: look("size", r), tables: tables,
		place: func(e *sched.Expr) *sched.Expr { return op(sched.Add, look("base", look("home", e)), look("seat", e)) }}
	s.mate = func(e *sched.Expr) *sched.Expr { return look("at", op(sched.Add, look("base", s.home), e)) }
	s.twin = func(e *sched.Expr) *sched.Expr { return look("at", op(sched.Add, look("base", e), s.seat)) }
	if l.Sizes == nil {
		s.tables = tables[:4] // size is asked for only where it differs
	}
	return s
}

// steps are those of a phase, by its program. Each of its chunks is k of the whole, and a cell has m.
func (l *Levels) steps(ph *Phase, p *sched.Program, m, k int, at *standing) []sched.Stmt {
	num := sched.N
	span := func(s Span) place {
		e := num(m * s.At)
		if ph.Times > 1 {
			e = op(sched.Add, e, op(sched.Mul, name("row"), num(m*s.Step)))
		}
		return place{s.Buf, e}
	}
	f := renamer{p: p, blocks: ph.Blocks, rank: at.seat, peer: at.mate,
		scale: func(e *sched.Expr) *sched.Expr { return op(sched.Mul, e, num(k)) },
		place: map[sched.Buffer]place{sched.In: span(ph.In), sched.Out: span(ph.Out), sched.Tmp: {sched.Tmp, num(m * l.Scratch)}}}
	mine := at.home
	if ph.Across {
		f.rank, f.peer, mine = at.home, at.twin, at.seat
	}
	part := f.body(p.Groups[0].Body)
	if ph.Times > 1 {
		part = []sched.Stmt{{Loop: &sched.Loop{Var: "row", Count: num(ph.Times), Body: part}}}
	}
	switch {
	case len(part) == 0:
	case ph.Only >= 0:
		part = []sched.Stmt{{If: &sched.If{Cond: op(sched.Eq, mine, num(ph.Only)), Then: part}}}
	case ph.Across && l.Sizes != nil: // some domains have more ranks than there are parts
		part = []sched.Stmt{{If: &sched.If{Cond: op(sched.Lt, mine, num(l.Local)), Then: part}}}
	}
	return part
}

// larger is the number of chunks of a program's larger buffer.
func larger(p *sched.Program) int { return max(p.NumChunks(sched.In), p.NumChunks(sched.Out)) }

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
