package fault

import (
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv("WEFT_TEST_SENDER"); addr != "" { // sends until the other end closes
		c, err := net.Dial("tcp", addr)
		for err == nil {
			_, err = c.Write(make([]byte, 1<<16))
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A throttled connection carries what it may, and after undo as much as before.
func TestThrottle(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := bounded.Server(t, os.Args[0])
	cmd.Env = append(os.Environ(), "WEFT_TEST_SENDER="+l.Addr().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(40 * time.Second))
	take := func(n int64) time.Duration {
		t.Helper()
		began := time.Now()
		if _, err := io.CopyN(io.Discard, c, n); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	take(1 << 20)
	n, undo, err := Throttle(cmd.Process.Pid, os.Getpid(), 2e6)
	if err != nil {
		t.Skipf("sockets of another process cannot be reached here: %v", err)
	}
	if n != 1 {
		t.Errorf("%d connections", n)
	}
	began := time.Now()
	take(6 << 20) // what was under way, and some more if this process was late
	take(1 << 20)
	if slow := time.Since(began); slow < 300*time.Millisecond {
		t.Errorf("1 MiB at 2 MB/s took %s", slow)
	}
	undo()
	take(1 << 20)
	if _, _, err := Throttle(cmd.Process.Pid, cmd.Process.Pid, 1); err == nil {
		t.Error("a process has no connection with itself")
	}
}

func TestOrders(t *testing.T) {
	dir := t.TempDir()
	o := Take(dir, 3)
	if o.Now() != (Order{}) || Take("", 1).Now() != (Order{}) {
		t.Error("an order without a file")
	}
	for text, want := range map[string]Order{"slow 30ms": {What: "slow", Time: 30 * time.Millisecond}, "hang": {What: "hang"},
		"eat 5000": {What: "eat", Bytes: 5000}} {
		if err := Give(dir, 3, text); err != nil {
			t.Fatal(err)
		}
		if got := Take(dir, 3).Now(); got != want {
			t.Errorf("%s: %+v", text, got)
		}
	}
	if err := Give(dir, 3, ""); err != nil || o.Now() != (Order{}) {
		t.Errorf("taken back: %v", err)
	}
}
