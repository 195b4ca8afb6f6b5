package xfer

import (
	"bytes"
	"testing"
	"time"
)

// A few bytes of this process are there when Post returns. Where such a copy took long a moment ago, nobody who posts waits for the
// next one.
func TestPostNow(t *testing.T) {
	ctx := limit(t)
	a, b := start(t, "a", nil), start(t, "b", nil)
	mine, theirs := host(t, a, "mine", 4096, false, 1), host(t, b, "theirs", 4096, false, 2)
	p := meet(t, a, b)
	x := Transfer{Op: Read, Local: prepare(t, a, nil, mine.At(0, 4096)), Remote: prepare(t, a, p, remote(t, p, "theirs").At(0, 4096)),
		Now: true}
	q, err := a.Post(x)
	if err != nil {
		t.Fatal(err)
	}
	if s := q.Poll(); s.State != Done || !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Errorf("after Post it is %v", s)
	}
	until := time.Now().Add(time.Hour)
	a.crowded.Store(&until)
	noise(theirs.Bytes(), 3)
	x.Op = Write
	x.Notice = []byte("n")
	noise(mine.Bytes(), 4)
	if q, err = a.Post(x); err == nil {
		err = q.Wait(ctx)
	}
	if err != nil || !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Errorf("in a crowd: %v", err)
	}
	if n, err := b.NextNotice(ctx); err != nil || string(n.Data) != "n" {
		t.Error(n, err)
	}
}
