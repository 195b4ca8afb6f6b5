package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/launch"
)

// word is a line that a rank says.
type word struct {
	Time       time.Time     `json:"time"`
	Msg        string        `json:"msg"`
	Rank       int           `json:"rank"`
	Peer       int           `json:"peer"`
	Connection string        `json:"connection"`
	Interface  string        `json:"interface"`
	Bytes      int           `json:"bytes"`
	Took       time.Duration `json:"took"`
	Wrong      int           `json:"wrong"`
}

// ranks are those that work during a drill.
type ranks struct {
	mu      sync.Mutex
	words   []word
	first   chan struct{}
	signals chan os.Signal
	ended   chan error
	once    sync.Once
	err     error
}

// start starts the ranks and waits for their first operation.
func (i *Info) start(ctx context.Context, cfg *DrillConfig) (*ranks, error) {
	r := &ranks{first: make(chan struct{}), signals: make(chan os.Signal, 2), ended: make(chan error, 1)}
	var once sync.Once
	spec := launch.Spec{N: len(cfg.Hosts), Command: cfg.Program, Env: cfg.Env, Hosts: cfg.Hosts, Remote: i.Entry("{host}"),
		Addr:    i.Spec.Node(cfg.Hosts[0]).Front,
		Signals: r.signals, Grace: 20 * time.Second,
		Capture: func(int) io.Writer {
			var rest []byte
			return writer(func(data []byte) {
				rest = append(rest, data...)
				for {
					end := bytes.IndexByte(rest, '\n')
					if end < 0 {
						return
					}
					var x word
					if json.Unmarshal(rest[:end], &x) == nil {
						r.mu.Lock()
						r.words = append(r.words, x)
						r.mu.Unlock()
						if x.Msg == "operation" {
							once.Do(func() { close(r.first) })
						}
					}
					rest = rest[end+1:]
				}
			})
		}}
	go func() {
		_, err := launch.Run(ctx, spec)
		r.ended <- err
	}()
	select {
	case <-r.first:
		return r, nil
	case err := <-r.ended:
		r.ended <- err
		return nil, fmt.Errorf("the ranks of the drill ended: %w", err)
	case <-time.After(40 * time.Second):
		r.stop()
		return nil, errors.New("the ranks of the drill did not finish an operation within 40 s")
	}
}

type writer func([]byte)

func (f writer) Write(b []byte) (int, error) { f(b); return len(b), nil }

// stop ends the ranks after their operation.
func (r *ranks) stop() error {
	r.once.Do(func() {
		r.signals <- syscall.SIGTERM
		r.err = <-r.ended
	})
	return r.err
}

// between gives the words of a while.
func (r *ranks) between(from, to time.Time) []word {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []word
	for _, w := range r.words {
		if w.Time.After(from) && !w.Time.After(to) {
			out = append(out, w)
		}
	}
	return out
}

// noticed says when ranks first lost a connection, and what.
func (r *ranks) noticed(from, to time.Time) (float64, string) {
	var first *word
	n := 0
	for _, w := range r.between(from, to) {
		if w.Msg == "path lost" || w.Msg == "link lost" {
			n++
			if first == nil || w.Time.Before(first.Time) {
				first = &w
			}
		}
	}
	if first == nil {
		return 0, ""
	}
	return float64(first.Time.Sub(from).Microseconds()) / 1000,
		fmt.Sprintf("rank %d: %s to rank %d (%s); %d such in all",
			first.Rank, first.Msg, first.Peer, strings.ReplaceAll(first.Connection, " ", " to "), n)
}

// phase sums up the operations that ended in a while.
func (r *ranks) phase(from, to time.Time, n int, before, after []uint64) Phase {
	p := Phase{Seconds: to.Sub(from).Seconds(), Rails: []float64{}}
	bytes := 0
	for _, w := range r.between(from, to) {
		if w.Msg == "operation" && w.Rank == 0 {
			p.Ops++
			bytes += w.Bytes
			p.Longest = max(p.Longest, float64(w.Took.Microseconds())/1000)
		}
	}
	if p.Seconds > 0 {
		p.MBps = float64(bytes) * 2 * float64(n-1) / float64(n) / p.Seconds / 1e6
	}
	for k := range after {
		p.Rails = append(p.Rails, portion(before, after, k))
	}
	return p
}

// tally counts what happened since the fault.
func (r *ranks) tally(from time.Time) (wrong, lost, back int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := map[conn]bool{}
	for _, w := range r.words {
		wrong += w.Wrong
		if w.Time.Before(from) {
			continue
		}
		switch w.Msg {
		case "path lost", "link lost":
			if c, ok := parseConn(w.Connection); ok {
				gone[c] = true
			}
		case "path back":
			back++
		}
	}
	return wrong, len(gone), back
}

