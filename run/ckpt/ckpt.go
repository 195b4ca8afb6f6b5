// Package ckpt stores training checkpoints: every rank writes its shards as one
// safetensors file, and a manifest written last makes them a checkpoint.
//
//	DIR or s3://BUCKET/PREFIX
//	  step-000000000200-5d2a91c4/         one attempt at one step: step, and a digest of run, epoch, world
//	    rank-00000.safetensors            what rank 0 holds; header: layout, states, a checksum for each MiB
//	    rank-00001.safetensors
//	    manifest.json                     files, checksums of their headers, where every tensor's parts lie
//
// A file appears whole or not at all (blob), and a folder without a manifest does not
// count, so a checkpoint is never torn, whenever its writers die. No rank waits for
// another: each writes its file, then checks whether all are there, and the one that
// finds them complete writes the manifest. Two that find it at once write the same
// bytes. A barrier would have to be ordered with training's own collectives on every
// rank and would hang with the first dead rank; listing files needs only the store.
//
// Checksums (64-bit XXH3) form a tree: the manifest's first line covers the rest of it,
// the manifest covers the headers, a header covers the data MiB by MiB. A rank that
// loads a slice reads and verifies only that slice. Checksums detect corruption, not
// forgery.
//
// Shards are boxes or ranges of tensors (box.Region), so any layout can be filled from
// any other: loading is resharding.
package ckpt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/weft-fabric/weft/run/ckpt/internal/box"
	"github.com/weft-fabric/weft/run/ckpt/internal/safetensors"
	"github.com/weft-fabric/weft/run/reduce"
)

// Type is an element type by its safetensors name, like F32 or BF16.
type Type = safetensors.Type

// Tensor is a shard: the part of a tensor of shape Global that a rank holds.
//
//	Offset nil, Global nil       the whole tensor, of shape Shape
//	as many of them as Global    a box: Shape elements from Offset on
//	one of each, Global longer   a range of the flattened tensor, as ZeRO cuts it
//
// Data is row-major and little-endian.
type Tensor struct {
	Name   string
	Type   Type
	Shape  []int
	Offset []int
	Global []int
	Data   []byte
}

// Region says which elements of the tensor the shard holds.
func (t Tensor) Region() box.Region {
	r := box.Region{Global: t.Global, Offset: t.Offset, Shape: t.Shape}
	if r.Global == nil {
		r.Global = append([]int{}, t.Shape...)
	}
	if r.Offset == nil {
		r.Offset = make([]int, len(t.Shape))
	}
	return r
}

// check reports what is wrong with a shard.
func (t Tensor) check() error {
	if t.Name == "" {
		return errors.New("a tensor has no name")
	}
	if err := t.Type.Check(); err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	r := t.Region()
	if err := r.Check(); err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if want := r.Len() * t.Type.Size(); len(t.Data) != want {
		return fmt.Errorf("tensor %q: %d bytes of data; shape %v of %s takes %d", t.Name, len(t.Data), t.Shape, t.Type, want)
	}
	return nil
}

var typeNames = map[reduce.Type]Type{
	reduce.Int8: safetensors.I8, reduce.Uint8: safetensors.U8, reduce.Int16: safetensors.I16, reduce.Uint16: safetensors.U16,
	reduce.Int32: safetensors.I32, reduce.Uint32: safetensors.U32, reduce.Int64: safetensors.I64, reduce.Uint64: safetensors.U64,
	reduce.Float16: safetensors.F16, reduce.BFloat16: safetensors.BF16, reduce.Float32: safetensors.F32, reduce.Float64: safetensors.F64,
	reduce.Float8E4M3: safetensors.F8E4M3, reduce.Float8E5M2: safetensors.F8E5M2,
}

// Of is the tensor whose elements data holds; Data shares its memory. Without a
// shape it has one dimension.
func Of[T reduce.Element](name string, data []T, shape ...int) Tensor {
	if len(shape) == 0 {
		shape = []int{len(data)}
	}
	t := Tensor{Name: name, Type: typeNames[reduce.TypeOf[T]()], Shape: shape}
	if len(data) > 0 {
		t.Data = unsafe.Slice((*byte)(unsafe.Pointer(&data[0])), len(data)*int(unsafe.Sizeof(data[0])))
	}
	return t
}

// Share is the part of a shard that replica i of n writes, so that ranks which hold
// the same shard write it once between them: a range of a whole tensor, or rows of
// a box. Data shares its memory; together the shares are the shard.
func (t Tensor) Share(i, n int) Tensor {
	r := t.Region()
	size := t.Type.Size()
	whole, _ := box.Elements(r.Global)
	if r.Flat() || r.Len() == whole {
		from, to := split(r.Len(), i, n)
		start := 0
		if r.Flat() {
			start = r.Offset[0]
		}
		t.Global, t.Offset, t.Shape = r.Global, []int{start + from}, []int{to - from}
		t.Data = t.Data[from*size : to*size]
		return t
	}
	from, to := split(r.Shape[0], i, n)
	row := size
	for _, d := range r.Shape[1:] {
		row *= d
	}
	t.Global = r.Global
	t.Offset = append([]int{r.Offset[0] + from}, r.Offset[1:]...)
	t.Shape = append([]int{to - from}, r.Shape[1:]...)
	t.Data = t.Data[from*row : to*row]
	return t
}

