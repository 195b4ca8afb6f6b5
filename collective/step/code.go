package step

import "github.com/weft-fabric/weft/collective/sched"

// Code is a program made ready to run: what the machines of its ranks share.
type Code struct {
	prog   *sched.Program
	groups [][]instr
	at     [][]int64 // by channel with an order: the position of each rank
	size   [4]int64
	per    int64
}

// Compile prepares a program. It must have passed Check.
func Compile(p *sched.Program) *Code {
	k := &Code{prog: p}
	for b := sched.In; b <= sched.Tmp; b++ {
		k.size[b] = int64(p.NumChunks(b))
	}
	if p.Op.Blocks() {
		k.per = max(k.size[sched.In], k.size[sched.Out]) / int64(p.Ranks)
	}
	for _, g := range p.Groups {
		k.groups = append(k.groups, compile(nil, g.Body))
	}
	for _, order := range p.Orders {
		var at []int64
		if order != nil {
			at = make([]int64, len(order))
			for pos, r := range order {
				at[r] = int64(pos)
			}
		}
		k.at = append(k.at, at)
	}
	return k
}

// pos gives a rank's position on a channel.
func (k *Code) pos(c int, r sched.Rank) int64 {
	if c < len(k.at) && int(r) < len(k.at[c]) {
		return k.at[c][r]
	}
	return int64(r)
}

// Machine prepares a rank's machine.
func (k *Code) Machine(r sched.Rank) *Machine {
	p := k.prog
	m := &Machine{prog: p, rank: r, worlds: int32(p.Ranks + p.Switches), size: k.size, per: k.per}
	if int(r) >= p.Ranks {
		m.size[sched.In], m.size[sched.Out] = 0, 0
	}
	n := p.Channels()
	m.chans, m.look = make([]channel, 0, n), make([]int32, 0, 2*n)
	c := 0
	for i, g := range p.Groups {
		for range g.Count {
			ch := channel{code: k.groups[i], env: p.Env(k.pos(c, r), c)}
			if c < len(p.Orders) {
				ch.order = p.Orders[c]
			}
			m.chans = append(m.chans, ch)
			m.look = append(m.look, int32(c))
			c++
		}
	}
	m.left = len(m.chans)
	return m
}

// New prepares a single rank's machine; see Compile for many.
func New(p *sched.Program, r sched.Rank) *Machine { return Compile(p).Machine(r) }

// Waits reports whether a channel of the program ever waits for another.
func (k *Code) Waits() bool {
	for _, code := range k.groups {
		for i := range code {
			if code[i].step != nil && code[i].step.Op == sched.Wait {
				return true
			}
		}
	}
	return false
}
