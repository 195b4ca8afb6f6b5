package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"pgregory.net/rapid"
)

// crowdOf is hosts of some ranks each, joined by a switch.
func crowdOf(t interface{ Fatal(...any) }, hosts, local int) (*topo.Graph, []topo.NodeID) {
	memory := topo.Class{Kind: topo.PCIe, Gen: "memory", Lanes: 1, Rate: 1000 * unit.GBps}
	return starOf(t, hosts, local, memory, memory, topo.Class{Kind: topo.Ethernet, Gen: "cable", Lanes: 1, Rate: 10 * unit.GBps}, "")
}

// starOf is the same of given links: from ranks to the memory of their host, from there to its NIC, and to the switch. NIC and switch are
// of one model.
func starOf(t interface{ Fatal(...any) }, hosts, local int, memory, bus, cable topo.Class, model string) (*topo.Graph, []topo.NodeID) {
	b := topo.NewBuilder("star")
	fabric := b.Fabric(topo.Fabric{Name: "net"})
	near, across, far := b.Class(memory), b.Class(bus), b.Class(cable)
	leaf := topo.Part(topo.Switch, topo.HostID(topo.None), "switch")
	leaf.Tier, leaf.Fabric, leaf.Model = 1, fabric, model
	sw := b.Node(leaf)
	var names []string
	for h := range hosts {
		host := b.Host(topo.Host{Name: fmt.Sprintf("h%d", h)})
		cpu := b.Node(topo.Part(topo.CPU, host, "cpu"))
		part := topo.Part(topo.NIC, host, "nic")
		part.Fabric, part.Model = fabric, model
		nic := b.Node(part)
		b.Link(topo.Link{A: cpu, B: nic, Class: across, Count: 1})
		b.Link(topo.Link{A: nic, B: sw, Class: far, Count: 1})
		for r := range local {
			names = append(names, fmt.Sprintf("h%d:r%d", h, r))
			b.Link(topo.Link{A: cpu, B: b.Node(topo.Part(topo.GPU, host, fmt.Sprintf("r%d", r))), Class: near, Count: 1})
		}
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	place := make([]topo.NodeID, len(names))
	for i, name := range names {
		if place[i], err = g.Lookup(name); err != nil {
			t.Fatal(err)
		}
	}
	return g, place
}

// A program that ranks run on k cores takes no less than its work over k; with more cores it takes no longer, but for the order in which
// ranks have their turn; and with a core for everybody it takes no less than with as many as one may want.
func TestCoresAreShared(t *testing.T) {
	ops := []sched.Collective{sched.AllReduce, sched.AllGather, sched.ReduceScatter, sched.AllToAll, sched.Broadcast}
	rapid.Check(t, func(t *rapid.T) {
		hosts, local := rapid.IntRange(2, 3).Draw(t, "hosts"), rapid.IntRange(1, 3).Draw(t, "ranks")
		op := rapid.SampledFrom(ops).Draw(t, "op")
		a, err := algo.Find("direct")
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: op, Ranks: hosts * local})
		if err != nil {
			t.Skip(err)
		}
		g, place := crowdOf(t, hosts, local)
		size := unit.Bytes(rapid.Int64Range(1, 4<<20).Draw(t, "size"))
		message := unit.Time(rapid.Int64Range(0, 10).Draw(t, "us a message")) * unit.Microsecond
		byte := rapid.Float64Range(0.01, 2).Draw(t, "ns a byte")
		shared := rapid.Bool().Draw(t, "shared")
		times := map[float64]unit.Time{}
		for _, cores := range []float64{1, 2, 4, 1000} {
			x := &Processors{Cores: []float64{cores}, Machine: make([]int, hosts), Sum: byte, Copy: byte,
				Near: Work{Send: message, Take: message, TakeByte: byte, Shared: shared},
				Far:  Work{Send: message, Take: message, SendByte: byte, TakeByte: byte}}
			res, err := Run(g, []Job{{Program: p, Size: size, Place: place}}, Options{Processors: x})
			if err != nil {
				t.Fatal(err)
			}
			times[cores] = res.Time
			// Every rank of another host gets at least one message of each: its ends are work for the cores.
			least := float64(hosts-1) * 2 * float64(message) / cores
			if float64(res.Time) < least*(1-1e-9) {
				t.Fatalf("%s of %s on %g cores takes %s; its messages alone are %s of work", op, size, cores, res.Time, unit.Time(least*cores))
			}
		}
		for _, pair := range [][2]float64{{1, 2}, {2, 4}, {4, 1000}} {
			if few, many := times[pair[0]], times[pair[1]]; float64(many) > float64(few)*1.05+1e3 {
				t.Fatalf("%s of %s takes %s on %g cores and %s on %g", op, size, few, pair[0], many, pair[1])
			}
		}
	})
}

