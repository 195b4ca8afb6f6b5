package train

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/run/train/model"
)

// The names of a parameter's two moments begin with these; the parameter itself
// has its own name.
const (
	firstPrefix  = "adam.first/"
	secondPrefix = "adam.second/"
)

// Meta is what a run's state is beside its arrays. It goes with them into a checkpoint.
type Meta struct {
	Step     int          `json:"step"`     // steps taken
	Position uint64       `json:"position"` // samples read: the data's place
	Batch    int          `json:"batch"`    // samples of the next global batch
	Rate     float64      `json:"rate"`     // peak of the learning rate
	Floor    float64      `json:"floor"`    // where it ends
	Seed     uint64       `json:"seed"`     // of the data's order; there is no other random state
	Text     uint64       `json:"text"`     // digest of the text and its windows
	Model    model.Config `json:"model"`
	Layout   Layout       `json:"layout"` // at the time; any other can take it up
}

// Meta is the run's state beside its arrays.
func (t *Trainer) Meta() Meta {
	return Meta{Step: t.step, Position: t.position, Batch: t.cfg.Batch, Rate: t.cfg.Rate.Peak, Floor: t.cfg.Rate.Floor, Seed: t.cfg.Seed,
		Text: t.text.Digest(), Model: t.cfg.Model, Layout: t.cfg.Layout}
}

// State is the part of the run's arrays that this rank is to save: parameters and
// both moments. The boxes of all ranks together hold every element once. Data is
// the trainer's own memory and stays as it is until the next Step, Restore or
// Rebuild.
func (t *Trainer) State() []Box {
	if t.blank || t.idle {
		return nil
	}
	var list []Box
	for _, q := range t.savedSegments() {
		list = append(list, t.segmentBoxes(q)...)
	}
	return list
}

// savedSegments are those owned, or, where replicas own all alike, a share of them;
// what all tensor ranks have is saved by the first.
func (t *Trainer) savedSegments() []segment {
	all := t.plan.owned
	if t.plan.part == 1 && t.cfg.Layout.DP > 1 {
		all = nil
		for _, b := range t.plan.buckets {
			n := b.Len() / t.cfg.Layout.DP
			lo := b.Lo + t.plan.spot.replica*n
			all = append(all, t.plan.segments(model.Span{Lo: lo, Hi: lo + n})...)
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(q segment) bool {
		return t.plan.spot.tensor > 0 && t.plan.net.Params[q.param].Copy
	})
}

// segmentBoxes are a segment's three arrays.
func (t *Trainer) segmentBoxes(q segment) []Box {
	p := t.plan.net.Params[q.param]
	list := boxes(p.Name, p, q.lo-p.At, q.n, t.parameter(q))
	list = append(list, boxes(firstPrefix+p.Name, p, q.lo-p.At, q.n, t.moment(t.first, q))...)
	return append(list, boxes(secondPrefix+p.Name, p, q.lo-p.At, q.n, t.moment(t.second, q))...)
}

// all is every box that this rank holds, whoever saves it.
func (t *Trainer) all() []Box {
	var list []Box
	for _, q := range t.plan.owned {
		list = append(list, t.segmentBoxes(q)...)
	}
	if t.mirror != nil {
		list = append(list, t.mirror.boxes()...)
	}
	return list
}

// Source fills all boxes that it is given, from a state saved in whatever layout,
// and says what that state is beside its arrays.
type Source func(held []Box) (Meta, error)

// ErrNothing is what a Source returns that has no state and has filled nothing.
var ErrNothing = errors.New("there is no state to restore")

// Restore takes up a state in the trainer's own layout: from is given every box that
// this rank holds, which are the trainer's own memory. All ranks restore the same
// state. After ErrNothing the trainer is as it was; after any other error it is blank.
func (t *Trainer) Restore(from Source) error {
	if t.plan == nil {
		return errors.New("train: a blank rank has no layout to restore in: use New, then Restore")
	}
	was := t.blank
	t.blank = true
	m, err := from(t.all())
	if errors.Is(err, ErrNothing) {
		t.blank = was
	}
	if err != nil {
		return err
	}
	if m.Model != t.cfg.Model {
		return fmt.Errorf("train: the state is of model %+v, this one is %+v; train the state's model or begin anew", m.Model, t.cfg.Model)
	}
	if m.Text != t.text.Digest() || m.Seed != t.cfg.Seed {
		return fmt.Errorf("train: the state is from text %x and seed %d, this run has text %x and seed %d; give it the same text and seed",
			m.Text, m.Seed, t.text.Digest(), t.cfg.Seed)
	}
	if m.Step < 0 || m.Batch < 1 || m.Rate <= 0 {
		return fmt.Errorf("train: a state of step %d, batch %d, rate %v", m.Step, m.Batch, m.Rate)
	}
	t.take(m)
	return nil
}

// take sets what a state is beside its arrays, which are in place.
func (t *Trainer) take(m Meta) {
	t.step, t.position = m.Step, m.Position
	t.cfg.Batch, t.cfg.Rate.Peak, t.cfg.Rate.Floor = m.Batch, m.Rate, m.Floor
	t.blank, t.pending = false, false
	t.stale = t.cfg.Layout.Zero == 1 || t.cfg.Layout.Zero == 2
}
