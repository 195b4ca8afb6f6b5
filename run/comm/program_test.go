package comm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
)

// deed is an action as all worlds tell it: what is done, and with whom.
type deed struct {
	op       string
	from, to sched.Rank
}

type thread struct {
	rank    sched.Rank
	channel int32
}

// messagesOnly makes a rank of goroutines run its programs as messages.
func messagesOnly(c *Comm) {
	c.world.mem, c.group.Memory = nil, nil
	for i := range c.group.Boards {
		if i != c.Rank() {
			c.group.Boards[i] = nil
		}
	}
}

// One program through three worlds: it is proven, simulated and run, with one
// digest, and every rank does the same things with the same ranks in the same
// order on each channel.
func TestOneProgramInThreeWorlds(t *testing.T) {
	box, err := cluster.Preset("dgx-h100", nil)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, n := range []int{3, 4} {
		err := programs(n, func(a *algo.Algorithm, p *sched.Program) error {
			proof, err := verify.Program(p)
			if err != nil {
				return err
			}
			res, err := sim.Collective(box.Graph, p, 64*unit.KiB, sim.Options{Trace: 1 << 20, Unfolded: true})
			if err != nil {
				return err
			}
			simulated := map[thread][]deed{}
			for _, s := range res.Trace.Spans {
				k := thread{s.Rank, s.Channel}
				simulated[k] = append(simulated[k], deed{s.Op.String(), s.From, s.To})
			}
			var mu sync.Mutex
			ran := map[thread][]deed{}
			digests, cut := map[string]bool{}, false
			each(t, n, quick, func(c *Comm) error {
				messagesOnly(c)
				tr, err := newTrial[float32](c, order{Op: trialOf[p.Op], Count: 64 << 10 / 4 / n, Root: n - 1}, Using(p))
				if err != nil {
					return err
				}
				if err := tr.run(context.Background()); err != nil {
					return err
				}
				if err := tr.complete(); err != nil {
					return err
				}
				list := c.Flight().Records()
				r := list[len(list)-1]
				mu.Lock()
				defer mu.Unlock()
				digests[r.Digest] = true
				if r.Way != "script" {
					return fmt.Errorf("way %s", r.Way)
				}
				if r.MoreSteps > 0 {
					cut = true // more than a recorder keeps
				}
				for _, s := range r.Steps {
					k := thread{sched.Rank(c.Rank()), s.Channel}
					ran[k] = append(ran[k], deed{s.Op, sched.Rank(s.From), sched.Rank(s.To)})
				}
				return nil
			})
			if len(digests) != 1 || !digests[proof.Digest] || p.Digest() != proof.Digest {
				t.Errorf("%s: proven %s, run %v", p.Name, proof.Digest, digests)
			}
			if cut {
				return nil
			}
			for r := range sched.Rank(n) {
				for ch := range int32(p.Channels()) {
					k := thread{r, ch}
					if !slices.Equal(simulated[k], ran[k]) {
						t.Errorf("%s of %d ranks, rank %d channel %d: simulated %v, run %v", p.Name, n, r, ch, simulated[k], ran[k])
					}
					compared += len(ran[k])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if compared < 1000 {
		t.Errorf("only %d actions were compared", compared)
	}
}

// The flat form of a program reads exactly what its messages carry: a rank reads
// an input of another where a message brings it that input, and stores a sum to
// another where a message brings the sum there.
func TestFlatMovesWhatMessagesCarry(t *testing.T) {
	seen := 0
	for n := 2; n <= 6; n++ {
		err := programs(n, func(a *algo.Algorithm, p *sched.Program) error {
			f, err := flat.New(p)
			if err != nil || p.Op == sched.Barrier {
				return nil // runs as messages in every world, or carries nothing
			}
			type value struct {
				input flat.Chunk
				sum   string // its inputs, if it is one
			}
			carried, moved := map[int32]map[value]bool{}, map[int32]map[value]bool{}
			note := func(m map[int32]map[value]bool, at int32, v value) {
				if m[at] == nil {
					m[at] = map[value]bool{}
				}
				m[at][v] = true
			}
			name := func(srcs []flat.Chunk) value {
				if len(srcs) == 1 {
					return value{input: srcs[0]}
				}
				srcs = slices.Clone(srcs)
				slices.SortFunc(srcs, func(a, b flat.Chunk) int { return int(a.Rank - b.Rank) })
				return value{sum: fmt.Sprint(srcs)}
			}
			// What messages carry, by running the program with lists of inputs for bytes.
			mem := map[int32]map[step.Chunks][]flat.Chunk{}
			at := func(r sched.Rank, c step.Chunks, i int64) *[]flat.Chunk {
				k := step.Chunks{Buf: c.Buf, Index: c.Index + i, Count: 1}
				if mem[int32(r)] == nil {
					mem[int32(r)] = map[step.Chunks][]flat.Chunk{}
				}
				v, ok := mem[int32(r)][k]
				if !ok && c.Buf == sched.In {
					v = []flat.Chunk{{Rank: int32(r), Index: int32(k.Index)}}
				}
				return &v
			}
			store := func(r sched.Rank, c step.Chunks, i int64, v []flat.Chunk) {
				_ = at(r, c, i)
				mem[int32(r)][step.Chunks{Buf: c.Buf, Index: c.Index + i, Count: 1}] = v
			}
			err = step.Run(p, func(r sched.Rank, x *step.Action, message [][]flat.Chunk) ([][]flat.Chunk, error) {
				if x.Op == sched.Wait {
					return nil, nil
				}
				var out [][]flat.Chunk
				for i := range x.Count {
					var v []flat.Chunk
					switch {
					case x.Op == sched.LocalReduce:
						v = append(slices.Clone(*at(r, x.Src, i)), *at(r, x.Dst, i)...)
					case x.Op.Reduces():
						v = append(slices.Clone(*at(r, x.Src, i)), message[i]...)
					case x.Op.Receives():
						v = message[i]
					default:
						v = *at(r, x.Src, i)
					}
					if x.Op.Receives() {
						note(carried, int32(r), name(message[i]))
					}
					if x.Op.Stores() {
						store(r, x.Dst, i, v)
					}
					out = append(out, v)
				}
				if x.Op.Sends() {
					return out, nil
				}
				return nil, nil
			})
			if err != nil {
				return err
			}
			for r := range f.Size() {
				for _, s := range f.Rank(r).Sums {
					for _, x := range s.Srcs {
						if x.Rank != int32(r) {
							note(moved, int32(r), name([]flat.Chunk{x}))
						}
					}
					for _, d := range s.Dsts {
						if d.Rank != int32(r) {
							note(moved, d.Rank, name(s.Srcs))
						}
					}
				}
				for _, m := range f.Rank(r).Moves {
					if m.Srcs[0].Rank != int32(r) {
						note(moved, int32(r), name(m.Srcs))
					}
				}
			}
			relays := a.Name != "direct" && a.Name != "rank-order" && a.Name != "one-shot"
			for r := range int32(n) {
				for v := range moved[r] {
					seen++
					if !carried[r][v] {
						t.Errorf("%s of %d ranks: rank %d reads %+v, which no message brings it", p.Name, n, r, v)
					}
				}
				for v := range carried[r] {
					if !moved[r][v] && !relays {
						t.Errorf("%s of %d ranks: a message brings rank %d %+v, which it never reads", p.Name, n, r, v)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 500 {
		t.Errorf("only %d moves were seen", seen)
	}
}
