package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/launch"
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

// placedPlain notes when the members of the round last changed.
func (s *slot) placedPlain(p coord.Place) {
	if p.Epoch.Round != s.place.Epoch.Round || p.Standing != s.place.Standing {
		s.since = time.Now()
	}
	s.place = p
	if p.Standing != coord.Halted {
		s.halted = time.Time{}
		return
	}
	s.since = time.Time{}
	if s.halted.IsZero() {
		s.halted = time.Now()
	}
}

// stranded reports whether the job has stopped and nothing of this slot runs: nobody
// will come for whom it could wait. That all others have done their work may be heard
// a little later than that they left.
func (s *slot) stranded(now time.Time) bool {
	return !s.n.cfg.Follow && s.proc == nil && !s.halted.IsZero() && now.Sub(s.halted) >= s.n.cfg.Settle
}

// settle ends a process of an earlier round, and starts that of the present one once
// its members stay the same and all have ended theirs.
func (s *slot) settle(now time.Time) error {
	p, together := s.place, s.n.cfg.Policy.Together
	if s.n.cfg.Follow || s.n.isStopped() || s.reg == nil || s.ended && !together {
		return nil
	}
	if p.Standing == coord.Halted && s.proc != nil && s.why == "" {
		s.ended = true
		s.end("the job is asked to stop: " + p.Why)
	}
	if p.Standing != coord.Active {
		return nil
	}
	// A restart after a failure has the members it had; newcomers may bring others along.
	settled := now.Sub(s.since) >= s.n.cfg.Settle || len(p.Epoch.Members) == s.n.cfg.Policy.Max || p.Epoch.Restarts > s.running.Restarts
	switch {
	case !settled || s.proc == nil && now.Before(s.due):
	case s.proc != nil:
		if s.why == "" && s.running.Round != p.Epoch.Round {
			s.n.tell(Event{Kind: Replaced, Slot: s.name(), Pid: s.proc.Pid, Text: fmt.Sprintf("epoch %d: %s", p.Epoch.Number, p.Epoch.Reason)})
			s.end("epoch " + strconv.FormatUint(p.Epoch.Number, 10))
		}
	case s.running.Round == p.Epoch.Round && together: // done, or it failed and the next round is on its way
	case s.begun != p.Epoch.Round:
		s.begun, s.ended = p.Epoch.Round, false
		s.reg.Begin(p.Epoch.Round)
	case !together || s.n.allEnded(p.Epoch):
		s.running = p.Epoch
		s.rank.Store(int32(p.Rank))
		return s.start(s.environment(p))
	}
	return nil
}

// end asks the process to end, and kills it after the grace.
func (s *slot) end(why string) {
	s.why = why
	s.proc.Signal(syscall.SIGTERM)
	time.AfterFunc(s.n.cfg.Grace, s.proc.Kill) // does nothing once it has ended
}

// common is what every process of the slot is told, whether it follows epochs or not.
func (s *slot) common() []string {
	cfg := &s.n.cfg
	env := []string{"LOCAL_RANK=" + strconv.Itoa(s.local), "LOCAL_WORLD_SIZE=" + strconv.Itoa(len(s.n.slots)),
		"TORCHELASTIC_RESTART_COUNT=" + strconv.Itoa(s.restarts), "WEFT_SLOT=" + strconv.Itoa(s.id)}
	if cfg.Run != "" {
		env = append(env, "TORCHELASTIC_RUN_ID="+cfg.Run)
	}
	return env
}

// environment is what a program that does not follow epochs is told, with torchrun's
// names. A node is what has the same name in the records of its workers.
func (s *slot) environment(p coord.Place) []string {
	e := p.Epoch
	host, port, _ := net.SplitHostPort(e.Master) // the decider took it from a worker's record
	var nodes []string
	local, locals := 0, 0
	mine := e.Members[p.Rank].Node
	for rank, m := range e.Members {
		if !slices.Contains(nodes, m.Node) {
			nodes = append(nodes, m.Node)
		}
		if m.Node == mine {
			locals++
			if rank < p.Rank {
				local++
			}
		}
	}
	role := s.n.cfg.Role
	if role == "" {
		role = "default"
	}
	number := func(name string, n int) string { return name + "=" + strconv.Itoa(n) }
	env := []string{
		number("RANK", p.Rank), number("WORLD_SIZE", len(e.Members)),
		number("LOCAL_RANK", local), number("LOCAL_WORLD_SIZE", locals),
		number("GROUP_RANK", slices.Index(nodes, mine)), number("GROUP_WORLD_SIZE", len(nodes)),
		number("ROLE_RANK", p.Rank), number("ROLE_WORLD_SIZE", len(e.Members)), "ROLE_NAME=" + role,
		"MASTER_ADDR=" + host, "MASTER_PORT=" + port,
		"WEFT_TOKEN=" + e.Token, "WEFT_EPOCH=" + strconv.FormatUint(e.Number, 10),
		number("TORCHELASTIC_MAX_RESTARTS", s.n.cfg.Restarts),
		"TORCHELASTIC_USE_AGENT_STORE=False", // rank 0 has the store
	}
	if s.n.cfg.Policy.Together {
		env = append(env, number("TORCHELASTIC_RESTART_COUNT", e.Restarts))
	}
	return env
}
