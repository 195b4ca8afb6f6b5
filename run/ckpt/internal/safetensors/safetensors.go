// Package safetensors reads and writes the header of a safetensors file:
//
//	8 bytes      length of the header, little-endian
//	header       JSON: {"__metadata__": {...}, NAME: {"dtype", "shape", "data_offsets"}, ...}, then spaces
//	data         the tensors' bytes without holes, row-major, little-endian
//
// Libraries for the format take the whole file as one slice. A checkpoint is read
// by ranges, from disks and object stores, so this package deals with the header
// alone and says where in the data each tensor lies.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Type is an element type by its name in the format.
type Type string

// The types whose elements take whole bytes.
const (
	Bool   Type = "BOOL"
	U8     Type = "U8"
	I8     Type = "I8"
	U16    Type = "U16"
	I16    Type = "I16"
	U32    Type = "U32"
	I32    Type = "I32"
	U64    Type = "U64"
	I64    Type = "I64"
	F16    Type = "F16"
	BF16   Type = "BF16"
	F32    Type = "F32"
	F64    Type = "F64"
	F8E4M3 Type = "F8_E4M3"
	F8E5M2 Type = "F8_E5M2"
	F8E8M0 Type = "F8_E8M0"
	C64    Type = "C64"
)

var sizes = []struct {
	t    Type
	size int
}{
	{Bool, 1}, {U8, 1}, {I8, 1}, {U16, 2}, {I16, 2}, {U32, 4}, {I32, 4}, {U64, 8}, {I64, 8},
	{F16, 2}, {BF16, 2}, {F32, 4}, {F64, 8}, {F8E4M3, 1}, {F8E5M2, 1}, {F8E8M0, 1}, {C64, 8},
}

// Size is the number of bytes an element takes; zero for what is no type.
func (t Type) Size() int {
	for _, s := range sizes {
		if s.t == t {
			return s.size
		}
	}
	return 0
}

// Check reports whether t is one of the types above, and names them if not.
func (t Type) Check() error {
	if t.Size() > 0 {
		return nil
	}
	var names []string
	for _, s := range sizes {
		names = append(names, string(s.t))
	}
	return fmt.Errorf("unknown element type %q; known: %s", string(t), strings.Join(names, ", "))
}

// Entry is a tensor of a file; its bytes are [Begin, End) of the data.
type Entry struct {
	Name       string
	Type       Type
	Shape      []int
	Begin, End int64
}

// Header is all of a file but the data. Entries are in the order of their data.
type Header struct {
	Entries  []Entry
	Metadata map[string]string
}

const (
	metadataKey = "__metadata__"
	// MaxHeader is the format's limit for a header.
	MaxHeader = 100_000_000
	// Prefix is the number of bytes in front of the header.
	Prefix = 8
)

type jsonEntry struct {
	Type    Type    `json:"dtype"`
	Shape   []int   `json:"shape"`
	Offsets []int64 `json:"data_offsets"`
}

// put appends a member to an object that has begun at Prefix.
func put(b *bytes.Buffer, key string, value any) error {
	k, err := json.Marshal(key)
	if err != nil {
		return err
	}
	v, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if b.Len() > Prefix+1 {
		b.WriteByte(',')
	}
	b.Write(k)
	b.WriteByte(':')
	b.Write(v)
	return nil
}

// Encode gives the length, the header and spaces up to a multiple of align bytes.
func (h Header) Encode(align int) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, Prefix))
	b.WriteByte('{')
	if len(h.Metadata) > 0 {
		if err := put(&b, metadataKey, h.Metadata); err != nil {
			return nil, err
		}
	}
	for _, e := range h.Entries {
		shape := e.Shape
		if shape == nil {
			shape = []int{}
		}
		if err := put(&b, e.Name, jsonEntry{e.Type, shape, []int64{e.Begin, e.End}}); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	for b.Len()%align != 0 {
		b.WriteByte(' ')
	}
	if n := b.Len() - Prefix; n > MaxHeader {
		return nil, fmt.Errorf("the header of %d tensors has %d bytes; the format allows %d", len(h.Entries), n, MaxHeader)
	}
	out := b.Bytes()
	binary.LittleEndian.PutUint64(out, uint64(len(out)-Prefix))
	return out, nil
}

