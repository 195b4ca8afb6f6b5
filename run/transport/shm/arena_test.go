//go:build linux

package shm

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/run/transport"
)

// Whatever is taken and given back, parts in use never overlap, lie where they
// were asked to, and free spans are all the rest, sorted and merged.
func TestExtents(t *testing.T) {
	const end = 1 << 14
	rapid.Check(t, func(t *rapid.T) {
		x := newExtents(span{64, end})
		used := map[uint64]uint64{} // the reference: size by start
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.Uint64Range(1, 3000).Draw(t, "n")
				align := uint64(1) << rapid.IntRange(0, 11).Draw(t, "align")
				s, ok := x.take(n, align)
				if !ok {
					// There must be no room anywhere.
					for at := (64 + align - 1) &^ (align - 1); at+n <= end; at += align {
						if !overlaps(used, at, n) {
							t.Fatalf("%d bytes at a multiple of %d: there is room at %d", n, align, at)
						}
					}
					return
				}
				if s.size() != n || s.start%align != 0 || s.start < 64 || s.end > end || overlaps(used, s.start, n) {
					t.Fatalf("%d bytes at a multiple of %d: got %v", n, align, s)
				}
				used[s.start] = n
			},
			"give": func(t *rapid.T) {
				var starts []uint64
				for s := range used {
					starts = append(starts, s)
				}
				if len(starts) == 0 {
					t.Skip()
				}
				slices.Sort(starts)
				s := rapid.SampledFrom(starts).Draw(t, "start")
				was, merged, ok := x.give(s)
				if !ok || was != (span{s, s + used[s]}) || merged.start > was.start || merged.end < was.end {
					t.Fatalf("give %d: %v %v %v", s, was, merged, ok)
				}
				delete(used, s)
				if _, _, ok := x.give(s); ok {
					t.Fatalf("%d was given back twice", s)
				}
			},
			"": func(t *rapid.T) {
				free := uint64(0)
				for i, f := range x.free {
					if f.start >= f.end || i > 0 && x.free[i-1].end >= f.start {
						t.Fatalf("free spans %v", x.free)
					}
					if overlaps(used, f.start, f.size()) {
						t.Fatalf("%v is in use", f)
					}
					free += f.size()
				}
				for _, n := range used {
					free += n
				}
				if free != end-64 {
					t.Fatalf("%d bytes of %d are accounted for", free, end-64)
				}
			},
		})
	})
}

func overlaps(used map[uint64]uint64, start, n uint64) bool {
	for s, m := range used {
		if start < s+m && s < start+n {
			return true
		}
	}
	return false
}

func testArena(t *testing.T, size uint64) *arena {
	a, err := newArena(size, page)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	return a
}

// blocks is how much memory an arena takes.
func blocks(t *testing.T, a *arena) int64 {
	var st unix.Stat_t
	if err := unix.Fstat(int(a.file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// Memory is zeroed and aligned, keeps what is written to it, and what is given
// back goes back to the system.
func TestArena(t *testing.T) {
	a := testArena(t, 64<<20)
	empty := blocks(t, a)
	rapid.Check(t, func(t *rapid.T) {
		type piece struct {
			b    []byte
			mark byte
		}
		var live []piece
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 100<<10), rapid.IntRange(large-100, large+100),
					rapid.IntRange(0, 5<<20)).Draw(t, "n")
				b, err := a.alloc(n)
				if err != nil {
					if !errors.Is(err, transport.ErrNoMemory) {
						t.Fatal(err)
					}
					t.Skip()
				}
				want := 64
				if n >= hugePage {
					want = hugePage
				}
				if off, ok := a.find(b); !ok || off%uint64(want) != 0 || len(b) != n {
					t.Fatalf("%d bytes at %d", len(b), off)
				}
				if i := slices.IndexFunc(b, func(x byte) bool { return x != 0 }); i >= 0 {
					t.Fatalf("byte %d of %d is %d", i, n, b[i])
				}
				mark := rapid.Byte().Draw(t, "mark")
				for i := range b {
					b[i] = mark
				}
				live = append(live, piece{b, mark})
			},
			"free": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "i")
				p := live[i]
				if !bytes.Equal(p.b, bytes.Repeat([]byte{p.mark}, len(p.b))) {
					t.Fatal("memory changed by itself")
				}
				if err := a.release(p.b); err != nil {
					t.Fatal(err)
				}
				live = slices.Delete(live, i, i+1)
			},
		})
		for _, p := range live {
			if err := a.release(p.b); err != nil {
				t.Fatal(err)
			}
		}
	})
	if a.allocated != 0 || len(a.x.free) != 1 || len(a.x.used) != 0 {
		t.Errorf("%d bytes in use, free %v", a.allocated, a.x.free)
	}
	if now := blocks(t, a); now > empty {
		t.Errorf("the system holds %d bytes for it, %d when it was empty", now, empty)
	}
}

