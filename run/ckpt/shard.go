package ckpt

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/weft-fabric/weft/run/ckpt/internal/box"
	"github.com/weft-fabric/weft/run/ckpt/internal/safetensors"
)

const (
	// chunk is the stretch of data under one checksum: the least that a loading rank
	// reads, and 16 bytes of header.
	chunk = 1 << 20
	// headAlign puts the data at a page's start.
	headAlign = 4096
	// metadataKey holds a shardMeta as JSON in the metadata of a shard's header.
	metadataKey = "weft"
)

// shardMeta is what a shard's header says besides the format's own entries.
type shardMeta struct {
	Format    string            `json:"format"`
	Step      int64             `json:"step"`
	Epoch     int64             `json:"epoch"`
	Run       string            `json:"run,omitempty"`
	World     int               `json:"world"`
	Rank      int               `json:"rank"`
	Emergency bool              `json:"emergency,omitempty"`
	Layout    map[string]int    `json:"layout,omitempty"`
	Data      int64             `json:"data_position"`
	Random    map[string][]byte `json:"random,omitempty"`
	Extra     map[string]string `json:"metadata,omitempty"`
	Created   time.Time         `json:"created"`
	Parts     map[string]place  `json:"parts,omitempty"` // for entries that are not whole tensors
	Chunks    []Hash            `json:"chunks_xxh3"`
}

// place says what an entry is a part of. The entry's own shape is the part's.
type place struct {
	Name   string `json:"name"`
	Global []int  `json:"global"`
	Offset []int  `json:"offset"`
}

// shard is a rank's file being made.
type shard struct {
	header safetensors.Header
	meta   shardMeta
	data   [][]byte // in the order of the header's entries
}

// newShard lays a rank's tensors out: wide types first, then by name and offset,
// so that every tensor is aligned to its elements and equal input gives equal files.
func newShard(m Meta, emergency bool, now time.Time, tensors []Tensor) (*shard, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	s := &shard{meta: shardMeta{
		Format: formatName, Step: m.Step, Epoch: m.Epoch, Run: m.Run, World: m.World, Rank: m.Rank, Emergency: emergency,
		Layout: m.Layout, Data: m.Data, Random: m.Random, Extra: m.Extra, Created: now.UTC().Truncate(time.Millisecond),
	}}
	order := slices.Clone(tensors)
	for _, t := range order {
		if err := t.check(); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(order, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(b.Type.Size(), a.Type.Size()), strings.Compare(a.Name, b.Name), slices.Compare(a.Offset, b.Offset))
	})
	seen := map[string]bool{}
	begin := int64(0)
	for i, t := range order {
		r := t.Region()
		key := t.Name
		if i > 0 && order[i-1].Name == t.Name || i+1 < len(order) && order[i+1].Name == t.Name {
			key = fmt.Sprintf("%s@%v", t.Name, r.Offset)
		}
		if seen[key] || key == "__metadata__" {
			return nil, fmt.Errorf("tensor %q at %v is given twice, or its name is taken by the format", t.Name, r.Offset)
		}
		seen[key] = true
		if key != t.Name || r.Flat() || !slices.Equal(r.Shape, r.Global) {
			if s.meta.Parts == nil {
				s.meta.Parts = map[string]place{}
			}
			s.meta.Parts[key] = place{t.Name, r.Global, r.Offset}
		}
		end := begin + int64(len(t.Data))
		s.header.Entries = append(s.header.Entries, safetensors.Entry{Name: key, Type: t.Type, Shape: r.Shape, Begin: begin, End: end})
		s.data = append(s.data, t.Data)
		begin = end
	}
	s.meta.Chunks = make([]Hash, (begin+chunk-1)/chunk)
	return s, nil
}

// encode gives the header; its length does not depend on the checksums.
func (s *shard) encode() ([]byte, error) {
	meta, err := json.Marshal(s.meta)
	if err != nil {
		return nil, err
	}
	s.header.Metadata = map[string]string{metadataKey: string(meta), "format": "pt"}
	return s.header.Encode(headAlign)
}

