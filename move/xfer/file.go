package xfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// FileOptions say how a file is used as a region.
type FileOptions struct {
	Size     int64  // of the region; 0 for the file's
	Create   bool   // make the file, or make it longer, and take its disk space at once
	ReadOnly bool   // it is not written
	Whole    bool   // every write is a new file that takes the place of the old one when it is complete and on the disk
	Buffered bool   // through the page cache; else past it, where the file system can and addresses are multiples of 4096
	NoSync   bool   // a write is done when the system has it; a loss of power may lose it
	IO       string // "ring" (io_uring) or "calls"; empty for the faster one, as measured on this file system
	Depth    int    // calls at once; 0 for 8
}

// align is what memory, offset and length must be multiples of to go past the page cache.
const align = 4096

// file is a file as storage.
type file struct {
	path   string
	size   int64
	o      FileOptions
	f      *os.File // through the page cache
	direct *os.File // past it; nil where that cannot be
	ring   *ring    // nil for plain calls
	way    string   // how it is read and written, in words
	stays  durable
}

// durable makes what was written to a file stay: one call for all who wait for it.
type durable struct {
	sync    func() error
	written atomic.Int64 // writes so far

	mu   sync.Mutex
	kept int64 // of the writes; they stay
	lost error // the system lost some. It says so once: what it says later is not believed
}

// keep returns when all writes that ended before it was called stay.
func (d *durable) keep() error {
	want := d.written.Load()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost != nil {
		return fmt.Errorf("bytes were lost before, so the file must be opened anew: %w", d.lost)
	}
	if d.kept >= want {
		return nil
	}
	now := d.written.Load()
	if err := d.sync(); err != nil {
		d.lost = err
		return err
	}
	d.kept = now
	return nil
}

// OpenFile makes a file storage.
func OpenFile(path string, o FileOptions) (Storage, error) {
	if o.Depth == 0 {
		o.Depth = 8
	}
	if o.IO != "" && o.IO != "ring" && o.IO != "calls" {
		return nil, fmt.Errorf("file %s: way %q; want ring or calls", path, o.IO)
	}
	if o.Whole {
		return newWholeFile(path, o)
	}
	flag := os.O_RDWR
	switch {
	case o.ReadOnly:
		flag = os.O_RDONLY
	case o.Create:
		flag |= os.O_CREATE
	}
	_, before := os.Lstat(path)
	f, err := os.OpenFile(path, flag, 0o644)
	if err != nil {
		return nil, fileError(err)
	}
	x := &file{path: path, o: o, f: f, size: o.Size, stays: durable{sync: f.Sync}}
	if err := x.shape(); err != nil {
		x.Close()
		if errors.Is(before, fs.ErrNotExist) {
			os.Remove(path) // nobody has a use for an empty one
		}
		return nil, err
	}
	return x, nil
}

// shape settles the file's size and how it is read and written. A file may grow only if Create is set. What is opened a
// second time, for direct I/O, must be the same file.
func (x *file) shape() error {
	st, err := x.f.Stat()
	if err != nil {
		return err
	}
	have := st.Size()
	if st.Mode().IsRegular() && x.o.Create && x.size > have {
		if err := blob.Reserve(x.f, x.size); err != nil {
			return fileError(err)
		}
		if err := x.f.Truncate(x.size); err != nil {
			return fileError(err)
		}
		have = x.size
	}
	if !st.Mode().IsRegular() {
		if have, err = x.f.Seek(0, io.SeekEnd); err != nil {
			return fmt.Errorf("file %s: its size cannot be found: %w", x.path, err)
		}
	}
	switch {
	case x.size == 0:
		x.size = have
	case have < x.size:
		return fmt.Errorf("file %s: %w: it has %d bytes, the region %d; let it be created to make it longer", x.path, ErrShort, have, x.size)
	}
	x.way = "calls through the page cache"
	if x.o.Buffered {
		return nil
	}
	flag := os.O_RDWR
	if x.o.ReadOnly {
		flag = os.O_RDONLY
	}
	if x.direct = blob.OpenDirect(x.path, flag); x.direct == nil {
		x.way += ": the file system cannot do without"
		return nil
	}
	if again, err := x.direct.Stat(); err != nil || !os.SameFile(st, again) {
		return fmt.Errorf("file %s: %w: another file took its place while it was opened; open it again", x.path, ErrStorage)
	}
	return x.chooseIO()
}

// fileError names the kind of an error of a file.
func fileError(err error) error { return storageError(nil, err) }

func (x *file) Kind() Kind  { return File }
func (x *file) Size() int64 { return x.size }
func (x *file) Depth() int  { return x.o.Depth }

// Way says how a file's bytes go, and why.
func (x *file) Way() string { return x.way }

func (x *file) Close() error {
	if x.direct != nil {
		x.direct.Close()
	}
	return x.f.Close()
}

func (x *file) Sync(context.Context) error {
	if x.o.NoSync {
		return nil
	}
	return x.stays.keep()
}

