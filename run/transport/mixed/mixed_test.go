//go:build linux

package mixed

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport/tcp"
)

var bodies = map[string]conform.Body{}

func TestMain(m *testing.M) { os.Exit(conform.Main(m, bodies)) }

// The ways in which ranks are dealt out to hosts.
var layouts = map[string]func(rank, size int) int{
	"halves":  func(rank, size int) int { return 2 * rank / size },
	"by-turn": func(rank, size int) int { return rank % 2 },
	"uneven":  func(rank, size int) int { return min(rank, 1) },
	"one":     func(rank, size int) int { return 0 },
	"apart":   func(rank, size int) int { return rank },
}

func init() {
	bodies["scenario"] = func(c *conform.Child) error {
		s, err := conform.Find(c.Args[0])
		if err != nil {
			return err
		}
		hosts := make([]int, c.Size)
		for r := range hosts {
			hosts[r] = layouts[c.Args[1]](r, c.Size)
		}
		e, err := Open(context.Background(), Config{Rank: c.Rank, Size: c.Size, Hosts: hosts, Gather: c.Gather, TCP: tcp.Config{NoToken: true}})
		if err != nil {
			return err
		}
		if err := s.Run(e); err != nil {
			return err
		}
		if _, err := c.Gather(context.Background(), nil); err != nil { // what a rank sent is its own to deliver for a second only
			return err
		}
		return e.Close()
	}
}

// Every scenario runs between processes that are dealt out to two hosts by turn. With
// WEFT_TEST_LAYOUTS=all the others have their turn, too: a minute.
func TestConform(t *testing.T) {
	for how := range layouts {
		if how != "by-turn" && os.Getenv("WEFT_TEST_LAYOUTS") != "all" {
			continue
		}
		for _, s := range conform.Scenarios() {
			if s.Memory {
				continue
			}
			t.Run(how+"/"+s.Name, func(t *testing.T) {
				c := conform.Spawn(t, s.Ranks, "scenario", s.Name, how)
				gathers := 3 // cards of shared memory, facts and addresses of tcp
				if s.Ranks == 1 {
					gathers = 1
				}
				for range gathers {
					if err := c.Gather(); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.Gather(); err != nil {
					for r := range s.Ranks {
						c.Kill(r)
					}
					t.Error(err)
				}
				if err := c.Wait(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

func TestOverlaps(t *testing.T) {
	p := &port{index: []int{0, -1, 1, -1}} // ranks 0 and 2 are of this host
	for _, x := range []struct {
		to, from int
		want     bool
	}{{1, 3, true}, {3, 3, true}, {0, 1, false}, {1, 2, false}, {0, 2, false}} {
		if got := p.Overlaps(x.to, x.from); got != x.want {
			t.Errorf("a message to rank %d and one from rank %d at once: %t", x.to, x.from, got)
		}
	}
}

func TestMatrix(t *testing.T) {
	var b strings.Builder
	if err := WriteMatrix(&b, []int{0, 0, 1}); err != nil {
		t.Fatal(err)
	}
	const want = `ways between ranks: s shared memory, t tcp
     0  host 0   . s t
     1  host 0   s . t
     2  host 1   t t .
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	b.Reset()
	hosts := make([]int, 80)
	for r := range hosts {
		hosts[r] = r / 40
	}
	if err := WriteMatrix(&b, hosts); err != nil {
		t.Fatal(err)
	}
	if want := "host 1: ranks 40 to 79,"; !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
}

func TestWrongConfig(t *testing.T) {
	for _, c := range []Config{{}, {Size: 2, Rank: 2, Hosts: []int{0, 0}}, {Size: 2, Hosts: []int{0}}, {Size: 1, Hosts: []int{0}}} {
		if _, err := Open(context.Background(), c); err == nil {
			t.Errorf("%d ranks on hosts %v are accepted", c.Size, c.Hosts)
		}
	}
}