// body is the file; the checksums are taken while it is written.
func (s *shard) body() (blob.Body, error) {
	head, err := s.encode()
	if err != nil {
		return blob.Body{}, err
	}
	return blob.Body{Head: int64(len(head)), Data: s.data, Header: func() ([]byte, error) {
		err := blob.Pieces(s.data, chunk, func(off int64, piece []byte) error {
			s.meta.Chunks[off/chunk] = sum(piece)
			return nil
		})
		if err != nil {
			return nil, err
		}
		return s.encode()
	}}, nil
}

// readHeader reads the front of a safetensors file of a known size: the header and
// its bytes, with the length in front.
func readHeader(ctx context.Context, p blob.Place, name string, size int64) (safetensors.Header, []byte, error) {
	none := safetensors.Header{}
	head := make([]byte, min(size, 64<<10))
	if err := p.Read(ctx, name, head, 0); err != nil {
		return none, nil, err
	}
	n, err := safetensors.Length(head)
	if err != nil {
		return none, nil, &fault{err}
	}
	total := int64(safetensors.Prefix + n)
	if total > size {
		return none, nil, &fault{fmt.Errorf("a header of %d bytes in a file of %d", total, size)}
	}
	if have := int64(len(head)); have < total {
		head = append(head, make([]byte, total-have)...)
		if err := p.Read(ctx, name, head[have:], have); err != nil {
			return none, nil, err
		}
	}
	head = head[:total]
	h, err := safetensors.Parse(head[safetensors.Prefix:], size-total)
	if err != nil {
		return none, nil, &fault{err}
	}
	return h, head, nil
}

// fault marks an error that is about a file's contents rather than about reading it.
type fault struct{ error }

func (f *fault) Unwrap() error { return f.error }

// shardInfo reads what weft wrote into a header.
func shardInfo(h safetensors.Header) (*shardMeta, error) {
	text, ok := h.Metadata[metadataKey]
	if !ok {
		return nil, &fault{fmt.Errorf("the header has no %q metadata; not a shard of a checkpoint", metadataKey)}
	}
	m := &shardMeta{}
	if err := json.Unmarshal([]byte(text), m); err != nil {
		return nil, &fault{fmt.Errorf("metadata %q: %w", metadataKey, err)}
	}
	if m.Format != formatName {
		return nil, &fault{fmt.Errorf("format %q: this program reads %q", m.Format, formatName)}
	}
	data := int64(0)
	if n := len(h.Entries); n > 0 {
		data = h.Entries[n-1].End
	}
	if want := (data + chunk - 1) / chunk; int64(len(m.Chunks)) != want {
		return nil, &fault{fmt.Errorf("%d checksums for %d bytes of data; want %d", len(m.Chunks), data, want)}
	}
	return m, nil
}

// parts adds a file's entries to the tensors of a manifest being made.
func addParts(tensors map[string]*Info, file int, name string, h safetensors.Header, places map[string]place) error {
	for _, e := range h.Entries {
		p, ok := places[e.Name]
		if !ok {
			p = place{e.Name, e.Shape, make([]int, len(e.Shape))}
		}
		t := tensors[p.Name]
		if t == nil {
			t = &Info{Name: p.Name, Type: e.Type, Shape: p.Global}
			tensors[p.Name] = t
		}
		if t.Type != e.Type || !slices.Equal(t.Shape, p.Global) {
			return &fault{fmt.Errorf("tensor %q is %s of shape %v in %s, and %s of shape %v in a file before",
				p.Name, e.Type, p.Global, name, t.Type, t.Shape)}
		}
		part := Part{File: file, Offset: p.Offset, Shape: e.Shape, Begin: e.Begin}
		if err := t.region(part).Check(); err != nil {
			return &fault{fmt.Errorf("tensor %q in %s: %w", p.Name, name, err)}
		}
		t.Parts = append(t.Parts, part)
	}
	return nil
}

// sorted gives the tensors by name.
func sorted(tensors map[string]*Info) []Info {
	list := make([]Info, 0, len(tensors))
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		list = append(list, *tensors[name])
	}
	return list
}

// regions of a tensor's parts.
func (t Info) regions() []box.Region {
	list := make([]box.Region, len(t.Parts))
	for i, p := range t.Parts {
		list[i] = t.region(p)
	}
	return list
}
