package node

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/coord"
	"github.com/weft-fabric/weft/launch"
)

// enterPlain enters a slot before its process is started: the program learns of
// its rank from the environment alone. As rank 0 it listens at a port that is
// kept free for it.
func (s *slot) enterPlain(life context.Context) error {
	if s.port != nil {
		s.port.Release()
	}
	port, err := launch.HoldPort()
	if err != nil {
		return fmt.Errorf("a port for rank %d of this host: %w", s.local, err)
	}
	s.port = port
	s.addr = net.JoinHostPort(s.n.cfg.Addr, strconv.Itoa(port.Number))
	s.enter(life)
	return nil
}

// placedPlain notes when the ranks last changed.
func (s *slot) placedPlain(p coord.Place) {
	if !sameRanks(p.Epoch, s.place.Epoch) || p.Standing != s.place.Standing {
		s.since = time.Now()
	}
	s.place = p
	if p.Standing == coord.Halted {
		s.since = time.Time{}
	}
}

// sameRanks reports whether the same slots have the same ranks in two epochs.
func sameRanks(a, b coord.Epoch) bool {
	if len(a.Members) != len(b.Members) {
		return false
	}
	for i := range a.Members {
		if a.Members[i].ID != b.Members[i].ID {
			return false
		}
	}
	return true
}

// settle starts a program that does not follow epochs once the ranks stay the same,
// and ends one whose ranks are no more, to start it again.
func (s *slot) settle(now time.Time) error {
	p := s.place
	if s.n.cfg.Follow || s.n.isStopped() || s.ended || s.reg == nil {
		return nil
	}
	switch p.Standing {
	case coord.Halted:
		if s.proc != nil && s.why == "" {
			s.why = "the job is asked to stop: " + p.Why
			s.ended = true
			s.proc.Signal(syscall.SIGTERM)
		}
		return nil
	case coord.Active:
	default:
		return nil
	}
	settled := now.Sub(s.since) >= s.n.cfg.Settle || len(p.Epoch.Members) == s.n.cfg.Policy.Max
	switch {
	case !settled || s.proc == nil && now.Before(s.due):
	case s.proc == nil:
		s.running = p.Epoch
		return s.start(s.environment(p))
	case s.why == "" && !sameRanks(s.running, p.Epoch):
		s.why = fmt.Sprintf("epoch %d has other ranks: %s", p.Epoch.Number, p.Epoch.Reason)
		s.n.tell(Event{Kind: Replaced, Slot: s.name(), Pid: s.proc.Pid, Text: s.why})
		s.proc.Signal(syscall.SIGTERM)
		proc := s.proc
		time.AfterFunc(s.n.cfg.Grace, proc.Kill) // does nothing once it has ended
	}
	return nil
}

// environment is what a program that does not follow epochs is told.
func (s *slot) environment(p coord.Place) []string {
	host, port, _ := net.SplitHostPort(p.Epoch.Master) // the decider took it from a worker's record
	return []string{"RANK=" + strconv.Itoa(p.Rank), "WORLD_SIZE=" + strconv.Itoa(len(p.Epoch.Members)),
		"MASTER_ADDR=" + host, "MASTER_PORT=" + port, "WEFT_TOKEN=" + p.Epoch.Token, "WEFT_EPOCH=" + strconv.FormatUint(p.Epoch.Number, 10)}
}
