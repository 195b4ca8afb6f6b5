package wait

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
)

func TestFlagFillsALine(t *testing.T) {
	if s := unsafe.Sizeof(Flag{}); s != 64 {
		t.Fatalf("a flag takes %d bytes", s)
	}
}

// Ranks take turns: every post must be seen, however the waiter waits.
func TestTurns(t *testing.T) {
	for _, w := range []*Waiter{{}, {Spin: 100}, {Spin: 1000, Yield: 3, Local: true}, {Yield: 5}, For(64, true), For(1, false)} {
		t.Run(fmt.Sprintf("spin %d, yield %d, local %t", w.Spin, w.Yield, w.Local), func(t *testing.T) {
			const ranks, rounds = 5, 200
			flags := make([]Flag, ranks)
			var turn atomic.Uint64
			var wg sync.WaitGroup
			for r := range ranks {
				wg.Go(func() {
					for k := uint64(1); k <= rounds; k++ {
						before := &flags[(r+ranks-1)%ranks]
						want := k
						if r == 0 {
							want = k - 1
						}
						if err := before.Wait(want, w, nil); err != nil {
							t.Error(err)
							return
						}
						if got := turn.Add(1); got != (k-1)*ranks+uint64(r)+1 {
							t.Errorf("rank %d round %d: turn %d", r, k, got)
						}
						flags[r].Post(k)
					}
				})
			}
			wg.Wait()
		})
	}
}

// Flags whose sleepers are counted apart, raised before anybody is woken.
func TestTurnsWithSleepersApart(t *testing.T) {
	const rounds = 500
	var flags [2]Flag
	var asleep [2]Sleepers
	var wg sync.WaitGroup
	late := [2]int{}
	for r := range 2 {
		wg.Go(func() {
			w := &Waiter{Spin: []int{0, 700}[r], Late: func() { late[r]++ }}
			for k := uint64(1); k <= rounds; k++ {
				flags[r].RaiseWith(k, k+1, k+2, &asleep[r], w)
				if err := flags[1-r].WaitAs(k, &asleep[1-r], w, nil); err != nil {
					t.Error(err)
					return
				}
				if a, b := flags[1-r].words[0].Load(), flags[1-r].words[1].Load(); a < k+1 || b < k+2 || a > k+2 || b > k+3 {
					t.Errorf("flag %d came with %d and %d", k, a, b)
				}
			}
			w.Settle()
		})
	}
	wg.Wait()
	if late[0] == 0 {
		t.Error("a rank that never spins was never late")
	}
}

func TestStopIsAskedBeforeAndAfterEverySleep(t *testing.T) {
	var f Flag
	asked, enough := 0, errors.New("enough")
	err := f.Wait(1, &Waiter{}, func() error {
		if asked++; asked == 3 {
			return enough
		}
		return nil
	})
	if err != enough || asked != 3 {
		t.Fatalf("%v after %d", err, asked)
	}
	if err := f.Wait(0, &Waiter{}, func() error { return enough }); err != nil {
		t.Fatal("a wait that is over was stopped:", err)
	}
}

func TestAddWakes(t *testing.T) {
	var f Flag
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := f.Wait(8, &Waiter{}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	for range 8 {
		wg.Go(func() { f.Add(1) })
	}
	wg.Wait()
}

// Two processes play ping-pong through a mapped file, sleeping every time.
func TestBetweenProcesses(t *testing.T) {
	const rounds = 300
	play := func(mem []byte, me int) {
		mine, theirs := At(mem[64*me:]), At(mem[64*(1-me):])
		for k := uint64(1); k <= rounds; k++ {
			if me == 0 {
				mine.Post(k)
			}
			if err := theirs.Wait(k, &Waiter{}, nil); err != nil {
				panic(err)
			}
			if me == 1 {
				mine.Post(k)
			}
		}
	}
	if name := os.Getenv("WAIT_TEST_FILE"); name != "" {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			panic(err)
		}
		play(mapped(t, f), 1)
		return
	}
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	child := bounded.Command(t, os.Args[0], "-test.run=^TestBetweenProcesses$")
	child.Env = append(os.Environ(), "WAIT_TEST_FILE="+f.Name())
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	play(mapped(t, f), 0)
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
}

func mapped(t *testing.T, f *os.File) []byte {
	mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	return mem
}

func BenchmarkTurn(b *testing.B) {
	var a, z Flag
	w := For(2, true)
	go func() {
		for k := range uint64(b.N) {
			_ = a.Wait(k+1, w, nil)
			z.Post(k + 1)
		}
	}()
	for k := range uint64(b.N) {
		a.Post(k + 1)
		_ = z.Wait(k+1, w, nil)
	}
}

// A wait does something else between two looks, and looks again after it. It does not where others want the core.
func TestMeanwhile(t *testing.T) {
	var f Flag
	never := func() error { return errors.New("asked to stop") }
	calls := 0
	w := &Waiter{Yield: 10, Meanwhile: func() bool {
		if calls++; calls == 5 {
			f.Post(1)
		}
		return calls%2 == 0
	}}
	if err := f.Wait(1, w, never); err != nil || calls != 5 {
		t.Errorf("%v after %d calls, the flag was raised in the fifth", err, calls)
	}
	if err := f.Wait(1, w, never); err != nil || calls != 5 {
		t.Errorf("%v and %d calls, of which the last 5 while nothing is waited for", err, calls)
	}
	busy := &Backoff{Ranks: 1}
	busy.wanted.Store(true)
	busy.until.Store(1 << 62)
	for what, b := range map[string]*Backoff{"other processes want the core": busy, "ranks outnumber cores": {Ranks: runtime.NumCPU() + 1}} {
		w.backoff = b
		if err := f.Wait(2, w, never); err == nil || calls != 5 {
			t.Errorf("%v after %d calls where %s", err, calls, what)
		}
	}
}
