package comm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/reference"
)

// Collectives are right however ranks are dealt out to hosts, numbered host by host or not.
func TestHostsOfSeveralRanks(t *testing.T) {
	layouts := bounded.First(4, "aaabb", "abab", "aaabbb", "ababa", "aaab", "abbcc", "abcbac", "abaa", "aabb", "aabbcc", "aaaa", "abcd")
	if testing.Short() {
		layouts = layouts[:1]
	}
	for k, hosts := range layouts {
		t.Run(hosts, func(t *testing.T) {
			list := startProcs(t, len(hosts), "mixed", "serve", "hosts="+hosts)
			list.all(order{Do: "dup"})
			for i, count := range []int{1, 7, 1000, 40001, 300000} {
				for _, in := range []bool{false, true} {
					if in == ((i+k)%2 == 0) && !bounded.Long() {
						continue // the other layouts do
					}
					o := order{Do: "op", Op: "all-reduce,reduce-scatter,all-gather,broadcast,reduce,all-to-all,gather,scatter,barrier", Count: count,
						Root: (i + 1) % len(hosts), InPlace: in, Registered: i%2 == 0, Times: 2}
					for r, e := range list.all(o) {
						if e.Err != "" || e.Data != "complete" {
							t.Errorf("%s, count %d, in place %t: rank %d: %s %s", hosts, count, in, r, e.Data, e.Err)
						}
					}
				}
			}
			list.finish()
		})
	}
}

func init() {
	bodies["far factors"] = func(k *kid) error { return k.once(factors(k.c)) }
	bodies["far folds"] = func(k *kid) error {
		err := foldsBody(k.c)
		e := event{At: "folds"}
		if err != nil {
			e.Err = err.Error()
		}
		k.say(e)
		var o order
		return k.orders.Decode(&o) // until all may leave
	}
}

// Scans, reductions by functions and locations are right over hosts, also where these have different numbers of ranks.
func TestFoldsOverHosts(t *testing.T) {
	for _, hosts := range bounded.First(1, "aaabbbbb", "aabb", "aab", "abab") {
		list := startProcs(t, len(hosts), "mixed", "far folds", "hosts="+hosts)
		for r, e := range list.await("folds") {
			if e.Err != "" {
				t.Errorf("%s: rank %d: %s", hosts, r, e.Err)
			}
		}
		list.finish()
	}
}

// A rank that dies, or calls something else, in a phase inside its host is named to the ranks of the other host, by its number
// among all; their inputs are intact.
func TestFaultsInPhases(t *testing.T) {
	for _, x := range []struct {
		fault, op string
		count     int
		hosts     string
	}{{"wrong operation", "all-reduce", 1000, "aabb"}, {"wrong count", "broadcast", 40000, "abab"}, {"kill -9", "all-gather", 5, "abab"},
		{"kill -9", "all-reduce", 300000, "aaabb"}} {
		t.Run(x.fault+" "+x.hosts, func(t *testing.T) {
			f := faultCase{fault: x.fault, transport: "mixed", op: x.op, count: x.count, inPlace: true, k: 1}
			world := startProcs(t, len(x.hosts), "mixed", "serve", "hosts="+x.hosts)
			var y *tally
			if x.fault == "kill -9" {
				world, y = f.death(world)
			} else {
				y = f.steady(func() *tally { return f.wrong(world) })
			}
			if y.bad > 0 || y.silent > 0 || y.errors == 0 || y.right != y.errors {
				t.Errorf("%d errors, %d name the right rank, %d wrong data, %d silent: %q", y.errors, y.right, y.bad, y.silent, y.problems)
			}
			world.finish()
		})
	}
}

// factors checks sums of inputs that each rank multiplies with its own factor, and averages.
func factors(c *Comm) error {
	ctx := context.Background()
	n := c.Size()
	for _, count := range []int{1, 1000, 100_003} {
		in, out := make([]float64, count), make([]float64, count)
		for i := range in {
			in[i] = float64(i%7 + 1)
		}
		if err := AllReduceTo(ctx, c, out, in, PreMulSum, Factor(float64(c.Rank()+1))); err != nil {
			return err
		}
		for i := range out {
			if want := float64(i%7+1) * float64(n*(n+1)/2); out[i] != want {
				return fmt.Errorf("element %d of %d: %v, want %v", i, count, out[i], want)
			}
		}
		if err := AllReduce(ctx, c, in, Avg); err != nil {
			return err
		}
		for i := range in {
			if want := float64(i%7 + 1); in[i] != want {
				return fmt.Errorf("average %d of %d: %v, want %v", i, count, in[i], want)
			}
		}
	}
	return nil
}

