package ckpt_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/run/ckpt"
	"golang.org/x/sys/unix"
)

// mount gives a small file system of its own.
func mount(t *testing.T, options string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system takes root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// A disk that fills up: the error names the file, its size and the space left, what
// was there before is whole, nothing half written takes space, and when there is
// room again the next checkpoint succeeds.
func TestFullDisk(t *testing.T) {
	dir := mount(t, "size=1m")
	s := open(t, dir, ckpt.Options{Keep: 2})
	m := newModel(1)
	save(t, s, m, ckpt.Meta{Step: 1, World: 2})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 600<<10), 0o644); err != nil {
		t.Fatal(err)
	}
	big := []ckpt.Tensor{ckpt.Of("w", make([]float32, 100<<10))}
	for name, f := range map[string]func() error{
		"save": func() error { return s.Save(t.Context(), ckpt.Meta{Step: 2, World: 1}, big) },
		"async": func() error {
			return errors.Join(s.Async(t.Context(), ckpt.Meta{Step: 2, World: 1}, big), s.Wait(t.Context()))
		},
	} {
		err := f()
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%s: %v", name, err)
		}
		for _, part := range []string{filepath.Join(dir, "step-000000000002-"), "rank-00000.safetensors (404 KiB)", "the disk is full, ",
			" KiB free; free some space"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %q", name, err, part)
			}
		}
	}
	got := m.blank()
	man, bad, err := s.Resume(t.Context(), got)
	if err != nil || man.Step != 1 || len(bad) > 0 {
		t.Fatalf("resumed from %+v, %v, %v", man, bad, err)
	}
	m.equal(t, got)
	if files, _ := filepath.Glob(filepath.Join(dir, "step-*2-*", ".*")); len(files) > 0 {
		t.Errorf("left: %v", files)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(t.Context(), ckpt.Meta{Step: 3, World: 1}, big); err != nil {
		t.Fatal(err)
	}
	if got := steps(t, s); got != "1 complete 3 complete " {
		t.Errorf("list: %s", got)
	}
}

func TestReadOnlyDirectory(t *testing.T) {
	dir := mount(t, "size=1m")
	s := open(t, dir, ckpt.Options{})
	m := newModel(1)
	save(t, s, m, ckpt.Meta{Step: 1, World: 1})
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	err := s.Save(t.Context(), ckpt.Meta{Step: 2, World: 1}, m)
	if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "cannot be written to; choose another") ||
		!strings.Contains(err.Error(), "rank-00000.safetensors") {
		t.Errorf("save: %v", err)
	}
	got := m.blank()
	if man, _, err := s.Resume(t.Context(), got); err != nil || man.Step != 1 {
		t.Fatalf("%+v %v", man, err)
	}
	m.equal(t, got)
}

// A directory without permission to write, for a user who is not root.
func TestForbiddenDirectory(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may write everywhere; TestReadOnlyDirectory is for root")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	err := open(t, dir, ckpt.Options{}).Save(t.Context(), ckpt.Meta{World: 1}, newModel(1))
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "change its permissions") {
		t.Errorf("save: %v", err)
	}
}
