//go:build linux

package tcp

import "github.com/weft-fabric/weft/run/transport"

// Channels of a call that run side by side have streams of their own: the messages of channel c take the streams of number c mod
// Config.Streams, over all rails, and any others when these are lost. Whoever waits on a channel reads and writes the streams of that
// channel, and those of the others now and then. With one stream for both, whoever held it made the other wait. Two hosts of one rank on
// 16 cores take 4.6 to 5.1 ms for an all-reduce of 16 MiB with two channels, and 8.3 to 8.9 with one (2026-11-17).

// Instead of a number.
const (
	anyStream = -1 // the streams of calls with one channel: the first ones of each rail
	allStream = -2 // all streams
)

// common is how many streams of a rail calls with one channel use: they have one caller, and each stream is a socket to look at.
const common = 2

// othersEvery is how many looks in vain at its own streams a caller takes before it looks at those of other channels.
const othersEvery = 4

// Channels says how many channels the call has.
func (p *port) Channels(n int) {
	p.side.Store(int32(n))
	p.e.home.Beside(n * max(p.e.cfg.Machine, p.e.home.Ranks))
}

var _ transport.Parallel = (*port)(nil)

// streamOf is the number of the streams of a channel, or anyStream if it has none of its own.
func (p *port) streamOf(channel int) int {
	if p.side.Load() < 2 {
		return anyStream
	}
	return transport.Way(channel) % p.e.streamsPerRail()
}

// carries says whether a stream is one of those of a number.
func (s *stream) carries(number int) bool {
	switch number {
	case allStream:
		return true
	case anyStream:
		return s.number < common
	}
	return s.number == number
}

// reaches says whether one of the streams of a number is not lost.
func (pr *peer) reaches(number int) bool {
	if number == allStream {
		return true
	}
	for _, s := range pr.all() {
		if s.carries(number) && !s.lost.Load() {
			return true
		}
	}
	return false
}

// sound is a number, or all streams if those of that number are lost.
func (pr *peer) sound(number int) int {
	if pr.reaches(number) {
		return number
	}
	return allStream
}

// looksAt is which streams a wait looks at this time.
func (s *spell) looksAt() int {
	if s.idle%othersEvery == othersEvery-1 {
		return allStream
	}
	return s.on
}

// yield gives the processor away for a moment. Only the caller of the first channel goes to the processor of the rank: it is that of one
// thread.
func (e *Endpoint) yield(number int) {
	if number > 0 {
		e.home.Backoff.Yield()
	} else {
		e.home.Yield()
	}
}