// known traces the connections that there are.
func (i *Info) known() (map[conn][]int, error) {
	list, err := i.connections()
	if err != nil {
		return nil, err
	}
	var all []conn
	for c := range list {
		all = append(all, c)
	}
	return i.ways(all)
}

// blame finds the cable that explains the connections which ranks gave up. Ways are those before
// the fault; a connection works if it heard from its other end since.
func (i *Info) blame(r *ranks, known map[conn][]int, from, to time.Time) ([]Suspect, error) {
	gone := map[conn]bool{}
	for _, w := range r.between(from, to) {
		if c, ok := parseConn(w.Connection); ok && (w.Msg == "path lost" || w.Msg == "link lost") {
			gone[c] = true
		}
	}
	if len(gone) == 0 {
		return []Suspect{}, nil
	}
	now, err := i.connections()
	if err != nil {
		return nil, err
	}
	var lost, works [][]int
	for c, way := range known {
		last, there := now[c]
		switch {
		case gone[c]:
			lost = append(lost, way)
		case there && time.Duration(last)*time.Millisecond < time.Since(from)-500*time.Millisecond:
			works = append(works, way)
		}
	}
	cables, most := suspects(lost, works)
	out := []Suspect{}
	for _, c := range cables {
		w := &i.Spec.Wires[c]
		s := Suspect{Port: w.A + ":" + w.AIf, Other: w.B + ":" + w.BIf, Lost: most, Of: len(lost)}
		if a, b := i.Spec.Node(w.A), i.Spec.Node(w.B); b.Router && (!a.Router || b.Tier > a.Tier) {
			s.Port, s.Other = s.Other, s.Port
		}
		out = append(out, s)
	}
	if len(cables) > 1 {
		return i.prove(cables, out)
	}
	return out, nil
}

// prove sends packets over each suspect and over no other of them, and keeps the suspects that lose
// packets. Where none does, the fault is over or comes and goes, and all stay.
func (i *Info) prove(cables []int, list []Suspect) ([]Suspect, error) {
	type end struct {
		host string
		addr netip.Addr
	}
	var ends []end
	for _, h := range i.Spec.Hosts() {
		for _, a := range i.Spec.Node(h).Addrs {
			if p, err := netip.ParsePrefix(a); err == nil && i.Spec.rail(p.Addr()) >= 0 {
				ends = append(ends, end{h, p.Addr()})
			}
		}
	}
	const first, perPair, most = 41000, 4, 2000
	var flows []flow
	for _, a := range ends {
		for _, b := range ends {
			if a.host == b.host {
				continue
			}
			for k := range perPair {
				if len(flows) < most {
					flows = append(flows, flow{"udp", netip.AddrPortFrom(a.addr, uint16(first+k)), netip.AddrPortFrom(b.addr, first+100)})
				}
			}
		}
	}
	ways, err := i.trace(flows)
	if err != nil {
		return nil, err
	}
	var guilty []Suspect
	for k, c := range cables {
		sent, lost := 0, 0
		for j, way := range ways {
			if sent >= 8 || !slices.Contains(way, c) || slices.ContainsFunc(way, func(x int) bool { return x != c && slices.Contains(cables, x) }) {
				continue
			}
			arrived, err := i.single(flows[j])
			if err != nil {
				return nil, err
			}
			sent++
			if !arrived {
				lost++
			}
		}
		if sent == 0 {
			list[k].Proof = "no flow crosses it and not the other suspects"
			continue
		}
		list[k].Proof = fmt.Sprintf("%d of %d flows that cross it and no other suspect lost their packets", lost, sent)
		if lost > 0 {
			guilty = append(guilty, list[k])
		}
	}
	if len(guilty) > 0 {
		return guilty, nil
	}
	return list, nil
}

// single sends three packets of a flow and reports whether one arrives.
func (i *Info) single(f flow) (bool, error) {
	in, err := i.udp(i.Spec.hostOf(f.dst.Addr()).Name, f.dst)
	if err != nil {
		return false, err
	}
	defer in.Close()
	out, err := i.udp(i.Spec.hostOf(f.src.Addr()).Name, f.src)
	if err != nil {
		return false, err
	}
	defer out.Close()
	for range 3 {
		_, _ = out.WriteToUDPAddrPort([]byte("weft"), f.dst) // what cannot be sent does not arrive
	}
	_ = in.SetReadDeadline(time.Now().Add(250 * time.Millisecond))
	_, err = in.Read(make([]byte, 64))
	return err == nil, nil
}
