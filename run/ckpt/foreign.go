package ckpt

import (
	"context"

	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// foreign reads safetensors files that other programs wrote at the top of a place,
// like model.safetensors or model-00001-of-00002.safetensors, as one checkpoint of
// step 0. The format has no checksums: their structure is all that can be checked.
func (s *Store) foreign(ctx context.Context, files []blob.Info) Entry {
	m := &Manifest{World: len(files), foreign: true}
	e := Entry{State: Foreign, World: len(files)}
	tensors := map[string]*Info{}
	for i, f := range files {
		h, head, err := readHeader(ctx, s.place, f.Name, f.Size)
		if err == nil {
			err = addParts(tensors, i, f.Name, h, nil)
		}
		if err != nil {
			e.State = Damaged
			e.Problems = append(e.Problems, Problem{s.place.Path(f.Name), err.Error()})
			continue
		}
		m.Files = append(m.Files, File{Name: f.Name, Rank: i, Size: f.Size, Head: int64(len(head))})
		e.Bytes += f.Size
	}
	m.Tensors = sorted(tensors)
	e.Tensors = len(m.Tensors)
	if len(e.Problems) == 0 {
		e.manifest = m
	}
	return e
}
