package xfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// Two requests write to one file. The second one's bytes stay when a synchronisation has ended that began after they were written, not
// when another's has begun.
func TestSyncIsNotAnothers(t *testing.T) {
	calls, leave := make(chan struct{}), make(chan error)
	d := durable{sync: func() error { calls <- struct{}{}; return <-leave }}
	keep := func() chan error {
		done := make(chan error, 1)
		go func() { done <- d.keep() }()
		return done
	}
	d.written.Add(1)
	first := keep()
	<-calls // it is under way
	d.written.Add(1)
	second := keep()
	select {
	case err := <-second:
		t.Fatal("the second request is told that its bytes stay while nobody has synchronised them: ", err)
	case <-time.After(20 * time.Millisecond):
	}
	leave <- nil
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	<-calls
	leave <- nil
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if err := d.keep(); err != nil { // nothing to do
		t.Fatal(err)
	}
	// The system says once that bytes were lost. All who wait hear of it, and nobody is told later that all is well.
	d.written.Add(1)
	first, second = keep(), keep()
	<-calls
	leave <- syscall.EIO
	for _, done := range []chan error{first, second} {
		if err := <-done; !errors.Is(err, syscall.EIO) {
			t.Errorf("%v, want %v", err, syscall.EIO)
		}
	}
	d.written.Add(1)
	if err := d.keep(); !errors.Is(err, syscall.EIO) {
		t.Errorf("after a loss: %v", err)
	}
}

// A file or an object is replaced while it is read: the reader has all old bytes or an error, never some of each.
func TestReplacedWhileRead(t *testing.T) {
	const n = 2 << 20
	dir := t.TempDir()
	old, fresh := make([]byte, n), make([]byte, n)
	noise(old, 1)
	noise(fresh, 2)
	ctx := limit(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, old, 0o644); err != nil {
		t.Fatal(err)
	}
	whole, err := OpenFile(file, FileOptions{Whole: true})
	if err != nil {
		t.Fatal(err)
	}
	s3 := openStore(t)
	for _, x := range []struct {
		name    string
		store   Storage
		replace func() error
	}{
		{"file", whole, func() error {
			s, err := whole.(Whole).Create(ctx)
			if err == nil {
				if err = s.WriteAt(ctx, fresh, 0); err == nil {
					err = s.Commit(ctx)
				}
			}
			return err
		}},
		{"directory", nil, nil},
		{"store", nil, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.store == nil {
				place := blob.Place(blob.NewDir(dir))
				if x.name == "store" {
					place = s3.place
				}
				if err := place.Put(ctx, "o", blob.Bytes(old)); err != nil {
					t.Fatal(err)
				}
				x.replace = func() error { return place.Put(ctx, "o", blob.Bytes(fresh)) }
				if x.store, err = NewObject(place, "o", n, ObjectOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			p := &place{store: x.store}
			defer p.close()
			got := make([]byte, n)
			if err := p.read(ctx, got[:n/2], 0); err != nil {
				t.Fatal(err)
			}
			if err := x.replace(); err != nil {
				t.Fatal(err)
			}
			err := p.read(ctx, got[n/2:], n/2)
			switch {
			case err == nil && !bytes.Equal(got, old):
				t.Error("wrong bytes: half of the old ones, half of the new")
			case err != nil && (!errors.Is(err, blob.ErrChanged) || !errors.Is(err, ErrStorage)):
				t.Error(err)
			}
			later := &place{store: x.store}
			defer later.close()
			if err := later.read(ctx, got, 0); err != nil || !bytes.Equal(got, fresh) {
				t.Errorf("the next request: %v, want the new bytes", err)
			}
		})
	}
}

// openings counts how often a storage is opened and closed.
type openings struct {
	memory
	opened, closed atomic.Int32
	slow           chan struct{}
}

func (o *openings) Kind() Kind                           { return File }
func (o *openings) Create(context.Context) (Sink, error) { return nil, errors.New("not written") }
func (o *openings) Open(context.Context) (Source, error) { o.opened.Add(1); return (*opening)(o), nil }

type opening openings

func (o *opening) Close() error { o.closed.Add(1); return nil }
func (o *opening) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off > 0 {
		<-o.slow
	}
	return o.memory.ReadAt(ctx, p, off)
}

