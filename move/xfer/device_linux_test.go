package xfer

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/soft"
)

// What another process has on the GPU is here when Post returns, once its memory is mapped and a lease stands. The first time, and for a
// notice, whoever posts does not wait for the other process.
func TestPostNowOnGPU(t *testing.T) {
	const n = 1 << 20
	ctx := limit(t)
	d := soft.New(gpu.Plain)
	t.Cleanup(func() { d.Close() })
	change := func(c *Config) { c.Path, c.Lease = "gpu", time.Hour }
	a, b := start(t, "a", change), start(t, "b", change)
	var both [2]*Region
	for i, g := range []*Agent{a, b} {
		at, err := d.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		x, err := NewDevice(d, at, n)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.WriteAt(ctx, bytes.Repeat([]byte{byte(i)}, n), 0); err != nil {
			t.Fatal(err)
		}
		if both[i], err = g.Register("r", x, 0); err != nil {
			t.Fatal(err)
		}
	}
	p := meet(t, a, b)
	x := Transfer{Op: Read, Local: prepare(t, a, nil, both[0].At(0, n)), Remote: prepare(t, a, p, remote(t, p, "r").At(0, n)), Now: true}
	if q, err := a.Post(x); err != nil || q.brief || q.Wait(ctx) != nil {
		t.Fatal(q, err)
	}
	for i := range byte(3) {
		if err := both[1].store.(*Device).WriteAt(ctx, bytes.Repeat([]byte{10 + i}, n), 0); err != nil {
			t.Fatal(err)
		}
		a.crowded.Store(nil)
		q, err := a.Post(x)
		if err != nil {
			t.Fatal(err)
		}
		if s := q.Poll(); s.State != Done || s.Path != "gpu" || contents(t, both[0])[n-1] != 10+i {
			t.Errorf("after Post it is %+v", s)
		}
	}
	x.Notice = []byte("n")
	if q, err := a.Post(x); err != nil || q.brief || q.Wait(ctx) != nil {
		t.Error(q, err)
	}
	// Memory that was taken back is an error, at once or later.
	x.Notice = nil
	if err := both[1].Reclaim(ctx, 0, n); err != nil {
		t.Fatal(err)
	}
	q, err := a.Post(x)
	if err == nil {
		err = q.Wait(ctx)
	}
	if !errors.Is(err, ErrLease) {
		t.Errorf("after Reclaim: %v", err)
	}
}

// Memory of a GPU, in software here, goes to and from memory and files, in one process and over a socket; between
// two pieces of one GPU by its own copies.
func TestGPU(t *testing.T) {
	const n = 2<<20 + 777
	for _, path := range []string{"process", "gpu", "unix"} {
		for _, mine := range []Kind{Host, File, GPU} {
			if path == "gpu" && mine != GPU {
				continue // TestGPUOfAnotherProcess
			}
			t.Run(path+"/"+mine.String(), func(t *testing.T) {
				ctx := limit(t)
				d := soft.New(gpu.Plain)
				t.Cleanup(func() { d.Close() })
				on := func(a *Agent, name string, seed uint64) *Region {
					at, err := d.Alloc(n)
					if err != nil {
						t.Fatal(err)
					}
					x, err := NewDevice(d, at, n)
					if err != nil {
						t.Fatal(err)
					}
					b := make([]byte, n)
					noise(b, seed)
					if err := x.WriteAt(ctx, b, 0); err != nil {
						t.Fatal(err)
					}
					r, err := a.Register(name, x, 0)
					if err != nil {
						t.Fatal(err)
					}
					return r
				}
				change := func(c *Config) { c.Path = path }
				a, b := start(t, "a", change), start(t, "b", change)
				theirs := on(b, "theirs", 2)
				var here *Region
				if mine == GPU {
					here = on(a, "mine", 1)
				} else {
					here = storage(t, a, mine, "mine", n, 1)
				}
				if mine == Host {
					if err := theirs.store.(*Device).Pin(here.Bytes()); err != nil {
						t.Fatal(err)
					}
				}
				p := meet(t, a, b)
				if k := remote(t, p, "theirs").Kind; k != GPU {
					t.Fatalf("it is called %s", k)
				}
				for _, op := range []Op{Read, Write} {
					want := contents(t, theirs)
					if op == Write {
						if mine == Host {
							noise(here.Bytes(), 9)
						}
						want = contents(t, here)
					}
					q, err := a.Post(Transfer{Op: op, Local: prepare(t, a, nil, here.At(0, n)), Remote: prepare(t, a, p, remote(t, p, "theirs").At(0, n))})
					if err != nil {
						t.Fatal(err)
					}
					if err := q.Wait(ctx); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(contents(t, here), want) || !bytes.Equal(contents(t, theirs), want) {
						t.Fatalf("%s: wrong bytes", op)
					}
				}
			})
		}
	}
	d := soft.New(gpu.Plain)
	defer d.Close()
	if _, err := NewDevice(d, 12345, 10); err == nil {
		t.Error("an address that is none")
	}
}

