package comm

import (
	"github.com/weft-fabric/weft/transport/affinity"
)

// Ranks that are woken by one process tend to be put on its core, and the system
// takes 10 ms and more to spread them, as all are always busy: those that wait spin
// or yield, and those that they wait for have to share a core. Two ranks on one core
// of two take 4 us and more for an all-reduce of 8 bytes instead of 0.4. So a rank
// that waits longer than usual looks where the others were last seen, and if its
// core has two of them more than another, it goes there. It is not kept there: the
// system may move it, and who binds ranks to cores leaves it nowhere to go.
//
// Ranks that outnumber the cores look when they begin something, not when they wait,
// which they do all the time. Eight ranks on two cores that slept before take 0.54 of
// the time for an all-reduce of 8 bytes, and 0.82 for operations on registered buffers
// of 256 KiB to 4 MiB (medians, and the geometric mean of three operations; three runs
// each, 2026-11-16).

// partEvery is how often a rank looks at most, in ticks: 1 to 4 ms.
const partEvery = 1 << 22

// places is what a goroutine knows of who is where.
type places struct {
	parted int64    // when it last looked for another core, in ticks
	cores  []uint32 // that it may use; nil if it did not look yet
	crowd  []int    // ranks by core
}

// part is called by waits that take long, and where ranks outnumber the cores by what
// begins.
func (p *places) part(c *Comm) {
	now := ticks()
	if now-p.parted < partEvery {
		return
	}
	p.parted = now
	here := c.showPlace()
	if p.cores == nil {
		p.cores = affinity.Allowed()
	}
	if len(p.cores) < 2 {
		return
	}
	clear(p.crowd)
	crowd, before := p.crowd, 0 // ranks on this core that go first
	for i, b := range c.boards {
		if b == nil {
			continue
		}
		at := b.place()
		if at == here && i < c.rank {
			before++
		}
		for int(at) >= len(crowd) && at < 1<<12 {
			crowd = append(crowd, 0)
		}
		if int(at) < len(crowd) {
			crowd[at]++
		}
	}
	p.crowd = crowd
	on := func(cpu uint32) int {
		if int(cpu) < len(crowd) {
			return crowd[cpu]
		}
		return 0
	}
	best := here
	for k := range p.cores { // each rank tries another one first
		if cpu := p.cores[(k+c.rank)%len(p.cores)]; on(cpu) < on(best) {
			best = cpu
		}
	}
	if before < (on(here)-on(best))/2 {
		affinity.MoveTo(best)
		c.showPlace()
	}
}

// place tells the others on which core this rank is, and where it has to share leaves it
// for a better one.
func (c *Comm) place() {
	c.showPlace()
	if c.crowded {
		c.places.part(c)
	}
}

// showPlace tells the others on which core this rank is.
func (c *Comm) showPlace() uint32 {
	here := processor()
	c.boards[c.rank].setPlace(here)
	return here
}
