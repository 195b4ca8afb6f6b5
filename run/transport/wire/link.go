//go:build linux

package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
)

// Link is what joins this rank with another one: its streams, what they carry, and how they come and go.
type Link struct {
	e    *Node
	Rank int // of the other end

	streams  atomic.Pointer[[]*Stream]
	gone     atomic.Pointer[transport.Gone]
	bye      atomic.Bool   // it closed its endpoint
	waiting  atomic.Int32  // callers that are parked for something of it
	Buffered atomic.Int64  // bytes of its messages that came before they were asked for
	Messages atomic.Uint64 // sent to it

	Numbered bool // its pieces are, and kept until they are acknowledged

	met     atomic.Bool   // all its streams were there once
	here    chan struct{} // closed then
	meeting sync.Mutex    // held while it is dialed for the first time
	hoping  sync.Mutex    // held while it has no stream and is waited for
	telling sync.Mutex    // held while an outage, or its end, is told
	log     chatter       // what was told of its links

	mu       sync.Mutex
	carrier  carrier
	attempts uint32        // to make streams, by this rank
	youngest uint32        // the latest of those that made one
	down     time.Time     // since when it has no stream; zero while it has one
	came     chan struct{} // a token when a stream was made
	stall    stall         // streams that were lost one after the other without anything acknowledged
	altered  alterations   // streams that brought altered frames, or refused ones
	refused  string        // what was wrong with the last frame that was refused
	times    int           // how often that was so, one after the other
	brief    int           // streams in a row that were lost soon after they were made
	left     []*Stream     // lost, and not yet closed: Close does it if nobody else gets to it
	rooms    []Room        // senders that wait for room among the copies
}

// Streams are the streams with the peer.
func (pr *Link) Streams() []*Stream {
	if p := pr.streams.Load(); p != nil {
		return *p
	}
	return nil
}

// any are the streams with the peer, and those that are lost and may still be read by somebody.
func (pr *Link) any() []*Stream {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return slices.Concat(pr.Streams(), pr.left)
}

// Awaited says that callers are parked for something of the peer.
func (pr *Link) Awaited() bool { return pr.waiting.Load() > 0 }

// Alive is nil, or why the peer cannot be reached.
func (pr *Link) Alive() error {
	if g := pr.gone.Load(); g != nil {
		return g
	}
	return nil
}

// vanish makes the peer gone.
func (pr *Link) vanish(why string) { pr.vanishFor(why, nil) }

func (pr *Link) vanishFor(why string, cause error) {
	if pr.gone.CompareAndSwap(nil, &transport.Gone{Rank: pr.Rank, Why: why, Left: pr.bye.Load(), Cause: cause}) {
		pr.e.WakeAll()
	}
}

// refuse gives up a peer whose frames this rank does not take.
func (pr *Link) refuse(what string) {
	r := &transport.Refused{Sender: pr.Rank, Receiver: pr.e.cfg.Rank, What: what}
	pr.vanishFor(r.Error(), r)
}

// isFinal reports whether a dialer was turned away in a way that trying again does not change.
func isFinal(err error) bool {
	var refusal *auth.Refusal
	var other *auth.OtherEpoch
	return errors.As(err, &refusal) || errors.As(err, &other) || errors.Is(err, auth.ErrToken)
}

// unwanted gives up a peer that turned this rank away for good, and reports whether it did: it gave this rank up before, or its
// address is another one's by now.
func (pr *Link) unwanted(err error) bool {
	if other, ok := errors.AsType[*auth.OtherEpoch](err); ok {
		pr.vanish(other.Error())
		return true
	}
	var refusal *auth.Refusal
	if !errors.As(err, &refusal) || refusal.Why == closing {
		return false
	}
	if what, ok := strings.CutPrefix(refusal.Why, refusing); ok {
		r := &transport.Refused{Sender: pr.e.cfg.Rank, Receiver: pr.Rank, What: what}
		pr.vanishFor(r.Error(), r)
	} else {
		pr.vanishFor("it gave this rank up: "+refusal.Why, &transport.Parted{Lives: true}) // it answers
	}
	return true
}

// refusing begins what a rank says to one whose frames it does not take.
const refusing = "frame refused: "

// welcome is nil, or why a peer is turned away.
func (pr *Link) welcome() error {
	err := pr.Alive()
	if r, ok := errors.AsType[*transport.Refused](err); ok {
		return errors.New(refusing + r.What)
	}
	if g, ok := errors.AsType[*transport.Gone](err); ok && g.Left {
		return auth.Over(err.Error())
	}
	return err
}

// chatter bounds what is told of the links with a peer: one that comes and goes is told some times, and then counted.
type chatter struct {
	mu     sync.Mutex
	since  time.Time
	told   int
	missed int
}

const (
	chatTime = 10 * time.Second
	ChatMost = 20 // lines in that time
)

// may reports whether a line may be told now, whether it is the last for a while, and how many were left out before it.
func (c *chatter) may(now time.Time) (ok, last bool, missed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.since) >= chatTime {
		missed = c.missed
		c.since, c.told, c.missed = now, 0, 0
	}
	if c.told >= ChatMost {
		c.missed++
		return false, false, 0
	}
	c.told++
	return true, c.told == ChatMost, missed
}

// alterations is how often frames of a peer were altered, as a rate: one in AlterTime is an accident that costs a
// connection and nothing else, however long the job runs; AlterMost at once are no accident. It also bounds how often
// somebody between the hosts can guess a checksum.
type alterations struct {
	paid time.Time // when those that were seen are made up for
}

const (
	AlterTime = 2 * time.Second
	AlterMost = 8
)

// often counts another one, and reports whether that is too many.
func (a *alterations) often(now time.Time) bool {
	if a.paid.Before(now) {
		a.paid = now
	}
	a.paid = a.paid.Add(AlterTime)
	return a.paid.Sub(now) > (AlterMost-1)*AlterTime
}

// stall is a run of streams that were made and lost while the oldest piece was not acknowledged. The clock of an outage
// runs on what is acknowledged, not on streams: over a link that swallows large packets a stream can be made any number of
// times, and each is lost within a second.
type stall struct {
	since time.Time // the first was lost
	base  uint64    // the oldest piece then
	size  int       // of its frame
	lost  int
}

const (
	stallTime   = 5 * time.Second // a stream that lasted longer is no part of a stall: giving one up takes 0.6 s, more on busy hosts
	smallPacket = 500             // bytes that every network carries
)

// another counts a stream that was lost. If it was made during the stall, and nothing was acknowledged for as long as an outage
// may take, it gives that time; else 0. Where no stream can be made it is another's task to wait (lastHope).
func (x *stall) another(c *carrier, outage time.Duration, born, now time.Time) time.Duration {
	if len(c.window) == 0 {
		*x = stall{}
		return 0
	}
	if x.lost == 0 || c.base != x.base || now.Sub(born) > stallTime {
		*x = stall{since: now, base: c.base, size: frame.HeaderSize + c.window[0].bytes}
	}
	x.lost++
	if took := now.Sub(x.since); outage > 0 && took >= outage && born.After(x.since) {
		return took
	}
	return 0
}

// between says what is wrong between two ranks. The hint comes first, as long reasons are cut short on their way to others.
func (x *stall) between(a, b int) string {
	if x.size > smallPacket {
		return fmt.Sprintf("between ranks %d and %d small packets pass and large ones vanish: compare the MTU of all ports on the way; a frame of %d bytes was never acknowledged",
			a, b, x.size)
	}
	return fmt.Sprintf("between ranks %d and %d connections can be made, and what is sent over them is never acknowledged", a, b)
}

func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }
