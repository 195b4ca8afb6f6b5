package msccl

import (
	"fmt"
	"io"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

func newPlanEncoder(p *sched.Program) *planEncoder {
	e := &planEncoder{p: p, gpus: make([]planGPU, p.Ranks), chans: map[[3]int]int{}, remote: map[[2]int]int{}, sent: map[step.Conn][]int{},
		sems: map[pairOf]int{}, due: map[pairOf][]int64{}}
	for r := range e.gpus {
		e.gpus[r] = emptyGPU(p, r)
	}
	return e
}

// emptyGPU has a thread block for every channel, and the lists that the loader wants even where they stay empty.
func emptyGPU(p *sched.Program, r int) planGPU {
	in, out, scratch := p.NumChunks(sched.In), p.NumChunks(sched.Out), p.NumChunks(sched.Tmp)
	g := planGPU{ID: r, In: &in, Out: &out, Scratch: &scratch, Channels: []planChannel{{Type: "memory"}},
		Blocks: make([]planBlock, p.Channels())}
	for c := range g.Blocks {
		g.Blocks[c] = planBlock{ID: c, Ops: []planOp{}, Channels: []planUse{{Type: "memory"}}, Remote: []planRefUse{{Type: "memory"}}}
	}
	return g
}

// fits refuses what the loader has no room for.
func (g *planGPU) fits() error {
	if k := len(g.Semaphores); k > maxPlanSems {
		return fmt.Errorf("rank %d needs %d semaphores; MSCCL++ has %d: use fewer trees, or one lane", g.ID, k, maxPlanSems)
	}
	for c, b := range g.Blocks {
		if len(b.Ops) > maxPlanOps {
			return fmt.Errorf("rank %d channel %d has %d operations; MSCCL++ takes %d of a thread block: use fewer pieces or trees",
				g.ID, c, len(b.Ops), maxPlanOps)
		}
		if len(b.Channels[0].IDs) > maxPlanChans {
			return fmt.Errorf("rank %d channel %d has %d connections; MSCCL++ takes %d of a thread block",
				g.ID, c, len(b.Channels[0].IDs), maxPlanChans)
		}
	}
	return nil
}

// EncodePlan writes a program as a MSCCL++ execution plan. A channel of a rank
// becomes a thread block. A send is a put into a place of its own in the
// receiver's scratch and a signal, a receive is a wait and what is done with it.
// A wait for another channel is a semaphore of the two thread blocks. What exceeds
// the loader's limits is refused before anything is written. A program that was read
// from a plan is written as that plan.
func EncodePlan(w io.Writer, p *sched.Program) error {
	if from, ok := p.From.(*Plan); ok {
		return from.Write(w)
	}
	coll, ok := planColls[p.Op]
	switch {
	case !ok:
		return fmt.Errorf("MSCCL++ does not have %s; it has %s", p.Op, knownPlanColls)
	case p.Switches > 0:
		return fmt.Errorf("%s has %d switches that compute, which these plans do not describe", p.Name, p.Switches)
	}
	e := newPlanEncoder(p)
	// Who is waited for, and when, is known after a first run.
	err := step.Run(p, func(r sched.Rank, a *step.Action, m struct{}) (struct{}, error) {
		if a.Op == sched.Wait && a.Done > 0 {
			e.await(int(r), int(a.On), int(a.Channel), a.Done)
		}
		return m, nil
	})
	if err != nil {
		return err
	}
	err = step.Run(p, func(r sched.Rank, a *step.Action, m struct{}) (struct{}, error) { return m, e.add(int(r), a) })
	if err != nil {
		return err
	}
	for r := range e.gpus {
		if err := e.gpus[r].fits(); err != nil {
			return err
		}
	}
	made := Plan{Name: p.Name, Collective: coll, Protocol: "Simple", Align: 16, Threads: 1024, GPUs: e.gpus}
	return made.Write(w)
}

// pairOf is a channel of a rank that another one waits for.
type pairOf struct{ rank, on, by int }

// await notes a wait: the semaphore of the two channels is released then.
func (e *planEncoder) await(r, on, by int, done int64) {
	key := pairOf{r, on, by}
	if _, ok := e.sems[key]; !ok {
		e.sems[key] = len(e.gpus[r].Semaphores)
		e.gpus[r].Semaphores = append(e.gpus[r].Semaphores, planSem{})
		e.pairs = append(e.pairs, key)
	}
	e.due[key] = append(e.due[key], done)
}

type planEncoder struct {
	p      *sched.Program
	sems   map[pairOf]int
	pairs  []pairOf // in the order of their semaphores
	due    map[pairOf][]int64
	gpus   []planGPU
	chans  map[[3]int]int // by rank, peer and channel of the program: position in the thread block's list
	remote map[[2]int]int // by rank and peer: the peer's scratch among the remote buffers
	sent   map[step.Conn][]int
}

// channel gives the position of a connection in a thread block's list. The two
// ends of a pair are at the same place among those of their ranks, as channels
// are made on both sides at once.
func (e *planEncoder) channel(r, peer, c int) int {
	key := [3]int{r, peer, c}
	if at, ok := e.chans[key]; ok {
		return at
	}
	for _, end := range [][2]int{{r, peer}, {peer, r}} {
		g := &e.gpus[end[0]]
		b := &g.Blocks[c]
		e.chans[[3]int{end[0], end[1], c}] = len(b.Channels[0].IDs)
		b.Channels[0].IDs = append(b.Channels[0].IDs, len(g.Channels[0].To))
		g.Channels[0].To = append(g.Channels[0].To, end[1])
	}
	return e.chans[key]
}

// scratch gives the position of a peer's scratch in a thread block's list of remote buffers.
func (e *planEncoder) scratch(r, peer, c int) int {
	g := &e.gpus[r]
	id, ok := e.remote[[2]int{r, peer}]
	if !ok {
		id = len(g.Remote)
		e.remote[[2]int{r, peer}] = id
		g.Remote = append(g.Remote, planRemote{Rank: peer, Type: "s", Access: []string{"memory"}})
	}
	refs := &g.Blocks[c].Remote[0].IDs
	for i, known := range *refs {
		if known == id {
			return i
		}
	}
	*refs = append(*refs, id)
	return len(*refs) - 1
}

func localBuf(c step.Chunks) planBuf {
	return planBuf{Type: letters[c.Buf], Index: int(c.Index), Size: int(c.Count)}
}

// add writes one action of a rank. Messages come in the order in which they were
// sent, so their places in scratch are known when they are received.
func (e *planEncoder) add(r int, a *step.Action) error {
	b := &e.gpus[r].Blocks[a.Channel]
	put := func(op planOp) { b.Ops = append(b.Ops, op) }
	nop := planOp{Name: "nop"}
	src, dst := localBuf(a.Src), localBuf(a.Dst)
	message := planBuf{Type: "s", Size: int(a.Count)}
	defer func() { // whoever waits for this action may go on
		for _, key := range e.pairs {
			if key.rank == r && key.on == int(a.Channel) {
				for _, done := range e.due[key] {
					if done == a.Step+1 {
						put(planOp{Name: "sem_release", Sems: []int{e.sems[key]}})
					}
				}
			}
		}
	}()
	if a.Op == sched.Wait {
		if a.Done > 0 {
			put(planOp{Name: "sem_acquire", Sems: []int{e.sems[pairOf{r, int(a.On), int(a.Channel)}]}})
			put(nop)
		}
		return nil
	}
	if a.Op.Receives() {
		way := step.Conn{From: a.From, To: sched.Rank(r), Channel: a.Channel}
		message.Index = e.sent[way][0]
		e.sent[way] = e.sent[way][1:]
		put(planOp{Name: "wait", Type: "memory", Channels: []int{e.channel(r, int(a.From), int(a.Channel))}})
		put(nop)
	}
	value := src
	if a.Count == 0 { // a signal
		if a.Op.Sends() {
			put(planOp{Name: "signal", Type: "memory", Channels: []int{e.channel(r, int(a.To), int(a.Channel))}})
			way := step.Conn{From: sched.Rank(r), To: a.To, Channel: a.Channel}
			e.sent[way] = append(e.sent[way], 0)
		}
		return nil
	}
	switch a.Op {
	case sched.Copy:
		put(planOp{Name: "copy", Src: []planBuf{src}, Dst: []planBuf{dst}})
		put(nop)
	case sched.LocalReduce:
		put(planOp{Name: "re", Src: []planBuf{dst, src}, Dst: []planBuf{dst}, Reduce: "sum"})
		put(nop)
	case sched.Recv, sched.RecvSend:
		value = dst
		put(planOp{Name: "copy", Src: []planBuf{message}, Dst: []planBuf{dst}})
		put(nop)
	case sched.RecvReduce, sched.RecvReduceCopySend:
		value = dst
		put(planOp{Name: "re", Src: []planBuf{src, message}, Dst: []planBuf{dst}, Reduce: "sum"})
		put(nop)
	case sched.RecvReduceSend:
		value = message
		put(planOp{Name: "re", Src: []planBuf{message, src}, Dst: []planBuf{message}, Reduce: "sum"})
		put(nop)
	}
	if a.Op.Sends() {
		to := int(a.To)
		at := *e.gpus[to].Scratch
		*e.gpus[to].Scratch += int(a.Count)
		way := step.Conn{From: sched.Rank(r), To: a.To, Channel: a.Channel}
		e.sent[way] = append(e.sent[way], at)
		id := e.scratch(r, to, int(a.Channel))
		put(planOp{Name: "put", Type: "memory", Src: []planBuf{value}, Dst: []planBuf{{Remote: &id, Index: at, Size: int(a.Count)}}})
		put(nop)
		put(planOp{Name: "signal", Type: "memory", Channels: []int{e.channel(r, to, int(a.Channel))}})
	}
	return nil
}
