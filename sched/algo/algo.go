// Package algo holds the algorithms: one file each, with a picture, a function
// from parameters to a program, and the reference. An algorithm is a text; what
// it means is sched/step's business and whether it is right sched/verify's.
package algo

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/sched"
)

// Spec says which program is wanted.
type Spec struct {
	Op       sched.Collective
	Ranks    int
	Root     int
	Channels int            // copies of the pattern side by side, each with its share of the data; 0 means 1
	Pieces   int            // how finely pipelined algorithms cut a share; 0 means their default
	Slots    int            // messages under way; 0 means the algorithm's default
	Orders   [][]sched.Rank // placement: by channel, the rank at each position; nil means 0, 1, 2, ...
	Local    int            // ranks of one fast domain (a host), for algorithms of two levels; 0 means all
	Dims     []int          // torus: length of each dimension, x fastest
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
}

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

// Serves reports whether the algorithm does a collective.
func (a *Algorithm) Serves(op sched.Collective) bool { return slices.Contains(a.Ops, op) }

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
	if a.Fits != nil {
		if err := a.Fits(s); err != nil {
			return nil, fmt.Errorf("%s: %w", a.Name, err)
		}
	}
	var text string
	var err error
	if s.Ranks == 1 {
		text, err = alone(s)
	} else {
		text, err = a.Build(s)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	p, err := sched.Parse(fmt.Sprintf("weft 1\nname %s\nop %s\nranks %d\n", a.Name, s.Op, s.Ranks) + text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Name, err)
	}
	p.Orders = s.Orders
	return p, p.Check()
}

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

func (t *text) String() string { return t.b.String() }

func orDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}
