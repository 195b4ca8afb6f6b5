package bounded

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	mu  sync.Mutex
	log []string
}

func (r *recorder) Helper()                           {}
func (r *recorder) Cleanup(func())                    {}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...) }
func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, format)
}

func (r *recorder) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.log) > 0
}

// A process that does not end is killed and fails the test, also while another that it
// started has its output.
func TestAProcessIsLimited(t *testing.T) {
	r := &recorder{TB: t}
	var out []byte
	var err error
	began := time.Now()
	for limit := 50 * time.Millisecond; ; limit *= 2 { // until it is long enough for a process to start
		cmd := Within(r, limit, "sh", "-c", "sleep 100 & echo $!; sleep 100")
		cmd.WaitDelay = 10 * time.Millisecond
		if out, err = cmd.Output(); cmd.Process != nil {
			break
		}
	}
	if pid := strings.TrimSpace(string(out)); pid != "" {
		_ = exec.Command("kill", "-9", pid).Run() // the first sleep
	}
	if err == nil || !r.failed() || time.Since(began) > 50*time.Second {
		t.Errorf("%v after %v; it failed: %v", err, time.Since(began), r.failed())
	}
}

// What others start is found by its environment.
func TestAGuard(t *testing.T) {
	r := &recorder{TB: t}
	mark := "WEFT_TEST_BOUNDED=" + t.TempDir()
	cmd := Command(t, "sh", "-c", "sleep 100; true")
	cmd.Env = append(cmd.Environ(), mark)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := Guard(r, 50*time.Millisecond, mark) // the process is there
	defer done()
	if err := cmd.Wait(); err == nil || !r.failed() {
		t.Errorf("%v; it failed: %v", err, r.failed())
	}
	if !Holds(10*time.Second, func() bool { pids, _ := Of(mark); return len(pids) == 0 }) {
		_, lines := Of(mark)
		t.Errorf("left: %q", lines)
	}
}

// A signal that this process ignores from its start on is not ignored by what it starts.
func TestIgnoredSignals(t *testing.T) {
	if os.Getenv("WEFT_TEST_IGNORES") != "" {
		out, err := Command(t, "sh", "-c", "kill -INT $$; echo ignored INT").CombinedOutput()
		if err == nil {
			t.Errorf("%s", out)
		}
		if out, err = Command(t, "sh", "-c", "kill -HUP $$; echo ignored HUP").CombinedOutput(); err == nil {
			t.Errorf("%s", out)
		}
		return
	}
	cmd := Command(t, "sh", "-c", `trap "" INT HUP; exec "$0" -test.run=TestIgnoredSignals`, os.Args[0])
	cmd.Env = append(os.Environ(), "WEFT_TEST_IGNORES=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A folder is removed though a process that outlived the test writes to it for a while.
func TestDirThatIsWrittenTo(t *testing.T) {
	var dir string
	t.Run("test", func(t *testing.T) {
		dir = Dir(t)
		cmd := Server(t, "sh", "-c", `mkdir "$0/d" && echo began; i=0; while [ $i -lt 3000 ]; do : > "$0/d/$i" || exit 0; i=$((i+1)); done`, dir)
		cmd.Cancel = func() error { return nil } // it goes on
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			_, err = out.Read(make([]byte, 1))
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s: %v", dir, err)
	}
}

func TestUntil(t *testing.T) {
	looks := 0
	Until(t, time.Minute, "a third look", func() bool { looks++; return looks == 3 })
	if looks != 3 {
		t.Errorf("%d looks, want 3", looks)
	}
	if Holds(20*time.Millisecond, func() bool { return false }) {
		t.Error("what never holds held")
	}
	r := &recorder{TB: t}
	Until(r, 20*time.Millisecond, "what never comes", func() bool { return r.failed() })
	if !r.failed() {
		t.Error("a wait that was in vain is no failure")
	}
}
