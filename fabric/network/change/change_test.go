package change_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/change"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
)

const kind = `name: c
kinds: {two: {devices: {cpu0: {kind: cpu}, "gpu[0-1]": {kind: gpu, model: H100-SXM, parent: cpu0, link: pcie5}, "nic[0-1]": {kind: nic, model: ConnectX-7-Ethernet, parent: cpu0, link: pcie5}}}}
`

func fabric(hosts string, spines int, more string) string {
	return fmt.Sprintf(kind+
		"hosts: {%q: two}\nfabric: {family: rail, pod: 4, leaf: {switch: SN5600-400, down: 4, up: 4}, spine: {switch: SN5600-400, count: %d}, link: 400gbe}\n%s",
		hosts, spines, more)
}

// made gives the plan of a cluster, held to a lock, its site and its networks.
func made(t *testing.T, text string, lock *network.Lock) (*network.Plan, change.Site, []prove.Area) {
	t.Helper()
	c, err := cluster.Parse("c.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make("c.yaml", c, lock)
	if err != nil {
		t.Fatal(err)
	}
	list, err := emit.Make(p, []string{"cables", "netplan", "frr"})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range list {
		files[f.Path] = f.Data
	}
	s, err := change.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	var areas []prove.Area
	for _, r := range p.Rails {
		areas = append(areas, prove.Area{Name: fmt.Sprintf("rail %d", r.Number), Group: "backend", Prefix: r.Prefix})
	}
	return p, s, areas
}

func locked(t *testing.T, p *network.Plan) *network.Lock {
	t.Helper()
	l, err := network.ParseLock("c.lock", p.Lock())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func titles(steps []change.Step) (out []string) {
	for _, s := range steps {
		out = append(out, s.Title)
	}
	return out
}

// TestChangesAreProven: hosts and spines come and go, racks change; every state on the way lets all hosts
// that are not drained reach one another, and the last state is the network that was asked for.
func TestChangesAreProven(t *testing.T) {
	floor := func(place string) string { return "floor: {rack: {units: 48, hosts: 2}, row: 12" + place + "}\n" }
	for _, x := range []struct {
		name, now, next string
		steps           []string // some of the titles
		drained         string
	}{
		{"nothing", fabric("n[0-7]", 2, ""), fabric("n[0-7]", 2, ""), nil, ""},
		{"an insertion", fabric("n[0-2,4-6]", 2, ""), fabric("n[0-6]", 2, ""), []string{"put up n3"}, ""},
		{"a removal", fabric("n[0-7]", 2, ""), fabric("n[0,2-7]", 2, ""), []string{"take out n1"}, "n1"},
		{"a pod more", fabric("n[0-7]", 2, ""), fabric("n[0-11]", 2, ""), []string{"put up leaf4, leaf5", "put up n8, n9, n10, n11"}, ""},
		{"spines doubled", fabric("n[0-7]", 2, ""), fabric("n[0-7]", 4, ""),
			[]string{"put up spine2, spine3", "move uplinks of leaf0", "move uplinks of leaf3"}, ""},
		{"spines halved", fabric("n[0-7]", 4, ""), fabric("n[0-7]", 2, ""), []string{"move uplinks of leaf0", "take out spine3"}, ""},
		{"a pod less", fabric("n[0-9]", 2, ""), fabric("n[0,2-4,6-9]", 2, ""), []string{"take out n1, n5", "move n8, n9", "take out leaf4"},
			"n1 n5 n8 n9"},
		{"a host to another rack", fabric("n[0-7]", 2, floor("")), fabric("n[0-7]", 2, floor(", place: {n5: F07}")), []string{"move n5"}, "n5"},
		{"a spine to another rack", fabric("n[0-7]", 2, floor("")), fabric("n[0-7]", 2, floor(", place: {spine1: F07}")),
			[]string{"move spine1"}, ""},
	} {
		p, now, _ := made(t, x.now, nil)
		_, next, areas := made(t, x.next, locked(t, p))
		steps := change.Make(now, next)
		if (len(steps) == 0) != (x.name == "nothing") {
			t.Errorf("%s: %v", x.name, titles(steps))
		}
		var drained []string
		for _, s := range steps {
			drained = append(drained, s.Drain...)
		}
		slices.Sort(drained)
		if got := strings.Join(slices.Compact(drained), " "); got != x.drained {
			t.Errorf("%s drains %q, want %q", x.name, got, x.drained)
		}
		for _, want := range x.steps {
			if !slices.Contains(titles(steps), want) {
				t.Errorf("%s: no step %q: %q", x.name, want, titles(steps))
			}
		}
		proven, err := change.Prove(now, next, steps, areas)
		if err != nil {
			t.Errorf("%s: %v: %q", x.name, err, titles(steps))
		}
		for i, o := range proven {
			if o.Broken > 0 || o.Pairs == 0 || o.States != 3 {
				t.Errorf("%s: step %q: %+v", x.name, steps[i].Title, o)
			}
		}
	}
}

// TestStepsTakenAtOnceAreRefuted: the same change in a worse order cuts hosts off, and the proof says whom.
func TestStepsTakenAtOnceAreRefuted(t *testing.T) {
	p, now, _ := made(t, fabric("n[0-7]", 2, ""), nil)
	_, next, areas := made(t, fabric("n[0-7]", 4, ""), locked(t, p))
	all := change.Step{Title: "all at once"}
	for _, s := range change.Make(now, next) {
		all.Add, all.Configure = append(all.Add, s.Add...), append(all.Configure, s.Configure...)
		all.Plug = append(all.Plug, s.Plug...)
	}
	all.Unplug = now.Cables[:0:0]
	for _, c := range now.Cables {
		if strings.HasPrefix(c[1].Device, "spine") {
			all.Unplug = append(all.Unplug, c)
			if slices.Contains(next.Cables, c) {
				all.Plug = append(all.Plug, c)
			}
		}
	}
	proven, err := change.Prove(now, next, []change.Step{all}, areas)
	if err != nil {
		t.Fatal(err)
	}
	if o := proven[0]; o.Broken == 0 || !strings.Contains(fmt.Sprint(o.Counter), "n4") {
		t.Errorf("%+v", o)
	}
	whole, broken, err := change.Whole(now, append(areas, prove.Area{Name: "front end", Group: "f", Prefix: p.Intent.Frontend.Prefix}))
	if err != nil || len(whole) != len(areas) || !slices.Equal(broken, []string{"front end"}) {
		t.Errorf("%v, %v, %v: nothing joins the front end", whole, broken, err)
	}
	if _, err := change.Prove(now, next, nil, areas); err == nil || !strings.Contains(err.Error(), "no step plugs in") {
		t.Errorf("no steps at all: %v", err)
	}
}

// TestRandomChangesAreProven: hosts come and go at random, spines too.
func TestRandomChangesAreProven(t *testing.T) {
	for seed := range uint64(bounded.Times(6, 100)) {
		rng := rand.New(rand.NewPCG(seed, 11))
		draw := func() string {
			var names []string
			for i := range 14 {
				if rng.IntN(3) > 0 {
					names = append(names, fmt.Sprintf("n%d", i))
				}
			}
			return fabric(strings.Join(append(names, "n99"), ","), []int{2, 4}[rng.IntN(2)], "")
		}
		p, now, _ := made(t, draw(), nil)
		_, next, areas := made(t, draw(), locked(t, p))
		steps := change.Make(now, next)
		proven, err := change.Prove(now, next, steps, areas)
		if err != nil {
			t.Errorf("seed %d: %v: %q", seed, err, titles(steps))
		}
		for i, o := range proven {
			if o.Broken > 0 {
				t.Errorf("seed %d: step %q: %+v", seed, steps[i].Title, o)
			}
		}
	}
}
