//go:build linux

package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
)

// Channels that run side by side have a stream each: while one of the two streams takes nothing, long and short messages of the other
// channel go on. When a stream is lost, its channel's messages take the other one.
func TestChannelsHaveStreams(t *testing.T) {
	es, ports := pair(t)
	for _, p := range ports {
		p.begin(1)
		p.Channels(2)
	}
	held := es[0].wire.Link(1).Streams()[0]
	let := held.HoldWrites()
	defer let()
	pass := func(channel int, seed uint64, n int) {
		t.Helper()
		out, in := make([]byte, n), make([]byte, n)
		fillRandom(out, seed)
		sent := make(chan error, 1)
		go func() { sent <- ports[0].Send(1, channel, out) }()
		if err := errors.Join(ports[1].Recv(0, channel, in), <-sent); err != nil || !bytes.Equal(in, out) {
			t.Fatalf("channel %d, %d bytes: %v", channel, n, err)
		}
	}
	for i, n := range []int{8, 100_000, 3 << 20} {
		pass(1, uint64(i), n)
	}
	if n := held.Queued(); n > 0 {
		t.Errorf("%d messages of channel 1 wait for the stream of channel 0", n)
	}
	let()
	lost := es[0].wire.Link(1).Streams()[1]
	_ = unix.Shutdown(lost.FD(), unix.SHUT_RDWR)
	for i, n := range []int{8, 100_000, 3 << 20} {
		pass(1, uint64(10+i), n)
		pass(0, uint64(20+i), n)
	}
}

// TestChannelsBreak breaks streams while two ranks exchange messages on four channels at once, with a caller each and a stream for two.
func TestChannelsBreak(t *testing.T) {
	es := endpoints(t, 2, func(c *Config) { c.Streams = 2 })
	const rounds, channels = 20, 4
	sizes := []int{1000, 70_000, frame.PieceSize, 3*frame.PieceSize + 17, 2 << 20}
	swap := func(p *port, rank, channel, round int) error {
		n := sizes[(round+channel)%len(sizes)]
		out, in, want := make([]byte, n), make([]byte, n), make([]byte, n)
		seed := func(rank int) uint64 { return uint64(round*100 + channel*10 + rank) }
		fillRandom(out, seed(rank))
		fillRandom(want, seed(1-rank))
		at := 0
		incoming := transport.Incoming{From: 1 - rank, Channel: channel, N: n, Dst: in}
		if round%2 == 0 {
			incoming.Dst, incoming.Take = nil, func(b []byte) { at += copy(in[at:], b) }
		}
		if err := p.Exchange(transport.Outgoing{To: 1 - rank, Channel: channel, Bytes: out}, incoming, nil); err != nil {
			return err
		}
		if !bytes.Equal(in, want) {
			return fmt.Errorf("round %d, channel %d: %d bytes differ", round, channel, n)
		}
		return nil
	}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for rank, e := range es {
		x, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		p := x.(*port)
		wg.Go(func() {
			for round := range rounds {
				p.begin(uint64(round + 1))
				p.Channels(channels)
				if ss := e.wire.Link(1 - rank).Streams(); rank == 0 && round%3 == 2 && len(ss) > 1 {
					_ = unix.Shutdown(ss[round%2].FD(), unix.SHUT_RDWR)
				}
				var callers sync.WaitGroup
				found := make([]error, channels)
				for channel := range channels {
					callers.Go(func() { found[channel] = swap(p, rank, channel, round) })
				}
				callers.Wait()
				if errs[rank] = errors.Join(found...); errs[rank] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := total(es[0], "paths.lost"); n < 2 {
		t.Errorf("%d paths were lost, want those that were broken", n)
	}
}
