package xfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

// reclaims is for make xfer-reclaims.
var reclaims = flag.Duration("xfer.reclaims", 0, "how long TestReclaimAgainstLateReaders reclaims on each path; 0 for a few rounds")

// fillWith fills a region with a number. Memory changes word by word, under the eyes of whoever reads it.
func fillWith(ctx context.Context, r *Region, number uint64) error {
	var one [8]byte
	binary.LittleEndian.PutUint64(one[:], number)
	if r.mem != nil {
		for at := 0; at < len(r.mem); at += 8 {
			copy(r.mem[at:], one[:])
		}
		return nil
	}
	all := bytes.Repeat(one[:], int(r.Size())/8)
	w, ok := r.store.(Whole)
	if !ok {
		return r.store.WriteAt(ctx, all, 0)
	}
	s, err := w.Create(ctx)
	if err == nil {
		err = s.WriteAt(ctx, all, 0)
	}
	if err == nil {
		err = s.Commit(ctx)
	}
	return err
}

// edition is a description and the number that the region is filled with.
type edition struct {
	blob   json.RawMessage
	number uint64
}

// lateReader reads from a process that reclaims its region again and again. It holds on to its list until that was refused several
// times: always one description behind. fresh hears of the first read of each edition.
type lateReader struct {
	newest atomic.Pointer[edition]
	fresh  chan uint64
	stop   atomic.Bool

	good, refused int
	answers       atomic.Int64 // good and refused
	wrong         []string
	over          chan struct{} // closed when it has ended; then err says why
	err           error
}

// awaits waits until the reader has read an edition. A machine that is busy may take its time, as long as reads are answered; once none
// is, or that many are that the reader should have asked for the new description, it gives up.
func (l *lateReader) awaits(t *testing.T, number uint64) {
	t.Helper()
	const most = 10_000
	first := l.answers.Load()
	for seen, last := uint64(0), first; seen != number; {
		select {
		case seen = <-l.fresh:
		case <-l.over:
			t.Fatalf("edition %d is not read: %v", number, l.err)
		case <-time.After(25 * time.Second):
			now := l.answers.Load()
			if now == last || now-first > most {
				t.Fatalf("edition %d is not read: %d reads were answered meanwhile, %d in the last 25 s", number, now-first, now-last)
			}
			last = now
		}
	}
}

func (l *lateReader) run(a *Agent, patience int) {
	defer close(l.over)
	mem := make([]byte, matrixSize)
	mine, err := a.Register("mine", Memory(mem), Own)
	if err != nil {
		l.err = err
		return
	}
	for !l.stop.Load() && l.err == nil {
		l.err = l.read(a, mine, l.newest.Load(), patience)
	}
}

// read reads under one description until the reader's patience is over, or a newer one was read.
func (l *lateReader) read(a *Agent, mine *Region, e *edition, patience int) error {
	p, err := a.Open(e.blob)
	if err != nil {
		return err
	}
	far, err := p.Region("r")
	if err != nil {
		return err
	}
	from, err := a.Prepare(p, []Desc{far.At(0, matrixSize)})
	if err != nil {
		return err
	}
	defer from.Release()
	to, err := a.Prepare(nil, []Desc{mine.At(0, matrixSize)})
	if err != nil {
		return err
	}
	defer to.Release()
	told := false
	for refused := 0; refused < patience && !l.stop.Load(); {
		q, err := a.Post(Transfer{Op: Read, Local: to, Remote: from, Timeout: 20 * time.Second})
		if err == nil {
			err = q.Wait(context.Background())
		}
		l.answers.Add(1)
		switch {
		case errors.Is(err, ErrLease):
			l.refused++
			refused++
		case err != nil:
			return err
		default:
			first, mixed := binary.LittleEndian.Uint64(mine.Bytes()), false
			for at := 0; at < matrixSize && !mixed; at += 8 {
				mixed = binary.LittleEndian.Uint64(mine.Bytes()[at:]) != first
			}
			if l.good++; mixed || first != e.number {
				word := "of another time"
				if mixed {
					word = "mixed"
				}
				l.wrong = append(l.wrong, word)
				return nil
			}
			if !told {
				told = true
				l.fresh <- e.number
			}
		}
	}
	return nil
}

// An owner reclaims its region again and again while readers that know only what it described before go on reading, in processes of
// their own: whoever is told that all is well has what was described.
func TestReclaimAgainstLateReaders(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	for _, way := range matrixWays() {
		path, kind := way[0], way[1]
		if kind == "gpu" {
			continue // its readers need memory of the same GPU
		}
		t.Run(path+" "+kind, func(t *testing.T) {
			owner := startMatrix(t, "owner", path, kind, t.TempDir(), 1, 5*time.Second, *reclaims)
			if owner.hear(20*time.Second, "ready").Is == "" {
				t.Fatal("the owner does not start")
			}
			turn := func(number uint64) edition {
				owner.tell(t, word{Do: "turn", Seed: number})
				w := owner.hear(25*time.Second, "published")
				if w.Is == "" || w.Err != "" {
					t.Fatalf("edition %d: %s", number, w.Err)
				}
				return edition{w.Blob, number}
			}
			first := turn(1)
			readers := []*lateReader{{}, {}}
			var wg sync.WaitGroup
			for i, l := range readers {
				a, err := New(Config{Name: string(rune('a' + i)), Token: "matrix", Path: path, Lease: 5 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				l.newest.Store(&first)
				l.fresh, l.over = make(chan uint64, 1000), make(chan struct{})
				wg.Go(func() { l.run(a, 1+20*i) })
			}
			rounds, began, number := uint64(bounded.Times(6, 200)), time.Now(), uint64(2)
			refused := 0
			end := sync.OnceFunc(func() { // also where somebody gave up: what was read until then counts
				for _, l := range readers {
					l.stop.Store(true)
				}
				wg.Wait()
				good, wrong := 0, 0
				for i, l := range readers {
					good, wrong, refused = good+l.good, wrong+len(l.wrong), refused+l.refused
					if l.err != nil || len(l.wrong) > 0 {
						t.Errorf("reader %d: %d of %d reads without an error were wrong %v; %v", i, len(l.wrong), l.good, l.wrong, l.err)
					}
				}
				t.Logf("%d editions in %s: %d reads without an error, %d of them wrong, %d refused",
					number-1, time.Since(began).Round(time.Second), good, wrong, refused)
			})
			defer end()
			if *reclaims > 0 {
				rounds = math.MaxUint64
			}
			for ; number <= rounds && (*reclaims == 0 || time.Since(began) < *reclaims); number++ {
				for _, l := range readers { // each has read the last edition once
					l.awaits(t, number-1)
				}
				e := turn(number)
				for _, l := range readers {
					l.newest.Store(&e)
				}
			}
			end()
			rounds = number - 1
			if refused < int(rounds)-1 {
				t.Errorf("only %d reads were refused in %d rounds: nobody was late", refused, rounds)
			}
		})
	}
}