// The work of a program on one core takes exactly as long as all of it together: two ranks exchange a message each.
func TestOneCoreDoesAllTheWork(t *testing.T) {
	g, place := crowdOf(t, 2, 1)
	a, err := algo.Find("direct")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Program(algo.Spec{Op: sched.AllToAll, Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	run := func(cores float64, repeat int) unit.Time {
		x := &Processors{Cores: []float64{cores}, Machine: []int{0, 0},
			Far: Work{Send: 3 * unit.Microsecond, Take: 2 * unit.Microsecond, SendByte: 0.3, TakeByte: 0.2}}
		res, err := Run(g, []Job{{Program: p, Size: 2 << 20, Place: place, Repeat: repeat}}, Options{Processors: x})
		if err != nil {
			t.Fatal(err)
		}
		return res.Time
	}
	work := 10*unit.Microsecond + unit.Time(2*(1<<20)*0.5*float64(unit.Nanosecond)) // of both
	one, two := run(1, 1), run(2, 1)
	if one < work || one > work+10*unit.Microsecond { // and the latency of the way
		t.Errorf("one core takes %s for %s of work", one, work)
	}
	if two < work/2 || two > work/2+10*unit.Microsecond {
		t.Errorf("two cores take %s for %s of work", two, work)
	}
	if many := run(2, 5); many < 5*work/2 || many > 5*two {
		t.Errorf("five operations take %s; one takes %s", many, two)
	}
}

// A message that is kept goes when its sender has done its part, and its receiver does its own after that; the work on a longer one
// overlaps. An operation begins with Begin, and messages are noticed after Wake.
func TestKeptMessages(t *testing.T) {
	g, place := crowdOf(t, 2, 1)
	a, err := algo.Find("direct")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Program(algo.Spec{Op: sched.Broadcast, Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	const us = unit.Microsecond
	for _, c := range []struct {
		kept, size int64
		repeat     int
		want       unit.Time
	}{
		{1 << 20, 1 << 20, 1, (5 + 3 + 300 + 105 + 7 + 2 + 200) * us}, // 105 us on a wire of 10 GB/s
		{1 << 20, 1 << 20, 101, (5+3+300)*101*us + (105+7+2+200)*us},  // the sender does not wait
		{1<<20 - 1, 1 << 20, 1, (5 + 3 + 300 + 7 + 2) * us},           // the longest of three
	} {
		x := &Processors{Cores: []float64{4}, Machine: []int{0, 0}, Begin: 5 * us,
			Far: Work{Send: 3 * us, Take: 2 * us, Wake: 7 * us, SendByte: 300e3 / (1 << 20), TakeByte: 200e3 / (1 << 20), Kept: c.kept}}
		q := *p
		q.Slots = 200
		res, err := Run(g, []Job{{Program: &q, Size: unit.Bytes(c.size), Place: place, Repeat: c.repeat}}, Options{Processors: x})
		if err != nil {
			t.Fatal(err)
		}
		if d := res.Time - c.want; d < -5*us || d > 10*us+res.Time/50 { // the latency of the way, and copies of the root
			t.Errorf("%d broadcasts of %d bytes, of which %d are kept, take %s; want %s", c.repeat, c.size, c.kept, res.Time, c.want)
		}
	}
}

// A rank begins its next operation when its own part of one is done: the root of a broadcast is ahead, so that operations overlap.
func TestOperationsOverlap(t *testing.T) {
	g, place := crowdOf(t, 4, 1)
	a, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Program(algo.Spec{Op: sched.Broadcast, Ranks: 4, Pieces: 1})
	if err != nil {
		t.Fatal(err)
	}
	p.Slots = 8
	for _, x := range []*Processors{nil, {Cores: []float64{8}, Machine: make([]int, 4),
		Far: Work{Send: unit.Microsecond, Take: unit.Microsecond}}} {
		var times []unit.Time
		for _, repeat := range []int{1, 8} {
			res, err := Run(g, []Job{{Program: p, Size: 1 << 20, Place: place, Repeat: repeat}}, Options{Processors: x})
			if err != nil {
				t.Fatal(err)
			}
			times = append(times, res.Time)
		}
		if times[1] <= times[0] || times[1] >= 6*times[0] {
			t.Errorf("eight broadcasts along a chain of 4 take %s, one takes %s; they overlap", times[1], times[0])
		}
	}
}

// Processors that no machine has are refused, with their values.
func TestProcessorsAreChecked(t *testing.T) {
	g, place := crowdOf(t, 2, 1)
	a, _ := algo.Find("direct")
	p, err := a.Program(algo.Spec{Op: sched.AllGather, Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		x    Processors
		want string
	}{
		{Processors{Cores: []float64{0}, Machine: []int{0, 0}}, "machine 0 has 0 cores"},
		{Processors{Cores: []float64{1}, Machine: []int{0}}, "machines of 1 hosts; the graph has 2"},
		{Processors{Cores: []float64{1}, Machine: []int{0, 1}}, "host h1 is on machine 1 of 1"},
		{Processors{Cores: []float64{1}, Machine: []int{0, 0}, Sum: -1}, "takes -1 ns of a core"},
	} {
		if _, err := Run(g, []Job{{Program: p, Size: 8, Place: place}}, Options{Processors: &c.x}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want %q", c.x, err, c.want)
		}
	}
	if _, err := Run(g, []Job{{Program: p, Size: 8, Place: place, Repeat: -1}}, Options{}); err == nil {
		t.Error("a job runs -1 times")
	}
}
