//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/conform"
)

var bodies = map[string]conform.Body{}

func TestMain(m *testing.M) { os.Exit(conform.Main(m, bodies)) }

// ways are the transports that UCX has on a machine without network cards.
var ways = []string{"posix", "sysv", "posix,cma", "tcp"}

func need(t testing.TB) {
	t.Helper()
	if _, err := Version(); err != nil {
		t.Skip(err)
	}
}

func init() {
	bodies["scenario"] = func(c *conform.Child) error {
		s, err := conform.Find(c.Args[0])
		if err != nil {
			return err
		}
		e, err := Open(context.Background(), Config{Rank: c.Rank, Size: c.Size, Gather: c.Gather, Transports: strings.Split(c.Args[1], ",")})
		if err != nil {
			return err
		}
		if err := s.Run(e); err != nil {
			return err
		}
		return e.Close()
	}
}

// Every scenario runs between processes, over each transport.
func TestConform(t *testing.T) {
	need(t)
	for _, how := range ways {
		for _, s := range conform.Scenarios() {
			if s.Memory {
				continue
			}
			t.Run(how+"/"+s.Name, func(t *testing.T) {
				c := conform.Spawn(t, s.Ranks, "scenario", s.Name, how)
				for range 2 {
					if err := c.Gather(); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.Wait(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
