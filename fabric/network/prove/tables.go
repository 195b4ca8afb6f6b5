package prove

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// dumpLine is a line of opensm-lfts.dump: the port by which a switch sends what is for an adapter.
type dumpLine struct {
	at, target uint64 // GUIDs
	port       int
}

// tables are the forwarding tables of an InfiniBand fabric: of each switch, the link to each adapter.
type tables struct {
	s      *Subnet
	to     map[uint64]int32 // adapters' GUIDs to their places in Subnet.adapters
	ways   [][]*ibLink      // by switch and adapter; nil where the switch drops
	home   [][]bool         // the switch gives the packet to the adapter itself
	Unread []string
}

var (
	dumpHead = regexp.MustCompile(`^Unicast lids .* guid (0x[0-9a-fA-F]+)`)
	dumpRow  = regexp.MustCompile(`^0x[0-9a-fA-F]+ (\d+) # Channel Adapter portguid (0x[0-9a-fA-F]+)`)
)

// forwardingTables reads opensm-lfts.dump, which opensm writes with -D 0x43.
func (n *Net) forwardingTables(name string, data []byte) error {
	s := n.subnet(name)
	at := uint64(0)
	for line := range strings.Lines(string(data)) {
		if m := dumpHead.FindStringSubmatch(line); m != nil {
			g, err := parseGUID(m[1])
			if err != nil {
				return err
			}
			at = g
		}
		m := dumpRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		target, err := parseGUID(m[2])
		if err != nil {
			return err
		}
		port, _ := strconv.Atoi(m[1])
		s.dumped = append(s.dumped, dumpLine{at, target, port})
	}
	if len(s.dumped) == 0 {
		return errors.New("no row of a switch's table leads to an adapter; opensm -D 0x43 writes such a file")
	}
	return nil
}

// tabled finds the links that the dump's ports are.
func (s *Subnet) tabled() *tables {
	t := &tables{s: s, to: map[uint64]int32{}, ways: make([][]*ibLink, len(s.switches)), home: make([][]bool, len(s.switches))}
	for i, a := range s.adapters {
		t.to[a.guid] = int32(i)
	}
	at := map[uint64]int{}
	links := make([]map[int]*ibLink, len(s.switches))
	for i, x := range s.switches {
		at[x.guid] = i
		t.ways[i], t.home[i] = make([]*ibLink, len(s.adapters)), make([]bool, len(s.adapters))
		links[i] = map[int]*ibLink{}
		for j := range x.next {
			links[i][portNumber(x.next[j].port)] = &x.next[j]
		}
	}
	for _, row := range s.dumped {
		u, known := at[row.at]
		d, mine := t.to[row.target]
		if !known || !mine {
			t.Unread = append(t.Unread, fmt.Sprintf("opensm-lfts.dump: the way from switch 0x%016x to 0x%016x: "+
				"cables.csv and the GUIDs have no such", row.at, row.target))
			continue
		}
		t.ways[u][d] = links[u][row.port]
		t.home[u][d] = int(s.adapters[d].at) == u && portNumber(s.adapters[d].plug) == row.port
	}
	return t
}

// portNumber is the number that InfiniBand knows a port by: 5, or that of a leg of a cage with two: 3/1 is 5.
func portNumber(name string) int {
	v := numbers(name)
	switch len(v) {
	case 1:
		return v[0]
	case 2:
		return 2*(v[0]-1) + v[1]
	}
	return 0
}

// walk follows a packet for an adapter from a switch to the adapter's; why says where it ends before.
func (t *tables) walk(u int32, d int, each func(u int32, l *ibLink)) (why string) {
	target := t.s.adapters[d]
	for range t.s.switches {
		if u == target.at {
			if !t.home[u][d] {
				return fmt.Sprintf("the table of %s does not give packets for %s to it", t.s.switches[u].name, target)
			}
			return ""
		}
		l := t.ways[u][d]
		if l == nil {
			return fmt.Sprintf("the table of %s has no port with a cable for %s", t.s.switches[u].name, target)
		}
		each(u, l)
		u = l.to
	}
	return fmt.Sprintf("packets for %s run in a circle at %s", target, t.s.switches[u].name)
}

// follow gives the hops of a packet between two adapters.
func (t *tables) follow(a, b *adapter) (hops []string, why string) {
	hops = []string{a.String(), t.s.switches[a.at].name}
	why = t.walk(a.at, int(t.to[b.guid]), func(_ int32, l *ibLink) { hops = append(hops, t.s.switches[l.to].name) })
	if why != "" {
		return nil, why
	}
	return append(hops, b.String()), ""
}

// tabled judges the tables: who reaches whom, over how many cables, and whether buffers wait in a circle.
func (p *subnetProof) tabled(reach, short Verdict) []Verdict {
	t := &turns{r: p.r, next: map[channel][]channel{}, known: map[[2]channel]bool{}}
	for u := range p.s.switches {
		t.order = append(t.order, int32(u))
	}
	for d, target := range p.s.adapters {
		hops := p.hops(target.at)
		for _, u := range p.edges {
			p.tabledPair(t, u, d, hops[u], &reach, &short)
		}
	}
	circle := Verdict{Property: noCircle, Of: "turns", Cases: len(t.known), Note: "of opensm-lfts.dump"}
	p.refuteCircle(&circle, t.circle())
	return []Verdict{reach, short, circle}
}

// tabledPair judges the packets of a switch's adapters for another adapter.
func (p *subnetProof) tabledPair(t *turns, u int32, d int, hops int32, reach, short *Verdict) {
	target := p.s.adapters[d]
	from := slices.DeleteFunc(slices.Clone(p.s.switches[u].hung), func(a *adapter) bool { return a == target })
	if len(from) == 0 {
		return
	}
	path := []string{p.s.switches[u].name}
	var steps []channel
	why := p.s.tables.walk(u, d, func(u int32, l *ibLink) {
		steps, path = append(steps, channel{u, l.cable}), append(path, p.s.switches[l.to].name)
	})
	for i := 1; i < len(steps); i++ {
		if pair := [2]channel{steps[i-1], steps[i]}; !t.known[pair] {
			t.known[pair] = true
			t.next[pair[0]] = append(t.next[pair[0]], pair[1])
		}
	}
	packet := fmt.Sprintf("%s to %s", from[0], target)
	switch {
	case why != "":
		reach.refute(len(from), Counterexample{Packet: packet, Why: why})
	case int32(len(steps)) > hops:
		short.refute(len(from), Counterexample{Packet: packet, Path: path,
			Why: fmt.Sprintf("%d cables between switches, where %d would do", len(steps), hops)})
	}
}

// Guessed says that files leave open which way packets take: nue lays paths as it sees fit, and there is no dump of them.
func (s *Subnet) Guessed() bool {
	r := s.begin()
	r.elect()
	return r.engine == "nue" && s.tables == nil
}

// TablesFile is where a dump of a fabric's tables is looked for.
func TablesFile(fabric string) string { return "opensm/" + fabric + "/var/log/opensm-lfts.dump" }
