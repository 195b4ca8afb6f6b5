package network

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo"
)

// plugged lists every cable of a plan by the names and port numbers of its ends, read from the graph alone.
func plugged(p *Plan) map[string]bool {
	g, out := p.Graph, map[string]bool{}
	for i := range g.Links {
		if l := &g.Links[i]; g.Class(topo.LinkID(i)).Kind.Network() {
			a, b := g.NodeName(l.A), g.NodeName(l.B)
			if g.Nodes[l.A].Kind == topo.Switch {
				a += fmt.Sprintf(":%d", l.APort)
			}
			if g.Nodes[l.B].Kind == topo.Switch {
				b += fmt.Sprintf(":%d", l.BPort)
			}
			out[a+" - "+b] = true
		}
	}
	return out
}

// lives reports whether both ends of a cable are in a plan.
func lives(p *Plan, cable string) bool {
	for end := range strings.SplitSeq(cable, " - ") {
		device, _, _ := strings.Cut(end, ":")
		if p.Host(device) == nil && p.Switch(device) == nil {
			return false
		}
	}
	return true
}

// fabrics are the shapes that grow and shrink in these tests; %s is the host list.
var fabrics = []string{
	"name: c\nhosts: {\"%s\": hgx-h100}\nfabric: {family: rail, pod: 4, leaf: {switch: SN5600-400, down: 4, up: 2}, spine: {switch: SN5600-400, count: 2}, link: 400gbe}\n",
	"name: c\nhosts: {\"%s\": hgx-h100}\nfabric: {family: rail, pod: 8, switch: SN5600, link: 400gbe}\n",
	"name: c\nhosts: {\"%s\": dgx-h100}\nfabric: {family: rail, pod: 16, switch: QM9700}\n",
	"name: c\nhosts: {\"%s\": dgx-h100}\nfabrics:\n  c: {family: rail, pod: 8, switch: SN5600, link: 400gbe}\n  s: {family: fat-tree, service: true, nics: \"stor[0-1]\", leaves: 2, switch: SN5600, link: 400gbe}\n",
}

