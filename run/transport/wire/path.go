//go:build linux

package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/weft-fabric/weft/run/transport/internal/rails"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
)

// When ranks join, the first rank of each host sends one packet, as large as its interface allows, to the first ranks of some others.
// A path with a switch port whose MTU is too small connects and authenticates, and then swallows every long message. The system
// tells whether a packet was answered, so a host that is busy is not taken for one behind such a path. Both ends do this, each for
// what it sends.
const (
	pathTries = 4 // in a row, each sent three times, while small packets pass: with 30% loss 1 path in 4000 looks narrow
	pathLook  = 20 * time.Millisecond
	pathTime  = 2 * time.Second // for an answer; without one, and without packets that were sent again, nothing is known
)

// neighbours are the ranks to which a rank sends a large packet: those of the hosts 1, 2, 4, ... behind and before its own. That is all
// of up to five hosts; beyond, every host's port is tried, and not every pair.
func neighbours(rank int, all []rails.Facts) (list []int) {
	var firsts []int
	for r := range all {
		if !slices.ContainsFunc(all[:r], func(f rails.Facts) bool { return f.Space == all[r].Space }) {
			firsts = append(firsts, r)
		}
	}
	n, own := len(firsts), slices.Index(firsts, rank)
	if own < 0 {
		return nil // another rank of the host does it
	}
	for d := 1; d < n; d *= 2 {
		list = append(list, firsts[(own+d)%n], firsts[(own-d+n)%n])
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// probePaths finds a path from this host that swallows large packets.
func probePaths(ctx context.Context, e *Node) error {
	var paths []lane
	var to []int
	for _, rank := range neighbours(e.cfg.Rank, e.facts) {
		if e.reached(rank) {
			continue
		}
		for _, p := range e.pairsWith(rank) {
			paths, to = append(paths, lane{mine: uint32(p[0]), yours: uint32(p[1]), kind: lanePath}), append(to, rank)
		}
	}
	found := make(chan error, len(paths))
	for i, l := range paths {
		go func() { found <- probePath(ctx, e, to[i], l) }()
	}
	var first error
	for range paths {
		if err := <-found; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// probePath is nil if large packets get to a rank, or if that cannot be said.
func probePath(ctx context.Context, e *Node, rank int, l lane) error {
	size := 0
	for range pathTries {
		n, lost := sendLarge(ctx, e, rank, l)
		if !lost {
			return nil
		}
		size = n
		check := l
		check.kind = laneCheck
		conn, _, err := e.dialOnce(ctx, rank, check)
		if err != nil {
			return nil // nothing passes: whoever needs the link says so
		}
		conn.Close()
	}
	end := func(r int, rail uint32) string {
		at := e.where[r][rail].Addr.Addr()
		for _, x := range e.facts[r].Rails {
			if x.Addr == at {
				return fmt.Sprintf("rank %d (%s, %s, MTU %d)", r, x.Name, at, x.MTU)
			}
		}
		return fmt.Sprintf("rank %d (%s)", r, at)
	}
	return fmt.Errorf("small packets get from %s to %s, and large ones do not (%d bytes, sent %d times): "+
		"compare the MTU of all ports on the way",
		end(e.cfg.Rank, l.mine), end(rank, l.yours), size, pathTries*(giveUp+1))
}

// sendLarge sends a rank a packet of the size that both ends agreed on, and reports whether it got no answer, though it was sent again.
func sendLarge(ctx context.Context, e *Node, rank int, l lane) (size int, lost bool) {
	conn, _, err := e.dialOnce(ctx, rank, l)
	if err != nil {
		return 0, false
	}
	defer conn.Close()
	plain := beneath(conn)
	raw, err := plain.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) { size = socket.Segment(int(fd)) })
	if _, err := plain.Write(make([]byte, size)); err != nil {
		return size, false
	}
	for end := time.Now().Add(pathTime); time.Now().Before(end) && ctx.Err() == nil; {
		_ = plain.SetReadDeadline(time.Now().Add(pathLook))
		if _, err := plain.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return size, false // the other end has read it
		}
		var again uint8
		if raw.Control(func(fd uintptr) { again, _ = socket.Unanswered(int(fd)) }) == nil && again >= giveUp {
			return size, true
		}
	}
	return size, false
}

// takeLarge reads a large packet, and closes the connection to say so.
func takeLarge(e *Node, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(e.ctx, func() { conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(2 * pathTime))
	_, _ = beneath(conn).Read(make([]byte, 64<<10))
}

// beneath is the socket of a connection, which may be under TLS.
func beneath(conn net.Conn) *net.TCPConn {
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = c.NetConn()
	}
	return conn.(*net.TCPConn)
}
