// Package algo holds the algorithms: one file each, with a picture, a function
// from parameters to a program, and the reference. An algorithm is a text; what
// it means is collective/step's business and whether it is right collective/verify's.
package algo

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

// Spec says which program is wanted.
type Spec struct {
	Op       sched.Collective
	Ranks    int
	Root     int
	Channels int // copies of the pattern side by side, each with its share of the data; 0 means 1
	Pieces   int // how finely pipelined algorithms cut a share; 0 means their default; others ignore it
	Slots    int // messages under way; 0 means the algorithm's default

	// Orders is placement: by copy, the rank at each position; nil means 0, 1,
	// 2, ... A program has the same number of channels for every copy, copy
	// after copy, and all channels of a copy take its order. For algorithms of
	// two levels, Local positions in a row are one fast domain. A rooted
	// collective turns an order so that its root is at position Root. The
	// promise of send-recv is about ranks, so it takes no orders.
	Orders [][]sched.Rank

	Local     int    // ranks of one fast domain (a host), for algorithms of two levels; 0 means all
	Short     []int  // hierarchical: ranks of each domain that has fewer, after the full ones; nil: the last one may have fewer
	Dims      []int  // torus: length of each dimension, x fastest; nil means as cubic as the count allows
	Aggregate int    // PAT: blocks a message in its first steps, a power of two up to n/2; 0 means the most
	Inner     string // hierarchical: the algorithm inside a domain; empty means ring
	Outer     string // hierarchical: the algorithm between domains; empty means ring

	flat bool // every copy in one channel, to stand inside another program
}

// Algorithm is a way to do some of the collectives.
type Algorithm struct {
	Name      string
	Ops       []sched.Collective
	Summary   string // when it is best, in a few words
	Steps     string // how many messages one after another, as a formula
	Sent      string // bytes a rank sends of S, as a formula
	Reference string
	Build     func(Spec) (string, error) // the program's text
	Fits      func(Spec) error           // nil, or why not: rank counts it cannot do
	Nests     bool                       // a copy can run on one channel, without switches, and so stand inside hierarchical
	Traits
}

// Traits are what others know of an algorithm: whoever chooses, places or simulates one asks for these and not for its name.
type Traits struct {
	Ring   bool   // ranks pass pieces round, in orders that suit the machine
	Grid   bool   // ranks stand in the rows and columns of a torus
	Torus  bool   // it is meant for a torus
	Layers bool   // ranks of a host are treated differently from others
	Outer  bool   // another algorithm stands between hosts
	Shares bool   // ranks of a host share memory
	Pairs  bool   // messages go between all pairs of ranks, so that they grow with the square of them
	Vast   bool   // its programs can be simulated with very many ranks
	Adds   Switch // the switches that compute
	ByLeaf bool   // and ranks are ordered by the one they hang on
	Copies int    // of the pattern side by side that keep the machine busy; 0 for one
	Cut    Cut    // which bytes Pieces are cut from
	Long   int    // among the first to try for long messages, from 1 on; 0 for none of them
	Short  int    // the same for short ones
	Staged bool   // of Pairs: each rank talks to one other at a time
	Twin   string // sends the same bytes between the same pairs, and its ranks are alike where they are a power of two
}

// Cut says what a program with Pieces cuts.
type Cut uint8

// What is cut.
const (
	CutAll   Cut = iota // the buffer
	CutShare            // what a rank of a domain has of it
	CutEach             // the same, which each rank of a domain sends to all others there
	CutWhole            // the buffer where it is passed on whole; where every rank has a block, this is a piece
	CutNone             // nothing: the program has a number of its own
)

// Switch is a kind of switch that computes.
type Switch uint8

// The kinds.
const (
	NoSwitch     Switch = iota
	NVSwitch            // NVLink SHARP, inside an NVLink domain
	FabricSwitch        // SHARP, in the network
)

var all []*Algorithm

func register(a *Algorithm) { all = append(all, a) }

