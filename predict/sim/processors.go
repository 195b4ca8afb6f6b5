package sim

import (
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
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

	Begin unit.Time // what an operation takes of a core before its first action
	Near  Work      // of messages inside a host
	Far   Work      // between hosts
	Sum   float64   // nanoseconds of a core to add up a byte
	Copy  float64   // or to copy one
}

// Work is what a message takes of cores.
type Work struct {
	Send, Take         unit.Time // a message, at its sender and at its receiver
	SendByte, TakeByte float64   // nanoseconds a byte, likewise
	Wake               unit.Time // until the receiver notices a message that is there, of no core

	// Kept is how long messages may be that are copied, or that the system takes whole: their sender goes on when it has done its part, and
	// their receiver does its part when it comes to them. The sender of a longer one waits while it goes, and both work on it at the same
	// time.
	Kept int64

	// Shared means that the receiver reads the bytes where they lie, to copy them or to add them up at once: nothing flows, and TakeByte is
	// all that they take.
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
	for _, t := range []unit.Time{p.Begin, p.Near.Send, p.Near.Take, p.Far.Send, p.Far.Take, p.Near.Wake, p.Far.Wake} {
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
		w.chargeFlow(int32(i))
	}
	return w.busy
}

// workOf is what messages of a connection take of cores.
func (w *world) workOf(c *conn) *Work {
	if c.far {
		return &w.o.Processors.Far
	}
	return &w.o.Processors.Near
}

// keeps reports whether the message that a thread sends is kept.
func (w *world) keeps(t *thread) bool {
	work := w.workOf(&w.conns[t.out])
	return !work.Shared && t.bytes <= work.Kept
}

// chargeFlow adds to a connection's flow what its bytes take of cores.
func (w *world) chargeFlow(id int32) {
	c := &w.conns[id]
	work := w.workOf(c)
	if work.Shared {
		return
	}
	// Messages that are kept take no time of cores while they go.
	c.light = w.share.flow(slices.Clone(w.share.flows[c.flow].loads))
	w.threadOf = append(w.threadOf, ^id)
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
	work, ns := unit.Time(0), 0.0
	switch {
	case t.op.Reduces():
		ns = p.Sum
	case t.op == sched.Copy:
		ns = p.Copy
	}
	if t.in >= 0 {
		from := w.workOf(&w.conns[t.in])
		work += from.Take
		switch {
		case from.Shared:
			ns = from.TakeByte
		case t.bytes <= from.Kept:
			ns += from.TakeByte
		}
	}
	if t.out >= 0 {
		to := w.workOf(&w.conns[t.out])
		if work += to.Send; w.keeps(t) {
			ns += to.SendByte
		}
	}
	return work + unit.Time(math.Round(ns*float64(t.bytes)*float64(unit.Nanosecond)))
}

// enter begins a rank's next operation: its actions follow when it has done what comes before them.
func (w *world) enter(m int32, why *Critical) {
	p := w.o.Processors
	if p == nil || p.Begin == 0 || w.lame[m] == 0 {
		w.collect(m, why)
		return
	}
	r := w.runs[w.runOf[m]]
	id := r.first + (m-w.threads[r.first].machine)*r.channels
	w.threads[id].critical = *why
	w.runOnCore(id, enters, p.Begin)
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
	switch t.phase {
	case enters:
		t.phase = idle
		t.critical[Overhead] += w.now - t.flowed
		w.collect(t.machine, &t.critical)
		return
	case pays:
		t.critical[Overhead] += w.now - t.flowed
		if w.keeps(t) {
			w.forward(t.out, t)
			w.done(id)
			return
		}
		w.begin(id)
		return
	}
	t.critical[Reduction] += w.now - t.flowed
	w.done(id)
}
