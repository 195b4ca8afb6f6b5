package bench

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

// Op is what is measured: a collective, or its variant with blocks of different
// lengths.
type Op struct {
	sched.Collective
	V bool
}

// Ops lists everything that can be measured.
func Ops() []Op {
	var list []Op
	for _, c := range sched.Collectives() {
		list = append(list, Op{Collective: c})
	}
	for _, c := range sched.Collectives() {
		if c.Blocks() {
			list = append(list, Op{c, true})
		}
	}
	return list
}

func (o Op) String() string {
	if o.V {
		return o.Collective.String() + "-v"
	}
	return o.Collective.String()
}

// ParseOp reads a name as we print it or as nccl-tests' programs are called:
// all-reduce, all_reduce, allreduce, all_reduce_perf.
func ParseOp(s string) (Op, error) {
	plain := func(s string) string {
		return strings.TrimSuffix(strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)), "perf")
	}
	var names []string
	for _, o := range Ops() {
		if plain(o.String()) == plain(s) {
			return o, nil
		}
		names = append(names, o.String())
	}
	return Op{}, fmt.Errorf("unknown operation %q; known: %s", s, strings.Join(names, ", "))
}

// MarshalText and UnmarshalText are the printed form, for JSON.
func (o Op) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (o *Op) UnmarshalText(b []byte) (err error) {
	*o, err = ParseOp(string(b))
	return err
}

// Reduces says whether elements are added up or the like.
func (o Op) Reduces() bool {
	return o.Collective == sched.AllReduce || o.Collective == sched.Reduce || o.Collective == sched.ReduceScatter
}

// counts are the lengths of the ranks' blocks of total elements: equal ones, or
// for a variant in the proportion 1:2:3:1:2:3..., the last taking the rest.
func (o Op) counts(n, total int) []int {
	list := make([]int, n)
	if !o.V {
		for r := range list {
			list[r] = total / n
		}
		return list
	}
	weights := 0
	for r := range n {
		weights += 1 + r%3
	}
	left := total
	for r := range list {
		list[r] = total / weights * (1 + r%3)
		left -= list[r]
	}
	list[n-1] += left
	return list
}
