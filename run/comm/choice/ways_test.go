package choice

import (
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
)

// Giving up algorithms that are too slow changes no choice: a table in which every algorithm is replayed to its end
// picks the same, with the same runner-up.
func TestGivingUpChangesNoChoice(t *testing.T) {
	type shape struct{ hosts, each int }
	for _, at := range bounded.First(3, shape{1, 6}, shape{5, 1}, shape{2, 3}, shape{1, 2}, shape{1, 16}, shape{8, 1}, shape{4, 3}) {
		hosts := spread(at.hosts, at.each)
		quick, whole := New(desk(len(hosts)), can["tcp"], len(hosts), hosts), New(desk(len(hosts)), can["tcp"], len(hosts), hosts)
		given := 0
		for _, op := range sched.Collectives() {
			for _, canonical := range []bool{false, true} {
				for class := 0; class <= classOf(64<<20); class += 3 {
					key := plain{op, canonical, class}
					if class%window < 3 {
						if err := whole.enterAll(contest{op, canonical, class / window}); err != nil {
							t.Fatal(err)
						}
					}
					want, err := whole.choose(key)
					if err != nil {
						t.Fatal(err)
					}
					got, err := quick.choose(key)
					if err != nil {
						t.Fatal(err)
					}
					if got.Algo != want.Algo || got.Pieces != want.Pieces || got.Channels != want.Channels || got.Predicted != want.Predicted ||
						got.next != want.next || got.then != want.then || got.Reason != want.Reason {
						t.Errorf("%d hosts of %d ranks: %s of %d bytes: %+v, and %+v if all are replayed", at.hosts, at.each, op, smallest(class), got, want)
					}
				}
			}
		}
		for key, f := range quick.fields {
			given += f.all - len(f.ways)
			if len(f.ways) < min(2, f.all) {
				t.Errorf("%+v: %d of %d are left", key, len(f.ways), f.all)
			}
		}
		if given == 0 && len(hosts) > 2 {
			t.Errorf("%d hosts of %d ranks: nothing was given up", at.hosts, at.each)
		}
	}
}

// enterAll replays every algorithm that may take part to its end.
func (t *Table) enterAll(key contest) error {
	f := &field{}
	for _, name := range t.names(key.op, key.canonical) {
		w := way{name, key.op, 0, 1, 1, key.canonical && sums(key.op)}
		p, err := t.program(w)
		if err != nil || t.many == 1 && p.Channels() > 1 {
			continue
		}
		if _, err := t.curve(part{w, key.window}, nil); err != nil {
			return err
		}
		f.ways = append(f.ways, w)
	}
	f.all = len(f.ways)
	t.fields[key] = f
	return nil
}

// TestCanonicalSumsOfLongMessages: where rabenseifner and rank-order take equally long, long all-reduces take the former, which needs no
// scratch memory, and long reduce-scatters the latter. Between hosts a long reduce in rank order waits for the way into the root's host.
func TestCanonicalSumsOfLongMessages(t *testing.T) {
	for _, n := range []int{4, 8} {
		table := New(desk(n), can["tcp"], n, spread(n, 1))
		for op, want := range map[sched.Collective]string{sched.AllReduce: "rabenseifner", sched.ReduceScatter: "rank-order",
			sched.Reduce: "rabenseifner"} {
			p, err := table.Pick(op, 0, 16<<20, true)
			if err != nil {
				t.Fatal(err)
			}
			if p.Algo != want {
				t.Errorf("%s of 16 MiB by %d hosts: %s in %v, want %s", op, n, p.Algo, p.Predicted, want)
			}
		}
	}
}
