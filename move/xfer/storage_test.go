package xfer

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// storage makes a region of a kind, of n bytes, filled by seed.
func storage(t *testing.T, a *Agent, kind Kind, name string, n int, seed uint64) *Region {
	t.Helper()
	if kind == Host {
		return host(t, a, name, n, false, seed)
	}
	dir := t.TempDir()
	b := make([]byte, n)
	noise(b, seed)
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
		t.Fatal(err)
	}
	var s Storage
	var err error
	if kind == File {
		s, err = OpenFile(filepath.Join(dir, name), FileOptions{Size: int64(n)})
	} else {
		s, err = NewObject(blob.NewDir(dir), name, int64(n), ObjectOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Register(name, s, 0)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func contents(t *testing.T, r *Region) []byte {
	t.Helper()
	b := make([]byte, r.Size())
	if err := (&place{mem: r.mem, store: r.store, region: r}).read(t.Context(), b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// Every pair of kinds, in both directions, in one process and over a socket.
func TestKinds(t *testing.T) {
	const n = 2<<20 + 12345
	for _, path := range []string{"process", "unix"} {
		for _, mine := range []Kind{Host, File, Object} {
			for _, theirs := range []Kind{Host, File, Object} {
				t.Run(path+"/"+mine.String()+"-"+theirs.String(), func(t *testing.T) {
					ctx := limit(t)
					change := func(c *Config) { c.Path = path }
					a, b := start(t, "a", change), start(t, "b", change)
					here, there := storage(t, a, mine, "mine", n, 1), storage(t, b, theirs, "theirs", n, 2)
					p := meet(t, a, b)
					local, peer := prepare(t, a, nil, here.At(0, 5000), here.At(5000, n-5000)),
						prepare(t, a, p, remote(t, p, "theirs").At(0, 5000), remote(t, p, "theirs").At(5000, n-5000))
					for _, op := range []Op{Read, Write} {
						want := contents(t, there)
						if op == Write {
							if mine == Host {
								noise(here.Bytes(), 9)
							}
							want = contents(t, here)
						}
						q, err := a.Post(Transfer{Op: op, Local: local, Remote: peer, Notice: []byte("x")})
						if err != nil {
							t.Fatal(err)
						}
						if err := q.Wait(ctx); err != nil {
							t.Fatal(err)
						}
						if !bytes.Equal(contents(t, here), want) || !bytes.Equal(contents(t, there), want) {
							t.Fatalf("%s: wrong bytes", op)
						}
						if n, err := b.NextNotice(ctx); err != nil || n.Err != nil {
							t.Fatal(n, err)
						}
					}
				})
			}
		}
	}
}

// A file that is replaced as a whole keeps its old bytes until all new ones are there.
func TestWholeFile(t *testing.T) {
	ctx := limit(t)
	a := start(t, "a", nil)
	dir := t.TempDir()
	path := filepath.Join(dir, "block")
	s, err := OpenFile(path, FileOptions{Size: 100_000, Create: true, Whole: true})
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Register("block", s, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := host(t, a, "m", 100_000, false, 5)
	q, err := a.Post(Transfer{Op: Write, Local: prepare(t, a, nil, m.At(0, 50_000)), Remote: prepare(t, a, nil, r.At(0, 50_000))})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Wait(ctx); !errors.Is(err, ErrKind) {
		t.Errorf("half of it was written: %v", err)
	}
	if q, err = a.Post(Transfer{Op: Write, Local: prepare(t, a, nil, m.At(0, 100_000)),
		Remote: prepare(t, a, nil, r.At(0, 100_000))}); err != nil {
		t.Fatal(err)
	}
	if err := q.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, m.Bytes()) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
}