func TestFindOwnMemory(t *testing.T) {
	a := testArena(t, 4<<20)
	if off, ok := a.find(a.mem); !ok || off != 0 {
		t.Error("the arena is not in itself")
	}
	end := unsafe.Slice(unsafe.SliceData(a.mem), len(a.mem))[len(a.mem)-8:]
	if off, ok := a.find(end); !ok || off != uint64(len(a.mem)-8) {
		t.Errorf("its end lies at %d, %v", off, ok)
	}
	for _, b := range [][]byte{nil, {}, make([]byte, 10), []byte("constant")} {
		if _, ok := a.find(b); ok {
			t.Errorf("%d bytes of other memory are in the arena", len(b))
		}
	}
	b, err := a.alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.release(b[64:]); err == nil {
		t.Error("the middle of memory was freed")
	}
}

// Too much is an error with numbers, from the arena and from the machine, and
// harms nobody.
func TestNoMemory(t *testing.T) {
	a := testArena(t, 8<<20)
	if _, err := a.alloc(9 << 20); !errors.Is(err, transport.ErrNoMemory) || !bytes.Contains([]byte(err.Error()), []byte("9437184")) {
		t.Errorf("more than the arena has: %v", err)
	}
	b := testArena(t, 1<<44) // an eighth of the addresses that there are
	if _, err := b.alloc(1 << 43); !errors.Is(err, transport.ErrNoMemory) || !bytes.Contains([]byte(err.Error()), []byte("available")) {
		t.Errorf("more than the machine has: %v", err)
	}
	if got, err := b.alloc(1 << 20); err != nil || len(got) != 1<<20 {
		t.Errorf("a little after too much: %v", err)
	}
}

// The room that control groups leave is the least of all above the process.
func TestGroupRoom(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a/memory.max", "1000\n")
	write("a/memory.current", "900\n")
	write("a/memory.stat", "anon 100\ninactive_file 300\n")
	write("a/b/memory.max", "max\n")
	write("a/b/memory.current", "5\n")
	write("memory/c/memory.limit_in_bytes", "500")
	write("memory/c/memory.usage_in_bytes", "600")
	for _, c := range []struct {
		groups string
		want   uint64
	}{
		{"0::/a/b\n", 400},
		{"0::/x\n", 1 << 62},
		{"3:cpu,memory:/c\n1:name=systemd:/\n", 0},
		{"3:cpu:/c\n", 1 << 62},
		{"", 1 << 62},
		{"garbage\n::\n", 1 << 62},
	} {
		if got := groupRoom([]byte(c.groups), root); got != c.want {
			t.Errorf("%q: %d, want %d", c.groups, got, c.want)
		}
	}
}

func TestArenaSize(t *testing.T) {
	const gib = 1 << 30
	for _, x := range []struct{ ranks, ram, addresses, want uint64 }{
		{2, 24 * gib, 1 << 62, 24 * gib},
		{4096, 1024 * gib, 1 << 62, 8 * gib},
		{2, 0, 1 << 62, gib},                // the system does not say
		{4, 24 * gib, 3 * gib, 3 * gib / 8}, // ulimit -v
		{64, 24 * gib, gib / 4, 16 << 20},
	} {
		if have := arenaSize(x.ranks, x.ram, x.addresses); have != x.want {
			t.Errorf("%d ranks, %d bytes of memory, %d of addresses: %d bytes, want %d", x.ranks, x.ram, x.addresses, have, x.want)
		}
	}
}
