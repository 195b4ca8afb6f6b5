package xfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// maxObject is how large an object can be that is written: it is gathered in memory before it is sent.
const maxObject = 1 << 30

// ObjectOptions say how an object is used as a region.
type ObjectOptions struct {
	Create bool // a write makes the object, and fails with ErrExists if it is there
	Depth  int  // ranges that are asked for at once; 0 for 8
}

// NewObject is an object of a store as storage: it is read by ranges, and written as a whole or not at all. Size
// is what it has, or will have.
func NewObject(place blob.Place, name string, size int64, o ObjectOptions) (Storage, error) {
	if o.Depth == 0 {
		o.Depth = 8
	}
	if size < 0 || name == "" {
		return nil, fmt.Errorf("object %q of %d bytes: want a name and a size", name, size)
	}
	if _, ok := place.(creator); o.Create && !ok {
		return nil, fmt.Errorf("object %s: %w: only an object store can refuse what is there already", place.Path(name), ErrKind)
	}
	return &object{place, name, size, o}, nil
}

// creator is a place that can refuse to overwrite.
type creator interface {
	Create(ctx context.Context, name string, b blob.Body) error
}

type object struct {
	place blob.Place
	name  string
	size  int64
	o     ObjectOptions
}

func (x *object) Kind() Kind                 { return Object }
func (x *object) Size() int64                { return x.size }
func (x *object) Depth() int                 { return x.o.Depth }
func (x *object) Sync(context.Context) error { return nil }
func (x *object) Close() error               { return nil }

// tries is how often a range is asked for whose answer ended too soon. What the store refuses for a while is
// asked for again by its client.
const tries = 4

func (x *object) ReadAt(ctx context.Context, p []byte, off int64) error {
	return again(ctx, func() error { return x.place.Read(ctx, x.name, p, off) })
}

func again(ctx context.Context, read func() error) error {
	for n := 1; ; n++ {
		err := read()
		if err == nil || n == tries || !errors.Is(err, io.ErrUnexpectedEOF) || ctx.Err() != nil {
			return err
		}
	}
}

func (x *object) WriteAt(context.Context, []byte, int64) error {
	return fmt.Errorf("object %s: %w: it is written as a whole", x.place.Path(x.name), ErrKind)
}

// Create gathers an object.
func (x *object) Create(context.Context) (Sink, error) {
	if x.size > maxObject {
		return nil, fmt.Errorf("object %s: %w: %v, at most %v is written as one object",
			x.place.Path(x.name), ErrLimit, unit.Bytes(x.size), unit.Bytes(maxObject))
	}
	return &objectSink{of: x}, nil
}

// Open reads one version of the object: the one that the first answer is of.
func (x *object) Open(context.Context) (Source, error) {
	if v, ok := x.place.(blob.Versioned); ok {
		return &objectSource{of: x, place: v}, nil
	}
	return x, nil
}

type objectSource struct {
	of    *object
	place blob.Versioned

	mu      sync.Mutex
	version string // empty until an answer came
}

func (s *objectSource) Close() error { return nil }

// ReadAt reads part of an object, always of the version that the first read found: an object that is replaced meanwhile
// is blob.ErrChanged rather than a mixture.
func (s *objectSource) ReadAt(ctx context.Context, p []byte, off int64) error {
	return again(ctx, func() error {
		s.mu.Lock()
		want := s.version
		s.mu.Unlock()
		got, err := s.place.ReadVersion(ctx, s.of.name, p, off, want)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.version == "" {
			s.version = got
		}
		if got != s.version { // two of the first answers are of different versions
			return fmt.Errorf("read %s: %w", s.of.place.Path(s.of.name), blob.ErrChanged)
		}
		return nil
	})
}

type objectSink struct {
	of   *object
	once sync.Once
	buf  []byte
}

func (s *objectSink) take(b []byte) { s.buf = b }

func (s *objectSink) WriteAt(_ context.Context, p []byte, off int64) error {
	s.once.Do(func() { s.buf = make([]byte, s.of.size) })
	copy(s.buf[off:], p)
	return nil
}

func (s *objectSink) Commit(ctx context.Context) error {
	body := blob.Bytes(s.buf)
	var err error
	if c, ok := s.of.place.(creator); ok && s.of.o.Create {
		err = c.Create(ctx, s.of.name, body)
	} else {
		err = s.of.place.Put(ctx, s.of.name, body)
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %w", ErrExists, err)
	}
	return err
}

func (s *objectSink) Abort() {}