// Many pieces go between a GPU and pinned memory, and inside a GPU, by one queue; none is mixed up with another, and a cancel
// leaves nothing under way.
func TestGPUPieces(t *testing.T) {
	ctx := limit(t)
	const piece, count = 4096, 1500
	d := soft.New(gpu.Plain)
	t.Cleanup(func() { d.Close() })
	a := start(t, "a", nil)
	on := func(name string, seed uint64) *Region {
		at, err := d.Alloc(piece * count)
		if err != nil {
			t.Fatal(err)
		}
		x, err := NewDevice(d, at, piece*count)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, piece*count)
		noise(b, seed)
		if err := x.WriteAt(ctx, b, 0); err != nil {
			t.Fatal(err)
		}
		r, err := a.Register(name, x, 0)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first, second, mem := on("first", 1), on("second", 2), host(t, a, "mem", piece*count, true, 3)
	if err := first.Storage().(*Device).Pin(mem.Bytes()); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ to, from *Region }{{mem, first}, {first, mem}, {second, first}} {
		// Piece i of the destination is the last but i of the source.
		var to, from []Desc
		for i := range int64(count) {
			to, from = append(to, x.to.At(i*piece, piece)), append(from, x.from.At((count-1-i)*piece, piece))
		}
		src := contents(t, x.from)
		q, err := a.Post(Transfer{Op: Read, Local: prepare(t, a, nil, to...), Remote: prepare(t, a, nil, from...)})
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		got := contents(t, x.to)
		for i := range count {
			if !bytes.Equal(got[i*piece:][:piece], src[(count-1-i)*piece:][:piece]) {
				t.Fatalf("%s from %s: piece %d is another", x.to.Name(), x.from.Name(), i)
			}
		}
		if s := q.Poll(); s.Landed != piece*count {
			t.Errorf("%d bytes landed", s.Landed)
		}
	}
}

// The GPU copies between processes of a host where both have memory of it; what cannot be shown, and who has none, goes another way,
// or fails if that is demanded.
func TestGPUOfAnotherProcess(t *testing.T) {
	ctx := limit(t)
	const n = 1<<20 + 333
	region := func(a *Agent, name string, kind gpu.Kind, id string, seed uint64) *Region {
		t.Helper()
		d := soft.New(kind).As(id)
		t.Cleanup(func() { d.Close() })
		at, err := d.AllocUser(n)
		if err != nil {
			t.Fatal(err)
		}
		x, err := NewDevice(d, at, n)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, n)
		noise(b, seed)
		if err := x.WriteAt(ctx, b, 0); err != nil {
			t.Fatal(err)
		}
		r, err := a.Register(name, x, 0)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	demand := func(c *Config) { c.Path = "gpu" }
	a, b := start(t, "a", demand), start(t, "b", nil)
	mine := region(a, "mine", gpu.Plain, "soft", 1)
	host := storage(t, a, Host, "host", n, 3)
	theirs := region(b, "theirs", gpu.Plain, "soft", 2)
	hidden := region(b, "hidden", gpu.Managed, "soft", 4)
	other := region(b, "other", gpu.Plain, "another GPU", 5)
	plain := storage(t, b, Host, "plain", n, 6)
	p := meet(t, a, b)
	do := func(op Op, local *Region, far string) error {
		t.Helper()
		l, err := a.Prepare(nil, []Desc{local.At(0, 1000), local.At(5000, n-5000)})
		if err != nil {
			t.Fatal(err)
		}
		f, err := a.Prepare(p, []Desc{remote(t, p, far).At(0, 1000), remote(t, p, far).At(5000, n-5000)})
		if err != nil {
			t.Fatal(err)
		}
		q, err := a.Post(Transfer{Op: op, Local: l, Remote: f})
		if err != nil {
			t.Fatal(err)
		}
		err = q.Wait(ctx)
		if err == nil && q.Poll().Path != "gpu" {
			t.Errorf("path %s", q.Poll().Path)
		}
		return err
	}
	equal := func(x, y *Region) {
		t.Helper()
		g, h := contents(t, x), contents(t, y)
		if !bytes.Equal(g[:1000], h[:1000]) || !bytes.Equal(g[5000:], h[5000:]) {
			t.Error("the bytes differ")
		}
	}
	for range 2 { // the second time it is mapped already
		if err := do(Read, mine, "theirs"); err != nil {
			t.Fatal(err)
		}
		equal(mine, theirs)
	}
	noise(host.Bytes(), 9)
	if err := do(Read, host, "theirs"); err != nil { // into memory of the host that is not pinned
		t.Fatal(err)
	}
	equal(host, theirs)
	if err := do(Write, region(a, "more", gpu.Plain, "soft", 7), "theirs"); err == nil {
		equal(a.names["more"], theirs)
	} else {
		t.Error(err)
	}
	if err := do(Write, mine, "plain"); err != nil { // out of the GPU into memory of the host, by the target
		t.Error(err)
	} else {
		equal(mine, plain)
	}
	for far, why := range map[string]string{"hidden": "not shown to other processes", "other": "no own region is on the GPU",
		"plain": "not memory of a GPU"} {
		if err := do(Read, mine, far); !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", far, err, why)
		}
	}
	if err := do(Write, host, "theirs"); !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), "not memory of a GPU") {
		t.Error(err)
	}
	_, _ = hidden, other
	// Handles that are none are refused by their target.
	for _, s := range []*Shown{{"soft", make([]byte, gpu.HandleSize), 0}, {"soft", []byte{1}, 0},
		{"nowhere", make([]byte, gpu.HandleSize), 0}} {
		d, _ := (&place{store: mine.store}).device()
		was := d.shown
		d.shown = s
		if err := do(Write, mine, "theirs"); err == nil {
			t.Errorf("%+v was taken", s)
		}
		d.shown = was
	}
}
