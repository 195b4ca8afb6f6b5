package xfer

import (
	"bytes"
	"sync"
	"testing"
)

// Requests over several paths to one peer run at the same time: each network has its own session, and none ends another's.
func TestSeveralPathsAtOnce(t *testing.T) {
	ctx := limit(t)
	a, b := start(t, "a", nil), start(t, "b", nil)
	const n = 3 << 20
	var wg sync.WaitGroup
	for i, path := range []string{"shm", "tcp", "unix"} {
		mine, theirs := host(t, a, path, n, false, uint64(10+i)), host(t, b, path, n, false, uint64(20+i))
		p := meet(t, a, b)
		local, far := prepare(t, a, nil, mine.At(0, n)), prepare(t, a, p, remote(t, p, path).At(0, n))
		wg.Go(func() {
			for k := range 20 {
				op := Op(k % 2)
				q, err := a.Post(Transfer{Op: op, Local: local, Remote: far, Path: path, Notice: []byte(path)})
				if err == nil {
					err = q.Wait(ctx)
				}
				if err != nil {
					t.Errorf("%s %d over %s: %v", op, k, path, err)
					return
				}
				if !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
					t.Errorf("%s %d over %s: wrong bytes", op, k, path)
				}
				if err := a.Notify(ctx, p, []byte("beside")); err != nil {
					t.Errorf("notify %d: %v", k, err)
				}
			}
		})
	}
	wg.Wait()
	if got := len(b.Notices()); got != 3*20*2 {
		t.Errorf("%d notices, want %d", got, 3*20*2)
	}
	// A session for each network, and none was made twice.
	a.mu.Lock()
	links := len(a.links)
	a.mu.Unlock()
	if links != 2 {
		t.Errorf("%d links, want 2", links)
	}
}
