package xfer

import (
	"bytes"
	"testing"

	"github.com/weft-fabric/weft/gpu"
	"github.com/weft-fabric/weft/gpu/soft"
)

// Memory of a GPU, in software here, goes to and from memory and files, in one process and over a socket; between
// two pieces of one GPU by its own copies.
func TestGPU(t *testing.T) {
	const n = 2<<20 + 777
	for _, path := range []string{"process", "unix"} {
		for _, mine := range []Kind{Host, File, GPU} {
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
