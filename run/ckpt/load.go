package ckpt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"sync"

	"github.com/weft-fabric/weft/run/ckpt/internal/box"
	"github.com/weft-fabric/weft/run/ckpt/internal/safetensors"
	"golang.org/x/sync/errgroup"
)

// readSize is the most that is read at a time, in whole chunks.
const readSize = 8 << 20

// Load fills want, shards of any layout, from the checkpoint of a step. It reads
// the chunks that hold wanted bytes and no others, and checks each before it copies
// from it. A *Damage names the file and what is wrong; a *Mismatch lists tensors
// that are not in the checkpoint or of another type or shape. After an error the
// contents of want are undefined.
func (s *Store) Load(ctx context.Context, step int64, want []Tensor) (*Manifest, error) {
	m, err := s.At(ctx, step)
	if err != nil {
		return nil, err
	}
	return m, s.LoadFrom(ctx, m, want)
}

// move is a stretch of bytes of a file's data and where it goes.
type move struct {
	from int64 // in the file's data
	to   []byte
}

// LoadFrom is Load from a checkpoint of this store whose manifest is at hand.
func (s *Store) LoadFrom(ctx context.Context, m *Manifest, want []Tensor) error {
	moves, err := m.plan(want)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers())
	for file, list := range moves {
		if len(list) == 0 {
			continue
		}
		r := &reader{s: s, m: m, file: m.Files[file]}
		slices.SortFunc(list, func(a, b move) int { return cmp.Compare(a.from, b.from) })
		for len(list) > 0 {
			first, last, n := batch(list)
			part := list[:n]
			list = list[n:]
			g.Go(func() error { return r.read(ctx, first, last, part) })
		}
	}
	return g.Wait()
}

// readers is how many reads are under way: more than processors, since they wait.
func readers() int { return min(2*runtime.GOMAXPROCS(0), 16) }

// holds finds a tensor, or says in which way it is not the one that is wanted.
func (m *Manifest) holds(w Tensor, shape []int) (t Info, why string) {
	t, ok := m.Tensor(w.Name)
	switch {
	case !ok:
		return t, fmt.Sprintf("tensor %q is not in it", w.Name)
	case t.Type != w.Type:
		return t, fmt.Sprintf("tensor %q is %s in it, %s here", w.Name, t.Type, w.Type)
	case !slices.Equal(t.Shape, shape):
		return t, fmt.Sprintf("tensor %q has shape %v in it, %v here", w.Name, t.Shape, shape)
	}
	return t, ""
}

// plan says what is copied from where, by file.
func (m *Manifest) plan(want []Tensor) ([][]move, error) {
	moves := make([][]move, len(m.Files))
	bad := &Mismatch{Step: m.Step}
	for _, w := range want {
		if err := w.check(); err != nil {
			return nil, fmt.Errorf("load step %d: %w", m.Step, err)
		}
		r := w.Region()
		t, why := m.holds(w, r.Global)
		if why != "" {
			bad.Lines = append(bad.Lines, why)
			continue
		}
		segments, gaps := box.Plan(r, t.regions())
		if len(gaps) > 0 {
			return nil, fmt.Errorf("load step %d: tensor %q: no file holds elements [%d, %d) of the shard at %v of shape %v",
				m.Step, w.Name, gaps[0].From, gaps[0].From+gaps[0].Len, r.Offset, r.Shape)
		}
		size := t.Type.Size()
		for _, g := range segments {
			p := t.Parts[g.Part]
			from, to := p.Begin+int64(g.From*size), w.Data[g.To*size:(g.To+g.Len)*size]
			for len(to) > 0 { // in stretches that one read holds
				n := min(int64(len(to)), readSize-from%readSize)
				moves[p.File] = append(moves[p.File], move{from, to[:n]})
				from, to = from+n, to[n:]
			}
		}
	}
	if len(bad.Lines) > 0 {
		if len(bad.Lines) == len(want) {
			bad.Lines = append(bad.Lines, "it holds: "+m.summary(10))
		}
		return nil, bad
	}
	return moves, nil
}

// summary names the first tensors.
func (m *Manifest) summary(most int) string {
	text := ""
	for i, t := range m.Tensors {
		if i == most {
			return text + fmt.Sprintf(", and %d more", len(m.Tensors)-most)
		}
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s %s%v", t.Name, t.Type, t.Shape)
	}
	return text
}

