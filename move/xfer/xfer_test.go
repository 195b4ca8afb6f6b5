package xfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// hostPaths are those that memory of a host can take; device_linux_test.go has the GPU's.
var hostPaths = slices.DeleteFunc(slices.Clone(Paths), func(p string) bool { return p == "gpu" })

func TestMain(m *testing.M) {
	if os.Getenv("WEFT_XFER_AGENT") != "" {
		runMatrixAgent()
		return
	}
	goleak.VerifyTestMain(m)
}

// limit bounds every wait of a test.
func limit(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, name string, change func(*Config)) *Agent {
	t.Helper()
	cfg := Config{Name: name, Token: "secret", Timeout: 20 * time.Second}
	if change != nil {
		change(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// host registers n bytes of host memory, from Alloc or plain, and fills them.
func host(t *testing.T, a *Agent, name string, n int, plain bool, seed uint64) *Region {
	t.Helper()
	b := make([]byte, n)
	if !plain {
		var err error
		if b, err = a.Alloc(n); err != nil {
			t.Fatal(err)
		}
	}
	noise(b, seed)
	r, err := a.Register(name, Memory(b), 0)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func noise(b []byte, seed uint64) {
	clear(b)
	if seed == 0 {
		return
	}
	r := rand.New(rand.NewPCG(seed, 1))
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// meet makes b known to a.
func meet(t *testing.T, a, b *Agent) *Peer {
	t.Helper()
	p, err := a.Open(b.Describe())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func prepare(t *testing.T, a *Agent, p *Peer, descs ...Desc) *List {
	t.Helper()
	l, err := a.Prepare(p, descs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Release)
	return l
}

func remote(t *testing.T, p *Peer, name string) *Remote {
	t.Helper()
	r, err := p.Region(name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every path carries every size in both directions, with the notice after the data.
func TestPaths(t *testing.T) {
	for _, path := range hostPaths {
		t.Run(path, func(t *testing.T) {
			ctx := limit(t)
			change := func(c *Config) { c.Path = path }
			a, b := start(t, "a", change), start(t, "b", change)
			plain := path == "pull"
			const size = 3<<20 + 5
			mine, theirs := host(t, a, "mine", size, plain, 0), host(t, b, "theirs", size, plain, 7)
			p := meet(t, a, b)
			far := remote(t, p, "theirs")
			r := rand.New(rand.NewPCG(1, 2))
			for i, n := range []int64{1, 4096, 100_001, 1 << 20, size} {
				from, to := r.Int64N(size-n+1), r.Int64N(size-n+1)
				local, peer := prepare(t, a, nil, mine.At(to, n)), prepare(t, a, p, far.At(from, n))
				for _, op := range []Op{Read, Write} {
					if op == Write {
						noise(mine.Bytes(), uint64(100+i))
					}
					note := fmt.Appendf(nil, "%s %d", op, n)
					q, err := a.Post(Transfer{Op: op, Local: local, Remote: peer, Notice: note})
					if err != nil {
						t.Fatal(err)
					}
					if err := q.Wait(ctx); err != nil {
						t.Fatal(err)
					}
					if s := q.Poll(); s.State != Done || s.Path != path || s.Landed != n {
						t.Errorf("%s of %d bytes: %+v", op, n, s)
					}
					if !bytes.Equal(mine.Bytes()[to:to+n], theirs.Bytes()[from:from+n]) {
						t.Fatalf("%s of %d bytes: they differ", op, n)
					}
					got, err := b.NextNotice(ctx)
					if err != nil || !bytes.Equal(got.Data, note) || got.From != a.ID() || got.Request != q.Number() || got.Err != nil {
						t.Fatalf("notice %+v, %v", got, err)
					}
				}
			}
			if left := b.Notices(); len(left) != 0 {
				t.Errorf("%d notices too many: %+v", len(left), left)
			}
		})
	}
}

// Without checksums the same bytes come; an agent that wants them takes nothing without.
func TestWithoutChecksums(t *testing.T) {
	for _, x := range []struct {
		a, b bool
		op   Op
		fits bool
	}{{true, true, Read, true}, {true, true, Write, true}, {true, false, Write, false}, {false, true, Read, false},
		{true, false, Read, true}} {
		ctx := limit(t)
		a := start(t, "a", func(c *Config) { c.Path, c.NoSums = "tcp", x.a })
		b := start(t, "b", func(c *Config) { c.Path, c.NoSums = "tcp", x.b })
		const size = 2<<20 + 77
		mine, theirs := host(t, a, "mine", size, false, 1), host(t, b, "theirs", size, false, 2)
		p := meet(t, a, b)
		q, err := a.Post(Transfer{Op: x.op, Local: prepare(t, a, nil, mine.At(0, size)),
			Remote: prepare(t, a, p, remote(t, p, "theirs").At(0, size))})
		if err != nil {
			t.Fatal(err)
		}
		err = q.Wait(ctx)
		if x.fits && (err != nil || !bytes.Equal(mine.Bytes(), theirs.Bytes())) || !x.fits && !errors.Is(err, ErrSum) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// Prepared lists with index subsets, scattered small descriptors, against a plain copy.
func TestScattered(t *testing.T) {
	for _, path := range hostPaths {
		t.Run(path, func(t *testing.T) {
			ctx := limit(t)
			change := func(c *Config) { c.Path = path }
			a, b := start(t, "a", change), start(t, "b", change)
			const block, n = 3000, 700
			mine, theirs := host(t, a, "mine", block*n, path == "pull", 1), host(t, b, "theirs", block*n, path == "pull", 2)
			p := meet(t, a, b)
			var here, there []Desc
			for i := range int64(n) {
				here, there = append(here, mine.At(i*block, block)), append(there, remote(t, p, "theirs").At(i*block, block))
			}
			local, peer := prepare(t, a, nil, here...), prepare(t, a, p, there...)
			r := rand.New(rand.NewPCG(3, 4))
			for round := range 6 {
				op := Op(round % 2)
				count := 1 + r.IntN(n)
				li, ri := r.Perm(n)[:count], r.Perm(n)[:count]
				want := bytes.Clone(mine.Bytes())
				src := theirs.Bytes()
				if op == Write {
					want, src = bytes.Clone(theirs.Bytes()), mine.Bytes()
				}
				for k := range count {
					d, s := li[k], ri[k]
					if op == Write {
						d, s = s, d
					}
					copy(want[d*block:][:block], src[s*block:][:block])
				}
				q, err := a.Post(Transfer{Op: op, Local: local, LocalIndex: li, Remote: peer, RemoteIndex: ri})
				if err != nil {
					t.Fatal(err)
				}
				if err := q.Wait(ctx); err != nil {
					t.Fatal(err)
				}
				got := mine.Bytes()
				if op == Write {
					got = theirs.Bytes()
				}
				if !bytes.Equal(got, want) {
					t.Fatalf("round %d, %s of %d blocks: wrong bytes", round, op, count)
				}
			}
		})
	}
}

func TestNotify(t *testing.T) {
	for _, path := range []string{"", "shm", "tcp"} {
		ctx := limit(t)
		change := func(c *Config) { c.Path = path }
		a, b := start(t, "a"+path, change), start(t, "b"+path, change)
		p := meet(t, a, b)
		for _, text := range []string{"", "hello"} {
			if err := a.Notify(ctx, p, []byte(text)); err != nil {
				t.Fatal(err)
			}
			if n, err := b.NextNotice(ctx); err != nil || string(n.Data) != text {
				t.Errorf("%+v, %v", n, err)
			}
		}
	}
}

func TestMeet(t *testing.T) {
	ctx := limit(t)
	a, b := start(t, "a", nil), start(t, "b", nil)
	host(t, b, "theirs", 100, false, 1)
	p, err := a.Meet(ctx, "b", b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if p.ID() != b.ID() || len(p.Regions()) != 1 {
		t.Errorf("%v with %d regions", p.ID(), len(p.Regions()))
	}
	if _, err := a.Meet(ctx, "c", b.Addrs()[0]); !errors.Is(err, ErrAgent) {
		t.Errorf("another name: %v", err)
	}
	w := start(t, "w", func(c *Config) { c.Token = "wrong" })
	if _, err := w.Meet(ctx, "b", b.Addrs()[0]); !errors.Is(err, ErrToken) {
		t.Errorf("another token: %v", err)
	}
}
