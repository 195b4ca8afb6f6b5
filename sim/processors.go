package sim

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/unit"
)

// Processors are the cores on which ranks run, for ranks that are processes and move their bytes themselves. Everything that software
// does takes the time of a core, and the ranks of a machine share its cores evenly (processor sharing): k channels at work on c
// cores go at min(1, c/k) of their pace each.
//
//	message there ──► Take, sums and copies, Send ──► flow: SendByte and TakeByte of cores, and the links ──► done
//	                  time of a core                  bytes at the rate that cores and links leave
//
// A channel is one thread: it never has more than one core. Every rank and every round is simulated.
type Processors struct {
	Cores   []float64 // of each machine; part of one where a quota says so
	Machine []int     // of each host of the graph, by topo.HostID: namespaces and containers share one

	Near Work    // of messages inside a host
	Far  Work    // between hosts
	Sum  float64 // nanoseconds of a core to add up a byte
	Copy float64 // or to copy one
}

// Work is what a message takes of cores.
type Work struct {
	Send, Take         unit.Time // a message, at its sender and at its receiver
	SendByte, TakeByte float64   // nanoseconds a byte, likewise

	// Shared means that the receiver reads the bytes where they lie, to copy them or to add them up at once: nothing flows, and TakeByte is all
	// that they take.
	Shared bool
}

// check refuses processors that no machine has.
func (p *Processors) check(g *topo.Graph) error {
	if len(p.Machine) != len(g.Hosts) {
		return fmt.Errorf("machines of %d hosts; the graph has %d", len(p.Machine), len(g.Hosts))
	}
	for h, m := range p.Machine {
		if m < 0 || m >= len(p.Cores) {
			return fmt.Errorf("host %s is on machine %d of %d", g.Hosts[h].Name, m, len(p.Cores))
		}
	}
	for m, c := range p.Cores {
		if !(c > 0 && c <= 4096) {
			return fmt.Errorf("machine %d has %g cores; more than 0 and at most 4096 expected", m, c)
		}
	}
	for _, x := range []float64{p.Near.SendByte, p.Near.TakeByte, p.Far.SendByte, p.Far.TakeByte, p.Sum, p.Copy} {
		if !(x >= 0 && x <= 1e6) {
			return fmt.Errorf("a byte takes %g ns of a core; 0 to 1e6 expected", x)
		}
	}
	for _, t := range []unit.Time{p.Near.Send, p.Near.Take, p.Far.Send, p.Far.Take} {
		if t < 0 {
			return fmt.Errorf("a message takes %s of a core; at least nothing expected", t)
		}
	}
	return nil
}

// second is a core's capacity: nanoseconds of it in a second.
const second = 1e9

// unitOf is the work in nanoseconds that counts as one byte where cores are shared, so that channels that compute and flows of
// messages, which are given equal numbers, get about equal time of cores.
func (p *Processors) unitOf() float64 { return max(p.Far.SendByte+p.Far.TakeByte, 1e-3) }

// shares is a number of nanoseconds a byte as the share of a core's capacity.
func shares(ns float64) int64 { return max(1, int64(math.Round(ns*whole))) }

// makeCores makes cores, the threads on them, and what threads do there.
func (w *world) makeCores() {
	p := w.o.Processors
	if p == nil {
		return
	}
	for _, c := range p.Cores {
		w.cores = append(w.cores, w.resource(coreWire, int64(c*second)))
	}
	for i := range w.threads {
		own := w.resource(coreWire, second)
		w.own = append(w.own, own)
		task := w.share.flow([]load{{res: w.machineOf(int32(i)), share: shares(p.unitOf())}, {res: own, share: shares(p.unitOf())}})
		w.task = append(w.task, task)
		w.threadOf = append(w.threadOf, int32(i))
	}
}

// machineOf is the cores of a thread's machine.
func (w *world) machineOf(id int32) int32 {
	m := w.threads[id].machine
	place := w.runs[w.runOf[m]].job.Place[w.ranks[m]]
	return w.cores[w.o.Processors.Machine[w.net.g.Nodes[place].Host]]
}

// chargeFlows adds to all flows what their bytes take of cores, if there are cores.
func (w *world) chargeFlows() bool {
	w.busy = w.o.Processors != nil
	for i := 0; w.busy && i < len(w.conns); i++ {
		w.chargeFlow(&w.conns[i])
	}
	return w.busy
}

// chargeFlow adds to a connection's flow what its bytes take of cores.
func (w *world) chargeFlow(c *conn) {
	work := &w.o.Processors.Near
	if c.far {
		work = &w.o.Processors.Far
	}
	if work.Shared {
		return
	}
	x := &w.share.flows[c.flow]
	add := func(res int32, ns float64) {
		if ns == 0 {
			return
		}
		for i := range x.loads {
			if x.loads[i].res == res {
				x.loads[i].share += shares(ns)
				return
			}
		}
		x.loads = append(x.loads, load{res: res, share: shares(ns)})
	}
	add(w.own[c.from], work.SendByte)
	add(w.machineOf(c.from), work.SendByte)
	add(w.own[c.to], work.TakeByte)
	add(w.machineOf(c.to), work.TakeByte)
}

// coreTime is what an action takes of a core before its flow begins: taking a message, sums and copies, sending one.
func (w *world) coreTime(t *thread) unit.Time {
	p := w.o.Processors
	work := unit.Time(0)
	between := func(c *conn) *Work {
		if c.far {
			return &p.Far
		}
		return &p.Near
	}
	ns := 0.0
	switch {
	case t.op.Reduces():
		ns = p.Sum
	case t.op == sched.Copy:
		ns = p.Copy
	}
	if t.in >= 0 {
		from := between(&w.conns[t.in])
		work += from.Take
		if from.Shared {
			ns = from.TakeByte
		}
	}
	if t.out >= 0 {
		work += between(&w.conns[t.out]).Send
	}
	return work + unit.Time(math.Round(ns*float64(t.bytes)*float64(unit.Nanosecond)))
}

// runOnCore lets a thread have a core for some time, as far as others leave it one.
func (w *world) runOnCore(id int32, ph phase, time unit.Time) {
	t := &w.threads[id]
	t.phase, t.flowed = ph, w.now
	if time <= 0 {
		t.version++
		w.events.push(w.now, ends, id, t.version)
		return
	}
	t.left, t.since = float64(time)/float64(unit.Nanosecond)/w.o.Processors.unitOf(), w.now
	w.share.start(w.task[id])
}

// leftCore ends what a thread did on its core.
func (w *world) leftCore(id int32) {
	t := &w.threads[id]
	if w.share.flows[w.task[id]].active {
		w.share.stop(w.task[id])
	}
	if t.phase == pays {
		t.critical[Overhead] += w.now - t.flowed
		w.begin(id)
		return
	}
	t.critical[Reduction] += w.now - t.flowed
	w.done(id)
}
