package kvcache

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// kept is a slab that a closed cache of 20 blocks left, and what opens a copy of it.
func kept(t *testing.T) (slab, index []byte, open func(slab, index []byte, change func(*Options)) *Cache) {
	t.Helper()
	open = func(slab, index []byte, change func(*Options)) *Cache {
		t.Helper()
		file := filepath.Join(t.TempDir(), "slab")
		if slab != nil {
			if err := errors.Join(os.WriteFile(file, slab, 0o600), os.WriteFile(file+".index", index, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		return small(t, func(o *Options) {
			o.Memory, o.Disk, o.Slab = 2000, file, 16*8192
			if change != nil {
				change(o)
			}
		})
	}
	c := open(nil, nil, nil)
	for i := range 20 { // the first four leave again
		if err := put(c, "default", path(1, i+1), content("default", hash(1, i))); err != nil {
			t.Fatal(err)
		}
		settle(t, c)
	}
	c.Close()
	var err1, err2 error
	slab, err1 = os.ReadFile(c.o.Disk)
	index, err2 = os.ReadFile(c.o.Disk + ".index")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return slab, index, open
}

// served reads all blocks that there ever were, and gives how many came. A wrong one is an error.
func served(t *testing.T, c *Cache) (n int) {
	t.Helper()
	ctx := limit(t)
	for i := range 20 {
		data, _, err := get(ctx, c, "default", path(1, i+1))
		if err == nil {
			n++
		}
		if err == nil && !bytes.Equal(data, content("default", hash(1, i))) || err != nil && !errors.Is(err, errMissing) {
			t.Errorf("block %d: %d bytes, %v", i, len(data), err)
		}
	}
	return n
}

// A slab has its blocks after a restart, and still after the next one. One of other sizes, or of other tenants, is empty.
func TestSlabIsKept(t *testing.T) {
	slab, index, open := kept(t)
	c := open(slab, index, nil)
	if s := c.Stat().Tenants[0]; s.Disk != 16 {
		t.Fatalf("%d blocks are on the disk, want 16", s.Disk)
	}
	if n := served(t, c); n != 16 {
		t.Errorf("%d blocks are served, want 16", n)
	}
	settle(t, c)
	c.Close()
	again, err := New(c.o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	if n := served(t, again); n != 16 {
		t.Errorf("%d blocks are served after the second restart, want 16", n)
	}
	for name, change := range map[string]func(*Options){
		"larger blocks": func(o *Options) { o.Block, o.Memory, o.Slab = 9000, 18000, 16*8192 },
		"more slots":    func(o *Options) { o.Slab = 17 * 8192 },
		"other tenants": func(o *Options) { o.Tenants = []Tenant{{Name: "default", Salt: "new", Quota: o.Memory}} },
	} {
		if n := served(t, open(slab, index, change)); n != 0 {
			t.Errorf("%s: %d blocks are served, want none", name, n)
		}
	}
	half := open(slab, index, func(o *Options) { o.Tenants = []Tenant{{Name: "default", Quota: o.Memory / 2}} })
	if n := served(t, half); n != 8 {
		t.Errorf("half the quota: %d blocks are served, want 8", n)
	}
	if n := served(t, open(make([]byte, 0), index, nil)); n != 0 {
		t.Errorf("a slab that was removed: %d blocks", n)
	}
}

// Wherever index or slab are cut or changed, what is served is right: a torn tail costs the records in it, a changed byte its block.
func TestSlabThatWasDamaged(t *testing.T) {
	slab, index, open := kept(t)
	r := rand.New(rand.NewPCG(1, 2))
	for range bounded.Times(15, 500) {
		at := r.IntN(len(index))
		served(t, open(slab, index[:at], nil))
		bad := bytes.Clone(index)
		bad[at] ^= 1 << r.IntN(8)
		if at >= 8 { // one without the magic is refused, below
			served(t, open(slab, bad, nil))
		}
	}
	if n := served(t, open(slab, index[:len(index)-1], nil)); n != 15 {
		t.Errorf("without its last byte the index has %d blocks, want 15", n)
	}
	if n := served(t, open(slab, append(bytes.Clone(index), index[recordBytes:]...), nil)); n != 16 {
		t.Errorf("with old records behind it the index has %d blocks, want 16", n)
	}
	// A record that does not fit costs no other one.
	for at := recordBytes; at < len(index); at += recordBytes {
		bad := bytes.Clone(index)
		bad[at+r.IntN(recordBytes)] ^= 1
		c := open(slab, bad, nil)
		if n := served(t, c); n < 15 || c.slab.index.lost != 1 {
			t.Errorf("with record %d damaged %d blocks are back, and %d records are lost", at/recordBytes, n, c.slab.index.lost)
		}
	}
	bad := bytes.Clone(index)
	bad[20] ^= 1
	if c := open(slab, bad, nil); c.slab.index.lost != -1 || served(t, c) != 0 {
		t.Errorf("an index whose head is damaged: %d", c.slab.index.lost)
	}
	all := bytes.Clone(slab)
	for i := range 16 {
		all[i*8192+headRoom] ^= 1
	}
	c := open(all, index, nil)
	if n := served(t, c); n != 0 || c.Stat().Counters.Damaged != 16 {
		t.Errorf("%d blocks with a changed byte are served, %d counted as damaged", n, c.Stat().Counters.Damaged)
	}
	file := filepath.Join(t.TempDir(), "slab")
	if err := os.WriteFile(file+".index", []byte("do not lose this"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Block: 1000, Memory: 2000, Disk: file, Slab: 40 * 8192}); !errors.Is(err, errNoIndex) {
		t.Errorf("a foreign index: %v", err)
	}
}

// The index does not grow with what was written: it is written anew, and nothing is lost by that.
func TestIndexIsCompacted(t *testing.T) {
	slab, index, open := kept(t)
	c := open(slab, index, nil)
	for i := range 600 {
		if err := put(c, "default", path(2, i+1), content("default", hash(2, i))); err != nil {
			t.Fatal(err)
		}
		settle(t, c)
	}
	c.Close()
	info, err := os.Stat(c.o.Disk + ".index")
	if most := int64(4*16+1024+1) * recordBytes; err != nil || info.Size() > most {
		t.Errorf("%v, the index has %d bytes, want %d at most", err, info.Size(), most)
	}
	again, err := New(c.o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	for i := 584; i < 600; i++ {
		if data, _, err := get(limit(t), again, "default", path(2, i+1)); err != nil || !bytes.Equal(data, content("default", hash(2, i))) {
			t.Errorf("block %d: %v", i, err)
		}
	}
}

// A disk that cannot be written any more costs the disk tier's writes: what it has is read, and the memory goes on.
func TestDiskThatFails(t *testing.T) {
	slab, index, open := kept(t)
	goesOn := func(c *Cache) {
		t.Helper()
		if err := put(c, "default", path(3, 1), content("default", hash(3, 0))); err != nil {
			t.Fatal(err)
		}
		settle(t, c)
		if data, w, err := get(limit(t), c, "default", path(3, 1)); err != nil || w != InMemory ||
			!bytes.Equal(data, content("default", hash(3, 0))) {
			t.Errorf("%s %v", w, err)
		}
		if s := c.Stat(); !strings.Contains(s.Broken, "it is not written any more") {
			t.Errorf("broken: %q", s.Broken)
		}
	}
	// While it runs: the index cannot grow.
	c := open(slab, index, nil)
	c.slab.index.f.Close()
	goesOn(c)
	if n := served(t, c); n < 15 {
		t.Errorf("%d blocks are served, want at least 15", n)
	}
	c.Close()
	again, err := New(c.o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Close)
	if n := served(t, again); n < 15 || again.Stat().Broken != "" {
		t.Errorf("after a restart %d blocks, broken %q", n, again.Stat().Broken)
	}
	// From the start: the index cannot be written anew.
	file := filepath.Join(t.TempDir(), "slab")
	if err := errors.Join(os.WriteFile(file, slab, 0o600), os.WriteFile(file+".index", index, 0o600),
		os.MkdirAll(file+".index.new/x", 0o755)); err != nil {
		t.Fatal(err)
	}
	bad := open(nil, nil, func(o *Options) { o.Disk = file })
	goesOn(bad)
	if n := served(t, bad); n != 16 {
		t.Errorf("%d blocks are served, want 16", n)
	}
}