// What runs inside hosts is what the proven program has there, and its sums have the bits that this program computes on plain slices:
// hosts of one size and of several, ranks numbered host by host or not, parts of one length or not.
func TestPhasesRunWhatIsProven(t *testing.T) {
	for _, hosts := range bounded.First(4, "aaabb", "aabb", "ababa", "aaabbcccc", "abab", "abcbacb", "aaaabbbb") {
		list := startProcs(t, len(hosts), "mixed", "proven", "hosts="+hosts)
		list.await("done")
		list.finish()
	}
}

func init() { bodies["proven"] = func(k *kid) error { return k.once(runsWhatIsProven(k.c)) } }

func runsWhatIsProven(c *Comm) error {
	compared, ctx, l := 0, context.Background(), c.levels
	for i, count := range []int{1, 5, 1000, 40001, 16 * 2520, 16 * 2520 * 8, 300001} {
		r := rand.New(rand.NewPCG(uint64(i), uint64(c.Rank())))
		in, out := make([]float32, count), make([]float32, count)
		for k := range in {
			in[k] = float32(r.NormFloat64() * 1e3)
		}
		all := make([]float32, count*c.Size())
		if err := errors.Join(AllGather(ctx, c, all, in), AllReduceTo(ctx, c, out, in, Sum)); err != nil {
			return err
		}
		p := c.cur.prepared
		if err := l.runsItsPhases(p); err != nil {
			return fmt.Errorf("count %d: %w", count, err)
		}
		chunks := p.program.NumChunks(sched.In)
		if count%chunks != 0 || l.ragged(&c.cur.Request) {
			continue // chunks of the phases are not those of the whole program
		}
		inputs := make([][]float32, c.Size())
		for k := range inputs {
			inputs[k] = all[k*count:][:count]
		}
		want, err := reference.RunWith(p.program, inputs, func(a, b float32) float32 { return a + b }, func(int) int { return 0 })
		if err != nil {
			return err
		}
		compared++
		for k, w := range want[c.Rank()] {
			if math.Float32bits(w) != math.Float32bits(out[k]) {
				return fmt.Errorf("count %d by %s: element %d is %v, the proven program computes %v", count, p.program.Name, k, out[k], w)
			}
		}
	}
	if compared < 2 {
		return fmt.Errorf("the bits of %d counts were compared", compared)
	}
	return nil
}

// runsItsPhases compares what ran inside this host with the proven program. Where hosts differ in size or ranks are not numbered host by
// host, slow links may make one program of all ranks the faster choice: then there are no phases to compare.
func (l *levels) runsItsPhases(p *prepared) error {
	if p.levels == nil {
		if l.local > 0 && l.places == nil {
			return errors.New("no phases")
		}
		return nil
	}
	for k := range p.levels.Phases {
		ph := &p.levels.Phases[k]
		if ph.Across || ph.Moves != 0 || l.sizes[l.home] == 1 {
			continue
		}
		ran, proven := l.inner.library.recent[ph.Op&7].program, p.levels.programs[part{k, l.sizes[l.home]}]
		if ran.Digest() != proven.Digest() {
			return fmt.Errorf("%s inside runs %s, and %s is proven", ph.Op, ran.Name, proven.Name)
		}
	}
	return nil
}

// Each rank's factor, and the number of ranks, count once, also where ranks are dealt out in turn and where hosts have different numbers of
// them.
func TestFactorsOverHosts(t *testing.T) {
	for _, hosts := range []string{"abab", "ababa", "aaabb"} {
		list := startProcs(t, len(hosts), "mixed", "far factors", "hosts="+hosts)
		list.await("done")
		list.finish()
	}
}
