package cost

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A shell that reads a file again and again is seen to: it has memory, processor time and
// calls.
func TestMeasure(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc and ptrace")
	}
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	f, err := Measure(ctx, 50*time.Millisecond, 300*time.Millisecond, []string{"/bin/sh", "-c", "while :; do read x < /proc/uptime; done"},
		os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	if f.CPU <= 0 || f.Memory <= 0 || f.Reads <= 0 {
		t.Errorf("%+v", f)
	}
	if f.Syscalls < 0 {
		t.Skip("calls cannot be counted here: " + f.Why)
	}
	if f.Syscalls == 0 || len(f.Most) == 0 {
		t.Errorf("%+v", f)
	}
	_, err = Measure(ctx, 25*time.Second, 50*time.Millisecond, []string{"/bin/sh", "-c", "exit 3"}, os.Environ())
	if err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("a program that ends at once: %v", err)
	}
}
