// Package pipe is the order in which a pipeline's stages take the micro-batches of
// a step, and the time that order costs. It is pure: the trainer runs the orders,
// and Simulate gives them their meaning in time.
//
//	gpipe   stage 0  F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3     all forward, then all
//	        stage 1  .  F0 F1 F2 F3 .  .  B0 B1 B2 B3        backward (Huang et al., 2019)
//	1f1b    stage 0  F0 F1 .  B0 F2 B1 F3 B2 .  B3           one forward, one backward
//	        stage 1  .  F0 B0 F1 B1 F2 B2 F3 B3              (Narayanan et al., 2019, flushed)
//
// Both are idle for (p-1)/(m+p-1) of a step of m micro-batches on p stages of equal
// time: (p-1)/m of the time without idling. 1F1B keeps the activations of at most
// p-s micro-batches on stage s, GPipe those of all m.
package pipe

import "fmt"

// Kind is a schedule.
type Kind string

// The schedules.
const (
	GPipe    Kind = "gpipe"
	OneFOneB Kind = "1f1b"
)

// Op is a stage's pass over one micro-batch.
type Op struct {
	Backward bool
	Micro    int
}

func (o Op) String() string {
	if o.Backward {
		return fmt.Sprintf("B%d", o.Micro)
	}
	return fmt.Sprintf("F%d", o.Micro)
}

// Check reports an unknown schedule.
func (k Kind) Check() error {
	if k != GPipe && k != OneFOneB {
		return fmt.Errorf("pipe: schedule %q; known: %s, %s", k, GPipe, OneFOneB)
	}
	return nil
}

// Ops is what a stage of stages does with m micro-batches, in order. Backward
// passes come in the order of the forward ones.
func (k Kind) Ops(stage, stages, m int) []Op {
	ahead := m
	if k == OneFOneB {
		ahead = min(m, stages-1-stage)
	}
	var list []Op
	for i := range ahead {
		list = append(list, Op{Micro: i})
	}
	for i := range m {
		if f := ahead + i; f < m {
			list = append(list, Op{Micro: f})
		}
		list = append(list, Op{Backward: true, Micro: i})
	}
	return list
}

// Kept is the most micro-batches whose activations a stage holds at once.
func (k Kind) Kept(stage, stages, m int) int {
	if k == OneFOneB {
		return min(m, stages-stage)
	}
	return m
}

// Bubble is the idle share of a step by formula: (p-1)/(m+p-1).
func Bubble(stages, m int) float64 { return float64(stages-1) / float64(m+stages-1) }

// Cost is what the passes of one micro-batch take, in any unit of time.
type Cost struct {
	Forward, Backward int64 // of a stage
	Transfer          int64 // from one stage to the next, beside computing
}

// Time is how long a step takes.
type Time struct {
	Total int64
	Busy  []int64 // by stage
}

// Bubble is the idle share of all stages together.
func (t Time) Bubble() float64 {
	var busy int64
	for _, b := range t.Busy {
		busy += b
	}
	return 1 - float64(busy)/float64(t.Total*int64(len(t.Busy)))
}

// Simulate runs a schedule: a pass begins when its stage is free and its input is
// there. It reports a schedule in which stages wait for one another forever.
func (k Kind) Simulate(stages, m int, c Cost) (Time, error) {
	type done struct{ forward, backward []int64 } // when, by micro-batch; -1: not yet
	state := make([]done, stages)
	ops := make([][]Op, stages)
	free, t := make([]int64, stages), Time{Busy: make([]int64, stages)}
	for s := range state {
		ops[s] = k.Ops(s, stages, m)
		for range m {
			state[s].forward, state[s].backward = append(state[s].forward, -1), append(state[s].backward, -1)
		}
	}
	for left := stages; left > 0; {
		moved := false
		for s := range stages {
			for len(ops[s]) > 0 {
				o := ops[s][0]
				// When the input is there: from the stage before or behind, or from one's own forward pass.
				input, length := int64(0), c.Forward
				switch {
				case o.Backward && s == stages-1:
					input = state[s].forward[o.Micro]
				case o.Backward:
					input = state[s+1].backward[o.Micro]
				case s > 0:
					input = state[s-1].forward[o.Micro]
				}
				if input < 0 {
					break
				}
				if o.Backward {
					length = c.Backward
				}
				if o.Backward && s < stages-1 || !o.Backward && s > 0 {
					input += c.Transfer
				}
				end := max(free[s], input) + length
				if o.Backward {
					state[s].backward[o.Micro] = end
				} else {
					state[s].forward[o.Micro] = end
				}
				free[s] = end
				t.Busy[s] += length
				t.Total = max(t.Total, end)
				ops[s] = ops[s][1:]
				moved = true
				if len(ops[s]) == 0 {
					left--
				}
			}
		}
		if !moved && left > 0 {
			return t, fmt.Errorf("pipe: %s on %d stages with %d micro-batches: %d stages wait for one another", k, stages, m, left)
		}
	}
	return t, nil
}
