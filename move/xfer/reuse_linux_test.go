package xfer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
)

func guestOf(t *testing.T, a *Agent, id ID) *guest {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	g := a.guests[id]
	if g == nil {
		t.Fatalf("%s is no guest of %s", id, a.id)
	}
	return g
}

func (l *link) session() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// A list outlives its connection. Its lease is looked up in the memory that the present session has mapped, not in what the last one
// had.
func TestLeaseAfterALostConnection(t *testing.T) {
	ctx := limit(t)
	a, b := start(t, "a", func(c *Config) { c.Path = "shm" }), start(t, "b", nil)
	mine, theirs := host(t, a, "mine", 4096, false, 1), host(t, b, "theirs", 4096, false, 2)
	p := meet(t, a, b)
	local, far := prepare(t, a, nil, mine.At(0, 4096)), prepare(t, a, p, remote(t, p, "theirs").At(0, 4096))
	read := func() {
		t.Helper()
		q, err := a.Post(Transfer{Op: Read, Local: local, Remote: far})
		if err == nil {
			err = q.Wait(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read()
	s := p.link("unix").session()
	if s == nil || s.share == nil {
		t.Skip("no shared memory here")
	}
	at, n := unsafe.Pointer(unsafe.SliceData(s.share.mem)), uintptr(len(s.share.mem))
	s.lose(errors.New("for the test"))
	// Something else lies there now.
	if _, err := unix.MmapPtr(-1, 0, at, n, unix.PROT_READ,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE); err != nil {
		t.Skip("the place cannot be taken: ", err)
	}
	defer func() { _ = unix.MunmapPtr(at, n) }()
	noise(theirs.Bytes(), 3)
	read()
	if !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Error("wrong bytes")
	}
}

// lateStorage waits in its calls until it is let go.
type lateStorage struct {
	memory
	entered chan struct{}
	leave   chan struct{}
}

func (s *lateStorage) Kind() Kind { return File }

func (s *lateStorage) ReadAt(ctx context.Context, p []byte, off int64) error {
	s.wait()
	return s.memory.ReadAt(ctx, p, off)
}

func (s *lateStorage) WriteAt(ctx context.Context, p []byte, off int64) error {
	s.wait()
	return s.memory.WriteAt(ctx, p, off)
}

func (s *lateStorage) wait() {
	select {
	case s.entered <- struct{}{}:
		<-s.leave
	case <-s.leave:
	}
}

// called waits for a call.
func (s *lateStorage) called(t *testing.T) {
	t.Helper()
	select {
	case <-s.entered:
	case <-time.After(30 * time.Second):
		t.Fatal("waited half a minute for a call of the storage")
	}
}

// A target that is late copies out of memory that the initiator uses again, as its request failed: that is no success there.
func TestSourceUsedAgain(t *testing.T) {
	// On a busy machine the deadline may pass before the target has begun.
	for timeout := 300 * time.Millisecond; !sourceUsedAgain(t, timeout); timeout *= 4 {
		if timeout > 15*time.Second {
			t.Fatalf("the target did not begin within %s", timeout)
		}
	}
}

// sourceUsedAgain does so with a deadline, and reports whether the target had begun by then.
func sourceUsedAgain(t *testing.T, timeout time.Duration) bool {
	ctx := limit(t)
	a, b := start(t, "a", func(c *Config) { c.Path = "shm" }), start(t, "b", nil)
	mine := host(t, a, "mine", 4096, false, 1)
	slow := &lateStorage{make(memory, 4096), make(chan struct{}), make(chan struct{})}
	leave := sync.OnceFunc(func() { close(slow.leave) })
	defer leave()
	if _, err := b.Register("theirs", slow, 0); err != nil {
		t.Fatal(err)
	}
	p := meet(t, a, b)
	q, err := a.Post(Transfer{Op: Write, Local: prepare(t, a, nil, mine.At(0, 4096)),
		Remote: prepare(t, a, p, remote(t, p, "theirs").At(0, 4096)),
		Notice: []byte("n"), Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-slow.entered:
	case <-q.Done():
		if err := q.Wait(ctx); !errors.Is(err, ErrDeadline) {
			t.Skip("no shared memory here: ", err)
		}
		return false
	}
	g := guestOf(t, b, a.ID())
	// The target was stopped: neither its clock nor what the initiator says reaches it before the copy ends.
	g.mu.Lock()
	in := g.requests[q.Number()]
	if in == nil || !in.timer.Stop() {
		g.mu.Unlock()
		return false
	}
	if err := q.Wait(ctx); !errors.Is(err, ErrDeadline) {
		t.Errorf("the initiator: %v", err)
	}
	noise(mine.Bytes(), 9) // it is the user's again
	leave()
	bounded.Holds(300*time.Millisecond, func() bool { return in.land.reason() == errLanded })
	g.mu.Unlock()
	n, err := b.NextNotice(ctx)
	if err != nil || n.Err == nil {
		t.Errorf("the target has a notice of success (%v, %v), and the bytes may be others", n, err)
	}
	return true
}

// A session that ends before its write is served: nothing is read from memory that is mapped no more, and the write goes on over the
// next session.
func TestMemoryGoneBeforeTheCopy(t *testing.T) {
	ctx := limit(t)
	a, b := start(t, "a", func(c *Config) { c.Path = "shm" }), start(t, "b", nil)
	mine, theirs := host(t, a, "mine", 8<<10, false, 1), host(t, b, "theirs", 8<<10, false, 2)
	p := meet(t, a, b)
	local, far := prepare(t, a, nil, mine.At(0, 8<<10)), prepare(t, a, p, remote(t, p, "theirs").At(0, 8<<10))
	post := func() *Request {
		t.Helper()
		q, err := a.Post(Transfer{Op: Write, Local: local, Remote: far, Notice: []byte("n")})
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	if err := post().Wait(ctx); err != nil {
		t.Skip("no shared memory here: ", err)
	}
	g := guestOf(t, b, a.ID())
	g.mu.Lock()
	s := g.now["unix"]
	g.mu.Unlock()
	s.share.drop()
	noise(mine.Bytes(), 5)
	q := post()
	bounded.Until(t, 30*time.Second, "the post", func() bool { return g.find(q.Number()) != nil })
	g.detach(s, errors.New("for the test"))
	if err := q.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Error("wrong bytes")
	}
	for range 2 {
		if n, err := b.NextNotice(ctx); err != nil || n.Err != nil {
			t.Error(n, err)
		}
	}
	if rest := b.Notices(); len(rest) > 0 {
		t.Errorf("notices too many: %v", rest)
	}
}

// Leases whose time is over, guests that are gone and lives that ended are not kept.
func TestNothingIsKept(t *testing.T) {
	ctx := limit(t)
	a, b := start(t, "a", func(c *Config) { c.Lease, c.Path = 20*time.Millisecond, "tcp" }), start(t, "b", nil)
	mine := host(t, a, "mine", 4096, false, 1)
	host(t, b, "theirs", 4096, false, 2)
	p := meet(t, a, b)
	local, far := prepare(t, a, nil, mine.At(0, 4096)), prepare(t, a, p, remote(t, p, "theirs").At(0, 4096))
	for range 4 {
		q, err := a.Post(Transfer{Op: Read, Local: local, Remote: far})
		if err == nil {
			err = q.Wait(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Millisecond) // the lease ends
	}
	g := guestOf(t, b, a.ID())
	bounded.Until(t, 30*time.Second, "the owner to forget leases", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.leases) == 0
	})
	a.mu.Lock()
	holds := len(a.holds)
	a.mu.Unlock()
	if holds > 1 {
		t.Errorf("the reader keeps %d leases of one list", holds)
	}

	next := start(t, "b", func(c *Config) { c.Generation = b.ID().Generation + 1 })
	if _, err := a.Open(next.Describe()); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	links := len(a.links)
	a.mu.Unlock()
	if links > 0 {
		t.Errorf("%d links to an earlier life are kept", links)
	}

	a.Close()
	bounded.Until(t, 30*time.Second, "the guest's connection to end", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.now) == 0
	})
	g.drop() // what an hour later does
	b.mu.Lock()
	guests := len(b.guests)
	b.mu.Unlock()
	if guests > 0 {
		t.Errorf("%d guests that are gone are kept", guests)
	}
}

