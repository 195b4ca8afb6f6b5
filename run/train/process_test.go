package train_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/run/comm"
	ports "github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/train"
)

// The test binary is a rank where this is set: it holds an order as JSON.
const childVariable = "WEFT_TEST_TRAIN"

func TestMain(m *testing.M) {
	if s := os.Getenv(childVariable); s != "" {
		if err := child(s, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// order is what a child process does.
type order struct {
	Layout train.Layout
	Steps  int
	// Rank Victim kills itself at call Call of step Step; -1: nobody does.
	Victim, Step, Call int
	// Rank Second kills itself at call SecondCall of the rebuilding; 0: nobody does.
	Second, SecondCall int
}

// report is a line of a child's output.
type report struct {
	Rank, Size, Step int
	Loss             float64
}

func child(s string, w io.Writer) error {
	var o order
	if err := json.Unmarshal([]byte(s), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	env, err := comm.FromEnv()
	if err != nil {
		return err
	}
	c, err := comm.Join(ctx, env)
	if err != nil {
		return err
	}
	cfg := tiny()
	cfg.Layout = o.Layout
	tr, err := train.New(ctx, cfg, c)
	if err != nil {
		return err
	}
	calls := 0
	if c.Rank() == o.Victim {
		train.SetFault(tr, func(string) error {
			if calls++; tr.Taken() == o.Step-1 && calls > o.Call {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return nil
		})
	}
	second := c.Rank() == o.Second && o.Second > 0
	out := json.NewEncoder(w)
	for tr.Taken() < o.Steps {
		if tr.Taken() < o.Step-1 {
			calls = 0
		}
		s, err := tr.Step(ctx)
		if err == nil {
			if err := out.Encode(report{c.Rank(), c.Size(), s.Step, s.Loss}); err != nil {
				return err
			}
			continue
		}
		var failure *comm.Failure
		if !errors.As(err, &failure) {
			return err
		}
		if second {
			train.SetFault(tr, func(string) error {
				if calls++; calls > o.SecondCall {
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				}
				return nil
			})
		}
		if c, err = tr.Recover(ctx, c); err != nil {
			return err
		}
	}
	if err := comm.Barrier(ctx, c); err != nil {
		return err
	}
	return errors.Join(tr.Close(), c.Close())
}

// launch runs an order on n processes and gives their reports; the victim's end is
// the only one that may be a bad one.
func launch(t *testing.T, n int, o order, env ...string) []report {
	t.Helper()
	port, err := ports.HoldPort()
	if err != nil {
		t.Fatal(err)
	}
	defer port.Release()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	children := make([]*exec.Cmd, n)
	outs, errs := make([]bytes.Buffer, n), make([]bytes.Buffer, n)
	for r := range children {
		cmd := exec.CommandContext(ctx, exe)
		cmd.WaitDelay = 5 * time.Second
		cmd.Env = append(os.Environ(), childVariable+"="+string(text), "RANK="+strconv.Itoa(r), "WORLD_SIZE="+strconv.Itoa(n),
			"LOCAL_RANK="+strconv.Itoa(r), "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port.Number), "WEFT_CANONICAL=1")
		cmd.Env = append(cmd.Env, env...)
		cmd.Stdout, cmd.Stderr = &outs[r], &errs[r]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		children[r] = cmd
	}
	var list []report
	for r, cmd := range children {
		if err := cmd.Wait(); err != nil && r != o.Victim && (r != o.Second || r == 0) {
			t.Errorf("rank %d: %v: %s", r, err, strings.TrimSpace(errs[r].String()))
		}
		for dec := json.NewDecoder(&outs[r]); ; {
			var line report
			if err := dec.Decode(&line); err != nil {
				break
			}
			list = append(list, line)
		}
	}
	return list
}

// Processes train as goroutines do, over shared memory and over sockets.
func TestProcesses(t *testing.T) {
	want := play(t, tiny(), 1, 4)
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			list := launch(t, 4, order{Layout: train.Layout{DP: 2, PP: 2, Zero: 1}, Steps: 4, Victim: -1}, "WEFT_TRANSPORT="+transport)
			if len(list) != 16 {
				t.Errorf("%d reports of 16", len(list))
			}
			for _, r := range list {
				if math.Abs(r.Loss-want.losses[r.Step-1]) > 5e-4 {
					t.Errorf("%+v: loss of a single process is %v", r, want.losses[r.Step-1])
				}
			}
		})
	}
}

// Another rank is killed while the others rebuild.
func TestAKillWhileRebuilding(t *testing.T) {
	want := play(t, tiny(), 1, 6)
	for _, call := range []int{0, 1, 2, 4, 5} {
		list := launch(t, 4, order{Steps: 6, Victim: 0, Step: 4, Call: 1, Second: 2, SecondCall: call})
		last := 0
		for _, r := range list {
			if math.Abs(r.Loss-want.losses[r.Step-1]) > 5e-4 {
				t.Errorf("call %d: %+v: loss of a single process is %v", call, r, want.losses[r.Step-1])
			}
			if r.Step == 6 && r.Size == 2 {
				last++
			}
		}
		if last != 2 {
			t.Errorf("call %d: %d ranks of two took the last step", call, last)
		}
	}
}

// A rank is killed at various places of a step: the others shrink, rebuild and end
// with the losses that they would have had.
func TestAKilledRank(t *testing.T) {
	want := play(t, tiny(), 1, 6)
	for _, call := range []int{0, 3, 7} {
		list := launch(t, 4, order{Layout: train.Layout{}, Steps: 6, Victim: call % 4, Step: 4, Call: call})
		last := 0
		for _, r := range list {
			if math.Abs(r.Loss-want.losses[r.Step-1]) > 5e-4 {
				t.Errorf("call %d: %+v: loss of a single process is %v", call, r, want.losses[r.Step-1])
			}
			if r.Step > 4 && r.Size != 3 {
				t.Errorf("call %d: %+v after one of four was killed", call, r)
			}
			if r.Step == 6 {
				last++
			}
		}
		if last != 3 {
			t.Errorf("call %d: %d ranks took the last step, want 3", call, last)
		}
	}
}
