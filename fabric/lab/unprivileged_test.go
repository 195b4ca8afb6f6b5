//go:build linux

package lab

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	nobody  = 65534
	refused = "a user may not make namespaces here"
)

// TestDrillWithoutRoot: a user without root brings a lab up, breaks it and
// measures. The test runs three times: as root, which starts it again as
// nobody; as nobody, who brings the lab up and enters it; and as root of the
// lab's user namespace.
func TestDrillWithoutRoot(t *testing.T) {
	const name = "weft-test-user"
	switch {
	case os.Getenv(userKey) != "": // entered
		drillInside(t, name)
	case os.Geteuid() == 0:
		asNobody(t)
	case os.Getenv("LAB_TEST_USER") != "":
		o := Usual()
		o.Routing, o.Setup, o.LLDP = "bird", "plain", false
		s, err := NewSpec(examplePlan(t), name, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(s); err != nil {
			t.Skip(err)
		}
		if err := Up(s, func(Progress) {}); err != nil {
			if strings.Contains(err.Error(), "operation not permitted") {
				t.Skip(refused)
			}
			t.Fatal(err)
		}
		i, err := Find(name)
		if err == nil {
			err = i.Enter() // does not come back
		}
		_ = Down(name)
		t.Fatal(err)
	default:
		t.Skip("needs root, to become nobody")
	}
}

// asNobody runs this test as a user without rights, on copies that the user may read.
func asNobody(t *testing.T) {
	for _, tool := range []string{"nsenter", "bird", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	dir, err := os.MkdirTemp("/tmp", "weft-lab-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{self: "fabric/lab/test", "../../examples/lab.yaml": "examples/lab.yaml"} {
		place := filepath.Join(dir, to)
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			t.Fatal(err)
		}
		in, err := os.Open(from)
		if err != nil {
			t.Fatal(err)
		}
		out, err := os.OpenFile(place, os.O_CREATE|os.O_WRONLY, 0o755)
		if err == nil {
			_, err = io.Copy(out, in)
			out.Close()
		}
		in.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "fabric/lab/test"), "-test.run=^TestDrillWithoutRoot$", "-test.v", "-test.timeout=170s")
	cmd.Dir, cmd.WaitDelay = filepath.Join(dir, "fabric", "lab"), time.Second
	cmd.Env = append(os.Environ(), "LAB_TEST_USER=1", "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as nobody: %v\n%s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("as nobody: %s", out)
	}
	t.Logf("%s", out)
}

// drillInside breaks the lab as root of its user namespace.
func drillInside(t *testing.T, name string) {
	i, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := Down(name); err != nil {
			t.Error(err)
		}
	}()
	d, err := i.Drill(t.Context(), "data-blackhole",
		DrillConfig{Phase: 500 * time.Millisecond, During: 1500 * time.Millisecond, Log: t.Logf, Drift: func() ([]string, error) {
			_, err := i.Collect()
			return nil, err
		}})
	if err != nil {
		t.Fatal(err)
	}
	if d.Probe.Dead == 0 || d.Restored < 0 {
		t.Errorf("%d flows dead, restored %.0f ms", d.Probe.Dead, d.Restored)
	}
	for range 50 { // what is opened in a node must not keep a thread there: it would not find the lab again
		if _, err := i.aim(); err != nil {
			t.Fatal(err)
		}
		if _, err := Find(name); err != nil {
			t.Fatal(err)
		}
	}
}