// All lists the algorithms by name.
func All() []*Algorithm {
	list := slices.Clone(all)
	slices.SortFunc(list, func(a, b *Algorithm) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Find finds an algorithm by name.
func Find(name string) (*Algorithm, error) {
	var names []string
	for _, a := range All() {
		if a.Name == name {
			return a, nil
		}
		names = append(names, a.Name)
	}
	return nil, fmt.Errorf("unknown algorithm %q; known: %s", name, strings.Join(names, ", "))
}

// Canonical reports whether the algorithm's program for a spec sums in the canonical order of package sched. Verify proves it of a
// program; this is known without building one.
func (a *Algorithm) Canonical(s Spec) bool {
	if !s.Op.Reduces() || s.Op == sched.Barrier || len(s.Orders) > 0 {
		return false
	}
	if s.Ranks <= 2 {
		return true
	}
	switch a.Name {
	case "rank-order", "one-shot":
		return true
	case "binomial":
		return s.Op == sched.Reduce
	case "recursive-doubling", "rabenseifner":
		f := foldOf(s.Ranks)
		if s.Op == sched.ReduceScatter {
			return f.extra == 0 || s.Ranks == 3
		}
		return f.canonical()
	}
	return false
}

// Serves reports whether the algorithm does a collective.
func (a *Algorithm) Serves(op sched.Collective) bool { return slices.Contains(a.Ops, op) }

// turned moves everything in an order on by some places, the last to the front.
func turned(order []sched.Rank, by int) []sched.Rank {
	cut := len(order) - by
	return slices.Concat(order[cut:], order[:cut])
}

// Program builds the algorithm's program for a spec.
func (a *Algorithm) Program(s Spec) (*sched.Program, error) {
	switch {
	case !a.Serves(s.Op):
		var ops []string
		for _, op := range a.Ops {
			ops = append(ops, op.String())
		}
		return nil, fmt.Errorf("%s does not do %s; it does %s", a.Name, s.Op, strings.Join(ops, ", "))
	case s.Ranks < 1:
		return nil, fmt.Errorf("%s for %d ranks: at least one is needed", a.Name, s.Ranks)
	case s.Root < 0 || s.Root >= s.Ranks:
		return nil, fmt.Errorf("root %d is not among %d ranks", s.Root, s.Ranks)
	}
	s.Channels = max(s.Channels, 1)
	text, err := a.text(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	p, err := sched.Parse(fmt.Sprintf("weft 1\nname %s\nop %s\nranks %d\n", a.Name, s.Op, s.Ranks) + text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	tidy(p)
	if p.Orders, err = s.placed(p.Channels()); err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	return p, p.Check()
}

// text writes the program without its head. A rank on its own copies, whatever the algorithm.
func (a *Algorithm) text(s Spec) (string, error) {
	if a.Fits != nil {
		if err := a.Fits(s); err != nil {
			return "", err
		}
	}
	if s.Ranks == 1 {
		return alone(s)
	}
	return a.Build(s)
}

// placed gives every channel of a program the order of its copy.
func (s *Spec) placed(channels int) ([][]sched.Rank, error) {
	if len(s.Orders) > s.Channels {
		return nil, fmt.Errorf("%d orders for %d channels", len(s.Orders), s.Channels)
	}
	if s.Ranks == 1 || s.Op == sched.SendRecv {
		return nil, nil
	}
	var placed [][]sched.Rank
	for _, order := range s.Orders {
		if order != nil && len(order) != s.Ranks {
			return nil, fmt.Errorf("an order of %d ranks for %d", len(order), s.Ranks)
		}
		if s.Op.Rooted() && order != nil {
			by := s.Root - slices.Index(order, sched.Rank(s.Root)) + len(order) // the root keeps its number
			order = turned(order, by%len(order))
		}
		for range channels / s.Channels {
			placed = append(placed, order)
		}
	}
	return placed, nil
}

// domain is the number of ranks of one fast domain.
func (s *Spec) domain() int {
	if s.Local <= 0 || s.Local > s.Ranks {
		return s.Ranks
	}
	return s.Local
}

// whole refuses counts that leave a domain with fewer ranks than the others.
func whole(s Spec) error {
	if s.Ranks%s.domain() != 0 {
		return fmt.Errorf("%d ranks do not fill domains of %d: every domain must have the same number", s.Ranks, s.Local)
	}
	return nil
}

// cut gives the pieces of a share. A barrier has nothing to cut.
func (s *Spec) cut(def int) int {
	if s.Op == sched.Barrier || s.flat {
		return 1
	}
	return orDefault(s.Pieces, def)
}

// log2 is the number of bits it takes to tell n ranks apart: ceil(log2 n).
func log2(n int) int { return bits.Len(uint(n - 1)) }

// alone is every collective with one rank: a copy, but for a barrier.
func alone(s Spec) (string, error) {
	if s.Op == sched.Barrier {
		return "chunks 1\nchannels 1:\n  copy in[0] -> out[0]\n", nil
	}
	return "chunks n\nchannels 1:\n  copy in[0] -> out[0]\n", nil
}

// text is a program being written, line by line.
type text struct {
	b     strings.Builder
	depth int
}

func (t *text) line(format string, args ...any) {
	t.b.WriteString(strings.Repeat("  ", t.depth))
	fmt.Fprintf(&t.b, format, args...)
	t.b.WriteByte('\n')
}

// block writes a line and what stands below it.
func (t *text) block(body func(), format string, args ...any) {
	t.line(format, args...)
	t.depth++
	body()
	t.depth--
}

// each writes the body once for every piece p.
func (t *text) each(pieces int, body func()) {
	t.block(body, "repeat p < %d:", pieces)
}

func (t *text) String() string { return t.b.String() }

func orDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

// share names a channel's chunk of a block that all channels of the copies share.
func share(block string, channels int) string {
	if channels == 1 {
		return block
	}
	return block + "*" + itoa(channels) + "+c"
}

// times writes a product of an expression and a number.
func times(expr string, k int) string {
	if k == 1 {
		return expr
	}
	return expr + "*" + itoa(k)
}
