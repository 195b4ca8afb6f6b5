package kvcache

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// A name that is stored once more with another size does not spoil the block that is on the disk.
func TestTheSameNameWithAnotherSize(t *testing.T) {
	ctx := limit(t)
	c := small(t, func(o *Options) {
		o.Disk, o.Slab = filepath.Join(t.TempDir(), "slab"), 60*8192
		o.Memory = 2 * o.Block
	})
	first := bytes.Repeat([]byte{7}, 900)
	p := path(1, 1)
	if err := put(c, "default", p, first); err != nil {
		t.Fatal(err)
	}
	for i := range 4 { // push it out of memory
		settle(t, c)
		if err := put(c, "default", path(10+i, 1), []byte{byte(i), 1, 2}); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, c)
	if err := put(c, "default", p, first[:100]); err != nil {
		t.Fatal(err)
	}
	if s := c.Stat().Counters; s.Written < 5 {
		t.Fatalf("%d blocks are on the disk, want 5", s.Written)
	}
	got, _, err := get(ctx, c, "default", p)
	if s := c.Stat().Counters; err != nil || !bytes.Equal(got, first) || s.Damaged != 0 {
		t.Errorf("%d bytes, %v, %d damaged; want the 900 bytes that were first", len(got), err, s.Damaged)
	}
}

// A slab that the disk has no room for says what to do.
func TestNoRoomForTheSlab(t *testing.T) {
	_, err := New(Options{Name: "a", Block: 1 << 20, Memory: 1 << 20, Disk: filepath.Join(t.TempDir(), "slab"), Slab: 1 << 60})
	if err == nil || !strings.Contains(err.Error(), "make it smaller, or free space") {
		t.Errorf("%v", err)
	}
}

// A lookup that nobody waits for any more is no failure of the store.
func TestNobodyWaitsForAPack(t *testing.T) {
	ctx := limit(t)
	dir := t.TempDir()
	c := small(t, func(o *Options) {
		o.Store = blob.NewDir(dir)
	})
	p := Path{Keys: []kv.Hash{path(3, 1)[0]}, Alone: true}
	name := filepath.Join(dir, filepath.FromSlash(packName(c.tenants["default"].name(p.Keys[0]))))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	for _, x := range []context.Context{gone, gone, ctx} {
		if w, err := c.Match(x, "default", p); err != nil || len(w) != 0 {
			t.Errorf("%v %v", w, err)
		}
	}
	if s := c.Stat().Counters; s.Failed != 1 {
		t.Errorf("%d failures were counted, want 1", s.Failed)
	}
}
