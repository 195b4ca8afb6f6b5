package infer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/train/model"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "worker" {
		if err := WorkerMain(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func tiny() Model {
	return Model{model.Config{Kind: model.GPT, Vocab: 256, Context: 160, Width: 32, Heads: 4, Hidden: 64, Layers: 3}, 7}
}

func start(t *testing.T, o Options) (*Cluster, context.Context) {
	t.Helper()
	if err := launch.Supported(); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	t.Cleanup(cancel)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Program = []string{exe, "worker"}
	if o.Model.Config.Layers == 0 {
		o.Model = tiny()
	}
	c, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, ctx
}

func prompt(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 3))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// same fails unless a reply has the tokens and the scores of one process.
func same(t *testing.T, m Model, text []byte, count int, r *Reply) {
	t.Helper()
	want, _, _, err := Answer(m, text, count)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.Tokens, want) {
		t.Errorf("%s, %d tokens after %d: %v, want %v", r.Mode, count, len(text), r.Tokens, want)
	}
}

// One to one, two to one, one to four, in all modes and over both paths of a host: the tokens are those of one process.
func TestAnswersAreThoseOfOneProcess(t *testing.T) {
	for _, x := range []struct {
		prefill, decode int
		path            string
	}{{1, 1, ""}, {1, 1, "tcp"}, {2, 1, ""}, {1, 4, ""}, {0, 2, ""}} {
		t.Run(fmt.Sprintf("%d to %d %s", x.prefill, x.decode, x.path), func(t *testing.T) {
			c, ctx := start(t, Options{Prefill: x.prefill, Decode: x.decode, Path: x.path, Patience: 40 * time.Second})
			var wg sync.WaitGroup
			for i := range 9 {
				wg.Go(func() {
					text, count, mode := prompt(uint64(i), 1+i*13), 1+i%5, Modes[i%3]
					r, err := c.Ask(ctx, text, count, mode)
					if err != nil {
						t.Error(err)
						return
					}
					same(t, c.o.Model, text, count, r)
					if r.Again || r.Attempts != 1 {
						t.Errorf("%+v", r)
					}
					// Every layer's keys and values but the last token's have moved.
					if want := int64(len(text)-1) * int64(c.o.Model.layout().TokenBytes()); r.Mode != Recompute && r.Bytes != want {
						t.Errorf("%s: %d bytes moved, want %d", r.Mode, r.Bytes, want)
					}
					if x.path != "" && r.Bytes > 0 && r.Path != x.path {
						t.Errorf("path %s", r.Path)
					}
				})
			}
			wg.Wait()
			if s := c.Status(); s.Asked != 9 || len(s.Requests) != 9 || len(s.Workers) != x.prefill+x.decode {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Workers die again and again, prefill and decode, in whatever they are doing: every answer is right all the same.
func TestWorkersDie(t *testing.T) {
	c, ctx := start(t, Options{Prefill: 2, Decode: 2, Patience: 20 * time.Second})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	kills := 0
	wg.Go(func() {
		r := rand.New(rand.NewPCG(1, 2))
		for kills < 12 {
			select {
			case <-stop:
				return
			case <-ctx.Done():
				return
			default:
			}
			busy := false
			for _, w := range c.Status().Workers {
				busy = busy || w.Load > 0
			}
			if !busy {
				continue
			}
			time.Sleep(time.Duration(r.IntN(8)) * time.Millisecond) // so that deaths fall into all states
			if c.Signal([]string{"p0", "p1", "d0", "d1"}[r.IntN(4)], syscall.SIGKILL) == nil {
				kills++
			}
		}
	})
	var asks sync.WaitGroup
	for g := range 3 {
		asks.Go(func() {
			for i := range 8 {
				text, count := prompt(uint64(100*g+i), 20+i*10), 12
				r, err := c.Ask(ctx, text, count, Modes[(g+i)%2])
				if err != nil {
					t.Error(err)
					return
				}
				same(t, c.o.Model, text, count, r)
			}
		})
	}
	asks.Wait()
	close(stop)
	wg.Wait()
	if kills == 0 {
		t.Error("nobody was killed")
	}
	t.Logf("%d kills", kills)
}

// A prefill worker is stopped: the decode worker computes the prompt itself; the late one's writes do not land, and
// it works again afterwards.
func TestPrefillIsLate(t *testing.T) {
	c, ctx := start(t, Options{Prefill: 1, Decode: 1, Patience: 150 * time.Millisecond})
	if err := c.Signal("p0", syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		text := prompt(uint64(i), 60)
		r, err := c.Ask(ctx, text, 5, Stream)
		if err != nil {
			t.Fatal(err)
		}
		same(t, c.o.Model, text, 5, r)
		if !r.Again {
			t.Errorf("the prompt was not computed again: %+v", r)
		}
	}
	if err := c.Signal("p0", syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ { // until it has done what had waited, and is in time again
		text := prompt(uint64(10+i), 60)
		r, err := c.Ask(ctx, text, 5, Whole)
		if err != nil {
			t.Fatal(err)
		}
		same(t, c.o.Model, text, 5, r)
		if !r.Again {
			break
		}
	}
}

// A decode worker is stopped before it hears of a request, and goes on later: the answer comes, and is right.
func TestDecodeIsLate(t *testing.T) {
	c, ctx := start(t, Options{Prefill: 1, Decode: 1, Patience: 40 * time.Second})
	if err := c.Signal("d0", syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	text := prompt(5, 80)
	done := make(chan error, 1)
	var r *Reply
	go func() {
		var err error
		r, err = c.Ask(ctx, text, 6, Stream)
		done <- err
	}()
	bounded.Until(t, 20*time.Second, "a request", func() bool { return c.Status().Asked > 0 })
	if err := c.Signal("d0", syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	same(t, c.o.Model, text, 6, r)
}

// A decode worker is stopped and stays so: its requests are answered by another, and those that come later do not go to it.
func TestDecodeStaysSilent(t *testing.T) {
	c, ctx := start(t, Options{Prefill: 1, Decode: 2, Patience: 10 * time.Second, Silence: 2 * time.Second})
	if err := c.Signal("d0", syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		text := prompt(uint64(20+i), 80)
		r, err := c.Ask(ctx, text, 6, Stream)
		if err != nil {
			t.Fatal(err)
		}
		same(t, c.o.Model, text, 6, r)
		if r.DecodeAt != "d1" {
			t.Errorf("request %d was answered by %s, which is stopped", i, r.DecodeAt)
		}
	}
	// Orders for it go nowhere, and nobody waits until its pipe is read.
	for range 3 * maxOrders {
		c.order(c.workers[1], order{Do: "drop", ID: 1 << 30, Prompt: make([]byte, 100)})
	}
	// It was killed for that, and another is in its place.
	bounded.Until(t, 20*time.Second, "another worker in place of one that reads nothing", func() bool {
		w := c.Status().Workers[1]
		return w.Restarts > 0 && w.Live
	})
}

func TestRefuses(t *testing.T) {
	if _, err := Start(t.Context(), Options{Model: tiny(), Prefill: 1}); err == nil {
		t.Error("no decode worker")
	}
	if _, err := Start(t.Context(), Options{Model: Model{Config: model.TinyMLP()}, Decode: 1}); err == nil {
		t.Error("an mlp")
	}
	if _, err := Start(t.Context(), Options{Model: tiny(), Decode: 1, Program: []string{"/nowhere"}}); err == nil {
		t.Error("no program")
	}
	if _, err := Start(t.Context(), Options{Model: tiny(), Decode: 1, Program: []string{"false"}}); err == nil ||
		!strings.Contains(err.Error(), "does not start") {
		t.Errorf("a program that ends: %v", err)
	}
	c, ctx := start(t, Options{Decode: 1})
	for _, x := range []struct {
		n, count int
		mode     Mode
	}{{0, 1, Stream}, {1, 0, Stream}, {160, 1, Stream}, {1, 1, "fast"}} {
		if _, err := c.Ask(ctx, prompt(1, x.n), x.count, x.mode); err == nil {
			t.Errorf("%+v is answered", x)
		}
	}
	if c.Signal("p9", syscall.SIGKILL) == nil {
		t.Error("a worker that is not there")
	}
}

func TestExposed(t *testing.T) {
	// A transfer as long as computing: all but the last layer's is hidden.
	if got := Exposed(80*time.Millisecond, 80*time.Millisecond, 8); got != 20*time.Millisecond {
		t.Error(got)
	}
	if got := Exposed(80*time.Millisecond, 800*time.Millisecond, 8); got != 10*time.Millisecond {
		t.Error(got)
	}
}
