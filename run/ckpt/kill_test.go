package ckpt_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/ckpt"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

const writerRanks = 3

// writer is a process that saves step after step, each with contents of its own, as
// several ranks at once, until it is killed. It writes a byte before the first and
// after each. With WEFT_CKPT_DIE=N it kills itself right before the Nth call that
// changes the place.
func writer(dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "writer:", err)
			os.Exit(3)
		}
	}
	die, _ := strconv.ParseInt(os.Getenv("WEFT_CKPT_DIE"), 10, 64)
	place := &fatal{Place: blob.NewDir(dir), left: die}
	ctx := context.Background()
	s, err := ckpt.New(place, ckpt.Options{Keep: 2})
	fail(err)
	step := int64(0)
	got := newModel(0).blank()
	if m, _, err := s.Resume(ctx, got); err == nil {
		step = m.Step
	} else if !errors.Is(err, ckpt.ErrNone) {
		fail(err)
	}
	if die == 0 && os.Getpid()%4 == 0 {
		fail(s.Clean(ctx))
	}
	run := strconv.Itoa(os.Getpid()) + " " + time.Now().String()
	for {
		os.Stdout.Write([]byte{1})
		step++
		m := newModel(step)
		var wg sync.WaitGroup
		for rank := range writerRanks {
			wg.Go(func() {
				fail(s.Save(ctx, ckpt.Meta{Step: step, Rank: rank, World: writerRanks, Run: run}, m.shares(rank, writerRanks)))
			})
		}
		wg.Wait()
	}
}

// fatal ends its process before a call that changes the place.
type fatal struct {
	blob.Place
	mu   sync.Mutex
	left int64
}

func (f *fatal) count() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left--; f.left == 0 {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (f *fatal) Put(ctx context.Context, name string, b blob.Body) error {
	f.count()
	return f.Place.Put(ctx, name, b)
}

func (f *fatal) Remove(ctx context.Context, name string) error {
	f.count()
	return f.Place.Remove(ctx, name)
}

func (f *fatal) RemoveAll(ctx context.Context, name string) error {
	f.count()
	return f.Place.RemoveAll(ctx, name)
}

// start runs a writer and returns when it is about to save; the reader gives a byte
// for each step that is saved.
func start(t *testing.T, dir string, env ...string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := bounded.Command(t, os.Args[0])
	cmd.Env = append(os.Environ(), append(env, "WEFT_CKPT_WRITER="+dir)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatalf("the writer died early: %v, %v", err, cmd.Wait())
	}
	return cmd, out
}

// reap waits for a writer, which must have been killed and not have failed.
func reap(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Wait()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the writer ended otherwise than by the kill: %v", cmd.ProcessState)
	}
}

// intact demands that the latest checkpoint is not older than before, loads and is
// what was saved to the last bit, and that nothing in the store is damaged.
func intact(t *testing.T, s *ckpt.Store, before int64) int64 {
	t.Helper()
	want := newModel(0)
	got := want.blank()
	m, bad, err := s.Resume(t.Context(), got)
	if len(bad) > 0 {
		t.Fatalf("torn: %v", bad)
	}
	if errors.Is(err, ckpt.ErrNone) && before == 0 {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	if m.Step < before {
		t.Fatalf("the checkpoint of step %d is gone; the latest is of step %d", before, m.Step)
	}
	newModel(m.Step).equal(t, got)
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if p, err := s.Verify(t.Context(), e); err != nil || len(p) > 0 {
			t.Fatalf("step %d: %v %v", e.Step, p, err)
		}
	}
	return m.Step
}

// A writer is killed at random instants; the seed is printed and WEFT_TEST_SEED sets it,
// though which instants of the writer's work they are is up to the machine.
func TestKilledAtRandomInstants(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("WEFT_TEST_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("WEFT_TEST_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	s := open(t, dir, ckpt.Options{})
	kills := bounded.Times(40, 200)
	before := time.Now()
	save(t, open(t, t.TempDir(), ckpt.Options{}), newModel(0), ckpt.Meta{World: writerRanks})
	span := min(time.Since(before)*3/2, 20*time.Millisecond) // a save and a half
	last, torn := int64(0), 0
	unfinished := func() (n int) {
		list, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.State == ckpt.Incomplete {
				n++
			}
		}
		return n
	}
	for k := range kills {
		cmd, saved := start(t, dir)
		if k%8 == 0 { // some saves are completed however slow the disk is
			if _, err := io.ReadFull(saved, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Duration(r.Int64N(int64(span)))) // it dies at any moment of a save
		cmd.Process.Kill()
		reap(t, cmd)
		last = intact(t, s, last)
		torn += unfinished()
	}
	// Where none of these instants was within a save, the writer is killed when it is seen to be in one.
	for end := time.Now().Add(40 * time.Second); torn == 0 && time.Now().Before(end); kills++ {
		cmd, _ := start(t, dir)
		for unfinished() == 0 && time.Now().Before(end) {
		}
		cmd.Process.Kill()
		reap(t, cmd)
		last = intact(t, s, last)
		torn += unfinished()
	}
	t.Logf("%d kills up to step %d; %d unfinished checkpoints seen after them", kills, last, torn)
	if last == 0 || torn == 0 {
		t.Errorf("the kills did not come between saves: step %d, %d unfinished", last, torn)
	}
	if err := s.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if u, err := blob.NewDir(dir).Unfinished(t.Context()); err != nil || len(u) > 0 {
		t.Errorf("left after Clean: %v, %v", u, err)
	}
	intact(t, s, last)

	// The next checkpoint takes away what killed writers had no time to.
	save(t, open(t, dir, ckpt.Options{Keep: 2}), newModel(last+1), ckpt.Meta{Step: last + 1, World: 2, Run: "after"})
	if got, want := steps(t, s), fmt.Sprintf("%d complete %d complete ", last, last+1); got != want {
		t.Errorf("left: %s, want %s", got, want)
	}
}

// A writer is killed before each of the calls that change the place, one after the
// other through several checkpoints, pruning included.
func TestKilledBeforeEveryChange(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, ckpt.Options{})
	last := int64(0)
	for n := 1; n <= 30; n++ {
		cmd, _ := start(t, dir, fmt.Sprintf("WEFT_CKPT_DIE=%d", n))
		reap(t, cmd)
		last = intact(t, s, last)
	}
	if last == 0 {
		t.Error("no checkpoint was completed")
	}
}
