package sim

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/unit"
)

// chainBound follows first messages back to where they come from. In a tree of depth seventeen the leaves have nothing to do
// until the first piece has come down seventeen links, one after the other:
//
//	root ── 256 MiB ──► child ── 256 MiB ──► ... ──► leaf, which then has all its pieces to take in
//
// Each hop takes at least what its message takes on an idle network, and what its sender does before it on that channel.
type chainBound struct {
	n     *network
	job   Job
	code  *step.Code
	chunk int64
	known map[chainKey]unit.Time
}

type chainKey struct {
	rank    sched.Rank
	channel int32
}

// maxChain bounds the hops that are followed back, maxBefore the actions before a message that are looked at.
const (
	maxChain  = 256
	maxBefore = 64
)

// least is the time that a rank takes whose channels begin when their first messages can be there.
func (c *chainBound) least(b *rankBound) (unit.Time, error) {
	if b.factor == 0 || c.code.Waits() {
		return 0, nil
	}
	most := unit.Time(0)
	for ch, busy := range b.busy {
		a, ok := first(c.code.Machine(b.rank), int32(ch))
		if !ok {
			continue
		}
		begins, err := c.begins(b.rank, int32(ch), maxChain)
		if err != nil {
			return 0, err
		}
		if a.Op.Receives() { // the messages of one sender come one after the other; the first is there
			w, err := b.way(a.From, b.rank, a.Channel)
			if err != nil {
				return 0, err
			}
			busy = max(busy, b.comes[boundKey{a.From, b.rank, a.Channel}]-float64(span(float64(a.Count*c.chunk), w.rate)))
		}
		most = max(most, begins+unit.Time(min(busy*(1-1e-6), 1<<60)))
	}
	return most, nil
}

// begins is when the first action of a channel can begin at the earliest, the launch not counted.
func (c *chainBound) begins(r sched.Rank, channel int32, hops int) (unit.Time, error) {
	key := chainKey{r, channel}
	if t, ok := c.known[key]; ok {
		return t, nil
	}
	c.known[key] = 0 // should it lead back here
	if hops == 0 || int(r) >= c.job.Program.Ranks {
		return 0, nil
	}
	m := c.code.Machine(r)
	a, ok := first(m, channel)
	if !ok || !a.Op.Receives() || int(a.From) >= c.job.Program.Ranks {
		return 0, m.Err()
	}
	t, err := c.begins(a.From, channel, hops-1)
	if err != nil {
		return 0, err
	}
	sent, err := c.sends(a.From, r, channel)
	if err != nil {
		return 0, err
	}
	c.known[key] = t + sent
	return t + sent, nil
}

// first is the first action of a channel.
func first(m *step.Machine, channel int32) (step.Action, bool) {
	for _, a := range m.Ready(nil) {
		if a.Channel == channel {
			return a, true
		}
	}
	return step.Action{}, false
}

// sends is what a channel takes from its first action until its first message to a rank is there.
func (c *chainBound) sends(from, to sched.Rank, channel int32) (unit.Time, error) {
	b := c.n.rankBound(c.job, from, c.chunk)
	m := c.code.Machine(from)
	a, ok := first(m, channel)
	for range maxBefore {
		if !ok {
			return 0, m.Err()
		}
		if err := b.add(&a, 1); err != nil {
			return 0, err
		}
		if a.Op.Sends() && a.To == to {
			w, err := b.way(from, to, channel)
			return unit.Time(b.busy[channel]*(1-1e-6)) + w.latency, err
		}
		m.Complete(channel)
		a, ok = first(m, channel)
	}
	return 0, nil
}
