package xfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/internal/bounded"
)

// Wrong descriptors and wrong use are errors of their own kind, before anything is sent.
func TestBadInput(t *testing.T) {
	a, b := start(t, "a", nil), start(t, "b", nil)
	mine, theirs := host(t, a, "mine", 1000, false, 1), host(t, b, "theirs", 1000, false, 2)
	p := meet(t, a, b)
	far := remote(t, p, "theirs")
	for _, c := range []struct {
		name  string
		peer  *Peer
		descs []Desc
		want  error
	}{
		{"none", nil, nil, ErrLimit},
		{"zero bytes", nil, []Desc{mine.At(0, 0)}, ErrBounds},
		{"negative length", nil, []Desc{mine.At(10, -1)}, ErrBounds},
		{"negative offset", p, []Desc{far.At(-1, 10)}, ErrBounds},
		{"one byte too many", nil, []Desc{mine.At(1, 1000)}, ErrBounds},
		{"2^50 bytes", p, []Desc{far.At(0, 1<<50)}, ErrBounds},
		{"overflow", p, []Desc{far.At(1<<62, 1<<62)}, ErrBounds},
		{"no such region", nil, []Desc{{77, 0, 1}}, ErrRegion},
		{"no such remote region", p, []Desc{{77, 0, 1}}, ErrRegion},
		{"too many", nil, make([]Desc, MaxDescs+1), ErrLimit},
	} {
		if _, err := a.Prepare(c.peer, c.descs); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	// One bad among 10,000 is named.
	many := make([]Desc, 10_000)
	for i := range many {
		many[i] = mine.At(int64(i%1000), 1)
	}
	many[7777] = mine.At(999, 2)
	if _, err := a.Prepare(nil, many); !errors.Is(err, ErrBounds) || !strings.Contains(err.Error(), "descriptor 7777") {
		t.Errorf("one bad of 10,000: %v", err)
	}

	two, far2 := prepare(t, a, nil, mine.At(0, 10), mine.At(5, 10)), prepare(t, a, p, far.At(0, 10), far.At(20, 10))
	for _, c := range []struct {
		name string
		t    Transfer
		want error
	}{
		{"overlapping destinations", Transfer{Op: Read, Local: two, Remote: far2}, ErrOverlap},
		{"a destination twice", Transfer{Op: Write, Local: two, Remote: far2, LocalIndex: []int{0, 1}, RemoteIndex: []int{1, 1}}, ErrOverlap},
		{"index out of bounds", Transfer{Op: Write, Local: two, Remote: far2, LocalIndex: []int{0, 2}, RemoteIndex: []int{0, 1}}, ErrBounds},
		{"counts differ", Transfer{Op: Write, Local: two, Remote: far2, LocalIndex: []int{0}}, ErrLength},
		{"lengths differ", Transfer{Op: Write, Local: prepare(t, a, nil, mine.At(0, 9), mine.At(9, 11)), Remote: far2}, ErrLength},
		{"no list", Transfer{Op: Write, Local: two}, ErrRegion},
		{"lists swapped", Transfer{Op: Write, Local: far2, Remote: two}, ErrRegion},
		{"notice too long", Transfer{Op: Write, Local: two, Remote: far2, Notice: make([]byte, maxNotice+1)}, ErrLimit},
	} {
		if q, err := a.Post(c.t); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, q, err, c.want)
		}
	}
	if !bytes.Equal(theirs.Bytes(), contents(t, theirs)) {
		t.Error("bytes changed")
	}
	if _, err := New(Config{Name: "a", Generation: a.ID().Generation}); err == nil {
		t.Error("the same agent twice")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("an agent without a name")
	}
	if _, err := New(Config{Name: "x", Listen: []string{"0.0.0.0:0"}}); err == nil {
		t.Error("an open address without a token")
	}
}

