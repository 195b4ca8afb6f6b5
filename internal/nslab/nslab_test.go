//go:build linux

package nslab

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

// TestLab joins hosts over every rail, and no longer once a link is cut.
func TestLab(t *testing.T) {
	const long = 30 * time.Second // a first question for an address may be lost, and is asked again after a second
	l := New(t, 3, 2)
	reach := func(from, to, rail int, patience time.Duration) bool {
		var ln net.Listener
		if err := l.Do(to, func() (err error) {
			ln, err = net.Listen("tcp", netip.AddrPortFrom(Addr(to, rail), 0).String())
			return err
		}); err != nil {
			return false
		}
		defer ln.Close()
		err := l.Do(from, func() error {
			d := net.Dialer{Timeout: patience}
			c, err := d.Dial("tcp", ln.Addr().String())
			if err == nil {
				c.Close()
			}
			return err
		})
		return err == nil
	}
	for rail := range 2 {
		for from := range 3 {
			if to := (from + 1) % 3; !reach(from, to, rail, long) {
				t.Fatalf("host %d does not reach host %d on rail %d", from, to, rail)
			}
		}
	}
	if err := l.Cut(1, 0); err != nil {
		t.Fatal(err)
	}
	if reach(0, 1, 0, 300*time.Millisecond) || !reach(0, 1, 1, long) || !reach(0, 2, 0, long) {
		t.Error("a cut link is not that and only that")
	}
	if err := l.Mend(1, 0); err != nil {
		t.Fatal(err)
	}
	if !reach(0, 1, 0, long) {
		t.Error("a mended link does not work")
	}
	if sent, received, err := l.Bytes(0, 0); err != nil || sent == 0 || received == 0 {
		t.Errorf("host 0 sent %d and received %d bytes: %v", sent, received, err)
	}
	var out []byte
	if err := l.Do(2, func() (err error) {
		cmd := bounded.Command(t, "cat", "/proc/net/dev")
		out, err = cmd.Output()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if s := string(out); !strings.Contains(s, "r0:") || !strings.Contains(s, "r1:") || strings.Contains(s, "eth") {
		t.Errorf("a process of host 2 sees\n%s", s)
	}
}
