package group

import (
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/transport/affinity"
)

// Ranks that are woken by one process tend to be put on its core, and the system takes 10 ms and more to spread them, as all are
// always busy: ranks that wait spin or yield, and the ranks they wait for have to share a core. Two ranks on one core of two
// take 4 us and more for an all-reduce of 8 bytes instead of 0.4. So a rank that waits longer than usual looks where the others
// were last seen. If its core has two ranks more than another core, it goes there. It is not kept there: the system may move it,
// and where ranks are bound to cores it has nowhere to go.
//
// Ranks that outnumber the cores look when they begin something, not when they wait, which they do all the time. Eight ranks on
// two cores that slept before take 0.54 of the time for an all-reduce of 8 bytes, and 0.82 for operations on registered buffers
// of 256 KiB to 4 MiB (medians, and the geometric mean of three operations; three runs each, 2026-11-16).

// lookEvery is how often a rank looks at most, in ticks: 1 to 4 ms.
const lookEvery = 1 << 22

// Affinity is what a rank knows of which rank is on which core.
type Affinity struct {
	looked int64    // when it last looked for another core, in ticks
	cores  []uint32 // that it may use; nil if it did not look yet
	crowd  []int    // ranks by core
}

// Spread moves a rank to a core with fewer ranks of its group, if there is one.
func (a *Affinity) Spread(g *Group) {
	now := clock.Ticks()
	if now-a.looked < lookEvery {
		return
	}
	a.looked = now
	here := g.showCPU()
	if a.cores == nil {
		a.cores = affinity.Allowed()
	}
	if len(a.cores) < 2 {
		return
	}
	clear(a.crowd)
	first := 0 // ranks on this core that go first
	for i, b := range g.Boards {
		if b == nil {
			continue
		}
		at := b.CPU()
		if at == here && i < g.Rank {
			first++
		}
		for int(at) >= len(a.crowd) && at < 1<<12 {
			a.crowd = append(a.crowd, 0)
		}
		if int(at) < len(a.crowd) {
			a.crowd[at]++
		}
	}
	if best := a.best(here, g.Rank); first < (a.on(here)-a.on(best))/2 {
		affinity.MoveTo(best)
		g.showCPU()
	}
}

// on is the number of ranks on a core.
func (a *Affinity) on(cpu uint32) int {
	if int(cpu) < len(a.crowd) {
		return a.crowd[cpu]
	}
	return 0
}

// best is the core with the fewest ranks; each rank tries another one first.
func (a *Affinity) best(here uint32, rank int) uint32 {
	best := here
	for k := range a.cores {
		if cpu := a.cores[(k+rank)%len(a.cores)]; a.on(cpu) < a.on(best) {
			best = cpu
		}
	}
	return best
}

// ShowCPU tells the others on which core this rank is, and where it has to share leaves it for a better one.
func (g *Group) ShowCPU() {
	if !HasCPU {
		return
	}
	g.showCPU()
	if g.Host.Crowded {
		g.Affinity.Spread(g)
	}
}

func (g *Group) showCPU() uint32 {
	here := processor()
	g.Mine().SetCPU(here)
	return here
}
