package ckpt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/ckpt/internal/box"
	"github.com/zeebo/xxh3"
)

const (
	formatName   = "weft-checkpoint-1"
	manifestName = "manifest.json"
)

// Manifest is a complete checkpoint without its data.
type Manifest struct {
	Format    string            `json:"format"`
	Step      int64             `json:"step"`
	Epoch     int64             `json:"epoch"`
	Run       string            `json:"run,omitempty"`
	World     int               `json:"world"`
	Emergency bool              `json:"emergency,omitempty"`
	Layout    map[string]int    `json:"layout,omitempty"`
	Data      int64             `json:"data_position"`
	Extra     map[string]string `json:"metadata,omitempty"`
	Created   time.Time         `json:"created"`
	Files     []File            `json:"files"`   // by rank
	Tensors   []Info            `json:"tensors"` // by name

	folder  string // in the store; not written
	foreign bool   // files of other programs, without checksums
}

// File is a shard file of a checkpoint.
type File struct {
	Name   string            `json:"name"`
	Rank   int               `json:"rank"`
	Size   int64             `json:"size"`
	Head   int64             `json:"head"` // bytes in front of the data
	Hash   Hash              `json:"head_xxh3"`
	Random map[string][]byte `json:"random,omitempty"`
}

// Info is a tensor of a checkpoint.
type Info struct {
	Name  string `json:"name"`
	Type  Type   `json:"dtype"`
	Shape []int  `json:"shape"`
	Parts []Part `json:"parts"` // by file, then by place in it
}

// Part is a shard of a tensor in a file; its bytes start at Begin of the file's data.
type Part struct {
	File   int   `json:"file"` // index in Files
	Offset []int `json:"offset"`
	Shape  []int `json:"shape"`
	Begin  int64 `json:"begin"`
}

// region of a part of the tensor.
func (t Info) region(p Part) box.Region {
	return box.Region{Global: t.Shape, Offset: p.Offset, Shape: p.Shape}
}

// Bytes is the size of the model and what else was saved, every element once.
func (m *Manifest) Bytes() int64 {
	n := int64(0)
	for _, t := range m.Tensors {
		e, _ := box.Elements(t.Shape)
		n += int64(e * t.Type.Size())
	}
	return n
}

// Stored is the number of bytes of all files.
func (m *Manifest) Stored() int64 {
	n := int64(0)
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Random gives the states of a rank's generators.
func (m *Manifest) Random(rank int) map[string][]byte {
	for _, f := range m.Files {
		if f.Rank == rank {
			return f.Random
		}
	}
	return nil
}

// Tensor finds a tensor by name.
func (m *Manifest) Tensor(name string) (Info, bool) {
	i, ok := slices.BinarySearchFunc(m.Tensors, name, func(t Info, name string) int { return strings.Compare(t.Name, name) })
	if !ok {
		return Info{}, false
	}
	return m.Tensors[i], true
}

// Hash is a 64-bit XXH3 checksum; 16 hexadecimal digits in JSON.
type Hash uint64

func sum(p []byte) Hash { return Hash(xxh3.Hash(p)) }

func (h Hash) String() string { return fmt.Sprintf("%016x", uint64(h)) }

// MarshalText writes 16 hexadecimal digits.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText writes and nothing else.
func (h *Hash) UnmarshalText(p []byte) error {
	v, err := strconv.ParseUint(string(p), 16, 64)
	if err != nil || Hash(v).String() != string(p) {
		return fmt.Errorf("checksum %q: want 16 hexadecimal digits", p)
	}
	*h = Hash(v)
	return nil
}

// firstLine of a manifest file holds the checksum of all that follows it, and is
// part of the JSON object like everything else.
func firstLine(rest []byte) string { return `{"xxh3":"` + sum(rest).String() + "\",\n" }

// encode gives the bytes of the manifest file; equal manifests give equal bytes.
func (m *Manifest) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil, err
	}
	rest := b.Bytes()[1:] // without the brace, which the first line has
	return append([]byte(firstLine(rest)), rest...), nil
}

// parseManifest accepts what encode wrote and nothing else: every bit of the file
// is under the checksum.
func parseManifest(p []byte) (*Manifest, error) {
	i := bytes.IndexByte(p, '\n')
	if i < 0 {
		return nil, fmt.Errorf("%d bytes without a first line; no manifest", len(p))
	}
	line, rest := string(p[:i+1]), p[i+1:]
	if want := firstLine(rest); line != want {
		if len(line) == len(want) && strings.HasPrefix(line, `{"xxh3":"`) {
			return nil, fmt.Errorf("checksum %s of the manifest, which has %s", sum(rest), line[9:len(line)-3])
		}
		return nil, errors.New("the first line holds no checksum; no manifest")
	}
	d := json.NewDecoder(io.MultiReader(strings.NewReader("{"), bytes.NewReader(rest)))
	d.DisallowUnknownFields()
	m := &Manifest{}
	if err := d.Decode(m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, m.check()
}

// check reports whether the manifest's parts fit together: files by rank, tensors
// by name, and parts inside their tensors and their files.
func (m *Manifest) check() error {
	if m.Format != formatName {
		return fmt.Errorf("format %q: this program reads %q", m.Format, formatName)
	}
	if err := (Meta{Step: m.Step, World: m.World}).check(); err != nil {
		return err
	}
	if len(m.Files) != m.World {
		return fmt.Errorf("%d files of %d ranks", len(m.Files), m.World)
	}
	for i, f := range m.Files {
		if f.Rank != i || f.Name != shardName(i) || f.Head < 0 || f.Head > f.Size {
			return fmt.Errorf("file %d is %q of rank %d with %d of %d bytes of header", i, f.Name, f.Rank, f.Head, f.Size)
		}
	}
	for i, t := range m.Tensors {
		if i > 0 && m.Tensors[i-1].Name >= t.Name {
			return fmt.Errorf("tensor %q is there twice or out of order", t.Name)
		}
		if err := t.Type.Check(); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		for _, p := range t.Parts {
			r := t.region(p)
			if err := r.Check(); err != nil {
				return fmt.Errorf("tensor %q: %w", t.Name, err)
			}
			if p.File < 0 || p.File >= len(m.Files) {
				return fmt.Errorf("tensor %q: a part in file %d of %d", t.Name, p.File, len(m.Files))
			}
			f := m.Files[p.File]
			if n := int64(r.Len() * t.Type.Size()); p.Begin < 0 || n > f.Size-f.Head-p.Begin {
				return fmt.Errorf("tensor %q: a part of %d bytes at %d of %s, which has %d bytes of data", t.Name, n, p.Begin, f.Name, f.Size-f.Head)
			}
		}
	}
	return nil
}

// covered reports the first tensor that the parts do not hold in full.
func (m *Manifest) covered() error {
	for _, t := range m.Tensors {
		if _, gaps := box.Plan(box.Whole(t.Shape), t.regions()); len(gaps) > 0 {
			return fmt.Errorf("tensor %q of shape %v: no rank holds elements [%d, %d) of it (counted through the flattened tensor)",
				t.Name, t.Shape, gaps[0].From, gaps[0].From+gaps[0].Len)
		}
	}
	return nil
}
