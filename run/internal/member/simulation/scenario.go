package simulation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/internal/member"
)

// Play runs a scenario, a text of commands, and gives its transcript.
//
//	cluster 5 config=lab seed=1 min=2 max-failures=1 outside
//	kill r3 at=1.2s
//	pause r1-2,4 at=2s for=100ms
//	run 5s
//
// The first line describes the world: config is default, lab or hosts; empty
// starts without members; min, return, max, max-failures, loss, latency, step, catch-up,
// lease and drift set what their names say. Then faults: kill, exit (by=r0),
// pause, cut, cut-peers, slow (delay=20ms), lossy (loss=0.3), join, leave, store-down, each
// with at=, and for= where it lasts. The last line says how long to run.
// Lines that start with # are not read.
//
// The transcript has a line for each thing that ranks noticed; ranks that noticed
// the same within 50 ms share a line with the time of the first.
func Play(text string) (string, error) {
	var s Settings
	s.Wire = true
	known := false
	for n, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		var err error
		switch {
		case fields[0] == "cluster":
			s, err = cluster(fields[1:])
			known = true
		case !known:
			err = fmt.Errorf("%s before the cluster; start with a line such as: cluster 5 config=lab", fields[0])
		case fields[0] == "run":
			if len(fields) != 2 {
				err = fmt.Errorf("run takes a time, as in: run 5s")
				break
			}
			s.Length, err = time.ParseDuration(fields[1])
		default:
			var f Fault
			f, err = parseFault(fields)
			s.Faults = append(s.Faults, f)
		}
		if err != nil {
			return "", fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	if s.Length <= 0 {
		return "", fmt.Errorf("the scenario does not run; end it with a line such as: run 5s")
	}
	t := transcript{}
	s.Log = t.note
	w, err := New(s)
	if err != nil {
		return "", err
	}
	t.lines = nil // everyone's first epoch is where the scenario begins
	for w.Step() {
	}
	if w.Err != nil {
		return "", w.Err
	}
	return t.text(w), nil
}

// cluster reads the line that every scenario begins with. config= is read first wherever it stands, since it sets
// everything that the others change.
func cluster(fields []string) (Settings, error) {
	s := Settings{Member: member.Lab(), Seed: 1, Wire: true,
		Network: Network{Latency: 100 * time.Microsecond, Jitter: 20 * time.Microsecond, Store: time.Millisecond}}
	if len(fields) == 0 {
		return s, fmt.Errorf("cluster takes a number of ranks")
	}
	var err error
	if s.Ranks, err = strconv.Atoi(fields[0]); err != nil || s.Ranks < 1 || s.Ranks > 100_000 {
		return s, fmt.Errorf("cluster of %q ranks; from 1 to 100000", fields[0])
	}
	for _, f := range fields[1:] { // the configuration comes before what changes it
		if name, ok := strings.CutPrefix(f, "config="); ok {
			switch name {
			case "default":
				s.Member = member.Default()
			case "lab":
				s.Member = member.Lab()
			case "hosts":
				s.Member = member.Hosts()
			default:
				return s, fmt.Errorf("config %q; known are default, lab, hosts", name)
			}
		}
	}
	for _, f := range fields[1:] {
		key, value, _ := strings.Cut(f, "=")
		var err error
		switch key {
		case "config":
		case "outside":
			s.Outside = true
		case "empty":
			s.Empty = true
		case "seed":
			s.Seed, err = strconv.ParseUint(value, 10, 64)
		case "min":
			s.Member.Min, err = strconv.Atoi(value)
		case "return":
			s.Member.Return, err = time.ParseDuration(value)
		case "max":
			s.Member.Max, err = strconv.Atoi(value)
		case "max-failures":
			s.Member.MaxFailures, err = strconv.Atoi(value)
		case "loss":
			s.Network.Loss, err = strconv.ParseFloat(value, 64)
		case "drift":
			s.Network.Drift, err = strconv.ParseFloat(value, 64)
		case "latency":
			s.Network.Latency, err = time.ParseDuration(value)
		case "step":
			s.Step, err = time.ParseDuration(value)
		case "catch-up":
			s.CatchUp, err = time.ParseDuration(value)
		case "lease":
			s.Lease, err = time.ParseDuration(value)
		default:
			err = fmt.Errorf("known are config, seed, outside, empty, min, return, max, max-failures, loss, drift, latency, step, catch-up, lease")
		}
		if err != nil {
			return s, fmt.Errorf("cluster: %s: %w", f, err)
		}
	}
	return s, nil
}

// parseFault reads a fault: what, to whom, when, and for how long or by how much.
func parseFault(fields []string) (Fault, error) {
	i := slices.Index(whats, fields[0])
	if i < 0 {
		return Fault{}, fmt.Errorf("%q is unknown; known are cluster, run, %s", fields[0], strings.Join(whats, ", "))
	}
	f := Fault{What: What(i), At: -1}
	for _, field := range fields[1:] {
		key, value, ok := strings.Cut(field, "=")
		var err error
		switch {
		case !ok:
			f.Ranks, err = parseRanks(field)
		case key == "at":
			f.At, err = time.ParseDuration(value)
		case key == "for":
			f.For, err = time.ParseDuration(value)
		case key == "delay":
			f.Delay, err = time.ParseDuration(value)
		case key == "loss":
			f.Loss, err = strconv.ParseFloat(value, 64)
		case key == "by":
			f.By, err = strconv.Atoi(strings.TrimPrefix(value, "r"))
		default:
			err = fmt.Errorf("known are at, for, delay, loss, by")
		}
		if err != nil {
			return f, fmt.Errorf("%s: %s: %w", fields[0], field, err)
		}
	}
	if f.At < 0 {
		return f, fmt.Errorf("%s: say when, as in at=1.2s", fields[0])
	}
	if len(f.Ranks) == 0 && f.What != StoreDown {
		return f, fmt.Errorf("%s: say which ranks, as in r3 or r0-2,5", fields[0])
	}
	return f, nil
}

// parseRanks reads r0-2,5.
func parseRanks(s string) ([]int, error) {
	var list []int
	for _, part := range strings.Split(strings.TrimPrefix(s, "r"), ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(lo)
		if err != nil {
			return nil, fmt.Errorf("%q is not a rank; write r3 or r0-2,5", part)
		}
		b := a
		if ranged {
			if b, err = strconv.Atoi(hi); err != nil || b < a || b-a > 100_000 {
				return nil, fmt.Errorf("%q is not a range of ranks; write r0-2", part)
			}
		}
		for r := a; r <= b; r++ {
			list = append(list, r)
		}
	}
	return list, nil
}

// transcript gathers what ranks noticed.
type transcript struct{ lines []line }

type line struct {
	at   time.Duration
	who  []int
	what string
}

// note adds an event. The same event at several ranks within 50 ms is one line with all of them, so that transcripts do
// not depend on who came first.
func (t *transcript) note(at time.Duration, rank member.ID, e member.Event) {
	what := fmt.Sprintf("r%d %v", e.ID, e.Kind)
	switch e.Kind {
	case member.EpochChanged:
		what = e.Epoch.String()
	case member.Isolated, member.Evicted:
		what = "is " + e.Kind.String()
	case member.QuorumLost, member.Refused:
		what = fmt.Sprintf("%v: %v", e.Kind, e.Reason)
	}
	for i := len(t.lines) - 1; i >= 0 && at-t.lines[i].at <= 50*time.Millisecond; i-- {
		if l := &t.lines[i]; l.what == what && !slices.Contains(l.who, int(rank)) {
			l.who = append(l.who, int(rank))
			return
		}
	}
	t.lines = append(t.lines, line{at, []int{int(rank)}, what})
}

// text prints the events, and in the end which epoch the living ranks are in. More than one line there is a split.
func (t *transcript) text(w *World) string {
	var b strings.Builder
	for _, l := range t.lines {
		slices.Sort(l.who)
		fmt.Fprintf(&b, "%8.3fs  %s: %s\n", l.at.Seconds(), ranks(l.who), l.what)
	}
	groups := map[string][]int{} // by epoch, as each living rank has it
	var order []string
	for i := range w.set.Ranks {
		if !w.nodes[i].up {
			continue
		}
		e := w.nodes[i].machine.Epoch().String()
		if groups[e] == nil {
			order = append(order, e)
		}
		groups[e] = append(groups[e], i)
	}
	for _, e := range order {
		fmt.Fprintf(&b, "in the end %s: %s\n", ranks(groups[e]), e)
	}
	return b.String()
}

// ranks prints r0-2,5.
func ranks(list []int) string {
	s := "r"
	for i := 0; i < len(list); i++ {
		from := i
		for i+1 < len(list) && list[i+1] == list[i]+1 {
			i++
		}
		if from > 0 {
			s += ","
		}
		s += strconv.Itoa(list[from])
		if i > from {
			s += "-" + strconv.Itoa(list[i])
		}
	}
	return s
}
