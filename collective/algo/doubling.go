package algo

import (
	"fmt"
	"math/bits"

	"github.com/weft-fabric/weft/collective/sched"
)

//	0 ◄─► 1   2 ◄─► 3   4 ◄─► 5   6 ◄─► 7      whole vectors with r xor 1,
//	0 ◄─────► 2   1 ◄─────► 3   ...            then r xor 2,
//	0 ◄───────────────► 4   ...                then r xor 4
//
// Every step doubles the number of contributions in everybody's sum. Both of a
// pair compute the same sum of the same two values, so all ranks end with the
// same bits. Counts between powers of two fold: of the first 2e ranks, every odd
// one gives its vector to the one before and gets the result at the end.
//
// Thakur, Rabenseifner and Gropp, Optimization of collective communication
// operations in MPICH, 2005.
func init() {
	register(&Algorithm{
		Name: "recursive-doubling", Traits: Traits{Short: 7}, Nests: true, Ops: []sched.Collective{sched.AllReduce, sched.Barrier},
		Summary:   "smallest messages: the fewest steps there can be",
		Steps:     "log2 n; floor(log2 n) + 2 between powers of two",
		Sent:      "S log2 n; between powers of two S (floor(log2 n) + 1)",
		Reference: "Thakur, Rabenseifner, Gropp 2005",
		Build: func(s Spec) (string, error) {
			var t text
			f := foldOf(s.Ranks)
			t.line("chunks %d", s.Channels)
			t.line("slots %d", orDefault(s.Slots, 1))
			t.block(func() {
				f.around(&t, "in[c]", "out[c]", func() {
					peer := f.rank("(" + f.virtual + "^(1<<s))")
					t.block(func() {
						t.line("send out[c] to %s", peer)
						t.line("recv-reduce out[c] -> out[c] from %s", peer)
					}, "repeat s < %d:", f.steps)
				})
			}, "channels %d:", s.Channels)
			return t.String(), nil
		},
	})
}

// fold makes a power of two out of n = 2^steps + extra ranks: of the first
// 2*extra, the odd ones stand aside.
type fold struct {
	steps, extra int
	virtual      string // a rank's number among the 2^steps that take part
}

func foldOf(n int) fold {
	f := fold{steps: bits.Len(uint(n)) - 1, virtual: "r"}
	if f.extra = n - 1<<f.steps; f.extra > 0 {
		f.virtual = fmt.Sprintf("(r-(r/2 min %d))", f.extra)
	}
	return f
}

// canonical reports whether sums of neighbours' sums are in the canonical order: all of the first half of the virtual ranks are
// pairs, and the other half is so for itself.
func (f fold) canonical() bool {
	half := 1 << f.steps / 2
	return f.extra == 0 || f.extra >= half && foldOf(f.extra).canonical()
}

// rank gives the rank with a virtual number; of an expression that is no plain
// name or number, it wants it in parentheses.
func (f fold) rank(v string) string {
	if f.extra == 0 {
		return v
	}
	return fmt.Sprintf("%s+(%s min %d)", v, v, f.extra)
}

// aside is the condition of ranks that stand aside, paired that of their partners.
func (f fold) aside() string  { return fmt.Sprintf("r < %d && r%%2 == 1", 2*f.extra) }
func (f fold) paired() string { return fmt.Sprintf("r < %d", 2*f.extra) }

// around writes a program that works in dst, where src and dst name the whole
// vector. Ranks that stand aside give their vector and get the result. For the
// others the body runs once dst holds what it starts from.
func (f fold) around(t *text, src, dst string, body func()) {
	if f.extra == 0 {
		t.line("copy %s -> %s", src, dst)
		body()
		return
	}
	t.block(func() {
		t.line("send %s to r-1", src)
		t.line("recv -> %s from r-1", dst)
	}, "if %s:", f.aside())
	t.block(func() {
		t.block(func() { t.line("recv-reduce %s -> %s from r+1", src, dst) }, "if %s:", f.paired())
		t.block(func() { t.line("copy %s -> %s", src, dst) }, "else:")
		body()
		t.block(func() { t.line("send %s to r+1", dst) }, "if %s:", f.paired())
	}, "else:")
}
