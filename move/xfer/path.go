package xfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/transport/shm"
)

// Paths are the ways bytes go, the shortest first.
//
//	process   both ends are in one process: one copy
//	shm       processes of one host, memory from Alloc: the owner of the destination copies out of mapped memory
//	pull      processes of one host, other memory: the same by system calls
//	gpu       processes of one host, memory of one GPU: the GPU copies out of the other's memory
//	unix      processes of one host, storage that one of them must read: sockets of the host
//	tcp       sockets between hosts
//	ucx       UCX, where both ends have it; taken only where it is demanded, or was measured to be faster
var Paths = []string{"process", "shm", "pull", "gpu", "unix", "tcp", "ucx"}

// Route is a path, whether it can be taken, and what it costs.
type Route struct {
	Path    string        `json:"path"`
	OK      bool          `json:"ok"`
	Why     string        `json:"why"`
	Latency time.Duration `json:"latency"` // of a small request; 0 if it was not measured
	Rate    unit.Rate     `json:"rate"`    // of a long one; 0 if it was not measured

	local *Agent
	link  *link
}

// cost is how long n bytes take.
func (t *Route) cost(n int64) time.Duration {
	return t.Latency + time.Duration(float64(n)/float64(t.Rate)*1e9)
}

// Measure reads from a peer's region over every path that can be taken, a few bytes and many, and says what it found.
// From then on the fastest of them is chosen. Nothing else changes a choice.
func (a *Agent) Measure(ctx context.Context, local *Region, p *Peer, remote *Remote) ([]Route, error) {
	long := min(local.Size(), remote.Size, 16<<20)
	short := min(long, 4096)
	var out []Route
	for _, path := range Paths {
		route := Route{Path: path}
		once := func(n int64) (time.Duration, error) {
			l, err := a.Prepare(nil, []Desc{local.At(0, n)})
			if err != nil {
				return 0, err
			}
			defer l.Release()
			f, err := a.Prepare(p, []Desc{remote.At(0, n)})
			if err != nil {
				return 0, err
			}
			defer f.Release()
			best := time.Duration(0)
			for range 5 {
				began := time.Now()
				q, err := a.Post(Transfer{Op: Read, Local: l, Remote: f, Path: path})
				if err == nil {
					err = q.Wait(ctx)
				}
				if err != nil {
					return 0, err
				}
				if d := time.Since(began); best == 0 || d < best {
					best = d
				}
			}
			return best, nil
		}
		d, err := once(short)
		if err == nil {
			route.OK, route.Latency = true, d
			d, err = once(long)
		}
		switch {
		case errors.Is(err, ErrPath):
			route.Why = strings.TrimPrefix(err.Error()[strings.LastIndex(err.Error(), path+": ")+1:], path[1:]+": ")
		case err != nil:
			return out, err
		default:
			route.Rate = unit.Rate(float64(long) / max(d-route.Latency, 1).Seconds())
			if d <= route.Latency {
				route.Rate = unit.Rate(float64(long) / d.Seconds())
			}
		}
		out = append(out, route)
	}
	p.mu.Lock()
	for i := range out {
		if out[i].OK {
			p.paths[out[i].Path] = &out[i]
		}
	}
	p.mu.Unlock()
	return out, nil
}

// inProcess is the peer's agent, if it is in this process.
func (p *Peer) inProcess() *Agent {
	agents.Lock()
	defer agents.Unlock()
	return agents.by[p.id]
}

// sameHost reports whether the peer may share memory with this process.
func (p *Peer) sameHost() bool { return p.local != "" && p.host == shm.Machine() }

// network is that of the peer's control connection.
func (p *Peer) network() string {
	if p.sameHost() && p.agent.cfg.Path != "tcp" {
		return "unix"
	}
	return "tcp"
}

// choose finds the path of the request, none longer than the floor: the one demanded; else, once Measure has measured, the one that takes
// the least time for its bytes; else the first that can be taken, in the order of Paths.
func (r *Request) choose() (*Route, error) {
	want := r.t.Path
	if want == "" {
		want = r.agent.cfg.Path
	}
	if r.peer == nil {
		if want != "" && want != "process" {
			return nil, fmt.Errorf("path %s: %w: both sides are of this process", want, ErrPath)
		}
		return &Route{Path: "process", OK: true, Why: "both sides are of this agent", local: r.agent}, nil
	}
	var said []string
	var best *Route
	r.peer.mu.Lock()
	known := len(r.peer.paths) > 0
	r.peer.mu.Unlock()
	floor := r.agent.cfg.Floor
	for i, path := range Paths {
		if want != "" && path != want {
			continue
		}
		if floor != "" && i > slices.Index(Paths, floor) {
			said = append(said, path+": not short enough: "+floor+" or better is demanded")
			continue
		}
		route, err := r.try(path)
		if err != nil {
			return nil, err
		}
		if !route.OK {
			said = append(said, path+": "+route.Why)
			continue
		}
		if want != "" || !known {
			return route, nil
		}
		r.peer.mu.Lock()
		if m := r.peer.paths[path]; m != nil {
			route.Latency, route.Rate = m.Latency, m.Rate
		}
		r.peer.mu.Unlock()
		if best == nil || route.Rate > 0 && (best.Rate == 0 || route.cost(r.total) < best.cost(r.total)) {
			best = route
		}
	}
	if best != nil {
		return best, nil
	}
	if len(said) == 0 {
		return nil, fmt.Errorf("%w: %q; want one of %s", ErrPath, want, strings.Join(Paths, ", "))
	}
	return nil, fmt.Errorf("%w to agent %s: %s", ErrPath, r.peer.id.Name, strings.Join(said, "; "))
}

