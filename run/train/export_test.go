package train

import (
	"context"
	"errors"
)

// SetFault makes f the one that is asked before and after every call on the
// trainer's communicators.
func SetFault(t *Trainer, f func(call string) error) {
	for _, g := range []*group{&t.world, &t.replicas, &t.tensors, &t.stages} {
		g.fault = f
	}
}

// Samples gives the windows of the text that a replica reads in the next step.
func Samples(t *Trainer) []int {
	r := t.begin(context.Background())
	defer func() { _ = r.end() }()
	var list []int
	for i := r.lo; i < r.hi; i++ {
		list = append(list, t.order.At(t.position+uint64(i)))
	}
	return list
}

// LoseCommit lets the commit of the next step fail on this rank after all ranks
// took part in it.
func LoseCommit(t *Trainer) {
	t.world.fault = func(call string) error {
		if call == "all-reduce done" {
			return errors.New("lost")
		}
		return nil
	}
}

// Mirrored is which rank a trainer mirrors, -1 if none, and what it has of it.
func Mirrored(t *Trainer) (of int, list []Box) {
	if t.mirror == nil {
		return -1, nil
	}
	return t.mirror.of, t.mirror.boxes()
}

// Owned is what a trainer owns.
func Owned(t *Trainer) []Box {
	var list []Box
	for _, q := range t.plan.owned {
		list = append(list, t.segmentBoxes(q)...)
	}
	return list
}
