//go:build linux

package wire

// Channels of a call that run side by side have streams of their own: the messages of channel c take the streams of number c mod
// Config.Streams, over all rails, and any others when these are lost. Whoever waits on a channel reads and writes the streams of that
// channel, and those of the others now and then. With one stream for both, whoever held it made the other wait. Two hosts of one rank on
// 16 cores take 4.6 to 5.1 ms for an all-reduce of 16 MiB with two channels, and 8.3 to 8.9 with one (2026-11-17).

// Instead of a number.
const (
	AnyStream  = -1 // the streams of calls with one channel: the first ones of each rail
	AllStreams = -2 // all streams
)

// common is how many streams of a rail calls with one channel use: they have one caller, and each stream is a socket to look at.
const common = 2

// othersEvery is how many looks in vain at its own streams a caller takes before it looks at those of other channels.
const othersEvery = 4

// Channels says how many channels of a call run side by side.
func (e *Node) Channels(n int) { e.Home.Beside(n * max(e.cfg.Machine, e.Home.Ranks)) }

// carries says whether a stream is one of those of a number.
func (s *Stream) carries(number int) bool {
	switch number {
	case AllStreams:
		return true
	case AnyStream:
		return s.number < common
	}
	return s.number == number
}

// reaches says whether one of the streams of a number is not lost.
func (pr *Link) reaches(number int) bool {
	if number == AllStreams {
		return true
	}
	for _, s := range pr.Streams() {
		if s.carries(number) && !s.lost.Load() {
			return true
		}
	}
	return false
}

// sound is a number, or all streams if those of that number are lost.
func (pr *Link) sound(number int) int {
	if pr.reaches(number) {
		return number
	}
	return AllStreams
}

// looksAt is which streams a wait looks at this time.
func (s *spell) looksAt() int {
	if s.idle%othersEvery == othersEvery-1 {
		return AllStreams
	}
	return s.on
}

// yield gives the processor away for a moment. Only the caller of the first channel goes to the processor of the rank: it is that of one
// thread.
func (e *Node) yield(number int) {
	if number > 0 {
		e.Home.Backoff.Yield()
	} else {
		e.Home.Yield()
	}
}
