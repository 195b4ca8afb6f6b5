// Package checkpoint brings a trainer's state into checkpoints and back: every rank
// saves the boxes it is to save, and any layout loads what any other saved.
//
//	store, err := ckpt.Open(ctx, where, ckpt.Options{Keep: 3, Min: checkpoint.Min(c)})
//	m, tensors, err := checkpoint.Of(t, run, epoch)
//	err = store.Async(ctx, m, tensors)               // between steps; training goes on
//	manifest, damaged, err := checkpoint.Resume(ctx, t, store)
package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weft-fabric/weft/run/ckpt"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/train"
)

// extra is the key under which a manifest keeps a train.Meta.
const extra = "train"

// Of is what a rank saves after a step. Tensors are the trainer's own memory: they
// stay as they are until its next step. A spare rank has nothing to save.
func Of(t *train.Trainer, run string, epoch int64) (ckpt.Meta, []ckpt.Tensor, error) {
	m := t.Meta()
	text, err := json.Marshal(m)
	if err != nil {
		return ckpt.Meta{}, nil, err
	}
	rank, _ := t.Rank()
	return ckpt.Meta{
		Step: int64(m.Step), Epoch: epoch, Rank: rank, World: m.Layout.Ranks(), Run: run, Data: int64(m.Position),
		Layout: map[string]int{"dp": m.Layout.DP, "tp": m.Layout.TP, "pp": m.Layout.PP, "zero": m.Layout.Zero},
		Extra:  map[string]string{extra: string(text)},
	}, tensors(t.State()), nil
}

func tensors(boxes []train.Box) []ckpt.Tensor {
	var list []ckpt.Tensor
	for _, b := range boxes {
		t := ckpt.Of(b.Name, b.Data, b.Size...)
		t.Offset, t.Global = b.Offset, b.Shape
		list = append(list, t)
	}
	return list
}

// Meta is what a manifest says about the run.
func Meta(m *ckpt.Manifest) (train.Meta, error) {
	var out train.Meta
	if err := json.Unmarshal([]byte(m.Extra[extra]), &out); err != nil {
		return out, fmt.Errorf("checkpoint of step %d does not say which run it is of: %w", m.Step, err)
	}
	return out, nil
}

// Resume takes up the newest checkpoint that is whole. All ranks call it; the
// store's Min makes them choose the same one. Damaged ones that are newer are named
// in the second result. Where there is none the error is ckpt.ErrNone, and the trainer
// stays as it was.
func Resume(ctx context.Context, t *train.Trainer, s *ckpt.Store) (m *ckpt.Manifest, damaged []*ckpt.Damage, err error) {
	err = t.Restore(func(held []train.Box) (train.Meta, error) {
		var err error
		if m, damaged, err = s.Resume(ctx, tensors(held)); err != nil {
			if errors.Is(err, ckpt.ErrNone) && len(damaged) == 0 {
				err = errors.Join(err, train.ErrNothing)
			}
			return train.Meta{}, err
		}
		return Meta(m)
	})
	return m, damaged, err
}

// Load takes up a given checkpoint.
func Load(ctx context.Context, t *train.Trainer, s *ckpt.Store, m *ckpt.Manifest) error {
	return t.Restore(func(held []train.Box) (train.Meta, error) {
		if err := s.LoadFrom(ctx, m, tensors(held)); err != nil {
			return train.Meta{}, err
		}
		return Meta(m)
	})
}

// Min is the store's Min over a communicator; nil for a rank alone.
func Min(c *comm.Comm) func(ctx context.Context, v int64) (int64, error) {
	if c == nil {
		return nil
	}
	return func(ctx context.Context, v int64) (int64, error) {
		buf := []int64{v}
		err := comm.AllReduce(ctx, c, buf, comm.Min)
		return buf[0], err
	}
}
