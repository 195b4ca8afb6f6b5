package choice

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/cost"
)

// A workshop knows what a broadcast is and nothing of programs or their replay: every rank takes a message from one rank and passes
// it on to others, one after another. Each of these takes a core for a while; cores take what has been ready longest.
//
//	send      Post + bytes*Beta of a core; then bytes*Wire of the host's way out, one message after another; then Alpha
//	receive   Post + bytes*Beta of a core
type workshop struct {
	link   cost.Link
	bytes  float64
	cores  int  // of a machine
	shared bool // one machine has all ranks; else each rank has one
}

// tree is from whom a rank of n gets a message, -1 for the root, and to whom it passes it on, in order.
func tree(kind string, rank, n int) (from int, to []int) {
	switch kind {
	case "direct":
		if rank > 0 {
			return 0, nil
		}
		for r := 1; r < n; r++ {
			to = append(to, r)
		}
	case "ring":
		if rank+1 < n {
			to = []int{rank + 1}
		}
		return rank - 1, to
	case "binomial": // the lowest one of a rank's number is cleared on the way to the root
		low := rank & -rank
		if rank == 0 {
			low = 1 << 20
		}
		for far := 1; far < low && rank+far < n; far *= 2 {
			to = append([]int{rank + far}, to...)
		}
		return rank - min(low, rank+1), to
	}
	return -1, to
}

// job is something that a rank has to do next.
type job struct {
	ready float64
	takes float64
	done  func(at float64)
}

// after is how long a number of broadcasts in a row take until all ranks have all of them.
func (w *workshop) after(kind string, n, broadcasts int) float64 {
	came, out := make([][]float64, n), make([]float64, n) // when messages came; when the way out is free
	lists := make([][]func(ready float64) *job, n)
	work := w.link.Post + w.bytes*w.link.Beta
	for r := range n {
		from, to := tree(kind, r, n)
		for k := range broadcasts {
			if from >= 0 {
				lists[r] = append(lists[r], func(ready float64) *job {
					if len(came[r]) <= k {
						return nil
					}
					return &job{max(ready, came[r][k]), work, func(float64) {}}
				})
			}
			for _, peer := range to {
				lists[r] = append(lists[r], func(ready float64) *job {
					return &job{ready, work, func(at float64) {
						out[r] = max(max(out[r], at-work)+w.bytes*w.link.Wire, at) // it leaves while it is sent
						came[peer] = append(came[peer], out[r]+w.link.Alpha)
					}}
				})
			}
		}
	}
	free := make([]float64, n) // when a rank is
	machines := 1
	if !w.shared {
		machines = n
	}
	cores := make([][]float64, machines)
	for m := range cores {
		cores[m] = make([]float64, w.cores)
	}
	last := 0.0
	for {
		var next *job
		who, begin := -1, math.Inf(1)
		for r := range n {
			if len(lists[r]) == 0 {
				continue
			}
			if j := lists[r][0](free[r]); j != nil && max(j.ready, slices.Min(cores[r%machines])) < begin {
				next, who, begin = j, r, max(j.ready, slices.Min(cores[r%machines]))
			}
		}
		if who < 0 {
			return last
		}
		mine := cores[who%machines]
		end := begin + next.takes
		mine[slices.Index(mine, slices.Min(mine))] = end
		next.done(end)
		free[who], lists[who] = end, lists[who][1:]
		last = max(last, end)
	}
}

// Broadcasts follow one another, so that the root's messages count as much as how soon the last rank has one: what is chosen is near the
// fastest of the plain ways by the mean of both. Where ranks share cores, switches between them take time, too, of which a workshop knows
// nothing: there it only must not lose in both.
func TestBroadcastsInARow(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 9).Draw(t, "hosts")
		number := func(name string, least, most float64) float64 { return rapid.Float64Range(least, most).Draw(t, name) }
		links := cost.Links{Kind: "tcp", Ranks: n, Cores: 2, Hosts: 1, Sync: 13, Paces: []cost.Pace{{Traffic: 48 << 10, Byte: 4.7e-6}},
			Far: cost.Link{Alpha: number("way", 0, 60), Post: number("post", 1, 12), Beta: number("byte", 5e-5, 5e-4),
				Wire: number("wire", 1e-4, 1e-2)}}
		if rapid.Bool().Draw(t, "one machine") {
			links.Hosts = n
		}
		class := rapid.IntRange(classOf(8), classOf(32<<10)).Draw(t, "size")
		table := New(links, can["tcp"], n, spread(n, 1))
		p, err := table.Pick(sched.Broadcast, 0, smallest(class), false)
		if err != nil {
			t.Fatal(err)
		}
		if p.Pieces > 1 {
			t.Skip("in pieces")
		}
		w := workshop{table.links.Far, float64(smallest(class)), links.Cores, links.Hosts > 1}
		const many = 64
		one, row := w.after(p.Algo, n, 1), w.after(p.Algo, n, many)/many
		seen[p.Algo]++
		for _, other := range []string{"direct", "binomial", "ring"} {
			x, xs := w.after(other, n, 1), w.after(other, n, many)/many
			if w.shared && x < one/1.1 && xs < row/1.1 || !w.shared && x+xs < (one+row)/1.3 {
				t.Fatalf("%d bytes among %d: %s takes %.0f us and %.0f in a row, %s %.0f and %.0f; %+v", smallest(class), n, p.Algo, one, row,
					other, x, xs, table.links.Far)
			}
		}
	})
	if len(seen) < 2 {
		t.Error(fmt.Sprint("only ", seen))
	}
}
