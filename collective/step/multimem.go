package step

import "github.com/weft-fabric/weft/collective/sched"

// Multimem reports whether a switch of a program does what GPUs' multimem instructions make an NVSwitch do: it sends each sum to
// one rank, which loads it (ld_reduce), and what it sends to several ranks came as one message (st). A switch of a network
// (SHARP) sends a sum to all below it, or to the switch above it.
//
//	ld_reduce   0 1 2 3 ──► switch ──► 1             SHARP   0 1 2 3 ──► switch ──► 0 1 2 3
//	st                1 ──► switch ──► 0 1 2 3
func (k *Code) Multimem(sw sched.Rank) bool {
	m := k.Machine(sw)
	w := &switchMemory{ranks: sched.Rank(k.prog.Ranks), cells: map[cell]*passed{}}
	var ready []Action
	for !m.Done() && m.Err() == nil && !w.decided {
		ready = m.Ready(ready[:0])
		if len(ready) == 0 { // its end, or it waits for itself
			break
		}
		for i := range ready {
			a := &ready[i]
			if sent, err := Do(w, sw, a, &passed{}); err == nil && a.Op.Sends() {
				w.pass(sent, a)
			}
			m.Complete(a.Channel)
		}
	}
	return w.multimem
}

// passed is a value in a switch: a message as it came, or a sum.
type passed struct {
	sum    bool
	copies int // that were sent
}

type cell struct {
	buf   sched.Buffer
	index int64
}

// switchMemory is the memory of a switch that is looked at until it is known which kind it is. A sum that was sent once says so when
// it is stored over.
type switchMemory struct {
	ranks             sched.Rank // from this number on they are switches
	cells             map[cell]*passed
	decided, multimem bool
}

// pass takes note of a value that is sent.
func (w *switchMemory) pass(v *passed, a *Action) {
	v.copies++
	switch {
	case w.decided:
	case v.sum && (v.copies > 1 || a.To >= w.ranks):
		w.decided, w.multimem = true, false
	case v.sum: // for good if it is not kept to be sent again
		w.decided, w.multimem = a.Op.Receives() && !a.Op.Stores(), true
	case v.copies > 1:
		w.multimem = true
	}
}

// Load gives the value of a run by its first chunk: what moves together is one value.
func (w *switchMemory) Load(_ sched.Rank, _ *Action, c Chunks) (*passed, error) {
	v := w.cells[cell{c.Buf, c.Index}]
	if v == nil {
		v = &passed{}
	}
	return v, nil
}

// Reduce makes a sum.
func (w *switchMemory) Reduce(_ sched.Rank, _ *Action, _, _ *passed) (*passed, error) {
	return &passed{sum: true}, nil
}

// Store puts a value where another one may be, which then goes nowhere any more.
func (w *switchMemory) Store(_ sched.Rank, _ *Action, c Chunks, v *passed) error {
	for i := range c.Count {
		at := cell{c.Buf, c.Index + i}
		if old := w.cells[at]; old != nil && old != v && old.sum && old.copies == 1 && !w.decided {
			w.decided, w.multimem = true, true
		}
		w.cells[at] = v
	}
	return nil
}