// Notices that nobody takes are bounded inside a process, too.
func TestNoticesAreBounded(t *testing.T) {
	ctx := limit(t)
	a, b := start(t, "a", nil), start(t, "b", nil)
	mine := host(t, a, "mine", 4096, false, 1)
	host(t, b, "theirs", 4096, false, 2)
	p := meet(t, a, b)
	b.inbox.mu.Lock()
	b.inbox.list = make([]Notice, maxWaiting)
	b.inbox.mu.Unlock()
	if err := a.Notify(ctx, p, []byte("one more")); !errors.Is(err, ErrLimit) {
		t.Errorf("notify: %v", err)
	}
	q, err := a.Post(Transfer{Op: Write, Local: prepare(t, a, nil, mine.At(0, 4096)),
		Remote: prepare(t, a, p, remote(t, p, "theirs").At(0, 4096)), Notice: []byte("n")})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Wait(ctx); !errors.Is(err, ErrLimit) {
		t.Errorf("a write with a notice: %v", err)
	}
}

// A bitmap that says it is longer than memory is a frame that is cut, not a crash.
func TestBitmapOfAnyLength(t *testing.T) {
	for _, n := range []uint64{1, 1 << 61, 1<<61 + 1, 1<<64 - 1} {
		var w writer
		w.num(n)
		r := reader{b: w}
		if m := r.bitmap(); m != nil || r.end() == nil {
			t.Errorf("a bitmap of %d words and none: %v, %v", n, m, r.err)
		}
	}
	mem := make([]byte, slotBytes+16)
	for _, at := range []uint64{1, 24, 1<<64 - 8, uint64(len(mem))} {
		if _, err := tableAt(mem, at); err == nil {
			t.Errorf("a table of leases at %d of %d bytes is taken", at, len(mem))
		}
	}
}

type nobody struct{ int }