// What a peer was never given, it cannot use: wrong keys, wrong tokens, earlier lives, rights.
func TestForeign(t *testing.T) {
	for _, path := range withUCX("process", "shm", "unix", "tcp") {
		t.Run(path, func(t *testing.T) {
			ctx := limit(t)
			change := func(c *Config) { c.Path = path }
			a, b := start(t, "a", change), start(t, "b", change)
			mine := host(t, a, "mine", 1000, false, 1)
			host(t, b, "theirs", 1000, false, 2)
			mem, err := b.Alloc(1000)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Register("read only", Memory(mem), MayRead); err != nil {
				t.Fatal(err)
			}
			move := func(p *Peer, name string, op Op) error {
				t.Helper()
				far, err := a.Prepare(p, []Desc{remote(t, p, name).At(0, 10)})
				if err != nil {
					return err
				}
				defer far.Release()
				q, err := a.Post(Transfer{Op: op, Local: prepare(t, a, nil, mine.At(0, 10)), Remote: far, Timeout: 5 * time.Second})
				if err != nil {
					return err
				}
				return q.Wait(ctx)
			}
			p := meet(t, a, b)
			if err := move(p, "theirs", Write); err != nil {
				t.Error(err)
			}
			if err := move(p, "read only", Write); !errors.Is(err, ErrAccess) {
				t.Errorf("a write to what may be read: %v", err)
			}
			if err := move(p, "read only", Read); err != nil {
				t.Error(err)
			}
			p.names["theirs"].Key++
			for _, op := range []Op{Read, Write} {
				if err := move(p, "theirs", op); !errors.Is(err, ErrKey) {
					t.Errorf("%s with a wrong key: %v", op, err)
				}
			}
			p.names["theirs"].Key--
			// A region that is gone, and one of the same name in its place.
			r := b.names["theirs"]
			if err := r.Release(ctx); err != nil {
				t.Fatal(err)
			}
			host(t, b, "theirs", 1000, false, 3)
			if err := move(p, "theirs", Write); !errors.Is(err, ErrRegion) {
				t.Errorf("a region that was released: %v", err)
			}
			// The agent starts anew under the same name.
			old, described := b.ID(), b.Describe()
			b.Close()
			c := start(t, "b", func(c *Config) { c.Path = path; c.Generation = old.Generation + 1; c.Listen = b.cfg.Listen })
			if path == "tcp" {
				p.addrs = c.Addrs() // what listens there now is the next life
			}
			if err := move(p, "theirs", Write); path == "tcp" && !errors.Is(err, ErrStale) || !errors.Is(err, ErrStale) &&
				!errors.Is(err, ErrGone) && !errors.Is(err, ErrPath) {
				t.Errorf("an earlier life: %v", err)
			}
			host(t, c, "theirs", 1000, false, 3)
			next := meet(t, a, c)
			if err := move(next, "theirs", Write); err != nil {
				t.Error(err)
			}
			if err := move(p, "theirs", Write); !errors.Is(err, ErrStale) {
				t.Errorf("a peer that is known to have started anew: %v", err)
			}
			if _, err := a.Open(described); !errors.Is(err, ErrStale) {
				t.Errorf("the description of an earlier life: %v", err)
			}
		})
	}
}

