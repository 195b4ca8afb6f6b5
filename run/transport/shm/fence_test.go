//go:build linux

package shm

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/run/transport"
)

// fenced is an allocation in use, and what it must hold.
type fenced struct{ b, want []byte }

// late is memory that a stopped peer may still store to.
type late struct {
	at  []byte // in the peer's mapping
	end func() error
}

// Whatever is allocated, fenced and freed, stores by handles of before a fence reach nothing that the owner has, and peers that ask
// for handles now see what the owner sees.
func TestFences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		header := uint64(tableSize)
		a, err := newArena(hugePage*4, header)
		if err != nil {
			t.Fatal(err)
		}
		defer a.close()
		peer, err := mapArena(a.file, uint64(len(a.mem)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unmapArena(peer) }()
		var list []fenced
		var lates []late
		pick := func(t *rapid.T) int {
			if len(list) == 0 {
				t.Skip()
			}
			return rapid.IntRange(0, len(list)-1).Draw(t, "which")
		}
		mark := byte(0)
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.IntRange(1, 6*page).Draw(t, "n")
				b, err := a.alloc(n)
				if err != nil {
					t.Skip()
				}
				if slices.ContainsFunc(b, func(x byte) bool { return x != 0 }) {
					t.Fatal("memory is not zeroed")
				}
				list = append(list, fenced{b, make([]byte, n)})
			},
			"write": func(t *rapid.T) {
				x := list[pick(t)]
				mark++
				for i := range x.b {
					x.b[i], x.want[i] = mark, mark
				}
			},
			"fence": func(t *rapid.T) {
				x := list[pick(t)]
				from := rapid.IntRange(0, len(x.b)-1).Draw(t, "from") &^ (page - 1)
				part := x.b[from:]
				if n := rapid.IntRange(1, len(part)).Draw(t, "n"); n >= page && rapid.Bool().Draw(t, "part") {
					part = part[:n&^(page-1)]
				}
				was, ok := a.place(part)
				if !ok || !a.fences(part) {
					t.Skip()
				}
				end, err := a.fence(part)
				if err != nil {
					t.Skip()
				}
				lates = append(lates, late{peer[was : was+uint64(len(part))], end})
				if now, _ := a.place(part); now == was {
					t.Fatal("a fenced part is where it was")
				}
			},
			"store late": func(t *rapid.T) {
				for _, l := range lates {
					for i := range l.at {
						l.at[i] = 0xEE
					}
				}
			},
			"end": func(t *rapid.T) {
				if len(lates) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(lates)-1).Draw(t, "end of")
				if err := lates[i].end(); err != nil {
					t.Fatal(err)
				}
				lates = slices.Delete(lates, i, i+1)
			},
			"free": func(t *rapid.T) {
				i := pick(t)
				if err := a.release(list[i].b); err != nil {
					t.Fatal(err)
				}
				if a.release(list[i].b) == nil {
					t.Fatal("memory was freed twice")
				}
				list = slices.Delete(list, i, i+1)
			},
			"": func(t *rapid.T) {
				for _, x := range list {
					if !bytes.Equal(x.b, x.want) {
						t.Fatal("memory of the owner was stored to")
					}
					for at := 0; at < len(x.b); at += page {
						part := x.b[at:min(at+page, len(x.b))]
						if h, ok := a.place(part); !ok || !bytes.Equal(peer[h:h+uint64(len(part))], part) {
							t.Fatalf("a peer sees something else (%t)", ok)
						}
					}
				}
			},
		})
		for _, l := range lates {
			if err := l.end(); err != nil {
				t.Fatal(err)
			}
		}
		for _, x := range list {
			if err := a.release(x.b); err != nil {
				t.Fatal(err)
			}
		}
		if all := []span{{header, uint64(len(a.mem))}}; !slices.Equal(a.x.free, all) || a.moves.Load() != nil || len(a.held) > 0 ||
			a.allocated != 0 {
			t.Fatalf("left: free %v, %d held, %d bytes allocated", a.x.free, len(a.held), a.allocated)
		}
	})
}

// Memory whose key a rank uses just now is not used for something else when it is freed, and the rank learns that it was.
func TestFreedWhileItsKeyIsUsed(t *testing.T) {
	a, err := newArena(hugePage*4, uint64(tableSize))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	e := &Endpoint{size: 1, arena: a, maps: [][]byte{a.mem}}
	b, err := e.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	k, err := a.key(b)
	if err != nil {
		t.Fatal(err)
	}
	used, err := e.Named(0, k, 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Free(b); err != nil {
		t.Fatal(err)
	}
	other, err := e.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	used[0] = 1 // late
	if &other[0] == &b[0] || other[0] != 0 {
		t.Error("memory that a rank still writes to was used again")
	}
	if e.Done(0, k) == nil {
		t.Error("the rank did not learn that the memory was freed")
	}
	if _, err := e.Named(0, k, 1); err == nil {
		t.Error("the key of memory that was freed is good")
	}
	if again, err := e.Alloc(100); err != nil || &again[0] != &b[0] {
		t.Errorf("the memory is not used again when nobody uses its key: %v", err)
	}
}

// Keys of memory of which a part was moved lead to the part that is meant, or are refused.
func TestKeysOfMovedMemory(t *testing.T) {
	a, err := newArena(hugePage*4, uint64(tableSize))
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	e := &Endpoint{size: 1, arena: a, maps: [][]byte{a.mem}}
	b, err := e.Alloc(4 * page)
	if err != nil {
		t.Fatal(err)
	}
	old, err := a.key(b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Fence(b[page : 2*page]); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Named(0, old, 1); err == nil {
		t.Error("a key of before the move is good")
	}
	if _, err := a.key(b); err == nil {
		t.Error("memory in two pieces has a key")
	}
	for i := range 4 {
		part := b[i*page:][:page]
		k, err := a.key(part)
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.Named(0, k, page)
		if err != nil {
			t.Fatal(err)
		}
		got[7] = byte(i + 1)
		if err := e.Done(0, k); err != nil || part[7] != byte(i+1) {
			t.Errorf("the key of page %d leads elsewhere: %v", i, err)
		}
		if _, err := e.Named(0, k+page, page); i < 2 && err == nil {
			t.Errorf("the key of page %d reaches into what lies elsewhere", i)
		}
	}
	var f transport.Fencer = e
	if f.Fences(b[1:page+1]) || f.Fences(b[:10]) || !f.Fences(b) || !f.Fences(b[:page]) {
		t.Error("what shares a page with other memory can be fenced, or what has its own cannot")
	}
}