// try finds out whether a path can be taken.
func (r *Request) try(path string) (*Route, error) {
	p := r.peer
	no := func(format string, args ...any) (*Route, error) {
		return &Route{Path: path, Why: fmt.Sprintf(format, args...)}, nil
	}
	if path == "process" {
		t := p.inProcess()
		if t == nil {
			return no("agent %s is another process", p.id.Name)
		}
		return &Route{Path: path, OK: true, Why: "both agents are in this process", local: t}, nil
	}
	if path == "tcp" {
		if len(p.addrs) == 0 {
			return no("agent %s has no address", p.id.Name)
		}
		return &Route{Path: path, OK: true, Why: "by " + strings.Join(p.addrs, ", "), link: p.link("tcp")}, nil
	}
	if path == "ucx" {
		if err := r.agent.noUCX(); err != nil {
			return no("%v", err)
		}
		l := p.link("ucx")
		s, err := l.get(r.ctx)
		if errors.Is(err, ErrPath) {
			return no("%v", err)
		}
		if err != nil {
			return nil, err
		}
		return &Route{Path: path, OK: true, Why: "by " + s.streams[0].nc.(*ucxStream).name, link: l}, nil
	}
	if !p.sameHost() {
		return no("agent %s is on another host", p.id.Name)
	}
	l := p.link("unix")
	s, err := l.get(r.ctx)
	if err != nil {
		if Code(err) != 0 || r.ctx.Err() != nil {
			return nil, err
		}
		return no("its socket on this host cannot be reached: %v", err)
	}
	if path == "unix" {
		return &Route{Path: path, OK: true, Why: "by a socket of this host", link: l}, nil
	}
	why := ""
	if path == "gpu" {
		why = r.visible(s)
	} else {
		why = r.mappable(s, path)
	}
	if why != "" {
		return no("%s", why)
	}
	return &Route{Path: path, OK: true, Why: "the memory is mapped", link: l}, nil
}

// mappable says why the source cannot be copied by the owner of the destination; nothing if it can.
func (r *Request) mappable(s *session, path string) string {
	var last uint32
	for i, x := range r.pairs {
		d := x.remote
		if r.t.Op == Write {
			d = x.local
		}
		if i > 0 && d.Region == last {
			continue
		}
		last = d.Region
		why := ""
		if r.t.Op == Read {
			why = r.readable(s, path, d.Region)
		} else {
			why = s.lendable(r.t.Local.own[d.Region], path)
		}
		if why != "" {
			return why
		}
	}
	return ""
}

// readable says why this process cannot map or read the peer's region.
func (r *Request) readable(s *session, path string, region uint32) string {
	m, err := r.peer.region(region)
	switch {
	case err != nil:
		return err.Error()
	case m.Kind != Host:
		return fmt.Sprintf("region %q is a %s, not memory", m.Name, m.Kind)
	case path == "shm" && s.share == nil:
		return s.noShare
	case path == "shm" && m.Share < 0:
		return fmt.Sprintf("region %q is not from Alloc", m.Name)
	case path == "pull" && s.slots == nil:
		return "its table of leases cannot be mapped: " + s.noShare
	case path == "pull" && m.Share < 0 && (s.pid == 0 || m.Addr == 0):
		return "its memory cannot be read: " + s.noPull
	}
	return ""
}

// lendable says why the peer cannot map or read a region of this process.
func (s *session) lendable(g *Region, path string) string {
	switch {
	case g.mem == nil:
		return fmt.Sprintf("region %q is a %s, not memory", g.name, g.Kind())
	case !s.mapShare:
		return "it could not map our memory"
	case path == "shm" && g.share < 0:
		return fmt.Sprintf("region %q is not from Alloc", g.name)
	case path == "pull" && g.share < 0 && !s.mayPull:
		return "it cannot read our memory"
	}
	return ""
}

// Meet asks the agent at an address to describe itself, all its regions included, and opens it.
func (a *Agent) Meet(ctx context.Context, name, addr string) (*Peer, error) {
	p := &Peer{agent: a, id: ID{Name: name}, addrs: []string{addr}, regions: map[uint32]*Remote{}, names: map[string]*Remote{}}
	l := &link{agent: a, peer: p, network: "ask", turn: make(chan struct{}, 1)}
	s, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	defer s.lose(ErrClosed)
	f, err := s.call(ctx, fAsk, 0, nil)
	if err != nil {
		return nil, err
	}
	return a.Open(f.payload)
}
