package plan

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// held is the parameters of a rank's stage, by how they are shared.
type held struct {
	dense   float64 // on this rank, replicated over data ranks
	experts float64
	layers  int
}

func (o *held) put(x held, n int) {
	o.dense += float64(n) * x.dense
	o.experts += float64(n) * x.experts
}

// parts gives the parameters of a layer of each kind, of the embedding, and of what follows the last layer. A tied head needs a copy of
// the embedding, unless both lie on the same rank.
func (p *pricer) parts() (each [2]held, first, last, tied held) {
	m, l := p.m, p.l
	for i := range each {
		lp := m.Layer(i == 1)
		each[i].dense, each[i].experts = (lp.Attention+lp.MLP)/float64(l.TP)+lp.Replicated, lp.Experts/float64(l.ETP*l.EP)
	}
	v := float64(m.Hidden) * p.vocab() / float64(l.TP)
	first.dense = v + float64(m.Hidden*m.Positions)
	if m.Tied {
		tied.dense = v
	} else {
		last.dense = v
	}
	last.put(each[b2i(m.Experts > 0)], m.MTP)
	last.dense += 2 * float64(m.MTP) * float64(m.Hidden) * float64(m.Hidden)
	return each, first, last, tied
}

// holds gives what each pipeline rank holds.
func (p *pricer) holds() []held {
	if p.held == nil {
		p.held = p.holding()
	}
	return p.held
}

func (p *pricer) holding() []held {
	m, l := p.m, p.l
	out := append(p.scratch.held[:0], make([]held, l.PP)...)
	if m.CNN != nil {
		out[0].dense = m.Params().Total
		return out
	}
	n := l.PP * l.VPP
	counts := p.counts()
	at := 0
	each, first, last, tied := p.parts()
	for i, c := range counts {
		r := i % l.PP
		if l.Schedule == schedule.ZBV && i >= l.PP {
			r = 2*l.PP - 1 - i
		}
		o := &out[r]
		o.layers += c
		moe := p.experts(at, at+c)
		o.put(each[0], c-moe)
		o.put(each[1], moe)
		at += c
		if i == 0 {
			o.put(first, 1)
		}
		if i == n-1 {
			o.put(last, 1)
			if l.PP > 1 && r != 0 {
				o.put(tied, 1)
			}
		}
	}
	if l.Schedule == schedule.DualPipe {
		both := make([]held, l.PP)
		for i := range out {
			j := l.PP - 1 - i
			both[i] = held{out[i].dense + out[j].dense, out[i].experts + out[j].experts, out[i].layers + out[j].layers}
		}
		out = both
	}
	return out
}

// vocab is the vocabulary as frameworks pad it: to a multiple of 128 tp.
func (p *pricer) vocab() float64 {
	if p.f == FSDP {
		return float64(p.m.Vocab)
	}
	unit := 128 * p.l.TP
	return float64((p.m.Vocab + unit - 1) / unit * unit)
}

// data is what data parallelism adds to a step: seconds that nothing hides, the time of the whole reduction, and the reasons.
func (p *pricer) data(hide, forward float64) (shown, reduction float64, terms []Term) {
	l := p.l
	if l.ZeRO >= 3 {
		// Every micro-batch has gathered and reduced already; the first gather and the last
		// reduction have nothing beside them.
		g, r := p.zero3()
		v := max(g[0], g[1]) + max(r[0], r[1])
		return v, 0, []Term{{Name: "first gather and last reduction", Value: v, Unit: "s", Why: "nothing runs beside them"}}
	}
	var worst exchange
	var at held
	for i, o := range p.holds() {
		if i > 0 && o == p.holds()[i-1] {
			continue
		}
		x := p.exchange(o)
		x.show(p, hide, forward)
		if x.shown() >= worst.shown() {
			worst, at = x, o
		}
	}
	hidden, behind := "nothing runs beside them", "nothing runs beside them"
	if l.Overlap && l.DPOverlap {
		hidden, behind = fmt.Sprintf("hidden behind %.3g s of the last backward", hide),
			fmt.Sprintf("hidden behind %.3g s of the first forward", forward)
	}
	terms = []Term{{Name: "gradients", Value: worst.shownR, Unit: "s",
		Why: fmt.Sprintf("%.3g GB take %.3g s; %s; %s", (at.dense+at.experts)*p.gradBytes()/1e9, worst.reduce, worst.how, hidden)}}
	if worst.gather > 0 {
		terms = append(terms, Term{Name: "parameters", Value: worst.shownG, Unit: "s",
			Why: fmt.Sprintf("gathering them takes %.3g s; %s", worst.gather, behind)})
	}
	return worst.shown(), worst.reduce, terms
}

