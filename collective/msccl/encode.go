package msccl

import (
	"encoding/xml"
	"fmt"
	"io"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// maxSteps bounds what Encode writes out.
const maxSteps = 1 << 20

// unroll lists what every rank does on every channel.
func (e *encoder) unroll() error {
	e.lists = make([][][]step.Action, e.p.Ranks)
	for r := range e.lists {
		e.lists[r] = make([][]step.Action, e.p.Channels())
	}
	total := 0
	return step.Run(e.p, func(r sched.Rank, a *step.Action, m struct{}) (struct{}, error) {
		if total++; total > maxSteps {
			return m, fmt.Errorf("%s has more than %d steps in all, too many to unroll for every rank", e.p.Name, maxSteps)
		}
		e.widest = max(e.widest, int(a.Count))
		e.lists[r][a.Channel] = append(e.lists[r][a.Channel], *a)
		e.signals = e.signals || a.Count == 0 && a.Op != sched.Wait
		return m, nil
	})
}

// Encode writes a program out for every rank. A channel of a rank becomes as
// many thread blocks as it has pairs of peers, chained by dependencies so that
// its steps keep their order. A fused step whose two peers do not go together
// all the time is written as a receive and a send. MSCCL has no switches that
// compute and neither barriers nor send-recv. A program that was read from such a
// file is written as that file.
func Encode(w io.Writer, p *sched.Program) error {
	if from, ok := p.From.(*XML); ok {
		return from.Write(w)
	}
	coll, ok := colls[p.Op]
	switch {
	case !ok:
		return fmt.Errorf("MSCCL does not have %s; it has %s", p.Op, knownColls)
	case p.Switches > 0:
		return fmt.Errorf("%s has %d switches that compute, which MSCCL cannot describe", p.Name, p.Switches)
	}
	e := &encoder{p: p}
	if err := e.unroll(); err != nil {
		return err
	}
	a := xmlAlgo{Name: p.Name, Proto: "Simple", Channels: p.Channels(), Chunks: max(p.NumChunks(sched.In), p.NumChunks(sched.Out)),
		GPUs: p.Ranks, Coll: coll, OutPlace: "1", Root: p.Root}
	if p.Slots > slots["Simple"] {
		a.Proto = "LL"
	}
	if e.signals {
		e.widen()
	}
	for r := range p.Ranks { // room for steps that are taken apart, where there are any
		for c, list := range e.lists[r] {
			e.split(list, pairs(list), c)
		}
	}
	for r := range p.Ranks {
		a.GPU = append(a.GPU, e.gpu(r))
	}
	return writeXML(w, &a)
}

func writeXML(w io.Writer, a *xmlAlgo) error {
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(a); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

type encoder struct {
	p      *sched.Program
	lists  [][][]step.Action // by rank and channel
	widest int               // chunks of the largest step
	room   int               // chunks of scratch beyond the program's own

	signals bool // there are messages of no chunks
}

// widen gives messages of no chunks one, as every step of MSCCL has some.
func (e *encoder) widen() {
	e.widest = max(e.widest, 1)
	e.room = e.p.Channels() * e.widest
	for _, lists := range e.lists {
		for c, list := range lists {
			for i := range list {
				if a := &list[i]; a.Count == 0 && a.Op != sched.Wait {
					a.Count = 1
					a.Src = step.Chunks{Buf: sched.In, Count: 1}
					a.Dst = step.Chunks{Buf: sched.Tmp, Index: int64(e.p.NumChunks(sched.Tmp) + c*e.widest), Count: 1}
				}
			}
		}
	}
}

// spot is a step of a thread block.
type spot struct{ tb, step int }

// pairing says which two peers of a channel share a thread block.
type pairing struct {
	to   map[sched.Rank]sched.Rank // by the peer received from
	from map[sched.Rank]sched.Rank // by the peer sent to
}

func pairs(list []step.Action) pairing {
	p := pairing{map[sched.Rank]sched.Rank{}, map[sched.Rank]sched.Rank{}}
	for _, a := range list {
		if a.Op.Receives() && a.Op.Sends() {
			_, taken := p.to[a.From]
			_, busy := p.from[a.To]
			if !taken && !busy {
				p.to[a.From], p.from[a.To] = a.To, a.From
			}
		}
	}
	return p
}

// ends are the peers of the thread block that an action belongs to.
func (p pairing) ends(a *step.Action) (send, recv sched.Rank) {
	send, recv = a.To, a.From
	if a.Op.Receives() {
		if to, ok := p.to[a.From]; ok {
			send = to
		}
	} else if from, ok := p.from[a.To]; ok {
		recv = from
	}
	return send, recv
}

// split takes a fused step apart where its peers are paired with others.
func (e *encoder) split(list []step.Action, p pairing, channel int) (out []step.Action, last []int) {
	room := step.Chunks{Buf: sched.Tmp, Index: int64(e.p.NumChunks(sched.Tmp) + channel*e.widest)}
	for _, a := range list {
		if to, ok := p.to[a.From]; !a.Op.Receives() || !a.Op.Sends() || ok && to == a.To {
			out = append(out, a)
		} else {
			first, second := a, step.Action{Op: sched.Send, Channel: a.Channel, From: -1, To: a.To, Count: a.Count}
			first.To = -1
			if !a.Op.Stores() {
				first.Dst = room
				first.Dst.Count = a.Count
				e.room = e.p.Channels() * e.widest
			}
			first.Op = sched.Recv
			if a.Op.Reduces() {
				first.Op = sched.RecvReduce
			}
			second.Src = first.Dst
			out = append(out, first, second)
		}
		last = append(last, len(out)-1)
	}
	return out, last
}

func (e *encoder) gpu(r int) xmlGPU {
	g := xmlGPU{ID: r, In: e.p.NumChunks(sched.In), Out: e.p.NumChunks(sched.Out), Tmp: e.p.NumChunks(sched.Tmp) + e.room}
	channels := e.p.Channels()
	places := make([][]spot, channels) // of every action of the program: its last step
	type need struct {
		at spot
		on spot
	}
	var needs []need
	type pending struct {
		at      spot
		channel int32
		done    int64
	}
	var waits []pending
	for c := range channels {
		p := pairs(e.lists[r][c])
		list, last := e.split(e.lists[r][c], p, c)
		spots := make([]spot, len(list))
		blocks := map[[2]sched.Rank]int{}
		blockOf := func(send, recv sched.Rank) int {
			key := [2]sched.Rank{send, recv}
			tb, ok := blocks[key]
			if !ok {
				tb = len(g.TB)
				blocks[key] = tb
				g.TB = append(g.TB, xmlTB{ID: tb, Send: int(send), Recv: int(recv), Chan: c})
			}
			return tb
		}
		tb := -1
		for i := range list {
			a := &list[i]
			switch {
			case a.Op.Receives() || a.Op.Sends():
				tb = blockOf(p.ends(a))
			case tb < 0: // before any message: with the first
				send, recv := sched.Rank(-1), sched.Rank(-1)
				for j := range list[i:] {
					if next := &list[i+j]; next.Op.Receives() || next.Op.Sends() {
						send, recv = p.ends(next)
						break
					}
				}
				tb = blockOf(send, recv)
			}
			spots[i] = spot{tb, len(g.TB[tb].Step)}
			g.TB[tb].Step = append(g.TB[tb].Step, e.step(spots[i].step, a))
			if i > 0 && spots[i-1].tb != tb {
				needs = append(needs, need{spots[i], spots[i-1]})
			}
			if a.Op == sched.Wait && a.Done > 0 {
				waits = append(waits, pending{spots[i], a.On, a.Done})
			}
		}
		for _, i := range last {
			places[c] = append(places[c], spots[i])
		}
	}
	for _, w := range waits {
		needs = append(needs, need{w.at, places[w.channel][w.done-1]})
	}
	for _, n := range needs {
		g.TB[n.at.tb].Step[n.at.step].DepTB = n.on.tb
		g.TB[n.at.tb].Step[n.at.step].DepOn = n.on.step
		g.TB[n.on.tb].Step[n.on.step].HasDep = 1
	}
	return g
}

// step writes an action. MSCCL wants both a source and a destination, so a step with one has it in both places.
func (e *encoder) step(s int, a *step.Action) xmlStep {
	x := xmlStep{S: s, Type: types[a.Op], SrcBuf: "i", DstBuf: "o", Count: int(a.Count), DepTB: -1, DepOn: -1}
	switch {
	case a.Op.Reads() && a.Op.Stores():
	case a.Op.Reads():
		a.Dst = a.Src
	case a.Op.Stores():
		a.Src = a.Dst
	default:
		return x
	}
	x.SrcBuf, x.SrcOff = letters[a.Src.Buf], int(a.Src.Index)
	x.DstBuf, x.DstOff = letters[a.Dst.Buf], int(a.Dst.Index)
	return x
}
