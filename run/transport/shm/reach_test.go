//go:build linux

package shm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/internal/nslab"
)

func init() {
	bodies["reach as another user"] = func(c *conform.Child) error {
		if c.Rank == 2 {
			if err := syscall.Setuid(65534); err != nil {
				return err
			}
		}
		return bodies["reach"](c)
	}
	bodies["reach"] = func(c *conform.Child) error {
		hosts, why, err := Reach(context.Background(), c.Rank, make([]int, c.Size), c.Gather)
		if err != nil {
			return err
		}
		if want := []int{0, 0, 1}; !slices.Equal(hosts, want) || why[0]+why[1] != "" || !strings.Contains(why[2], "rank 0") {
			return fmt.Errorf("hosts %v, want %v; why %q", hosts, want, why)
		}
		return nil
	}
}

// A rank that says it is on the host of the others and is in another network namespace
// counts as a host of its own.
func TestReachIsProven(t *testing.T) {
	lab := nslab.New(t, 1, 1)
	c := conform.SpawnWith(t, 3, func(rank int, cmd *exec.Cmd) {
		if rank < 2 {
			return
		}
		inner := slices.Clone(cmd.Args)
		cmd.Args = append([]string{"nsenter", fmt.Sprintf("--net=%s", lab.Path(0)), "--", cmd.Path}, inner[1:]...)
		path, err := exec.LookPath("nsenter")
		if err != nil {
			t.Skip("no nsenter command")
		}
		cmd.Path = path
	}, "reach")
	for range 2 {
		if err := c.Gather(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
}

// So does a rank of another user, which may not read the others' memory.
func TestRankOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: it takes root to become another user")
	}
	c := conform.Spawn(t, 3, "reach as another user")
	for range 2 {
		if err := c.Gather(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
}