// Storage that fails is an error of its kind, at both ends, and names its agent.
func TestStorageFails(t *testing.T) {
	for _, path := range []string{"process", "unix"} {
		t.Run(path, func(t *testing.T) {
			ctx := limit(t)
			change := func(c *Config) { c.Path = path }
			a, b := start(t, "a", change), start(t, "b", change)
			const n = 1 << 20
			mine := host(t, a, "mine", n, false, 1)
			name := filepath.Join(t.TempDir(), "f")
			s, err := OpenFile(name, FileOptions{Size: n, Create: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Register("file", s, 0); err != nil {
				t.Fatal(err)
			}
			sick := &sickStorage{Storage: memory(make([]byte, n))}
			if _, err := b.Register("sick", sick, 0); err != nil {
				t.Fatal(err)
			}
			p := meet(t, a, b)
			move := func(name string, op Op) error {
				q, err := a.Post(Transfer{Op: op, Local: prepare(t, a, nil, mine.At(0, n)), Remote: prepare(t, a, p, remote(t, p, name).At(0, n)),
					Notice: []byte("n"), Timeout: 10 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				return q.Wait(ctx)
			}
			check := func(what string, err, want error, who string) {
				t.Helper()
				f := (*Failure)(nil)
				if !errors.Is(err, want) || !errors.As(err, &f) || f.Who != who {
					t.Errorf("%s: %v; want %v and %s at fault", what, err, want, who)
				}
				n, err := b.NextNotice(ctx)
				if g := (*Failure)(nil); err != nil || !errors.Is(n.Err, want) || !errors.As(n.Err, &g) || g.Who != who {
					t.Errorf("%s: the target heard %v, %v; want %v and %s at fault", what, n.Err, err, want, who)
				}
			}
			if err := os.Truncate(name, n/2); err != nil {
				t.Fatal(err)
			}
			check("a file that shrank", move("file", Read), ErrShort, "b")
			sick.failWith(syscall.ENOSPC)
			check("a full disk", move("sick", Write), ErrFull, "b")
			sick.failWith(syscall.EIO)
			check("a broken disk, written", move("sick", Write), ErrStorage, "b")
			check("a broken disk, read", move("sick", Read), ErrStorage, "b")
			sick.failWith(nil)
			if err := move("sick", Write); err != nil {
				t.Errorf("the disk is well again: %v", err)
			}
		})
	}
}

// sickStorage is memory that is called a file and fails when it is told to.
type sickStorage struct {
	Storage
	fail  atomic.Pointer[error]
	stall chan struct{} // if set, calls wait for it, or for their end
	in    chan struct{} // told of calls that wait
}

func (s *sickStorage) Kind() Kind { return File }

func (s *sickStorage) failWith(err error) { s.fail.Store(&err) }

// failure is what calls fail with; nil for nothing.
func (s *sickStorage) failure() error {
	if e := s.fail.Load(); e != nil {
		return *e
	}
	return nil
}

func (s *sickStorage) wait(ctx context.Context) error {
	if s.stall == nil {
		return s.failure()
	}
	select {
	case s.in <- struct{}{}:
	default:
	}
	select {
	case <-s.stall:
		return s.failure()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *sickStorage) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.Storage.ReadAt(ctx, p, off)
}

func (s *sickStorage) WriteAt(ctx context.Context, p []byte, off int64) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.Storage.WriteAt(ctx, p, off)
}

// A deadline ends a request that hangs in storage, at both ends; a cancelled one lands no byte any more.
func TestDeadlineAndCancel(t *testing.T) {
	for _, path := range withUCX("process", "unix", "tcp") {
		for _, op := range []Op{Read, Write} {
			t.Run(path+"/"+op.String(), func(t *testing.T) {
				ctx := limit(t)
				change := func(c *Config) { c.Path = path }
				a, b := start(t, "a", change), start(t, "b", change)
				const n = 1 << 20
				mine := host(t, a, "mine", n, false, 1)
				sick := &sickStorage{Storage: memory(make([]byte, n)), stall: make(chan struct{}), in: make(chan struct{}, 1)}
				if _, err := b.Register("sick", sick, 0); err != nil {
					t.Fatal(err)
				}
				p := meet(t, a, b)
				if path == "ucx" { // UCX starts in a tenth of a second
					if _, err := p.link("ucx").get(ctx); err != nil {
						t.Fatal(err)
					}
				}
				post := func(limit time.Duration) *Request {
					q, err := a.Post(Transfer{Op: op, Local: prepare(t, a, nil, mine.At(0, n)), Remote: prepare(t, a, p, remote(t, p, "sick").At(0, n)),
						Notice: []byte("n"), Timeout: limit})
					if err != nil {
						t.Fatal(err)
					}
					return q
				}
				var q *Request
				began := false
				for limit := 100 * time.Millisecond; !began; limit *= 2 { // until it is long enough for the request to come to the storage
					q = post(limit)
					if err := q.Wait(ctx); !errors.Is(err, ErrDeadline) || q.Poll().State != Failed {
						t.Fatalf("%+v: %v", q.Poll(), err)
					}
					select {
					case <-sick.in:
						began = true
					default:
					}
				}
				if n, err := b.NextNotice(ctx); err != nil || !errors.Is(n.Err, ErrDeadline) {
					t.Errorf("the target heard %+v, %v", n, err)
				}
				q = post(20 * time.Second)
				<-sick.in
				before := bytes.Clone(sick.Storage.(memory))
				if err := q.Cancel(ctx); err != nil {
					t.Error(err)
				}
				after := bytes.Clone(mine.Bytes())
				close(sick.stall)
				if s := q.Poll(); s.State != Cancelled || !errors.Is(s.Err, ErrCancelled) {
					t.Errorf("%+v", s)
				}
				heard, err := b.NextNotice(ctx)
				for err == nil && errors.Is(heard.Err, ErrDeadline) { // of a request before, which came too late
					heard, err = b.NextNotice(ctx)
				}
				if err != nil || !errors.Is(heard.Err, ErrCancelled) {
					t.Errorf("the target heard %+v, %v", heard, err)
				}
				if !bytes.Equal(sick.Storage.(memory), before) || !bytes.Equal(mine.Bytes(), after) {
					t.Error("bytes landed after the cancel")
				}
			})
		}
	}
}

// The owner takes memory back: a write into it fails at both ends and lands no byte any more; a reader under a
// lease is waited for, or outlived.
func TestReclaim(t *testing.T) {
	for _, path := range []string{"process", "unix"} {
		t.Run(path, func(t *testing.T) {
			ctx := limit(t)
			change := func(c *Config) { c.Path = path }
			a, b := start(t, "a", change), start(t, "b", change)
			const n = 1 << 20
			sick := &sickStorage{Storage: memory(make([]byte, n)), stall: make(chan struct{}), in: make(chan struct{}, 1)}
			mine, err := a.Register("sick", sick, 0)
			if err != nil {
				t.Fatal(err)
			}
			theirs := host(t, b, "theirs", n, false, 2)
			p := meet(t, a, b)
			local, far := prepare(t, a, nil, mine.At(0, n)), prepare(t, a, p, remote(t, p, "theirs").At(0, n))
			q, err := a.Post(Transfer{Op: Write, Local: local, Remote: far, Timeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			<-sick.in
			if path == "unix" {
				// The target must have heard of it, too.
				bounded.Until(t, 20*time.Second, "the target to hear of it", func() bool { return len(theirs.landings()) > 0 })
			}
			if err := theirs.Reclaim(ctx, 0, 10); err != nil {
				t.Fatal(err)
			}
			noise(theirs.Bytes(), 9)
			want := bytes.Clone(theirs.Bytes())
			close(sick.stall)
			if err := q.Wait(ctx); !errors.Is(err, ErrWithdrawn) {
				t.Errorf("the writer heard %v", err)
			}
			if n, err := b.NextNotice(ctx); err != nil || !errors.Is(n.Err, ErrWithdrawn) {
				t.Errorf("the owner heard %+v, %v", n, err)
			}
			if !bytes.Equal(theirs.Bytes(), want) {
				t.Error("bytes landed after the owner had the memory back")
			}
		})
	}
}

func (r *Region) landings() map[*landing]struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[*landing]struct{}{}
	for l := range r.landed {
		out[l] = struct{}{}
	}
	return out
}

// A grant ends when its reader gives it back, or its time is over; then the reader fails before it uses the bytes.
func TestGrants(t *testing.T) {
	for _, path := range withUCX("process", "shm", "unix", "tcp") {
		t.Run(path, func(t *testing.T) {
			ctx := limit(t)
			change := func(c *Config) { c.Path = path }
			a, b := start(t, "a", change), start(t, "b", change)
			mine, theirs := host(t, a, "mine", 10_000, false, 1), host(t, b, "theirs", 10_000, false, 2)
			p := meet(t, a, b)
			far := remote(t, p, "theirs")
			local := prepare(t, a, nil, mine.At(0, 5000))
			read := func(grant uint64, off int64) (*List, error) {
				l, err := a.PrepareGranted(p, []Desc{far.At(off, 5000)}, grant)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(l.Release)
				q, err := a.Post(Transfer{Op: Read, Local: local, Remote: l})
				if err != nil {
					t.Fatal(err)
				}
				return l, q.Wait(ctx)
			}
			g, err := b.Grant([]Desc{theirs.At(0, 5000)}, 20*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			l, err := read(g.Number(), 0)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(mine.Bytes()[:5000], theirs.Bytes()[:5000]) {
				t.Error("wrong bytes")
			}
			if g.How() != "" {
				t.Errorf("it ended: %s", g.How())
			}
			l.Release()
			select {
			case <-g.Over():
			case <-ctx.Done():
				t.Fatal("the grant was given back and does not end")
			}
			if g.How() != "returned" {
				t.Errorf("it ended: %s", g.How())
			}
			if _, err := read(g.Number(), 0); !errors.Is(err, ErrLease) {
				t.Errorf("a grant that was given back: %v", err)
			}
			// One for other bytes, and one whose time is over.
			if g, err = b.Grant([]Desc{theirs.At(0, 5000)}, 20*time.Second); err != nil {
				t.Fatal(err)
			}
			if _, err := read(g.Number(), 1); !errors.Is(err, ErrLease) {
				t.Errorf("bytes outside of the grant: %v", err)
			}
			if g, err = b.Grant([]Desc{theirs.At(0, 5000)}, time.Millisecond); err != nil {
				t.Fatal(err)
			}
			<-g.Over()
			if _, err := read(g.Number(), 0); !errors.Is(err, ErrLease) || g.How() != "it expired" {
				t.Errorf("a grant whose time was over (%s): %v", g.How(), err)
			}
			if err := theirs.Reclaim(ctx, 0, 10_000); err != nil {
				t.Error(err)
			}
		})
	}
}

// A reader of mapped memory that was held up beyond its lease fails, whatever it has read.
func TestLeaseEndsWhileRead(t *testing.T) {
	h, table := &hold{id: 5, slot: 7}, new([leaseSlots]leaseSlot)
	slot := &table[7]
	slot.id.Store(5)
	slot.until.Store(hostClock() + int64(time.Hour))
	if err := h.valid(table); err != nil {
		t.Error(err)
	}
	slot.until.Store(hostClock() - 1)
	if err := h.valid(table); !errors.Is(err, ErrLease) {
		t.Errorf("an expired lease: %v", err)
	}
	slot.until.Store(hostClock() + int64(time.Hour))
	slot.id.Store(6)
	if err := h.valid(table); !errors.Is(err, ErrLease) {
		t.Errorf("a slot that is another's: %v", err)
	}
	if err := h.valid(nil); !errors.Is(err, ErrLease) {
		t.Errorf("without the owner's table: %v", err)
	}
}

// Connections that break at any moment: what is missing is sent again, the notice comes once.
func TestResume(t *testing.T) {
	for _, op := range []Op{Read, Write} {
		t.Run(op.String(), func(t *testing.T) {
			ctx := limit(t)
			change := func(c *Config) { c.Path = "tcp" }
			a, b := start(t, "a", change), start(t, "b", change)
			const n = 8 << 20
			mine, theirs := host(t, a, "mine", n, true, 1), host(t, b, "theirs", n, true, 2)
			p := meet(t, a, b)
			local, far := prepare(t, a, nil, mine.At(0, n)), prepare(t, a, p, remote(t, p, "theirs").At(0, n))
			for round := range 4 {
				noise(mine.Bytes(), uint64(10+round))
				noise(theirs.Bytes(), uint64(20+round))
				want := bytes.Clone(mine.Bytes())
				if op == Read {
					want = bytes.Clone(theirs.Bytes())
				}
				q, err := a.Post(Transfer{Op: op, Local: local, Remote: far, Notice: []byte("done"), Timeout: 20 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				// Break every connection twice while it moves.
				for k := range 2 {
					bounded.Until(t, 20*time.Second, "bytes that move", func() bool { s := q.Poll().State; return s >= Moving || s.Over() })
					if k == 1 {
						time.Sleep(time.Duration(round) * time.Millisecond) // so that it breaks elsewhere in each round
					}
					l := p.link("tcp")
					l.mu.Lock()
					s := l.now
					l.mu.Unlock()
					if s != nil {
						for _, c := range append([]*conn{s.control}, s.streams...) {
							c.nc.Close()
						}
					}
				}
				if err := q.Wait(ctx); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				if !bytes.Equal(mine.Bytes(), want) || !bytes.Equal(theirs.Bytes(), want) {
					t.Fatalf("round %d: wrong bytes", round)
				}
				if n, err := b.NextNotice(ctx); err != nil || n.Err != nil || string(n.Data) != "done" {
					t.Fatalf("round %d: %+v, %v", round, n, err)
				}
			}
			if rest := b.Notices(); len(rest) > 0 {
				t.Errorf("%d notices too many: %+v", len(rest), rest)
			}
		})
	}
}

// A read whose connection broke goes on under its lease alone: once the owner has the memory back it fails, and
// never joins old bytes with new ones.
func TestResumeNeedsTheLease(t *testing.T) {
	ctx := limit(t)
	change := func(c *Config) { c.Path = "tcp" }
	a, b := start(t, "a", change), start(t, "b", change)
	const n = 2 << 20
	mine := host(t, a, "mine", n, true, 1)
	sick := &sickStorage{Storage: memory(make([]byte, n)), stall: make(chan struct{}), in: make(chan struct{}, 1)}
	theirs, err := b.Register("sick", sick, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := meet(t, a, b)
	far := prepare(t, a, p, remote(t, p, "sick").At(0, n))
	q, err := a.Post(Transfer{Op: Read, Local: prepare(t, a, nil, mine.At(0, n)), Remote: far, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	<-sick.in // the first slice is read
	far.mu.Lock()
	id := far.lease.id
	far.mu.Unlock()
	b.mu.Lock()
	l := b.leases[id]
	b.mu.Unlock()
	go l.end("it expired")
	for l.use(nil) == nil {
		l.unuse(nil)
	}
	close(sick.stall)
	if err := theirs.Reclaim(ctx, 0, n); err != nil {
		t.Fatal(err)
	}
	link := p.link("tcp")
	link.mu.Lock()
	s := link.now
	link.mu.Unlock()
	s.control.nc.Close()
	if err := q.Wait(ctx); !errors.Is(err, ErrLease) {
		t.Errorf("%v", err)
	}
}

// The peer is gone in the middle: this end fails at once and names it; the other way around within a second.
func TestPeerGone(t *testing.T) {
	for _, path := range withUCX("unix", "tcp") {
		t.Run(path, func(t *testing.T) {
			ctx := limit(t)
			change := func(c *Config) { c.Path = path }
			a, b := start(t, "a", change), start(t, "b", change)
			const n = 1 << 20
			sick := &sickStorage{Storage: memory(make([]byte, n)), stall: make(chan struct{}), in: make(chan struct{}, 1)}
			mine, err := a.Register("sick", sick, 0)
			if err != nil {
				t.Fatal(err)
			}
			host(t, b, "theirs", n, false, 2)
			p := meet(t, a, b)
			q, err := a.Post(Transfer{Op: Write, Local: prepare(t, a, nil, mine.At(0, n)), Remote: prepare(t, a, p, remote(t, p, "theirs").At(0, n)),
				Notice: []byte("n"), Timeout: 20 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			<-sick.in
			bounded.Until(t, 20*time.Second, "the target to hear of it", func() bool { return len(b.names["theirs"].landings()) > 0 })
			began := time.Now()
			a.Close()
			if err := q.Wait(ctx); !errors.Is(err, ErrClosed) {
				t.Errorf("the one that closed: %v", err)
			}
			got, err := b.NextNotice(ctx)
			f := (*Failure)(nil)
			if err != nil || !errors.As(got.Err, &f) || f.Who != "a" {
				t.Errorf("the other heard %+v, %v", got, err)
			}
			if d := time.Since(began); d > 20*time.Second {
				t.Errorf("after %s", d)
			}
		})
	}
}

// Any list of ranges against a plain map of bytes: joined, covers, overlap.
func TestRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		descs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Desc {
			return Desc{uint32(rapid.IntRange(1, 2).Draw(t, "region")), rapid.Int64Range(0, 40).Draw(t, "off"),
				rapid.Int64Range(1, 10).Draw(t, "len")}
		}), 1, 12).Draw(t, "descs")
		var count [3][64]int
		twice := false
		for _, d := range descs {
			for i := d.Off; i < d.Off+d.Len; i++ {
				count[d.Region][i]++
				twice = twice || count[d.Region][i] > 1
			}
		}
		if got := overlap(descs) >= 0; got != twice {
			t.Fatalf("%v: overlap %v", descs, got)
		}
		l := &lease{descs: joined(descs)}
		probe := Desc{uint32(rapid.IntRange(1, 2).Draw(t, "r")), rapid.Int64Range(0, 50).Draw(t, "o"), rapid.Int64Range(1, 12).Draw(t, "n")}
		all, some := true, false
		for i := probe.Off; i < probe.Off+probe.Len; i++ {
			in := i < 64 && count[probe.Region][i] > 0
			all, some = all && in, some || in
		}
		if l.covers(probe) != all || l.touches(probe.Region, probe.Off, probe.Len) != some {
			t.Fatalf("%v of %v: covers %v, touches %v; want %v, %v", probe, l.descs, l.covers(probe), l.touches(probe.Region, probe.Off, probe.Len),
				all, some)
		}
	})
}

func FuzzPost(f *testing.F) {
	p := post{op: Write, class: Latency, timeout: time.Second, total: 30, notice: []byte("n"), tells: true, caps: []capability{{1, 2, 0}},
		remote: []Desc{{1, 5, 10}, {1, 15, 20}}, have: []uint64{1}}
	f.Add(p.put())
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, q post
		if p.get(b) == nil {
			if err := q.get(p.put()); err != nil {
				t.Errorf("%+v does not come back: %v", p, err)
			}
		}
		var h hello
		if h.get(b) == nil {
			_ = h.put()
		}
		_, _ = parseFail(b)
	})
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(`{"version":3,"name":"b","generation":3,"host":"h","addrs":["127.0.0.1:1"],"regions":[{"id":1,"name":"r","kind":0,"size":10,"access":3,"key":5,"share":-1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a := &Agent{peers: map[string]*Peer{}}
		var d description
		if json.Unmarshal(b, &d) == nil {
			d.MAC = d.sign("")
			if signed, err := json.Marshal(d); err == nil {
				b = signed
			}
		}
		if p, err := a.Open(b); err == nil {
			for _, r := range p.Regions() {
				_, _ = a.Prepare(p, []Desc{r.At(0, r.Size), r.At(1, 1)})
			}
		}
	})
}

// A region whose release did not end in time is still read: asked again, it says so again. Its storage is closed when it is over.
func TestReleaseInTime(t *testing.T) {
	a := start(t, "a", nil)
	disk := &closes{Storage: memory(make([]byte, 1<<12))}
	r, err := a.Register("read", disk, 0)
	if err != nil {
		t.Fatal(err)
	}
	g, err := a.Grant([]Desc{r.At(0, 100)}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	g.l.revoke = func() {} // its reader does not hear
	over, cancel := context.WithCancel(limit(t))
	cancel()
	for range 2 {
		if err := r.Release(over); !errors.Is(err, context.Canceled) || disk.n != 0 {
			t.Fatalf("a region that is read was released: %v; closed %d times", err, disk.n)
		}
	}
	g.l.end("returned")
	for range 2 {
		if err := r.Release(limit(t)); err != nil || disk.n != 1 {
			t.Fatalf("released: %v; closed %d times", err, disk.n)
		}
	}
}

// closes counts how often storage is closed.
type closes struct {
	Storage
	n int
}

func (c *closes) Close() error {
	c.n++
	return c.Storage.Close()
}
