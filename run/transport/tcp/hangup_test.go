//go:build linux

package tcp

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// A rank that sent its last message and ended is found to be gone by writing to it. What it sent is received all the same.
func TestLastMessageOfARankThatEnded(t *testing.T) {
	es := endpoints(t, 2, func(c *Config) { c.Streams = 1 })
	var p [2]transport.Port
	for r, e := range es {
		var err error
		if p[r], err = e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}}); err != nil {
			t.Fatal(err)
		}
		p[r].Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, nil)
	}
	mine, theirs := es[0].wire.Link(1).Streams()[0], es[1].wire.Link(0).Streams()[0]
	let := mine.HoldReads() // nobody reads it yet
	if err := p[1].Send(0, 0, []byte("the last")); err != nil {
		t.Fatal(err)
	}
	theirs.End()
	for end := time.Now().Add(20 * time.Second); !mine.HungUp() && time.Now().Before(end); wait.Yield() {
		mine.Poke()
	}
	let()
	got := make([]byte, 8)
	if err := p[0].Recv(1, 0, got); err != nil || string(got) != "the last" {
		t.Errorf("received %q, %v", got, err)
	}
	if err := p[0].Recv(1, 0, got); err == nil {
		t.Error("a second message came from a rank that is gone")
	}
}