// Length reads the length of the header from a file's first Prefix bytes.
func Length(prefix []byte) (int, error) {
	if len(prefix) < Prefix {
		return 0, fmt.Errorf("%d bytes are not a safetensors file, which starts with %d bytes of length", len(prefix), Prefix)
	}
	n := binary.LittleEndian.Uint64(prefix)
	if n < 2 || n > MaxHeader {
		return 0, fmt.Errorf("header length %d: want 2 to %d; no safetensors file", n, MaxHeader)
	}
	return int(n), nil
}

// Parse reads a header, without its length in front, of a file with the given
// number of bytes of data. It accepts what the format's own implementation does:
// every name once, tensors without holes or overlap, and data to the last byte.
func Parse(header []byte, data int64) (Header, error) {
	var h Header
	if len(header) == 0 || header[0] != '{' {
		return h, errors.New("the header does not start with {")
	}
	d := json.NewDecoder(bytes.NewReader(header))
	if _, err := d.Token(); err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return h, fmt.Errorf("header: %w", err)
		}
		name, ok := token.(string)
		if !ok {
			return h, fmt.Errorf("header: a name was expected at byte %d", d.InputOffset())
		}
		if seen[name] {
			return h, fmt.Errorf("tensor %q is there twice", name)
		}
		seen[name] = true
		if name == metadataKey {
			if err := d.Decode(&h.Metadata); err != nil {
				return h, fmt.Errorf("header: %s: %w", metadataKey, err)
			}
			continue
		}
		var e jsonEntry
		if err := d.Decode(&e); err != nil {
			return h, fmt.Errorf("tensor %q: %w", name, err)
		}
		if err := e.check(); err != nil {
			return h, fmt.Errorf("tensor %q: %w", name, err)
		}
		h.Entries = append(h.Entries, Entry{name, e.Type, e.Shape, e.Offsets[0], e.Offsets[1]})
	}
	if _, err := d.Token(); err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return h, errors.New("header: something follows the closing brace")
	}
	slices.SortStableFunc(h.Entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
	})
	next := int64(0)
	for _, e := range h.Entries {
		if e.Begin != next {
			return h, fmt.Errorf("tensor %q starts at byte %d of the data; the one before ends at %d", e.Name, e.Begin, next)
		}
		next = e.End
	}
	if next != data {
		return h, fmt.Errorf("tensors end at byte %d of the data, which has %d", next, data)
	}
	return h, nil
}

// product is the bytes of a shape. A length of 0 makes it 0 whatever the others are.
func product(size int64, shape []int) (bytes int64, ok bool) {
	zero := slices.Contains(shape, 0)
	for _, n := range shape {
		if n < 0 || !zero && int64(n) > math.MaxInt64/size {
			return 0, false
		}
		if !zero {
			size *= int64(n)
		}
	}
	if zero {
		size = 0
	}
	return size, true
}

// check refuses entries whose bytes do not match their type and shape exactly. The product is checked for overflow
// first: a hostile header must not pass as a small tensor.
func (e *jsonEntry) check() error {
	if err := e.Type.Check(); err != nil {
		return err
	}
	if len(e.Offsets) != 2 {
		return fmt.Errorf("data_offsets %v: want two numbers", e.Offsets)
	}
	if e.Shape == nil {
		return errors.New("no shape")
	}
	want, ok := product(int64(e.Type.Size()), e.Shape)
	if !ok {
		return fmt.Errorf("shape %v: want lengths from 0 on whose product has less than 2^63 bytes", e.Shape)
	}
	if begin, end := e.Offsets[0], e.Offsets[1]; begin < 0 || end < begin || end-begin != want {
		return fmt.Errorf("data_offsets %v: want %d bytes for shape %v of %s", e.Offsets, want, e.Shape, e.Type)
	}
	return nil
}
