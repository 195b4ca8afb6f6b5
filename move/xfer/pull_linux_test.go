package xfer

import (
	"errors"
	"testing"
)

// A target that cannot read the memory of the initiator any more, as its process was killed in the middle, names the initiator.
func TestPullFromTheDead(t *testing.T) {
	ctx := limit(t)
	a, b := start(t, "a", func(c *Config) { c.Path = "pull" }), start(t, "b", nil)
	mine, err := a.Register("mine", Memory(make([]byte, 10_000)), 0) // which is not mapped
	if err != nil {
		t.Fatal(err)
	}
	host(t, b, "theirs", 10_000, false, 2)
	p := meet(t, a, b)
	write := func() error {
		t.Helper()
		q, err := a.Post(Transfer{Op: Write, Local: prepare(t, a, nil, mine.At(0, 10_000)),
			Remote: prepare(t, a, p, remote(t, p, "theirs").At(0, 10_000)), Notice: []byte("n")})
		if err != nil {
			t.Fatal(err)
		}
		return q.Wait(ctx)
	}
	if err := write(); err != nil {
		t.Skip("memory of processes cannot be read here: ", err)
	}
	if n, err := b.NextNotice(ctx); err != nil || n.Err != nil {
		t.Fatal(n, err)
	}
	b.mu.Lock()
	g := b.guests[a.ID()]
	b.mu.Unlock()
	g.mu.Lock()
	g.now["unix"].pid = 1 << 30 // no such process
	g.mu.Unlock()
	err = write()
	n, nerr := b.NextNotice(ctx)
	if nerr != nil {
		t.Fatal(nerr)
	}
	for end, err := range map[string]error{"initiator": err, "target": n.Err} {
		var f *Failure
		if !errors.As(err, &f) || f.Who != "a" || !errors.Is(err, ErrStorage) {
			t.Errorf("the %s heard %v; a's memory could not be read", end, err)
		}
	}
}