// split is part i of n nearly equal parts of a length.
func split(length, i, n int) (from, to int) {
	q, r := length/n, length%n
	from = i*q + min(i, r)
	to = from + q
	if i < r {
		to++
	}
	return from, to
}

// Meta is what a rank says about a checkpoint besides its tensors. All ranks give
// the same but for Rank, Random and Extra.
type Meta struct {
	Step  int64
	Epoch int64 // of the membership, which moves on when ranks fail or join
	Rank  int
	World int
	// Run tells launches apart: ranks of one launch give the same, another launch a
	// different one. Attempts at one step by different runs, epochs or worlds never
	// mix; without it, what a killed launch left could be completed by the next.
	Run    string
	Layout map[string]int    // how the model was split, like {"dp": 2, "tp": 4}
	Data   int64             // samples consumed so far by all ranks together
	Random map[string][]byte // states of this rank's generators, by name
	Extra  map[string]string // free; the manifest keeps those of the lowest rank that has any
}

func (m Meta) check() error {
	switch {
	case m.Step < 0 || m.Step > maxStep:
		return fmt.Errorf("step %d: want 0 to %d", m.Step, int64(maxStep))
	case m.World < 1 || m.World > maxWorld:
		return fmt.Errorf("world of %d ranks: want 1 to %d", m.World, maxWorld)
	case m.Rank < 0 || m.Rank >= m.World:
		return fmt.Errorf("rank %d of %d: want 0 to %d", m.Rank, m.World, m.World-1)
	}
	return nil
}

const (
	maxStep  = 999_999_999_999 // what the folder's name holds
	maxWorld = 1_000_000
)

// Options of a store; the zero value keeps everything.
type Options struct {
	// Keep is how many of the latest checkpoints stay when a new one is complete; 0
	// keeps all. Keep 2 or more, so that one that rots on the disk is no loss.
	Keep int
	// Every makes checkpoints stay for good whose step is a multiple of it; 0: none.
	Every int64
	// Buffers is how many snapshots Async may hold, each as large as the rank's
	// shards: with 1, the default, Async waits until the write before is finished,
	// with 2 until the one before that is.
	Buffers int
	// Min gives every rank the smallest of the values the ranks call it with; Resume
	// needs it so that all ranks load the same step. All ranks call Resume together
	// then. Without it each rank decides alone.
	Min func(ctx context.Context, v int64) (int64, error)
	// Only, where set, is the folder of the one checkpoint that is seen; see Within.
	Only string
}

// Store is a place with checkpoints. Methods may be called from several goroutines.
type Store struct {
	place blob.Place
	o     Options

	mu     sync.Mutex
	free   chan *[]byte  // snapshot buffers not in use
	made   int           // snapshot buffers there are
	last   chan struct{} // closed when the latest background write has ended
	failed []error       // of background writes, not yet handed to a caller

	pruning sync.Mutex       // not mu, which callers of Async take
	seen    map[string]Entry // complete checkpoints by folder, as they were last judged
}

// Open gives the store in a directory, which need not exist, or in an object store
// (s3://BUCKET/PREFIX; endpoint and credentials from AWS_ENDPOINT_URL,
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION). All ranks
// must see the same place: with several hosts, a shared file system or a bucket.
func Open(ctx context.Context, where string, o Options) (*Store, error) {
	place, err := blob.Open(where)
	if err != nil {
		return nil, err
	}
	return New(place, o)
}

// New gives the store in a place of any kind.
func New(place blob.Place, o Options) (*Store, error) {
	if o.Keep < 0 || o.Every < 0 || o.Buffers < 0 {
		return nil, fmt.Errorf("keep %d, every %d, buffers %d: none may be negative", o.Keep, o.Every, o.Buffers)
	}
	if o.Buffers == 0 {
		o.Buffers = 1
	}
	s := &Store{place: place, o: o, free: make(chan *[]byte, o.Buffers), last: make(chan struct{})}
	close(s.last)
	return s, nil
}

// ErrNone is what loading the latest checkpoint gives where there is none.
var ErrNone = errors.New("no checkpoint")

// Problem is something wrong with a file of a checkpoint.
type Problem struct {
	File string `json:"file"`
	What string `json:"what"`
}

func (p Problem) String() string { return p.File + ": " + p.What }

// Damage is the error of a checkpoint that is torn or corrupt. It is never loaded.
type Damage struct {
	Step     int64
	Problems []Problem
}

func (d *Damage) Error() string {
	lines := make([]string, len(d.Problems))
	for i, p := range d.Problems {
		lines[i] = p.String()
	}
	return fmt.Sprintf("checkpoint of step %d is damaged: %s", d.Step, strings.Join(lines, "\n"))
}

// Mismatch is the error of a checkpoint of another model.
type Mismatch struct {
	Step  int64
	Lines []string // one for each tensor that differs
}

func (m *Mismatch) Error() string {
	const most = 20
	lines := m.Lines
	if len(lines) > most {
		lines = append(lines[:most:most], fmt.Sprintf("and %d more", len(m.Lines)-most))
	}
	return fmt.Sprintf("checkpoint of step %d is of another model:\n%s", m.Step, strings.Join(lines, "\n"))
}
