//go:build linux

package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"golang.org/x/sys/unix"
)

// Streams may be made when two ranks first talk (Config.Lazy): a pair that never does
// needs none. As always one of the two dials. The other one knocks: it dials, says that
// it wants to be dialed, and hangs up.

// Meet sees to it that there are streams with a peer that a call is about.
func (pr *Link) Meet(stop transport.Stop) error {
	if pr.met.Load() {
		return nil
	}
	return pr.e.meet(pr, stop)
}

// meet connects to a peer when the first message for it is due. Of each pair one side dials; the other knocks, which
// asks for that. It returns nil also where the peer is known to be dead: the caller finds that out with a better error.
func (e *Node) meet(pr *Link, stop transport.Stop) error {
	asked := time.Time{}
	for !pr.met.Load() {
		if err := pr.Alive(); err != nil {
			return nil // the caller finds out
		}
		if e.closed.Load() {
			return transport.ErrClosed
		}
		if e.dials(e.cfg.Rank, pr.Rank) {
			if err := e.reach(pr); err != nil {
				return err
			}
		} else if time.Since(asked) > dialTime {
			asked = time.Now()
			heard, err := e.knock(pr)
			if err != nil {
				return err
			}
			if !heard {
				asked = asked.Add(20*time.Millisecond - dialTime) // again soon
			}
		}
		if stop != nil {
			if err := stop(); err != nil {
				return err
			}
		}
		select {
		case <-pr.here:
		case <-time.After(slice):
		case <-e.ctx.Done():
		}
	}
	return nil
}

// knock asks a peer to dial this rank, and says whether it heard.
func (e *Node) knock(pr *Link) (heard bool, err error) {
	ctx, cancel := context.WithTimeout(e.ctx, dialTime)
	defer cancel()
	conn, _, err := e.dialOnce(ctx, pr.Rank, lane{kind: laneKnock})
	if err == nil {
		conn.Close()
		return true, nil
	}
	return false, pr.unmet(err)
}

// reach dials a peer that has no streams yet.
func (e *Node) reach(pr *Link) error {
	pr.meeting.Lock()
	defer pr.meeting.Unlock()
	if pr.met.Load() || pr.Alive() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(e.ctx, dialTime)
	defer cancel()
	for i, pair := range e.pairsWith(pr.Rank) {
		for k := range e.StreamsPerRail() {
			if pr.has(i, k) {
				continue
			}
			l := pr.attempt(pair, k)
			conn, secret, err := e.dialOnce(ctx, pr.Rank, l)
			if err == nil {
				err = e.add(conn, pr, pair[0], l, &secret, true)
			}
			if err != nil {
				return pr.unmet(err)
			}
		}
	}
	return nil
}

// has reports whether there is a stream of a number over a pair of rails.
func (pr *Link) has(pair, number int) bool {
	for _, s := range pr.Streams() {
		if s.pair == pair && s.number == number {
			return true
		}
	}
	return false
}

// closing is why an endpoint that closes turns connections away.
const closing = "endpoint closed"

// isClosing reports whether a dialed endpoint was about to close: it said so, or the connection ended in the handshake.
func isClosing(err error) bool {
	var refusal *auth.Refusal
	return errors.As(err, &refusal) && refusal.Why == closing || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) ||
		errors.Is(err, io.EOF)
}

// unmet is what it means that a peer cannot be dialed. All listen before any dials, so
// one where nobody listens has ended. One that closes may have dialed before: its last
// messages are on their way. Otherwise it is tried again.
func (pr *Link) unmet(err error) error {
	if isClosing(err) {
		return nil
	}
	if isRefused(err) {
		select {
		case <-pr.here: // it had dialed
		case <-time.After(20 * time.Millisecond):
			pr.vanish("nobody listens where it did")
		}
		return nil
	}
	if pr.e.ctx.Err() != nil {
		return transport.ErrClosed
	}
	var late net.Error
	if errors.As(err, &late) && late.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return fmt.Errorf("rank %d cannot reach rank %d: %w", pr.e.cfg.Rank, pr.Rank, err)
}