// A request reads one version of its source, also when the connection is lost halfway.
func TestOpenedOnce(t *testing.T) {
	for _, op := range []Op{Read, Write} {
		ctx := limit(t)
		change := func(c *Config) { c.Path = "tcp" }
		a, b := start(t, "a", change), start(t, "b", change)
		const n = 4 << 20
		x := &openings{memory: make([]byte, n), slow: make(chan struct{})}
		noise(x.memory, 7)
		mine, theirs := a, b // who has the source
		if op == Read {
			mine, theirs = b, a
		}
		source, err := mine.Register("source", x, 0)
		if err != nil {
			t.Fatal(err)
		}
		into := host(t, theirs, "into", n, false, 0)
		p := meet(t, a, b)
		l, f := source.At(0, n), Desc{}
		if op == Read {
			l, f = into.At(0, n), remote(t, p, "source").At(0, n)
		} else {
			f = remote(t, p, "into").At(0, n)
		}
		q, err := a.Post(Transfer{Op: op, Local: prepare(t, a, nil, l), Remote: prepare(t, a, p, f)})
		if err != nil {
			t.Fatal(err)
		}
		bounded.Until(t, 30*time.Second, "the source to be read", func() bool { return x.opened.Load() == 1 })
		p.link("tcp").session().lose(errors.New("for the test"))
		close(x.slow)
		if err := q.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(into.Bytes(), x.memory) {
			t.Error("wrong bytes")
		}
		bounded.Until(t, 30*time.Second, "the source to be closed", func() bool { return x.closed.Load() == 1 })
		if x.opened.Load() != 1 {
			t.Errorf("%s: the source was opened %d times", op, x.opened.Load())
		}
	}
}

// A description is what somebody else wrote: regions beyond all memory are refused, and do not end the process.
func TestDescriptionsThatLie(t *testing.T) {
	a, b := start(t, "a", func(c *Config) { c.Path = "unix" }), start(t, "b", nil)
	host(t, b, "theirs", 4096, false, 1)
	for _, lie := range []func(r *Remote){
		func(r *Remote) { r.Share = 1<<63 - 100 },
		func(r *Remote) { r.Size = 1<<63 - 100 },
		func(r *Remote) { r.Size = -1 },
		func(r *Remote) { r.Addr = 1<<64 - 100 },
	} {
		var d description
		if err := json.Unmarshal(b.Describe(), &d); err != nil {
			t.Fatal(err)
		}
		lie(&d.Regions[0])
		d.MAC = d.sign("secret") // by one that has the token
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Open(text); err == nil {
			t.Errorf("%+v is believed", d.Regions[0])
		}
	}
	// Beyond what is shared, though it could be: an error, no end of the process.
	var d description
	if err := json.Unmarshal(b.Describe(), &d); err != nil {
		t.Fatal(err)
	}
	d.Regions[0].Share, d.Regions[0].Size = 1<<55, 1<<55
	d.MAC = d.sign("secret")
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	mine := host(t, a, "mine", 4096, false, 2)
	q, err := a.Post(Transfer{Op: Read, Local: prepare(t, a, nil, mine.At(0, 4096)),
		Remote: prepare(t, a, p, remote(t, p, "theirs").At(1<<54, 4096)), Path: "shm"})
	if err == nil {
		err = q.Wait(limit(t))
	}
	if err == nil {
		t.Error("bytes of a region that is not there were read")
	}
}

// A post that cannot be understood is refused. Its slices, which are on their way, hold up nobody else's.
func TestRefusedPostHoldsUpNobody(t *testing.T) {
	ctx := limit(t)
	change := func(c *Config) { c.Path = "tcp" }
	a, b := start(t, "a", change), start(t, "b", change)
	const n = 3 << 20
	mine, theirs := host(t, a, "mine", n, false, 1), host(t, b, "theirs", n, false, 2)
	p := meet(t, a, b)
	l, f := prepare(t, a, nil, mine.At(0, n)), prepare(t, a, p, remote(t, p, "theirs").At(0, n))
	if _, err := a.Post(Transfer{Op: Write, Local: l, Remote: f, Timeout: 48 * time.Hour}); !errors.Is(err, ErrLimit) {
		t.Errorf("a time limit of two days: %v, want %v", err, ErrLimit)
	}
	s, err := p.link("tcp").get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// A request that is under way keeps the numbers of later ones in use.
	a.mu.Lock()
	low := a.calls.Add(1)
	a.active[low] = nil
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.active, low)
		a.mu.Unlock()
	}()
	bad := a.calls.Add(1)
	if err := s.control.send(fPost, bad, 0, []byte("?")); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.streams {
		c.wmu.Lock()
		err := c.putSlice(bad, 0, make([]byte, 4096))
		c.wmu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	q, err := a.Post(Transfer{Op: Write, Local: l, Remote: f, Timeout: 5 * time.Second})
	if err == nil {
		err = q.Wait(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Error("wrong bytes")
	}
}

// A file that became shorter, to any length: storage that is too short, by every way of reading.
func TestFileThatShrinks(t *testing.T) {
	ctx := limit(t)
	const n = 1 << 20
	for _, o := range []FileOptions{{}, {IO: "calls"}, {IO: "ring"}, {Buffered: true}, {Whole: true}} {
		for _, left := range []int64{0, 4096, 5000, n - 1} {
			path := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(path, make([]byte, n), 0o644); err != nil {
				t.Fatal(err)
			}
			s, err := OpenFile(path, o)
			if errors.Is(err, ErrPath) {
				continue // no ring here
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, left); err != nil {
				t.Fatal(err)
			}
			err = (&place{store: s}).read(ctx, alignedBuffer(n), 0)
			if !errors.Is(err, ErrShort) {
				t.Errorf("%+v, %d bytes left: %v, want %v", o, left, err, ErrShort)
			}
			s.Close()
		}
	}
}

// A disk is full: an error of its kind at both ends, and what was there stays.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("weft-xfer-test", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skip("a small file system cannot be mounted here: ", err)
	}
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	const n = 3 << 20
	old := []byte("what was there")
	path := filepath.Join(dir, "block")
	if err := os.WriteFile(path, old, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(filepath.Join(dir, "slab"), FileOptions{Size: n, Create: true}); !errors.Is(err, ErrFull) {
		t.Errorf("a slab larger than the disk: %v, want %v", err, ErrFull)
	}
	whole, err := OpenFile(path, FileOptions{Size: n, Whole: true})
	if err != nil {
		t.Fatal(err)
	}
	object, err := NewObject(blob.NewDir(dir), "object", n, ObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, network := range []string{"process", "unix", "tcp"} {
		ctx := limit(t)
		change := func(c *Config) { c.Path = network }
		a, b := start(t, "a"+network, change), start(t, "b"+network, change)
		mine := host(t, a, "mine", n, false, 1)
		for name, s := range map[string]Storage{"file": whole, "object": object} {
			if _, err := b.Register(name, s, 0); err != nil {
				t.Fatal(err)
			}
			p := meet(t, a, b)
			q, err := a.Post(Transfer{Op: Write, Local: prepare(t, a, nil, mine.At(0, n)), Remote: prepare(t, a, p, remote(t, p, name).At(0, n))})
			if err == nil {
				err = q.Wait(ctx)
			}
			var f *Failure
			if !errors.Is(err, ErrFull) || !errors.As(err, &f) || f.Who != b.ID().Name {
				t.Errorf("%s over %s: %v, want %v of %s", name, network, err, ErrFull, b.ID().Name)
			}
			if x, err := b.NextNotice(ctx); err != nil || !errors.Is(x.Err, ErrFull) {
				t.Errorf("%s over %s, told to its target: %v, %v", name, network, x.Err, err)
			}
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the file has %q now, %v", got, err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
}
