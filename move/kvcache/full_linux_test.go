package kvcache

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/move/kv"
	"golang.org/x/sys/unix"
)

// A disk that is really full, a tmpfs in a namespace of its own: the service goes on in memory, what was on the disk before is
// read from it, and a cache that is started when there is space again writes.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv("WEFT_FULL_DISK"); dir != "" {
		fullDisk(t, dir)
		return
	}
	cmd := bounded.Command(t, os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "WEFT_FULL_DISK="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	switch {
	case cmd.Process == nil:
		t.Skipf("no namespace of mounts: %v", err)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP")):
		t.Skipf("%s", out)
	}
}

func fullDisk(t *testing.T, dir string) {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skip(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip(err)
	}
	options := func(o *Options) { o.Disk, o.Slab = filepath.Join(dir, "slab"), 800<<10 }
	c := small(t, options)
	put := func(text, n int) {
		for i, h := range path(text, n) {
			if _, err := c.Put("default", Path{Keys: []kv.Hash{h}, Alone: true}, 0, content("default", h)); err != nil {
				t.Fatalf("block %d: %v", i, err)
			}
			settle(t, c)
		}
	}
	there := func(text, from, to int) (n int) {
		for _, h := range path(text, to)[from:] {
			_, ok, err := c.Get(t.Context(), "default", Path{Keys: []kv.Hash{h}, Alone: true}, 0, func(b []byte) error {
				if !bytes.Equal(b, content("default", h)) {
					t.Errorf("a wrong block")
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if ok {
				n++
			}
		}
		return n
	}
	put(1, 30) // memory has 20
	if n := there(1, 0, 30); n != 30 {
		t.Fatalf("%d of 30 blocks are there", n)
	}
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 2<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	put(2, 1000)
	if n := there(2, 990, 1000); n != 10 {
		t.Errorf("%d of the last 10 blocks are there", n)
	}
	if n := there(1, 0, 10); n != 10 {
		t.Errorf("%d of 10 blocks that were on the disk are there", n)
	}
	if s := c.Stat(); !strings.Contains(s.Broken, "no space left") {
		t.Errorf("broken: %q", s.Broken)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	c.Close()
	c = small(t, options)
	if n := there(1, 0, 10); n != 10 {
		t.Errorf("after a restart %d of 10 blocks that were on the disk are there", n)
	}
	put(3, 60)
	if n := there(3, 0, 60); n != 60 || c.Stat().Broken != "" {
		t.Errorf("after a restart %d of 60 blocks are there: %q", n, c.Stat().Broken)
	}
}
