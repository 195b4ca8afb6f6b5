package ckpt_test

import (
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/weft-fabric/weft/ckpt"
	"github.com/weft-fabric/weft/internal/bounded"
)

// attach mounts an ext4 image and gives where, and what takes it off again.
func attach(t *testing.T, image string) (dir string, off func()) {
	t.Helper()
	dir = t.TempDir()
	if out, err := bounded.Command(t, "mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("mounting an image: %v: %s", err, out)
	}
	done := false
	off = func() {
		if done {
			return
		}
		done = true
		if out, err := bounded.Command(t, "umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	}
	t.Cleanup(off)
	return dir, off
}

// The power fails: what the disk has, and not what the kernel still holds in memory,
// is all there is. A file system on an image is written to; at a random instant the
// image is copied as it is, without the dirty pages of the file system on it, and the
// copy mounted. Every step whose Save returned on all ranks must be there, or a
// later one, and nothing torn.
func TestPowerFailure(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting an image takes root")
	}
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skip("no mkfs.ext4")
	}
	images := t.TempDir()
	image := filepath.Join(images, "disk")
	if err := os.WriteFile(image, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 24<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := bounded.Command(t, mkfs, "-q", image).CombinedOutput(); err != nil {
		t.Skipf("mkfs.ext4: %v: %s", err, out)
	}
	dir, _ := attach(t, image)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	s := open(t, dir, ckpt.Options{})
	last, lost := int64(0), 0
	for range 12 {
		base := intact(t, s, last)
		cmd, saved := start(t, dir)
		n, err := io.ReadFull(saved, make([]byte, r.IntN(4)))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(r.Int64N(int64(4 * time.Millisecond))))
		cmd.Process.Kill()
		reap(t, cmd)
		last = base + int64(n)

		snapshot := filepath.Join(images, "copy")
		b, err := os.ReadFile(image)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(snapshot, b, 0o644); err != nil {
			t.Fatal(err)
		}
		after, off := attach(t, snapshot)
		survived := intact(t, open(t, after, ckpt.Options{}), last)
		if latest := intact(t, s, last); survived < latest {
			lost++
		}
		off()
	}
	t.Logf("12 failures up to step %d; %d times a step that was not yet saved was lost", last, lost)
}
