// Package store stores agents' reports in one folder, within a byte limit, such that they
// survive a kill -9 of the server.
//
//	raw-000017.log    reports as they came, the last minutes to days
//	mean-000004.log   five-minute means, least and greatest values of every series
//	event-000001.log  incidents
//	name-000001.log   names of series
//
// A file is a sequence of records: length, checksum (CRC-32C), bytes. Records are appended
// and never changed. The writer flushes to the kernel every second, so kill -9 loses the
// last second and a power failure at most ten seconds. Reading stops at the first
// incomplete record; everything before it is valid.
//
// Each kind has a share of the limit. A file is closed at an eighth of its share, and the
// oldest one is deleted when the share is used up: old raw reports go first, their means
// stay. A full disk stops writing, not the server: the last record is truncated, the
// oldest raw file is deleted, and writing is retried every ten seconds.
package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Kind is a kind of file.
type Kind string

// The kinds, and how much of the limit each has, in hundredths.
const (
	Raw   Kind = "raw"
	Mean  Kind = "mean"
	Event Kind = "event"
	Name  Kind = "name"
)

var shares = map[Kind]int64{Raw: 60, Mean: 33, Event: 5, Name: 2}

// magic begins every file.
const magic = "weft watch 1\n"

// maxRecord is the longest record.
const maxRecord = 64 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Store is a folder. It is for one goroutine, except Read.
type Store struct {
	dir   string
	limit int64
	lock  *os.File
	files map[Kind]*appender
	full  time.Time // when writing failed last
	last  error
	now   func() time.Time
}

type appender struct {
	kind   Kind
	list   []file // closed ones, oldest first
	number int
	f      *os.File
	size   int64 // that is whole on disk
	buf    []byte
	share  int64
	synced time.Time
}

type file struct {
	path string
	size int64
}

// Open opens or makes a folder. Limit is in bytes; at least 1 MiB.
func Open(dir string, limit int64) (*Store, error) {
	if limit < 1<<20 {
		return nil, fmt.Errorf("a store of %d bytes; at least %d are needed", limit, 1<<20)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s := &Store{dir: dir, limit: limit, files: map[Kind]*appender{}, now: time.Now}
	var err error
	if s.lock, err = lock(filepath.Join(dir, "lock")); err != nil {
		return nil, fmt.Errorf("%s is in use by another server: %w", dir, err)
	}
	for k, share := range shares {
		a := &appender{kind: k, share: limit / 100 * share}
		s.files[k] = a
		for _, p := range paths(dir, k) {
			st, err := os.Stat(p)
			if err != nil {
				continue
			}
			a.list = append(a.list, file{p, st.Size()})
			fmt.Sscanf(strings.TrimPrefix(filepath.Base(p), string(k)+"-"), "%d", &a.number)
		}
	}
	return s, nil
}

// paths are the files of a kind, oldest first.
func paths(dir string, k Kind) []string {
	list, _ := filepath.Glob(filepath.Join(dir, string(k)+"-*.log"))
	slices.Sort(list)
	return list
}

// Append adds a record. It is on its way to disk after the next Flush. False says that it was given up: the disk is full, and
// memory is not the place for it.
func (s *Store) Append(k Kind, record []byte) bool {
	a := s.files[k]
	if int64(len(a.buf)) > min(a.share/8, 64<<20) {
		return false
	}
	var head [8]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(record)))
	binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(record, castagnoli))
	a.buf = append(append(a.buf, head[:]...), record...)
	return true
}

// Flush hands what was appended to the system. Call it every second. The error says why
// nothing is written at present; nothing that was stored is harmed.
func (s *Store) Flush() error {
	if !s.full.IsZero() && s.now().Sub(s.full) < 10*time.Second {
		return s.last
	}
	s.last = nil
	for _, k := range []Kind{Name, Event, Mean, Raw} {
		if err := s.flush(s.files[k]); err != nil {
			s.last = errors.Join(s.last, err)
		}
	}
	if s.full = (time.Time{}); s.last != nil {
		s.full = s.now()
	}
	return s.last
}

// flush writes what is buffered. If that fails, the oldest raw reports make room and it is tried once more; what could
// not be written stays in the buffer.
func (s *Store) flush(a *appender) error {
	if len(a.buf) == 0 {
		return s.sync(a)
	}
	if a.f != nil && a.size+int64(len(a.buf)) > a.share/8 {
		a.close()
	}
	s.trim(a)
	if err := s.write(a); err != nil {
		// The oldest raw reports make room.
		if raw := s.files[Raw]; len(raw.list) > 0 {
			os.Remove(raw.list[0].path)
			raw.list = raw.list[1:]
			err = s.write(a)
		}
		if err != nil {
			return err
		}
	}
	a.buf = a.buf[:0]
	return s.sync(a)
}