// TestCablesStay: a cluster that gains and loses hosts keeps every cable whose two ends stay in its port,
// as it keeps addresses, whatever the order of the names.
func TestCablesStay(t *testing.T) {
	for seed := range uint64(bounded.Times(12, 200)) {
		rng := rand.New(rand.NewPCG(seed, 3))
		shape := fabrics[int(seed)%len(fabrics)]
		hosts := make([]string, 8+rng.IntN(16))
		for i := range hosts {
			hosts[i] = fmt.Sprintf("n%d", 2*i)
		}
		p, err := Make("c.yaml", parse(t, fmt.Sprintf(shape, strings.Join(hosts, ",")), nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 { // changes, one after the other
			lock, err := ParseLock("c.lock", p.Lock())
			if err != nil {
				t.Fatal(err)
			}
			if rng.IntN(2) == 0 {
				hosts = slices.Insert(hosts, rng.IntN(len(hosts)+1), fmt.Sprintf("n%d", 101+2*rng.IntN(1000)))
				slices.SortFunc(hosts, topo.Natural)
				hosts = slices.Compact(hosts)
			} else {
				at := rng.IntN(len(hosts))
				hosts = slices.Delete(hosts, at, at+1)
			}
			next, err := Make("c.yaml", parse(t, fmt.Sprintf(shape, strings.Join(hosts, ",")), nil), lock)
			if err != nil {
				t.Fatal(err)
			}
			sound(t, next)
			was, is := plugged(p), plugged(next)
			moved, fewer := 0, 0
			for cable := range was {
				if lives(next, cable) && !is[cable] {
					moved++
				}
			}
			now := pairs(next)
			for pair, n := range pairs(p) { // a fabric of another size may want fewer uplinks
				if a, b, _ := strings.Cut(pair, " "); next.Switch(a) != nil && next.Switch(b) != nil {
					fewer += max(0, n-now[pair])
				}
			}
			if said := next.Moves(lock); moved != fewer || len(said) != moved {
				t.Fatalf("seed %d, %d hosts: %d cables move, %d are said to, and there are %d uplinks too many: %v",
					seed, len(hosts), moved, len(said), fewer, said[:min(3, len(said))])
			}
			p = next
		}
	}
}

// pairs counts the cables between every two switches.
func pairs(p *Plan) map[string]int {
	out := map[string]int{}
	for cable := range plugged(p) {
		a, b, _ := strings.Cut(cable, " - ")
		a, _, _ = strings.Cut(a, ":")
		b, _, _ = strings.Cut(b, ":")
		if p.Host(a) == nil {
			out[a+" "+b]++
		}
	}
	return out
}

// TestFewestCablesMove: where a larger cluster has more spines, as many uplinks stay as both have between
// two switches, and every other cable of the lock is listed as a move.
func TestFewestCablesMove(t *testing.T) {
	shape := fabrics[1]
	before, err := Make("c.yaml", parse(t, fmt.Sprintf(shape, "n[0-15]"), nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := ParseLock("c.lock", before.Lock())
	if err != nil {
		t.Fatal(err)
	}
	after, err := Make("c.yaml", parse(t, fmt.Sprintf(shape, "n[0-63]"), nil), lock)
	if err != nil {
		t.Fatal(err)
	}
	sound(t, after)
	fewest, is := 0, pairs(after)
	for pair, n := range pairs(before) {
		fewest += max(0, n-is[pair])
	}
	moves := after.Moves(lock)
	if len(moves) != fewest || fewest == 0 {
		t.Errorf("%d cables move, want %d: %v", len(moves), fewest, moves[:min(3, len(moves))])
	}
	for _, m := range moves {
		if m.What != "cable" || m.Line == 0 || strings.HasPrefix(m.Device, "n") {
			t.Errorf("%+v", m)
		}
	}
}

// TestHostsThatMustMove: hosts whose leaves are gone take free places, and are the only ones to move.
func TestHostsThatMustMove(t *testing.T) {
	p, err := Make("c.yaml", parse(t, fmt.Sprintf(fabrics[0], "n[0-9]"), nil), nil) // pods of 4, 4 and 2
	if err != nil {
		t.Fatal(err)
	}
	lock, err := ParseLock("c.lock", p.Lock())
	if err != nil {
		t.Fatal(err)
	}
	after, err := Make("c.yaml", parse(t, fmt.Sprintf(fabrics[0], "n[0,2-4,6-9]"), nil), lock) // two pods are enough
	if err != nil {
		t.Fatal(err)
	}
	sound(t, after)
	was, is := plugged(p), plugged(after)
	moved := map[string]bool{}
	for cable := range is {
		if host, _, _ := strings.Cut(cable, ":"); !was[cable] {
			moved[host] = true
		}
	}
	if len(moved) != 2 || !moved["n8"] || !moved["n9"] {
		t.Errorf("%v move, want n8 and n9", moved)
	}
}

// TestRacksStay: on a floor plan devices keep their racks when others come and go; a place in the file moves one.
func TestRacksStay(t *testing.T) {
	text := func(hosts, place string) string {
		return fmt.Sprintf(fabrics[0], hosts) + "floor: {rack: {units: 48, hosts: 2}, row: 12" + place + "}\n"
	}
	p, err := Make("c.yaml", parse(t, text("n[0-7]", ""), nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := ParseLock("c.lock", p.Lock())
	if err != nil {
		t.Fatal(err)
	}
	for place, want := range map[string]string{"": "", ", place: {n5: F07}": "[n5: A04 unit 9 becomes F07 unit "} {
		after, err := Make("c.yaml", parse(t, text("n[0,2-8]", place), nil), lock)
		if err != nil {
			t.Fatal(err)
		}
		sound(t, after)
		if got := after.Moves(lock); (want == "") != (len(got) == 0) || want != "" && !strings.HasPrefix(fmt.Sprint(got), want) {
			t.Errorf("%q: %v, want %q", place, got, want)
		}
	}
}
