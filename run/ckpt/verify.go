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
	parts := m.byFile()
	found := make([][]Problem, len(m.Files))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers())
	for i := range m.Files {
		g.Go(func() (err error) {
			found[i], err = s.verifyFile(ctx, m, i, parts[i])
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
func (s *Store) verifyFile(ctx context.Context, m *Manifest, i int, parts map[string]bool) ([]Problem, error) {
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
	if err := r.layout(parts); err != nil {
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

// partKey says all that header and manifest must agree on about a part.
func partKey(t Info, p Part) string {
	return fmt.Sprintf("%q %s %v at %v of shape %v, byte %d of the data", t.Name, t.Type, t.Shape, p.Offset, p.Shape, p.Begin)
}

// byFile gives, for each file, the parts that the manifest says it holds.
func (m *Manifest) byFile() []map[string]bool {
	files := make([]map[string]bool, len(m.Files))
	for i := range files {
		files[i] = map[string]bool{}
	}
	for _, t := range m.Tensors {
		for _, p := range t.Parts {
			files[p.File][partKey(t, p)] = true
		}
	}
	return files
}

// layout reports whether the manifest says of a file's tensors what its header says.
func (r *reader) layout(want map[string]bool) error {
	if r.m.foreign {
		return nil
	}
	meta, err := shardInfo(r.header)
	if err != nil {
		return err
	}
	tensors := map[string]*Info{}
	if err := addParts(tensors, 0, r.file.Name, r.header, meta.Parts); err != nil {
		return err
	}
	n := 0
	for _, t := range sorted(tensors) {
		for _, p := range t.Parts {
			n++
			if key := partKey(t, p); !want[key] {
				return &fault{fmt.Errorf("holds tensor %s; the manifest does not say so", key)}
			}
		}
	}
	if n != len(want) {
		return &fault{fmt.Errorf("holds %d shards; the manifest says %d", n, len(want))}
	}
	return nil
}