// exchange is what data ranks send one another in a step: gradients, and parameters that one of them has changed.
type exchange struct {
	reduce, gather float64
	shownR, shownG float64 // of these, what nothing hides
	how            string
}

func (x *exchange) shown() float64 { return x.shownR + x.shownG }

// exchange is that of a rank.
func (p *pricer) exchange(o held) (x exchange) {
	l := p.l
	one := func(params float64, n, stride int) {
		if l.Phase == "lora" {
			params *= .005
		}
		if l.ZeRO == 0 {
			t, why := p.mc.Collective(sched.AllReduce, n, stride, params*p.gradBytes())
			x.reduce += t
			x.tell(t, why)
			return
		}
		t, why := p.mc.Collective(sched.ReduceScatter, n, stride, params*p.gradBytes())
		a, _ := p.mc.Collective(sched.AllGather, n, stride, params*2)
		x.reduce += t
		x.gather += a
		x.tell(t, why)
	}
	one(o.dense, l.DP*l.CP, l.TP)
	if o.experts > 0 {
		one(o.experts, l.ExpertData(), l.EP*l.ETP)
	}
	return x
}

// tell keeps the reason of a transfer that takes time: experts that one rank has are not sent.
func (x *exchange) tell(t float64, why string) {
	if t > 0 || x.how == "" {
		x.how = why
	}
}

// show finds what nothing hides.
func (x *exchange) show(p *pricer, hide, forward float64) {
	if !p.l.Overlap || !p.l.DPOverlap {
		x.shownR, x.shownG = x.reduce*p.h.Bare, x.gather*p.h.Bare
		return
	}
	x.shownR, x.shownG = p.h.besides(x.reduce, hide), p.h.besides(x.gather, forward)
}

// besides is what a transfer in buckets adds to a step if so much compute can run beside it. The last bucket has nothing left to hide
// behind, and what is hidden slows compute down.
func (h Habits) besides(transfer, compute float64) float64 {
	const last = .04
	return max(transfer-compute, transfer*last) + h.Shadow*min(transfer*(1-last), compute)
}

// exchangeLeast is the least that data parallelism adds to a step. What a reduction hides behind is known before a run where the last pass
// of all is the first rank's backward; elsewhere all of it may be hidden but the last bucket.
func (p *pricer) exchangeLeast(stages []chunkTime) (worst float64) {
	l := p.l
	if l.ZeRO >= 3 {
		g, r := p.zero3()
		return max(g[0], g[1]) + max(r[0], r[1])
	}
	hide, forward := math.Inf(1), math.Inf(1)
	if l.VPP == 1 && !l.Schedule.Splits() {
		hide = (stages[0].B + stages[0].W) * .9
	}
	for _, s := range stages[:l.PP] {
		forward = min(forward, s.F*.9)
	}
	for i, o := range p.holds() {
		if i > 0 && o == p.holds()[i-1] {
			continue
		}
		x := p.exchange(o)
		x.show(p, hide, forward)
		worst = max(worst, x.shown())
	}
	return worst * (1 - 1e-9)
}

// optimizer is the time of Adam: about 30 bytes a parameter of memory traffic.
func (p *pricer) optimizer() (float64, string) {
	t, worst := p.adam()
	return t, fmt.Sprintf("30 bytes of memory traffic for each of %.3g billion parameters", worst/1e9)
}

// adam is its time, and the parameters of the rank that has most of them.
func (p *pricer) adam() (seconds, worst float64) {
	l := p.l
	for _, o := range p.holds() {
		dense, experts := o.dense, o.experts
		if l.ZeRO >= 1 {
			dense /= float64(l.Sharded())
			experts /= float64(l.ExpertData())
		}
		worst = max(worst, dense+experts)
	}
	if l.Phase == "lora" {
		worst *= .005
	}
	rate := p.mc.Chip.HBM * .8
	if l.Offload {
		rate = 40e9
	}
	return 30 * worst / rate, worst
}