func (*nobody) interrupt() {}

// A slice that comes over two connections at once, as one of them was lost, is written by one of them at a time, and not once it is
// there: the lost one may bring wrong bytes.
func TestOneSliceTwoConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{id: ID{"a", 1}}
		r := &Region{agent: a, id: 1, name: "mine", store: make(memory, 4096), mem: make([]byte, 4096), landed: map[*landing]struct{}{}}
		l, err := newLanding(t.Context(), 1, func(int) Desc { return Desc{1, 0, 4096} }, func(uint32) (*Region, error) { return r, nil }, 4096,
			true, nil)
		if err != nil {
			t.Fatal(err)
		}
		first, second := &nobody{1}, &nobody{2}
		if !l.enterSlice(0, first) {
			t.Fatal("the first may not write")
		}
		var wg sync.WaitGroup
		entered := false
		wg.Go(func() { entered = l.enterSlice(0, second) })
		synctest.Wait()
		if entered {
			t.Error("both write at once")
		}
		l.landed(0)
		l.leaveSlice(0, first)
		wg.Wait()
		if entered {
			t.Error("a slice that is there is written again")
		}
		l.close(errLanded)
	})
}

// A slice that is sent again is sent while the request is under way: when that is over its memory is the user's.
func TestResentSlicesEndWithTheRequest(t *testing.T) {
	change := func(c *Config) { c.Path = "tcp" }
	a, b := start(t, "a", change), start(t, "b", change)
	mine := host(t, a, "mine", 4096, false, 1)
	slow := &lateStorage{make(memory, 4096), make(chan struct{}), make(chan struct{})}
	defer close(slow.leave)
	if _, err := b.Register("theirs", slow, 0); err != nil {
		t.Fatal(err)
	}
	p := meet(t, a, b)
	q, err := a.Post(Transfer{Op: Write, Local: prepare(t, a, nil, mine.At(0, 4096)),
		Remote: prepare(t, a, p, remote(t, p, "theirs").At(0, 4096))})
	if err != nil {
		t.Fatal(err)
	}
	slow.called(t)
	s := p.link("tcp").session()
	s.mu.Lock()
	again := s.sends[q.Number()]
	s.mu.Unlock()
	c := s.streams[1]
	c.wmu.Lock() // the stream is slow
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		again(0)
	}()
	stacks := make([]byte, 1<<20)
	bounded.Until(t, 30*time.Second, "the slice to be sent again", func() bool {
		return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "(*sender).one")
	})
	q.give(ErrCancelled, "a")
	select {
	case <-q.Done():
		t.Error("the request is over, and a slice of it is being sent")
	case <-time.After(50 * time.Millisecond):
	}
	c.wmu.Unlock()
	<-sent
	<-q.Done()
}

// Requests that are served count in their class, as those that are posted do.
func TestServedReadsHaveAClass(t *testing.T) {
	ctx := limit(t)
	change := func(c *Config) { c.Path = "tcp" }
	a, b := start(t, "a", change), start(t, "b", change)
	mine := host(t, a, "mine", 4096, false, 1)
	slow := &lateStorage{make(memory, 4096), make(chan struct{}), make(chan struct{})}
	if _, err := b.Register("theirs", slow, 0); err != nil {
		t.Fatal(err)
	}
	p := meet(t, a, b)
	q, err := a.Post(Transfer{Op: Read, Class: Background, Local: prepare(t, a, nil, mine.At(0, 4096)),
		Remote: prepare(t, a, p, remote(t, p, "theirs").At(0, 4096))})
	if err != nil {
		t.Fatal(err)
	}
	slow.called(t)
	b.gate.mu.Lock()
	busy := b.gate.busy[Background]
	b.gate.mu.Unlock()
	if busy != 1 {
		t.Errorf("%d requests of the class are under way at the agent that sends, want 1", busy)
	}
	close(slow.leave)
	if err := q.Wait(ctx); err != nil {
		t.Error(err)
	}
}

// A class whose requests send nothing, as their peers are slow, does not hold the others back.
func TestIdleClassHoldsNobodyBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(Limits{}, nil)
		g.join(Latency)
		g.join(Bulk)
		began := time.Now()
		for range 100 {
			if err := g.take(t.Context(), Bulk, sliceSize, true); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d > 2*patience {
			t.Errorf("100 slices waited %s for a class that sends nothing", d)
		}
	})
}

// A submission that the kernel refused is taken back: the next one is not stuck behind it.
func TestRingAfterARefusal(t *testing.T) {
	r, err := newRing()
	if err != nil {
		t.Skip(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := alignedBuffer(align)
	fd := r.fd
	r.fd = -1
	if err := r.do(f, b, 0, true); err == nil {
		t.Fatal("a ring without a descriptor worked")
	}
	r.fd = fd
	over := make(chan error, 1)
	go func() { over <- r.do(f, b, 0, true) }()
	select {
	case err := <-over:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a write behind one that was refused does not end")
	}
	_ = unix.Munmap(r.rings)
	_ = unix.Munmap(r.entries)
	_ = unix.Close(fd)
}
