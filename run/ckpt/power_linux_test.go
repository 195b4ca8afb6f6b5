package ckpt_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/ckpt"
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

// still is the content of an image at one instant. The kernel writes to it now and then, also while it is read, and what is read
// then is of no instant; twice the same is.
func still(t *testing.T, image string) []byte {
	t.Helper()
	var before []byte
	for end := time.Now().Add(40 * time.Second); time.Now().Before(end); {
		b, err := os.ReadFile(image)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(b, before) {
			return b
		}
		before = b
	}
	t.Fatalf("%s is written to all the time", image)
	return nil
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
		time.Sleep(time.Duration(r.Int64N(int64(4 * time.Millisecond)))) // it dies at any moment of a save
		cmd.Process.Kill()
		reap(t, cmd)
		last = base + int64(n)

		snapshot := filepath.Join(images, "copy")
		if err := os.WriteFile(snapshot, still(t, image), 0o644); err != nil {
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
