package comm

import "github.com/weft-fabric/weft/transport/wait"

// Ranks that are woken by one process tend to be put on its core, and the system
// takes 10 ms and more to spread them, as all are always busy: those that wait spin
// or yield, and those that they wait for have to share a core. Two ranks on one core
// of two take 4 us and more for an all-reduce of 8 bytes instead of 0.4. So a rank
// that waits longer than usual looks where the others were last seen, and if its
// core has two of them more than another, it goes there. It is not kept there: the
// system may move it, and who binds ranks to cores leaves it nowhere to go. Ranks
// that outnumber the cores are left where they are: several on one core are as fast
// as spread, since what they exchange need not leave it.

// partEvery is how often a rank looks at most, in ticks: 1 to 4 ms.
const partEvery = 1 << 22

// part is called by waits that take long.
func (c *Comm) part() {
	now := ticks()
	if now-c.parted < partEvery {
		return
	}
	c.parted = now
	here := c.showPlace()
	if c.cores == nil {
		c.cores = wait.Allowed()
	}
	if len(c.cores) < 2 {
		return
	}
	clear(c.crowd)
	crowd := c.crowd
	for _, b := range c.boards {
		if b == nil {
			continue
		}
		at := b.place()
		for int(at) >= len(crowd) && at < 1<<12 {
			crowd = append(crowd, 0)
		}
		if int(at) < len(crowd) {
			crowd[at]++
		}
	}
	c.crowd = crowd
	on := func(cpu uint32) int {
		if int(cpu) < len(crowd) {
			return crowd[cpu]
		}
		return 0
	}
	best := here
	for k := range c.cores { // each rank tries another one first
		if cpu := c.cores[(k+c.rank)%len(c.cores)]; on(cpu) < on(best) {
			best = cpu
		}
	}
	if on(here)-on(best) >= 2 {
		wait.MoveTo(best)
		c.showPlace()
	}
}

// showPlace tells the others on which core this rank is.
func (c *Comm) showPlace() uint32 {
	here := processor()
	c.boards[c.rank].setPlace(here)
	return here
}