// write appends what is buffered, or leaves the file as it was.
func (s *Store) write(a *appender) error {
	if a.f == nil {
		a.number++
		f, err := os.OpenFile(filepath.Join(s.dir, fmt.Sprintf("%s-%06d.log", a.kind, a.number)), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		a.f, a.size = f, 0
		if _, err := f.WriteString(magic); err != nil {
			f.Close()
			os.Remove(f.Name())
			a.f = nil
			return err
		}
		a.size = int64(len(magic))
	}
	if _, err := a.f.WriteAt(a.buf, a.size); err != nil {
		_ = a.f.Truncate(a.size) // half a record would end reading here
		return err
	}
	a.size += int64(len(a.buf))
	return nil
}

// sync makes the system write, every ten seconds.
func (s *Store) sync(a *appender) error {
	if a.f == nil || s.now().Sub(a.synced) < 10*time.Second {
		return nil
	}
	a.synced = s.now()
	return a.f.Sync()
}

func (a *appender) close() {
	if a.f != nil {
		a.list = append(a.list, file{a.f.Name(), a.size})
		_ = a.f.Sync()
		_ = a.f.Close()
		a.f = nil
	}
}

// trim removes the oldest files beyond the share.
func (s *Store) trim(a *appender) {
	total := a.size
	if a.f == nil {
		total = 0
	}
	for _, f := range a.list {
		total += f.size
	}
	for len(a.list) > 0 && total+int64(len(a.buf)) > a.share {
		total -= a.list[0].size
		os.Remove(a.list[0].path)
		a.list = a.list[1:]
	}
}

// Number is that of the file that is being written.
func (s *Store) Number(k Kind) int { return s.files[k].number }

// Size is how many bytes the files of a kind have.
func (s *Store) Size(k Kind) int64 {
	a := s.files[k]
	n := int64(0)
	if a.f != nil {
		n = a.size
	}
	for _, f := range a.list {
		n += f.size
	}
	return n
}

// Close writes what is left.
func (s *Store) Close() error {
	s.full = time.Time{}
	err := s.Flush()
	for _, a := range s.files {
		a.close()
	}
	return errors.Join(err, s.lock.Close())
}

// Read gives the records of a kind in a folder, oldest first, until f says false. It may
// be called beside a writer, also of another process.
func Read(dir string, k Kind, f func(record []byte) bool) error {
	return ReadSince(dir, k, time.Time{}, f)
}

// ReadSince is Read without the files that were last written before a time.
func ReadSince(dir string, k Kind, since time.Time, f func(record []byte) bool) error {
	for _, p := range paths(dir, k) {
		if st, err := os.Stat(p); err == nil && st.ModTime().Before(since) {
			continue
		}
		r, err := os.Open(p)
		if errors.Is(err, os.ErrNotExist) { // it was just given up
			continue
		}
		if err != nil {
			return err
		}
		on := true
		err = Records(bufio.NewReaderSize(r, 1<<18), func(b []byte) bool { on = f(b); return on })
		r.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if !on {
			return nil
		}
	}
	return nil
}

// ErrForeign is a file that is no file of a store.
var ErrForeign = errors.New("this is no file of weft watch")

// begins reads the magic bytes. A file without all of them is no error where it was just begun, or where the host lost power
// before the system had written it.
func begins(r io.Reader) (ok bool, err error) {
	head := make([]byte, len(magic))
	n, err := io.ReadFull(r, head)
	if err == nil && string(head) == magic {
		return true, nil
	}
	if n < len(magic) && strings.HasPrefix(magic, string(head[:n])) || len(bytes.Trim(head, "\x00")) == 0 {
		return false, nil
	}
	return false, ErrForeign
}

// Records gives the records of one file until f says false. A file that ends within a
// record, or whose next record is damaged, ends there: that is what kill -9 leaves.
func Records(r io.Reader, f func(record []byte) bool) error {
	if ok, err := begins(r); !ok {
		return err
	}
	var fixed [8]byte
	var buf []byte
	for {
		if _, err := io.ReadFull(r, fixed[:]); err != nil {
			return nil
		}
		n := binary.LittleEndian.Uint32(fixed[:])
		if n > maxRecord {
			return nil
		}
		// Memory grows with what is there, not with what the length says.
		buf = buf[:0]
		for left := int(n); left > 0; {
			part := min(left, 1<<20)
			at := len(buf)
			buf = slices.Grow(buf, part)[:at+part]
			if _, err := io.ReadFull(r, buf[at:]); err != nil {
				return nil
			}
			left -= part
		}
		if crc32.Checksum(buf, castagnoli) != binary.LittleEndian.Uint32(fixed[4:]) {
			return nil
		}
		if !f(buf) {
			return nil
		}
	}
}
