package ckpt

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// Verify reads a checkpoint in full and gives all that is wrong with it: the
// manifest, each file's header, its layout against the manifest's, every chunk of
// data, and tensors that no file holds. The error is about reading, not about what
// was read.
func (s *Store) Verify(ctx context.Context, e Entry) ([]Problem, error) {
	m := e.manifest
	if m == nil || len(e.Problems) > 0 {
		return e.Problems, nil
	}
	found := make([][]Problem, len(m.Files))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers())
	for i := range m.Files {
		g.Go(func() (err error) {
			found[i], err = s.verifyFile(ctx, m, i)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var all []Problem
	for _, f := range found {
		all = append(all, f...)
	}
	if err := m.covered(); err != nil {
		all = append(all, Problem{s.place.Path(m.folder), err.Error()})
	}
	return all, nil
}

// verifyFile checks one file of a checkpoint to the last byte.
func (s *Store) verifyFile(ctx context.Context, m *Manifest, i int) ([]Problem, error) {
	r := &reader{s: s, m: m, file: m.Files[i]}
	var all []Problem
	add := func(err error) error {
		if d := new(Damage); errors.As(r.damage(err), &d) {
			all = append(all, d.Problems...)
			return nil
		}
		return err
	}
	if err := r.open(ctx); err != nil {
		return all, add(err)
	}
	if err := r.layout(i); err != nil {
		if err := add(err); err != nil {
			return all, err
		}
	}
	data := r.file.Size - r.file.Head
	buf := buffer(readSize)
	defer buffers.Put(buf)
	for from := int64(0); from < data; from += readSize {
		p := (*buf)[:min(readSize, data-from)]
		if err := s.place.Read(ctx, r.name(), p, r.file.Head+from); err != nil {
			return all, add(err)
		}
		for low, rest := from/chunk, p; ; {
			n, got := r.wrong(rest, low)
			if n < 0 {
				break
			}
			if err := add(r.chunkFault(n, got)); err != nil {
				return all, err
			}
			skip := min(int64(len(rest)), (n+1-low)*chunk)
			low, rest = n+1, rest[skip:]
		}
	}
	return all, nil
}

// layout reports whether the manifest says of a file's tensors what its header says.
func (r *reader) layout(file int) error {
	if r.m.foreign {
		return nil
	}
	meta, err := shardInfo(r.header)
	if err != nil {
		return err
	}
	tensors := map[string]*Info{}
	if err := addParts(tensors, file, r.file.Name, r.header, meta.Parts); err != nil {
		return err
	}
	parts := 0
	for _, t := range sorted(tensors) {
		known, _ := r.m.Tensor(t.Name)
		for _, p := range t.Parts {
			parts++
			found := false
			for _, q := range known.Parts {
				found = found || q.File == file && q.Begin == p.Begin && known.region(q).Equal(t.region(p))
			}
			if !found {
				return &fault{fmt.Errorf("tensor %q lies at byte %d of the data; the manifest does not say so", t.Name, p.Begin)}
			}
		}
	}
	for _, t := range r.m.Tensors {
		for _, p := range t.Parts {
			if p.File == file {
				parts--
			}
		}
	}
	if parts != 0 {
		return &fault{fmt.Errorf("%d tensors fewer than the manifest says", -parts)}
	}
	return nil
}
