package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

// wrongCall is a call of all ranks but one, and what that one calls instead.
type wrongCall struct{ right, wrong order }

// wrongCalls are all pairs of collectives, and each of them with another count, type, root and reduction. Sends are left out: what a rank
// sends before a collective others may take during it, so only a time limit tells.
func wrongCalls(count int) (list []wrongCall) {
	var ops []string
	for _, op := range trialOps {
		if op != "send/recv" {
			ops = append(ops, op)
		}
	}
	rooted := []string{"broadcast", "reduce", "gather", "scatter", "gather-v", "scatter-v"}
	reduces := []string{"all-reduce", "reduce-scatter", "reduce", "reduce-scatter-v"}
	for _, op := range ops {
		right := order{Op: op, Count: count, Root: 1}
		add := func(change func(w *order)) {
			w := right
			change(&w)
			list = append(list, wrongCall{right, w})
		}
		for _, other := range ops {
			if other != op {
				add(func(w *order) { w.Op = other })
			}
		}
		if op != "barrier" {
			add(func(w *order) { w.Count++ })
			add(func(w *order) { w.Type = "i32" })
		}
		if slices.Contains(rooted, op) {
			add(func(w *order) { w.Root++ })
		}
		if slices.Contains(reduces, op) {
			add(func(w *order) { w.Max = true })
		}
	}
	return list
}

// A rank that calls something else than the others is named to all ranks of all hosts long before the time limit, whatever it calls.
func TestWrongCallsOverHosts(t *testing.T) {
	usual := map[string][]int{"reduce for gather": {1}, "all-reduce for broadcast": {2},
		"gather for gather-v": {0}} // these took the whole time limit
	for k, hosts := range bounded.First(2, "aabb", "aaab", "abab", "abcd", "aabbcc", "abaa", "aaabb") {
		t.Run(hosts, func(t *testing.T) {
			list := startProcs(t, len(hosts), "mixed", "serve", "hosts="+hosts)
			longest := time.Duration(0)
			for i, w := range wrongCalls([]int{5, 1000, 40000}[k%3]) {
				victims := usual[w.wrong.Op+" for "+w.right.Op]
				if i%41 == k {
					victims = []int{i % len(hosts)}
				}
				for v := range len(hosts) {
					if bounded.Long() || slices.Contains(victims, v) {
						longest = max(longest, w.try(t, list, v))
					}
				}
			}
			t.Logf("the last error came after %s", longest)
			list.finish()
		})
	}
}

// try lets one rank make the wrong call and tells how long it took until the last rank had its error.
func (w *wrongCall) try(t *testing.T, list procs, victim int) (longest time.Duration) {
	t.Helper()
	list.all(order{Do: "dup"})
	for i, p := range list {
		o := w.right
		if i == victim {
			o = w.wrong
		}
		o.Do, o.Op, o.Limit = "op", o.Op+",barrier", longTime // the barrier is for those that need not wait for all
		p.order(o)
	}
	for r, e := range list.await("op") {
		took := time.Duration(e.Clock - e.Began)
		longest = max(longest, took)
		if !blames(&e, victim, Mismatch) || e.Data != "intact" || took >= longTime {
			t.Errorf("%s at rank %d: rank %d has %s data and after %s (%s) %v: %s", w, victim, r, e.Data, took, e.Kind, e.Culprits, e.Err)
		}
	}
	return longest
}

func (w *wrongCall) String() string {
	say := func(o *order) string {
		return fmt.Sprintf("%s of %d %s at root %d, max %t", o.Op, o.Count, o.Type, o.Root, o.Max)
	}
	return say(&w.wrong) + " for " + say(&w.right)
}

func init() { bodies["reason first"] = func(k *kid) error { return k.once(tellsFirst(k.c)) } }

// A rank that gives a phase up has told why before the others of its host can see that it did: one that comes late names the rank at fault.
func TestReasonOfAPhaseComesFirst(t *testing.T) {
	list := startProcs(t, 4, "mixed", "reason first", "hosts=aabb")
	list.await("done")
	list.finish()
}

func tellsFirst(c *Comm) error {
	ctx := context.Background()
	if err := AllReduce(ctx, c, make([]float32, 1000), Sum); err != nil {
		return err
	}
	if c.Rank() != 0 {
		return nil
	}
	sub := c.levels.inner
	if err := sub.giveUp(sub.fail(errors.New("a fault"))); !strings.Contains(err.Error(), "a fault") {
		return err
	}
	if c.failed.Load() == nil {
		return errors.New("the phase is marked as given up, and nobody was told why")
	}
	return nil
}
