package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/soft"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/reduce"
)

// processEnv tells a process of this test what it is.
const processEnv = "WEFT_TEST_DEVICE_RANK"

// A rank that is killed in the middle of an operation is named by all others, soon, by both ways. Ranks are processes that map
// one another's memory. "queued" is one that dies after the operation was queued on all GPUs, before its input was there: streams
// that wait for it go on.
func TestRankIsKilled(t *testing.T) {
	for _, how := range []string{"direct", "staged", "queued"} {
		way := Way(how)
		if how == "queued" {
			way = Direct
		}
		t.Run(how, func(t *testing.T) {
			port, err := launch.HoldPort()
			if err != nil {
				t.Fatal(err)
			}
			defer port.Release()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
			defer cancel()
			const n = 3
			var cmds [n]*exec.Cmd
			var outs [n]bytes.Buffer
			for r := range n {
				cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=TestProcess$", "-test.timeout=50s")
				cmd.WaitDelay = time.Second
				cmd.Env = append(os.Environ(), processEnv+"="+how, "WEFT_CUDA="+string(way), fmt.Sprintf("RANK=%d", r), fmt.Sprintf("WORLD_SIZE=%d", n),
					fmt.Sprintf("LOCAL_RANK=%d", r), "MASTER_ADDR=127.0.0.1", fmt.Sprintf("MASTER_PORT=%d", port.Number))
				cmd.Stdout, cmd.Stderr = &outs[r], &outs[r]
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				cmds[r] = cmd
			}
			for r, cmd := range cmds {
				err := cmd.Wait()
				if ctx.Err() != nil {
					t.Fatalf("rank %d did not end in 50 s:\n%s", r, &outs[r])
				}
				if r == 1 {
					if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
						t.Errorf("rank 1 was not killed: %v\n%s", err, &outs[r])
					}
					continue
				}
				if text := outs[r].String(); err != nil || !strings.Contains(text, "way "+string(way)) || !strings.Contains(text, "killed: [1]") {
					t.Errorf("rank %d: %v\n%s", r, err, text)
				}
			}
		})
	}
}

// TestProcess is a rank of the test above.
func TestProcess(t *testing.T) {
	if os.Getenv(processEnv) == "" {
		t.Skip("a part of TestRankIsKilled")
	}
	cfg, err := comm.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	c, err := comm.Join(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	how, err := FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	how.Piece = 256
	g, err := Open(ctx, c, func() (gpu.Device, error) { return soft.New(gpu.Plain), nil }, how)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("way %s\n", g.Way())
	m, err := g.Alloc(reduce.Float32, 2000)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(processEnv) == "queued" {
		queued(t, g, m)
		return
	}
	for i := 0; ; i++ {
		if g.Rank() == 1 && i == 5 {
			go func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }()
		}
		err := AllReduce(ctx, g, m, m, reduce.Max)
		if err == nil {
			continue
		}
		var f *comm.Failure
		if !errors.Is(err, comm.ErrDead) || !errors.As(err, &f) {
			t.Fatal(err)
		}
		fmt.Printf("killed: %v: %v\n", f.Culprits, err)
		if again := AllReduce(ctx, g, m, m, reduce.Max); !errors.Is(again, comm.ErrDead) {
			t.Errorf("the next call: %v", again)
		}
		return
	}
}

// queued is a rank whose operation is queued on all GPUs, and never comes about since the stream of rank 1 does not go on.
func queued(t *testing.T, g *Group, m Memory) {
	ctx := t.Context()
	stream := g.Device().(*soft.Device).UserQueue()
	if g.Rank() == 1 {
		if err := stream.Await(new(uint32), 1); err != nil {
			t.Fatal(err)
		}
	}
	s := stream.Stream()
	w := g.Start(ctx, Call{Op: sched.AllReduce, Reduce: reduce.Max, Dst: m, Src: m, Stream: &s})
	if err := w.Block(s); err != nil {
		t.Fatal(err)
	}
	if g.Rank() == 1 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	mark, err := stream.Mark()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.until(ctx, func() (bool, error) { return stream.Reached(mark) }); err != nil {
		t.Fatal(err)
	}
	var f *comm.Failure
	if err := w.Wait(ctx); !errors.Is(err, comm.ErrDead) || !errors.As(err, &f) {
		t.Fatal(err)
	}
	fmt.Printf("killed: %v\n", f.Culprits)
	if again := AllReduce(ctx, g, m, m, reduce.Max); !errors.Is(again, comm.ErrDead) {
		t.Errorf("the next call: %v", again)
	}
}
