package witness

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// Whoever writes first decides, for all that have the ledger, at any moment and also after the first have closed it.
func TestLedger(t *testing.T) {
	world := [16]byte{1, 2, 3}
	first, err := NewLedger(world)
	if err != nil {
		t.Fatal(err)
	}
	ledgers := []*HostLedger{first}
	for range 4 {
		l, err := OpenLedger(os.Getpid(), first.Number(), world)
		if err != nil {
			t.Fatal(err)
		}
		ledgers = append(ledgers, l)
	}
	const decisions = 50
	said := make([][]string, len(ledgers))
	var wg sync.WaitGroup
	for i, l := range ledgers {
		wg.Go(func() {
			for d := range decisions {
				b, err := l.Decide(Key{Comm: uint32(d), Epoch: uint64(d) << 33}, fmt.Appendf(nil, "%d of %d", d, i))
				if err != nil {
					t.Error(err)
				}
				said[i] = append(said[i], string(b))
			}
		})
	}
	wg.Wait()
	for d := range decisions {
		for i := range ledgers {
			if said[i][d] != said[0][d] {
				t.Errorf("decision %d: %q and %q", d, said[0][d], said[i][d])
			}
		}
	}
	for _, l := range ledgers[:4] {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if b, err := ledgers[4].Decide(Key{Comm: 7, Epoch: 7 << 33}, []byte("late")); err != nil || string(b) != said[0][7] {
		t.Errorf("the last one is told %q, %v; want %q", b, err, said[0][7])
	}
	if _, err := ledgers[4].Decide(Key{Comm: 1}, make([]byte, entrySize)); err == nil {
		t.Error("a record that does not fit was taken")
	}
	_ = ledgers[4].Close()
}

// What is not the ledger of this world is not opened.
func TestOpenLedgerOfOthers(t *testing.T) {
	l, err := NewLedger([16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := OpenLedger(os.Getpid(), l.Number(), [16]byte{2}); err == nil {
		t.Error("the ledger of another world was opened")
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := OpenLedger(os.Getpid(), int(f.Fd()), [16]byte{1}); err == nil {
		t.Error("another file was opened")
	}
	if _, err := OpenLedger(os.Getpid(), 1<<20, [16]byte{1}); err == nil {
		t.Error("no file was opened")
	}
}
