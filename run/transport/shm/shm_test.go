//go:build linux

package shm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport"
)

var bodies = map[string]conform.Body{}

func TestMain(m *testing.M) { os.Exit(conform.Main(m, bodies)) }

// opened opens the endpoint of a child.
func opened(c *conform.Child) (*Endpoint, error) {
	return Open(context.Background(), Config{Rank: c.Rank, Size: c.Size, Gather: c.Gather})
}

func init() {
	bodies["memory"] = func(c *conform.Child) error {
		e, err := opened(c)
		if err != nil {
			return err
		}
		defer e.Close()
		plain := bytes.Repeat([]byte{byte(c.Rank + 100)}, 5000)
		size := 6 << 20 / c.Size
		b, err := e.Alloc(size)
		if err != nil {
			return err
		}
		for i := range b {
			if b[i] != 0 {
				return fmt.Errorf("byte %d is not zero", i)
			}
			b[i] = byte(c.Rank + 1)
		}
		h, ok := e.Handle(b[17:])
		if !ok {
			return fmt.Errorf("no handle")
		}
		if _, ok := e.Handle(plain); ok {
			return fmt.Errorf("a handle of plain memory")
		}
		all, err := c.Gather(context.Background(), fmt.Appendf(nil, "%d %p", h, plain))
		if err != nil {
			return err
		}
		for r := range all {
			var h uint64
			var addr uintptr
			if _, err := fmt.Sscanf(string(all[r]), "%d 0x%x", &h, &addr); err != nil {
				return err
			}
			got, err := e.At(r, transport.Handle(h), size-17)
			if err != nil {
				return err
			}
			if !bytes.Equal(got, bytes.Repeat([]byte{byte(r + 1)}, len(got))) {
				return fmt.Errorf("memory of rank %d is different", r)
			}
			if r != c.Rank {
				dst := make([]byte, len(plain))
				if err := e.Pull(r, addr, dst); err != nil {
					return err
				}
				if dst[0] != byte(r+100) || dst[len(dst)-1] != byte(r+100) {
					return fmt.Errorf("pulled %d from rank %d", dst[0], r)
				}
			}
			if err := e.Alive(r); err != nil {
				return err
			}
		}
		_, err = c.Gather(context.Background(), nil)
		runtime.KeepAlive(plain)
		return err
	}
}

func init() {
	bodies["scenario"] = func(c *conform.Child) error {
		s, err := conform.Find(c.Args[0])
		if err != nil {
			return err
		}
		e, err := Open(context.Background(), Config{Rank: c.Rank, Size: c.Size, Gather: c.Gather, NoPull: c.Args[1] == "staged"})
		if err != nil {
			return err
		}
		if err := s.Run(e); err != nil {
			return err
		}
		return e.Close()
	}
}

// Every scenario runs between processes, with plain memory pulled, and staged as
// where the system does not let processes read one another.
func TestConform(t *testing.T) {
	for _, how := range []string{"pulled", "staged"} {
		for _, s := range conform.Scenarios() {
			t.Run(how+"/"+s.Name, func(t *testing.T) {
				c := conform.Spawn(t, s.Ranks, "scenario", s.Name, how)
				if err := c.Gather(); err != nil {
					t.Fatal(err)
				}
				if err := c.Wait(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

func TestRanksSeeOneAnothersMemory(t *testing.T) {
	for _, n := range []int{1, 2, 5, 16} {
		c := conform.Spawn(t, n, "memory")
		for range 3 {
			if err := c.Gather(); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}