// batch cuts the first moves of a sorted list whose chunks [first, last] are read
// at a time: they follow one another without a chunk between them, and have up to
// readSize bytes.
func batch(list []move) (first, last int64, n int) {
	first = list[0].from / chunk
	for n < len(list) {
		v := list[n]
		to := (v.from + int64(len(v.to)) - 1) / chunk
		if n > 0 && (v.from/chunk > last+1 || to-first >= readSize/chunk) {
			break
		}
		last = max(to, last)
		n++
	}
	return first, last, n
}

// reader reads one file of a checkpoint; its header is read once, by whoever comes
// first.
type reader struct {
	s    *Store
	m    *Manifest
	file File

	once   sync.Once
	header safetensors.Header
	chunks []Hash
	err    error
}

func (r *reader) name() string {
	if r.m.folder == "" {
		return r.file.Name
	}
	return r.m.folder + "/" + r.file.Name
}

// damage turns an error about the contents of a file into a *Damage; others, like
// a network that is down, say nothing about the checkpoint and stay what they are.
func (r *reader) damage(err error) error {
	f := new(fault)
	if !errors.As(err, &f) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return &Damage{r.m.Step, []Problem{{r.s.place.Path(r.name()), err.Error()}}}
}

// open reads the header, checks it against the manifest and takes the checksums
// of the data from it.
func (r *reader) open(ctx context.Context) error {
	r.once.Do(func() {
		h, head, err := readHeader(ctx, r.s.place, r.name(), r.file.Size)
		if err != nil {
			r.err = err
			return
		}
		r.header = h
		if r.m.foreign {
			return
		}
		if int64(len(head)) != r.file.Head || sum(head) != r.file.Hash {
			r.err = &fault{fmt.Errorf("checksum %s of the header (%d bytes); the manifest says %s (%d bytes)",
				sum(head), len(head), r.file.Hash, r.file.Head)}
			return
		}
		meta, err := shardInfo(h)
		if err != nil {
			r.err = err
			return
		}
		r.chunks = meta.Chunks
	})
	return r.err
}

// read reads the chunks [first, last], checks them and carries out the moves.
func (r *reader) read(ctx context.Context, first, last int64, list []move) error {
	if err := r.open(ctx); err != nil {
		return r.damage(err)
	}
	from := first * chunk
	n := min((last+1)*chunk, r.file.Size-r.file.Head) - from
	buf := buffer(int(n))
	defer buffers.Put(buf)
	p := (*buf)[:n]
	if err := r.s.place.Read(ctx, r.name(), p, r.file.Head+from); err != nil {
		return r.damage(err)
	}
	if i, got := r.wrong(p, first); i >= 0 {
		return r.damage(r.chunkFault(i, got))
	}
	for _, v := range list {
		copy(v.to, p[v.from-from:])
	}
	return nil
}

// wrong gives the first chunk of p, which starts with chunk number low, whose
// checksum is not the header's; -1 if all are right.
func (r *reader) wrong(p []byte, low int64) (int64, Hash) {
	for i := low; r.chunks != nil && len(p) > 0; i++ {
		n := min(chunk, len(p))
		if got := sum(p[:n]); got != r.chunks[i] {
			return i, got
		}
		p = p[n:]
	}
	return -1, 0
}

// chunkFault says which bytes of the file are wrong and what they belong to.
func (r *reader) chunkFault(i int64, got Hash) error {
	from := i * chunk
	to := min(from+chunk, r.file.Size-r.file.Head)
	names := ""
	for _, e := range r.header.Entries {
		if e.Begin < to && e.End > from {
			if names != "" {
				names += ", "
			}
			if len(names) > 200 {
				names += "and others"
				break
			}
			names += e.Name
		}
	}
	return &fault{fmt.Errorf("bytes [%d, %d) have checksum %s; the header says %s; there lie: %s",
		r.file.Head+from, r.file.Head+to, got, r.chunks[i], names)}
}

// buffers are what chunks are read into.
var buffers sync.Pool

func buffer(n int) *[]byte {
	if b, ok := buffers.Get().(*[]byte); ok && cap(*b) >= n {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n)
	return &b
}
