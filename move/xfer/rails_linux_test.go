package xfer

import (
	"bytes"
	"testing"
	"time"
)

// An agent that listens on two interfaces is reached over both; when one of them is away, over the other.
func TestSeveralInterfaces(t *testing.T) {
	ctx := limit(t)
	a := start(t, "a", func(c *Config) { c.Path = "tcp" })
	b := start(t, "b", func(c *Config) { c.Path = "tcp"; c.Listen = []string{"127.0.0.1:0", "127.0.0.2:0"} })
	const n = 8 << 20
	mine, theirs := host(t, a, "mine", n, true, 0), host(t, b, "theirs", n, true, 3)
	p := meet(t, a, b)
	local, far := prepare(t, a, nil, mine.At(0, n)), prepare(t, a, p, remote(t, p, "theirs").At(0, n))
	read := func() map[string]int {
		clear(mine.Bytes())
		q, err := a.Post(Transfer{Op: Read, Local: local, Remote: far, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
			t.Fatal("wrong bytes")
		}
		s, err := p.link("tcp").get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		over := map[string]int{}
		for _, c := range pickStreams(s.streams, Bulk) {
			over[c.nc.RemoteAddr().String()]++
		}
		return over
	}
	if over := read(); len(over) != 2 {
		t.Errorf("long reads go over %v, want both of %v", over, b.Addrs())
	}
	// The second is away: connections to it end, and new ones are refused.
	b.listeners[1].Close()
	s, err := p.link("tcp").get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.streams {
		if c.nc.RemoteAddr().String() == b.Addrs()[1] {
			c.nc.Close()
		}
	}
	<-s.lost
	if over := read(); len(over) != 1 || over[b.Addrs()[0]] == 0 {
		t.Errorf("it goes over %v, want %s alone", over, b.Addrs()[0])
	}
}