// cut is the part of n bytes at off, in memory at p, that can go past the page cache: none if they do not lie alike.
func cut(p []byte, off int64) (from, to int) {
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(p))) & (align - 1))
	if int64(at) != -off&(align-1) || at > len(p) {
		return 0, 0
	}
	return at, at + (len(p)-at)&^(align-1)
}

func (x *file) ReadAt(ctx context.Context, p []byte, off int64) error {
	return x.do(ctx, p, off, false)
}

func (x *file) WriteAt(ctx context.Context, p []byte, off int64) error {
	err := x.do(ctx, p, off, true)
	x.stays.written.Add(1) // also if it failed: some of it may be written
	return err
}

// do reads or writes all of p: what can go past the page cache does.
func (x *file) do(ctx context.Context, p []byte, off int64, write bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	from, to := 0, 0
	if x.direct != nil {
		from, to = cut(p, off)
	}
	if to == 0 {
		return through(x.f, p, off, write)
	}
	if from > 0 {
		if err := through(x.f, p[:from], off, write); err != nil {
			return err
		}
	}
	if to > from {
		if err := x.past(p[from:to], off+int64(from), write); err != nil {
			return err
		}
	}
	if to < len(p) {
		return through(x.f, p[to:], off+int64(to), write)
	}
	return nil
}

// past reads or writes past the page cache.
func (x *file) past(p []byte, off int64, write bool) error {
	if x.ring != nil {
		return x.ring.do(x.direct, p, off, write)
	}
	return through(x.direct, p, off, write)
}

// through reads or writes by plain calls.
func through(f *os.File, p []byte, off int64, write bool) error {
	if write {
		_, err := f.WriteAt(p, off)
		return err
	}
	n, err := f.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %d bytes at %d, %d are there: %w", f.Name(), len(p), off, n, io.ErrUnexpectedEOF)
	}
	return err
}

// wholeFile is a file that every write replaces.
type wholeFile struct {
	path string
	size int64
	o    FileOptions
}

// newWholeFile describes a file that is written as a whole and put in place when it is complete. It need not exist if
// it may be created, but then a size must be given.
func newWholeFile(path string, o FileOptions) (Storage, error) {
	st, err := os.Stat(path)
	if err != nil && !(o.Create && os.IsNotExist(err)) {
		return nil, fileError(err)
	}
	x := &wholeFile{path: path, size: o.Size, o: o}
	if err == nil && x.size == 0 {
		x.size = st.Size()
	}
	if x.size == 0 {
		return nil, fmt.Errorf("file %s: %w: a region needs a size", path, ErrShort)
	}
	return x, nil
}

func (x *wholeFile) Kind() Kind                 { return File }
func (x *wholeFile) Size() int64                { return x.size }
func (x *wholeFile) Depth() int                 { return x.o.Depth }
func (x *wholeFile) Sync(context.Context) error { return nil }
func (x *wholeFile) Close() error               { return nil }

// ReadAt reads the file that is there now.
func (x *wholeFile) ReadAt(ctx context.Context, p []byte, off int64) error {
	s, err := x.Open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.ReadAt(ctx, p, off)
}

// Open opens the file that is there now. It is read to its end, also when another takes its place.
func (x *wholeFile) Open(context.Context) (Source, error) {
	f, err := os.Open(x.path)
	if err != nil {
		return nil, err
	}
	return fileSource{f}, nil
}

type fileSource struct{ f *os.File }

func (s fileSource) Close() error { return s.f.Close() }

func (s fileSource) ReadAt(_ context.Context, p []byte, off int64) error {
	return through(s.f, p, off, false)
}

func (x *wholeFile) WriteAt(context.Context, []byte, int64) error {
	return fmt.Errorf("file %s: %w: it is written as a whole", x.path, ErrKind)
}

// Create begins a new file beside the old one.
func (x *wholeFile) Create(context.Context) (Sink, error) {
	f, err := os.CreateTemp(filepath.Dir(x.path), ".weft-"+filepath.Base(x.path)+"-*")
	if err != nil {
		return nil, err
	}
	s := &fileSink{of: x, f: f}
	if err := blob.Reserve(f, x.size); err != nil {
		s.Abort()
		return nil, err
	}
	return s, nil
}

type fileSink struct {
	of   *wholeFile
	f    *os.File
	over atomic.Bool
}

func (s *fileSink) WriteAt(_ context.Context, p []byte, off int64) error {
	return through(s.f, p, off, true)
}

// Commit makes the new file the file.
func (s *fileSink) Commit(context.Context) error {
	if !s.of.o.NoSync {
		if err := s.f.Sync(); err != nil {
			return err
		}
	}
	if err := os.Rename(s.f.Name(), s.of.path); err != nil {
		return err
	}
	s.over.Store(true)
	if err := s.f.Close(); err != nil || s.of.o.NoSync {
		return err
	}
	dir, err := os.Open(filepath.Dir(s.of.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func (s *fileSink) Abort() {
	if !s.over.Swap(true) {
		s.f.Close()
		os.Remove(s.f.Name())
	}
}
