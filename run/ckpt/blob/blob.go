// Package blob is where checkpoints lie: a directory or a prefix of a bucket in an
// S3-compatible object store. Both keep the same promise: a blob is there whole
// and durable, or not at all, at whatever instant its writer dies.
package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
)

// Place holds blobs by name; names are relative and use slashes. Methods may be
// called from several goroutines and processes at once.
type Place interface {
	// Put writes a blob. It is durable when Put returns, and replaces one of the
	// same name at once.
	Put(ctx context.Context, name string, b Body) error
	// Read fills p from the blob's byte off on. A blob that ends sooner gives
	// io.ErrUnexpectedEOF, a missing one fs.ErrNotExist.
	Read(ctx context.Context, name string, p []byte, off int64) error
	// List gives the blobs whose names start with prefix, sorted by name. Unfinished
	// ones are not among them.
	List(ctx context.Context, prefix string) ([]Info, error)
	// Unfinished gives the names of blobs that are being written or whose writers
	// died, sorted, and folders, with a slash at the end, that hold nothing at all.
	Unfinished(ctx context.Context) ([]string, error)
	// Remove deletes a blob; it is gone for good when Remove returns. One that is
	// not there is no error.
	Remove(ctx context.Context, name string) error
	// Abandon removes what is unfinished under a name that Unfinished gave.
	Abandon(ctx context.Context, name string) error
	// RemoveAll deletes what is under a folder, unfinished blobs too, and the folder.
	// After a loss of power some of it may be back.
	RemoveAll(ctx context.Context, folder string) error
	// Sync makes durable that the blobs List gave for a folder are there, whoever
	// wrote them.
	Sync(ctx context.Context, folder string) error
	// Path names a blob in messages.
	Path(name string) string
	// Close gives back what the place holds on to, like idle connections. It can be
	// used again after it.
	Close()
}

// ErrChanged is a blob that another one took the place of while it was read.
var ErrChanged = errors.New("another one took its place while it was read")

// Versioned is a place that can read a blob in several calls without mixing two of them. Directories and buckets are.
type Versioned interface {
	// ReadVersion is Read of one version of a blob, empty for whichever is there. It gives the version that it read; ErrChanged if
	// that is not the one asked for.
	ReadVersion(ctx context.Context, name string, p []byte, off int64, version string) (string, error)
}

// Info is a line of List.
type Info struct {
	Name string
	Size int64
}

// Body is a blob's contents: Head bytes that Header gives, then Data. Header may
// depend on all of Data (it holds checksums) and is called once, before, after or
// while Data is written, so that a place that can write the front last does both
// at the same time.
type Body struct {
	Head   int64
	Header func() ([]byte, error)
	Data   [][]byte
}

// Bytes is a body of plain bytes.
func Bytes(p []byte) Body { return Body{Data: [][]byte{p}} }

// Size is the number of bytes of the blob.
func (b Body) Size() int64 {
	n := b.Head
	for _, p := range b.Data {
		n += int64(len(p))
	}
	return n
}

// header gives the head after checking its length.
func (b Body) header() ([]byte, error) {
	if b.Header == nil {
		return nil, nil
	}
	h, err := b.Header()
	if err == nil && int64(len(h)) != b.Head {
		err = fmt.Errorf("a header of %d bytes where %d were kept free", len(h), b.Head)
	}
	return h, err
}

// Pieces calls yield for successive pieces of size bytes, the last one shorter, of
// the concatenation of data. A piece that lies in one slice is not copied; others
// are gathered in memory that the next piece uses again.
func Pieces(data [][]byte, size int, yield func(off int64, piece []byte) error) error {
	var scratch []byte
	off := int64(0)
	for i, at := 0, 0; ; {
		for i < len(data) && at == len(data[i]) {
			i, at = i+1, 0
		}
		if i == len(data) {
			return nil
		}
		piece := data[i][at:min(len(data[i]), at+size)]
		at += len(piece)
		if at == len(data[i]) && len(piece) < size && i+1 < len(data) {
			scratch = append(scratch[:0], piece...)
			for i, at = i+1, 0; i < len(data) && len(scratch) < size; {
				n := min(size-len(scratch), len(data[i])-at)
				scratch = append(scratch, data[i][at:at+n]...)
				if at += n; at == len(data[i]) {
					i, at = i+1, 0
				}
			}
			piece = scratch
		}
		if err := yield(off, piece); err != nil {
			return err
		}
		off += int64(len(piece))
	}
}

// Open gives the place that a user names: s3://BUCKET/PREFIX, or a directory,
// which need not exist.
func Open(where string) (Place, error) {
	if where == "" {
		return nil, fmt.Errorf("no place for checkpoints given; want a directory or s3://BUCKET/PREFIX")
	}
	if rest, ok := strings.CutPrefix(where, "s3://"); ok {
		bucket, prefix, _ := strings.Cut(rest, "/")
		return newS3(bucket, prefix)
	}
	if scheme, _, ok := strings.Cut(where, "://"); ok {
		return nil, fmt.Errorf("%s: unknown scheme %q; want a directory or s3://BUCKET/PREFIX", where, scheme)
	}
	return NewDir(where), nil
}

// readerAt reads the concatenation of slices at any place, for those who write
// several parts of it at once.
type readerAt struct {
	data  [][]byte
	start []int64 // of each slice, and the end of the last
}

func newReaderAt(data [][]byte) *readerAt {
	r := &readerAt{data: data, start: make([]int64, len(data)+1)}
	for i, p := range data {
		r.start[i+1] = r.start[i] + int64(len(p))
	}
	return r
}

func (r *readerAt) size() int64 { return r.start[len(r.data)] }

// find gives the slice that holds byte off.
func (r *readerAt) find(off int64) int {
	return sort.Search(len(r.data), func(i int) bool { return r.start[i+1] > off })
}

// slice gives n bytes from off on without copying them; nil if they do not lie in
// one slice.
func (r *readerAt) slice(off, n int64) []byte {
	i := r.find(off)
	if i == len(r.data) || off+n > r.start[i+1] {
		return nil
	}
	return r.data[i][off-r.start[i]:][:n]
}

// ReadAt copies bytes from off on; io.EOF where they end before p does.
func (r *readerAt) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %d", off)
	}
	done := 0
	for i := r.find(off); i < len(r.data) && done < len(p); i++ {
		done += copy(p[done:], r.data[i][max(0, off-r.start[i]):])
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}
