//go:build linux

package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/transport"
)

// A rank that waits for one peer lets in what others send: here that peer waits, over two others, for it to do so. Each message has a slot,
// so such a program is proven to end.
func TestReceiversLetOthersIn(t *testing.T) {
	for _, streams := range []int{1, 2} {
		t.Run(fmt.Sprint(streams, " streams"), func(t *testing.T) { letIn(t, func(c *Config) { c.Streams = streams }) })
	}
	conf := certificates(t)
	t.Run("TLS", func(t *testing.T) { letIn(t, func(c *Config) { c.TLS = conf }) })
}

func letIn(t *testing.T, change func(*Config)) {
	es := endpoints(t, 4, change)
	type message struct{ from, to int }
	out := make([]byte, 4<<20)
	fillRandom(out, 1)
	do := [][]message{ // by rank, in order
		{{0, 1}, {0, 3}},
		{{2, 1}, {0, 1}},
		{{2, 3}, {2, 1}},
		{{0, 3}, {2, 3}},
	}
	var wg sync.WaitGroup
	errs := make([]error, len(es))
	for r, e := range es {
		q, err := e.Port(transport.Group{ID: 1, Members: []int{0, 1, 2, 3}})
		if err != nil {
			t.Fatal(err)
		}
		p := q.(*port)
		p.begin(1)
		wg.Go(func() {
			for _, m := range do[r] {
				if m.from == r {
					errs[r] = errors.Join(errs[r], p.Send(m.to, 0, out))
					continue
				}
				in := make([]byte, len(out))
				errs[r] = errors.Join(errs[r], p.Recv(m.from, 0, in))
				if !bytes.Equal(in, out) {
					t.Errorf("rank %d has another message of rank %d than was sent", r, m.from)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
