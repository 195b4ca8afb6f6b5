package msccl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/sched"
)

// MSCCL++'s execution plan is JSON: for every GPU, thread blocks of one-sided
// operations. Field names are those of its loader since August 2025.
type plan struct {
	Name       string    `json:"name"`
	Collective string    `json:"collective"`
	Protocol   string    `json:"protocol"`
	InPlace    bool      `json:"inplace"`
	Reuse      bool      `json:"reuse_resources"`
	Double     bool      `json:"use_double_scratch_buffer"`
	Align      int       `json:"buffer_alignment,omitempty"`
	Threads    int       `json:"num_threads_per_block,omitempty"`
	GPUs       []planGPU `json:"gpus"`
}

type planGPU struct {
	ID         int           `json:"id"`
	In         *int          `json:"input_chunks"`
	Out        *int          `json:"output_chunks"`
	Scratch    *int          `json:"scratch_chunks"`
	Channels   []planChannel `json:"channels"`
	Remote     []planRemote  `json:"remote_buffers"`
	Semaphores []planSem     `json:"semaphores,omitempty"`
	Blocks     []planBlock   `json:"threadblocks"`
}

type planChannel struct {
	Type   string          `json:"channel_type"`
	To     []int           `json:"connected_to,omitempty"`
	Buffer string          `json:"buffer_type,omitempty"` // of a switch channel
	Buff   string          `json:"buff,omitempty"`        // its name in plans before August 2025
	Groups json.RawMessage `json:"rank_groups,omitempty"`
}

type planRemote struct {
	Rank   int      `json:"rank"`
	Type   string   `json:"type"`
	Access []string `json:"access_channel_types"`
}

type planSem struct {
	Init int `json:"init_value"`
}

type planBlock struct {
	ID       int          `json:"id"`
	Ops      []planOp     `json:"ops"`
	Channels []planUse    `json:"channels"`
	Remote   []planRefUse `json:"remote_buffer_refs"`
}

type planUse struct {
	Type string `json:"channel_type"`
	IDs  []int  `json:"channel_ids"`
}

type planRefUse struct {
	Type string `json:"access_channel_type"`
	IDs  []int  `json:"remote_buffer_ids"`
}

type planOp struct {
	Name     string          `json:"name"`
	Type     string          `json:"channel_type,omitempty"`
	Channels []int           `json:"channel_ids,omitempty"`
	Src      []planBuf       `json:"src_buff,omitempty"`
	Dst      []planBuf       `json:"dst_buff,omitempty"`
	Reduce   string          `json:"reduce_op,omitempty"`
	Barrier  *int            `json:"barrier_id,omitempty"`
	Count    int             `json:"num_threadblocks,omitempty"`
	Sems     []int           `json:"semaphore_ids,omitempty"`
	Group    json.RawMessage `json:"tbg_info,omitempty"`
}

type planBuf struct {
	Type   string `json:"type,omitempty"`
	Remote *int   `json:"buffer_id,omitempty"`
	Switch *int   `json:"switch_channel_id,omitempty"`
	Index  int    `json:"index"`
	Size   int    `json:"size"`
}

// The names of collectives and what the loader's tables hold at most.
var planColls = map[sched.Collective]string{sched.AllReduce: "allreduce", sched.AllGather: "allgather", sched.ReduceScatter: "reducescatter", sched.AllToAll: "alltoall"}

const (
	maxPlanOps   = 64 // of a thread block
	maxPlanChans = 16 // of a thread block and type
	maxPlanSems  = 16
)

// DecodePlan reads a MSCCL++ execution plan as a program. Put, get, signal,
// wait, copy, the reductions re, rre, rres and res, barriers and semaphores of
// memory and port channels are understood; packets, multimem and pipelines are
// refused by name. Every pair of a plan's channels becomes a channel of the
// program of its own, on which puts and signals are messages in their order; a
// thread block's wait waits for that channel.
func DecodePlan(r io.Reader) (*sched.Program, error) {
	var p plan
	if err := json.NewDecoder(io.LimitReader(r, 64<<20)).Decode(&p); err != nil {
		return nil, fmt.Errorf("no MSCCL++ plan: %w", err)
	}
	d := &planDecoder{plan: &p, n: len(p.GPUs), conns: map[conn]*wires{}, barriers: map[string]map[int]int{}, releases: map[[2]int][]release{}, acquired: map[[2]int]int{}}
	if err := d.head(); err != nil {
		return nil, err
	}
	if err := d.threads(); err != nil {
		return nil, err
	}
	return d.program()
}

// conn is a way of messages: a pair of channels, or reads of a thread block.
type conn struct {
	from, to int
	kind     string
	index    int
}

// wires is what passes a way.
type wires struct {
	channel int
	send    []sched.Stmt
	recv    []sched.Stmt
	signals []int // by signal: actions of the receiver's thread up to it
	owner   int   // thread block that sends; -1 if none yet
	waited  int   // signals that were waited for
	posted  []int // by signal: actions of the sender's thread block before it
}

type planThread struct {
	gpu, id int
	body    []sched.Stmt
	last    map[int]int // by peer: signals of it that were waited for, so far
	lastOn  map[int]*wires
}

type planDecoder struct {
	plan     *plan
	n        int
	op       sched.Collective
	inside   bool // in and out are one memory
	scratch  int
	hold     int // chunks of scratch for what is read, and one for signals
	conns    map[conn]*wires
	order    []*wires
	ends     []conn
	blocks   [][]*planThread
	width    int                    // thread blocks of the GPU that has most
	barriers map[string]map[int]int // by GPU, barrier and round: how far each thread block was
	releases map[[2]int][]release   // by GPU and semaphore
	acquired map[[2]int]int
	fixes    []func() error
	chunks   int
}

func (d *planDecoder) head() error {
	p := d.plan
	for op, name := range planColls {
		if name == p.Collective {
			d.op = op
		}
	}
	switch {
	case p.Collective == "":
		return errors.New("this JSON is no MSCCL++ plan: it names no collective")
	case d.op == 0:
		return fmt.Errorf("collective %q; known: allreduce, allgather, reducescatter, alltoall", p.Collective)
	case p.Protocol != "Simple":
		return fmt.Errorf("protocol %q: only Simple is read; LL's packets carry flags that programs do not have", p.Protocol)
	case d.n < 2 || d.n > 1024:
		return fmt.Errorf("%d gpus; want 2 to 1024", d.n)
	}
	for i := range p.GPUs {
		g := &p.GPUs[i]
		switch {
		case g.ID != i:
			return fmt.Errorf("gpu %d comes where %d should", g.ID, i)
		case g.In == nil || g.Out == nil || g.Scratch == nil:
			return fmt.Errorf("gpu %d lacks input_chunks, output_chunks or scratch_chunks: an older layout, or none of MSCCL++", i)
		case *g.In < 0 || *g.Out < 0 || *g.Scratch < 0 || *g.In > 1<<16 || *g.Out > 1<<16 || *g.Scratch > 1<<16:
			return fmt.Errorf("gpu %d has %d, %d and %d chunks", i, *g.In, *g.Out, *g.Scratch)
		}
		for _, c := range g.Channels {
			if c.Buff != "" {
				return fmt.Errorf("gpu %d: a switch channel says buff where buffer_type is expected: a layout of before August 2025", i)
			}
		}
		d.chunks = max(d.chunks, *g.In, *g.Out)
		d.scratch = max(d.scratch, *g.Scratch)
		d.width = max(d.width, len(g.Blocks))
	}
	d.inside = p.InPlace
	for _, g := range p.GPUs {
		for _, b := range g.Blocks {
			for _, o := range b.Ops {
				for _, to := range o.Dst {
					d.inside = d.inside || to.Type == "i" || to.Remote != nil && remoteType(&g, &b, o.Type, *to.Remote) == "i"
				}
			}
		}
	}
	if d.op.Blocks() && d.chunks%d.n != 0 {
		return fmt.Errorf("%d chunks for %d gpus", d.chunks, d.n)
	}
	return nil
}

func remoteType(g *planGPU, b *planBlock, access string, id int) string {
	if r, ok := remote(g, b, access, id); ok {
		return r.Type
	}
	return ""
}

// remote finds a remote buffer by its position in the thread block's list.
func remote(g *planGPU, b *planBlock, access string, id int) (planRemote, bool) {
	for _, u := range b.Remote {
		if (access == "" || u.Type == access) && id >= 0 && id < len(u.IDs) && u.IDs[id] >= 0 && u.IDs[id] < len(g.Remote) {
			return g.Remote[u.IDs[id]], true
		}
	}
	return planRemote{}, false
}

// peer finds whom a channel of a thread block leads to, and which of the pairs of the two it is.
func (d *planDecoder) peer(g *planGPU, b *planBlock, kind string, id int) (to, pair int, err error) {
	for _, u := range b.Channels {
		if u.Type != kind || id < 0 || id >= len(u.IDs) {
			continue
		}
		at := u.IDs[id]
		for _, c := range g.Channels {
			if c.Type != kind || at < 0 || at >= len(c.To) {
				continue
			}
			for _, q := range c.To[:at] {
				if q == c.To[at] {
					pair++
				}
			}
			if to = c.To[at]; to < 0 || to >= d.n || to == g.ID {
				return 0, 0, fmt.Errorf("%s channel %d leads to gpu %d", kind, id, to)
			}
			return to, pair, nil
		}
	}
	return 0, 0, fmt.Errorf("there is no %s channel %d", kind, id)
}

func (d *planDecoder) way(c conn) *wires {
	w := d.conns[c]
	if w == nil {
		w = &wires{owner: -1, channel: len(d.order)}
		d.conns[c] = w
		d.order, d.ends = append(d.order, w), append(d.ends, c)
	}
	return w
}

// ref says where a local buffer of a GPU lies in the program.
func (d *planDecoder) ref(gpu int, kind string, index, size int) (sched.Ref, error) {
	g := &d.plan.GPUs[gpu]
	limit := map[string]int{"i": *g.In, "o": *g.Out, "s": *g.Scratch}
	most, ok := limit[kind]
	if !ok {
		return sched.Ref{}, fmt.Errorf("buffer type %q; known: i, o, s", kind)
	}
	if kind == "o" && d.inside && most == 0 {
		most = *g.In
	}
	if index < 0 || size < 1 || index+size > most {
		return sched.Ref{}, fmt.Errorf("%s[%d +: %d] is outside the %d chunks there are", kind, index, size, most)
	}
	buf, at := sched.Tmp, index
	per := d.chunks / d.n
	switch {
	case kind == "s":
	case d.inside && d.op == sched.AllGather && kind == "i" && *g.In < d.chunks:
		buf, at = sched.Out, gpu*per+index
	case d.inside && d.op == sched.ReduceScatter:
		if kind == "o" && *g.Out < d.chunks {
			at += gpu * per
		}
		at += d.scratch
	case d.inside || kind == "o":
		buf = sched.Out
	default:
		buf = sched.In
	}
	r := sched.Ref{Buf: buf, Index: sched.N(at)}
	if size > 1 {
		r.Count = sched.N(size)
	}
	return r, nil
}

func (d *planDecoder) threads() error {
	for g := range d.plan.GPUs {
		var list []*planThread
		for i := range d.plan.GPUs[g].Blocks {
			list = append(list, &planThread{gpu: g, id: i, last: map[int]int{}, lastOn: map[int]*wires{}})
		}
		d.blocks = append(d.blocks, list)
	}
	for g := range d.plan.GPUs {
		gpu := &d.plan.GPUs[g]
		for i := range gpu.Blocks {
			b := &gpu.Blocks[i]
			if d.inside { // in and out become one memory first
				d.blocks[g][i].body = append(d.blocks[g][i].body, wait(0, 1))
			}
			for k := range b.Ops {
				if err := d.step(gpu, b, d.blocks[g][i], k); err != nil {
					return fmt.Errorf("gpu %d thread block %d op %d (%s): %w", g, i, k, b.Ops[k].Name, err)
				}
			}
		}
	}
	for _, fix := range d.fixes {
		if err := fix(); err != nil {
			return err
		}
	}
	for i, w := range d.order { // what nobody waits for may come after the end
		if c := d.ends[i]; w.waited < len(w.signals) {
			return fmt.Errorf("gpu %d gives gpu %d %d signals on a %s channel, of which it waits for %d", c.from, c.to, len(w.signals), c.kind, w.waited)
		}
	}
	return nil
}

func do(op sched.Op, src, dst sched.Ref) sched.Stmt {
	return sched.Stmt{Step: &sched.Step{Op: op, Src: src, Dst: dst}}
}

// first is the number of the first channel of connections: after a channel that
// makes in and out one memory, and one for each thread block.
func (d *planDecoder) first() int { return 1 + d.width }

// step takes one operation of a thread block.
func (d *planDecoder) step(g *planGPU, b *planBlock, t *planThread, k int) error {
	o := &b.Ops[k]
	if len(o.Group) > 0 && string(o.Group) != "null" {
		return fmt.Errorf("a chunk sliced among thread blocks (tbg_info) is not read")
	}
	local := func(list []planBuf, i int) (sched.Ref, error) {
		if i >= len(list) || list[i].Remote != nil || list[i].Switch != nil {
			return sched.Ref{}, fmt.Errorf("buffer %d is not a local one", i)
		}
		return d.ref(g.ID, list[i].Type, list[i].Index, list[i].Size)
	}
	put := func(src sched.Ref, to planBuf) error { return d.put(g, b, t, k, src, to) }
	switch o.Name {
	case "nop", "flush":
	case "copy":
		src, err := local(o.Src, 0)
		if err != nil {
			return err
		}
		dst, err := local(o.Dst, 0)
		if err != nil {
			return err
		}
		t.body = append(t.body, do(sched.Copy, src, dst))
	case "re", "rre", "rres", "res":
		return d.reduce(g, b, t, k, local, put)
	case "put", "pws", "pwsf":
		for i := range o.Src {
			src, err := local(o.Src, i)
			if err != nil {
				return err
			}
			if i >= len(o.Dst) {
				return fmt.Errorf("%d sources and %d targets", len(o.Src), len(o.Dst))
			}
			if err := put(src, o.Dst[i]); err != nil {
				return err
			}
		}
		if o.Name != "put" {
			return d.signal(g, b, t, o)
		}
	case "get":
		for i := range o.Src {
			dst, err := local(o.Dst, i)
			if err != nil {
				return err
			}
			from, err := d.read(g, b, t, o, o.Src[i])
			if err != nil {
				return err
			}
			t.body = append(t.body, do(sched.Copy, from, dst))
		}
	case "signal", "rlxsignal":
		return d.signal(g, b, t, o)
	case "wait", "rlxwait":
		for _, id := range o.Channels {
			from, pair, err := d.peer(g, b, o.Type, id)
			if err != nil {
				return err
			}
			w := d.way(conn{from, g.ID, o.Type, pair})
			at := w.waited
			w.waited++
			done := sched.N(0)
			t.body = append(t.body, sched.Stmt{Step: &sched.Step{Op: sched.Wait, Channel: sched.N(d.first() + w.channel), Done: done}})
			t.last[from], t.lastOn[from] = at, w
			d.fixes = append(d.fixes, func() error {
				if at >= len(w.signals) {
					return fmt.Errorf("gpu %d thread block %d waits for %d signals of gpu %d on a %s channel, which gives %d", g.ID, b.ID, at+1, from, o.Type, len(w.signals))
				}
				done.Val = int64(w.signals[at])
				return nil
			})
		}
	case "barrier":
		if o.Barrier == nil {
			return fmt.Errorf("no barrier_id")
		}
		d.barrier(g, t, *o.Barrier)
	case "sem_acquire", "sem_release":
		for _, id := range o.Sems {
			if id < 0 || id >= len(g.Semaphores) {
				return fmt.Errorf("there is no semaphore %d", id)
			}
			d.semaphore(g, t, id, o.Name == "sem_acquire")
		}
	default:
		known := "nop, copy, re, put, pws, pwsf, get, signal, wait, rlxsignal, rlxwait, flush, rre, rres, res, barrier, sem_acquire, sem_release"
		return fmt.Errorf("not read: packets, multimem and pipelines have no form in a program; known: %s", known)
	}
	return nil
}

// put sends chunks to where they belong in a peer's memory, with the next signal to it.
func (d *planDecoder) put(g *planGPU, b *planBlock, t *planThread, k int, src sched.Ref, dst planBuf) error {
	if dst.Remote == nil {
		return fmt.Errorf("its target is not a remote buffer")
	}
	r, ok := remote(g, b, b.Ops[k].Type, *dst.Remote)
	if !ok {
		return fmt.Errorf("there is no remote buffer %d", *dst.Remote)
	}
	if r.Rank < 0 || r.Rank >= d.n || r.Rank == g.ID {
		return fmt.Errorf("remote buffer %d is on gpu %d", *dst.Remote, r.Rank)
	}
	to, err := d.ref(r.Rank, r.Type, dst.Index, dst.Size)
	if err != nil {
		return err
	}
	var w *wires
	for _, o := range b.Ops[k:] { // the signal that says that it is there
		if o.Name != "signal" && o.Name != "rlxsignal" && o.Name != "pws" && o.Name != "pwsf" {
			continue
		}
		for _, id := range o.Channels {
			if peer, pair, err := d.peer(g, b, o.Type, id); err == nil && peer == r.Rank && w == nil {
				w = d.way(conn{g.ID, r.Rank, o.Type, pair})
			}
		}
	}
	if w == nil {
		return fmt.Errorf("no signal to gpu %d follows, so nobody can know that the data is there", r.Rank)
	}
	if err := w.take(t); err != nil {
		return err
	}
	w.send = append(w.send, wait(1+t.id, len(t.body)), sched.Stmt{Step: &sched.Step{Op: sched.Send, Src: src, To: sched.N(r.Rank)}})
	w.recv = append(w.recv, sched.Stmt{Step: &sched.Step{Op: sched.Recv, Dst: to, From: sched.N(g.ID)}})
	t.body = append(t.body, wait(d.first()+w.channel, len(w.send)))
	return nil
}

func (w *wires) take(t *planThread) error {
	if w.owner >= 0 && w.owner != t.id {
		return fmt.Errorf("thread blocks %d and %d signal on one channel", w.owner, t.id)
	}
	w.owner = t.id
	return nil
}

// signal sends a message that carries nothing of use.
func (d *planDecoder) signal(g *planGPU, b *planBlock, t *planThread, o *planOp) error {
	for _, id := range o.Channels {
		to, pair, err := d.peer(g, b, o.Type, id)
		if err != nil {
			return err
		}
		w := d.way(conn{g.ID, to, o.Type, pair})
		if err := w.take(t); err != nil {
			return err
		}
		w.posted = append(w.posted, len(t.body))
		w.send = append(w.send, wait(1+t.id, len(t.body)), sched.Stmt{Step: &sched.Step{Op: sched.Send, Src: sched.Ref{Buf: sched.In, Index: sched.N(0)}, To: sched.N(to)}})
		flag := &sched.Step{Op: sched.Recv, Dst: sched.Ref{Buf: sched.Tmp, Index: d.flag(w)}, From: sched.N(g.ID)}
		w.recv = append(w.recv, sched.Stmt{Step: flag})
		w.signals = append(w.signals, len(w.recv)+d.framed())
	}
	return nil
}

// framed is what a receiving thread does before its first message.
func (d *planDecoder) framed() int {
	if d.inside {
		return 1
	}
	return 0
}

// flag is the chunk of scratch for what signals carry: one for each connection.
func (d *planDecoder) flag(w *wires) *sched.Expr {
	e := sched.N(0)
	d.fixes = append(d.fixes, func() error {
		e.Val = int64(d.base() + d.hold + w.channel)
		return nil
	})
	return e
}

// base is where the scratch of the plan, and of the one memory, ends.
func (d *planDecoder) base() int {
	if d.inside && d.op == sched.ReduceScatter {
		return d.scratch + d.chunks
	}
	return d.scratch
}

// read gets chunks of a peer: it sends them once it has given the signal that the reader waited for.
func (d *planDecoder) read(g *planGPU, b *planBlock, t *planThread, o *planOp, src planBuf) (sched.Ref, error) {
	if src.Remote == nil {
		return sched.Ref{}, fmt.Errorf("its source is not a remote buffer")
	}
	r, ok := remote(g, b, o.Type, *src.Remote)
	if !ok || r.Rank < 0 || r.Rank >= d.n || r.Rank == g.ID {
		return sched.Ref{}, fmt.Errorf("there is no remote buffer %d", *src.Remote)
	}
	from, err := d.ref(r.Rank, r.Type, src.Index, src.Size)
	if err != nil {
		return sched.Ref{}, err
	}
	w := d.way(conn{r.Rank, g.ID, "read", t.id})
	signal, k := t.lastOn[r.Rank], t.last[r.Rank]
	channel, done := sched.N(0), sched.N(0)
	w.send = append(w.send, sched.Stmt{Step: &sched.Step{Op: sched.Wait, Channel: channel, Done: done}}, sched.Stmt{Step: &sched.Step{Op: sched.Send, Src: from, To: sched.N(g.ID)}})
	d.fixes = append(d.fixes, func() error {
		channel.Val, done.Val = 0, int64(d.framed())
		if signal != nil && k < len(signal.posted) {
			channel.Val, done.Val = int64(1+signal.owner), int64(signal.posted[k])
		}
		return nil
	})
	at := sched.N(0)
	offset := d.hold
	d.hold += src.Size
	d.fixes = append(d.fixes, func() error { at.Val = int64(d.base() + offset); return nil })
	hold := sched.Ref{Buf: sched.Tmp, Index: at}
	if src.Size > 1 {
		hold.Count = sched.N(src.Size)
	}
	w.recv = append(w.recv, sched.Stmt{Step: &sched.Step{Op: sched.Recv, Dst: hold, From: sched.N(r.Rank)}})
	t.body = append(t.body, wait(d.first()+w.channel, len(w.recv)+d.framed()))
	return hold, nil
}

// reduce adds sources, local ones and read ones, into the first target, and puts it to the others.
func (d *planDecoder) reduce(g *planGPU, b *planBlock, t *planThread, k int, local func([]planBuf, int) (sched.Ref, error), put func(sched.Ref, planBuf) error) error {
	o := &b.Ops[k]
	if len(o.Src) < 2 || len(o.Dst) < 1 {
		return fmt.Errorf("%d sources and %d targets; want two and one at least", len(o.Src), len(o.Dst))
	}
	dst, err := local(o.Dst, 0)
	if err != nil {
		return err
	}
	var srcs []sched.Ref
	for i, s := range o.Src {
		var ref sched.Ref
		if s.Remote != nil {
			ref, err = d.read(g, b, t, o, s)
		} else {
			ref, err = local(o.Src, i)
		}
		if err != nil {
			return err
		}
		srcs = append(srcs, ref)
	}
	if at := slices.IndexFunc(srcs, func(r sched.Ref) bool { return r.String() == dst.String() }); at >= 0 {
		srcs[0], srcs[at] = srcs[at], srcs[0]
	} else {
		t.body = append(t.body, do(sched.Copy, srcs[0], dst))
	}
	for _, s := range srcs[1:] {
		t.body = append(t.body, do(sched.LocalReduce, s, dst))
	}
	for _, to := range o.Dst[1:] {
		if err := put(dst, to); err != nil {
			return err
		}
	}
	return nil
}

// barrier makes thread blocks of a GPU wait for one another. They are read one
// after another, so where the others are at it is filled in in the end.
func (d *planDecoder) barrier(g *planGPU, t *planThread, id int) {
	round := 0
	key := func() string { return fmt.Sprint(g.ID, id, round) }
	for d.barriers[key()] != nil {
		if _, met := d.barriers[key()][t.id]; !met {
			break
		}
		round++
	}
	at := key()
	if d.barriers[at] == nil {
		d.barriers[at] = map[int]int{}
	}
	d.barriers[at][t.id] = len(t.body)
	for other := range g.Blocks {
		if other == t.id {
			continue
		}
		done := sched.N(0)
		t.body = append(t.body, sched.Stmt{Step: &sched.Step{Op: sched.Wait, Channel: sched.N(1 + other), Done: done}})
		d.fixes = append(d.fixes, func() error {
			done.Val = int64(d.barriers[at][other]) // 0 for one that takes no part
			return nil
		})
	}
}

// release is a thread block that released a semaphore, and how far it was.
type release struct{ block, done int }

// semaphore lets a thread block go on once another one has come so far.
func (d *planDecoder) semaphore(g *planGPU, t *planThread, id int, acquire bool) {
	key := [2]int{g.ID, id}
	if !acquire {
		d.releases[key] = append(d.releases[key], release{t.id, len(t.body)})
		return
	}
	k := d.acquired[key] - g.Semaphores[id].Init
	d.acquired[key]++
	if k < 0 {
		return
	}
	channel, done := sched.N(0), sched.N(0)
	t.body = append(t.body, sched.Stmt{Step: &sched.Step{Op: sched.Wait, Channel: channel, Done: done}})
	d.fixes = append(d.fixes, func() error {
		if k >= len(d.releases[key]) {
			return fmt.Errorf("gpu %d: semaphore %d is acquired %d times and released %d times", g.ID, id, k+1, len(d.releases[key]))
		}
		r := d.releases[key][k]
		channel.Val, done.Val = int64(1+r.block), int64(r.done)
		return nil
	})
}

// program puts the threads together: channel 0 makes in and out one memory, then
// a channel for each thread block, and one for each connection.
func (d *planDecoder) program() (*sched.Program, error) {
	p := &sched.Program{Name: "plan", Op: d.op, Ranks: d.n, Chunks: sched.N(d.chunks), Slots: 8}
	if name := strings.Join(strings.Fields(d.plan.Name), "-"); name != "" {
		p.Name = name
	}
	if total := d.base() + d.hold + len(d.order); total > 0 {
		p.Scratch = sched.N(total)
	}
	p.Groups = make([]sched.Group, d.first()+len(d.order))
	for i := range p.Groups {
		p.Groups[i].Count = 1
	}
	r := &sched.Expr{Kind: sched.Var, Name: "r"}
	rank := func(c, g int, body []sched.Stmt) {
		if len(body) > 0 {
			p.Groups[c].Body = append(p.Groups[c].Body, sched.Stmt{If: &sched.If{Cond: &sched.Expr{Kind: sched.Eq, L: r, R: sched.N(g)}, Then: body}})
		}
	}
	for g := range d.n {
		if d.inside {
			rank(0, g, d.frame(p, g))
		}
		for _, t := range d.blocks[g] {
			rank(1+t.id, g, t.body)
		}
	}
	for i, w := range d.order {
		rank(d.first()+i, d.ends[i].from, w.send)
		recv := w.recv
		if d.inside && len(recv) > 0 {
			recv = append([]sched.Stmt{wait(0, 1)}, recv...)
		}
		rank(d.first()+i, d.ends[i].to, recv)
	}
	return p, p.Check()
}

// frame copies in to the one memory before anybody looks, and out of it in the end.
func (d *planDecoder) frame(p *sched.Program, g int) []sched.Stmt {
	many := func(n int) *sched.Expr {
		if n == 1 {
			return nil
		}
		return sched.N(n)
	}
	in, out := p.NumChunks(sched.In), p.NumChunks(sched.Out)
	src := sched.Ref{Buf: sched.In, Index: sched.N(0), Count: many(in)}
	dst := sched.Ref{Buf: sched.Out, Index: sched.N(0), Count: many(in)}
	switch d.op {
	case sched.AllGather:
		dst.Index = sched.N(g * in)
	case sched.ReduceScatter:
		dst = sched.Ref{Buf: sched.Tmp, Index: sched.N(d.scratch), Count: many(in)}
	}
	body := []sched.Stmt{do(sched.Copy, src, dst)}
	if d.op != sched.ReduceScatter {
		return body
	}
	for _, t := range d.blocks[g] {
		body = append(body, wait(1+t.id, len(t.body)))
	}
	return append(body, do(sched.Copy, sched.Ref{Buf: sched.Tmp, Index: sched.N(d.scratch + g*out), Count: many(out)}, sched.Ref{Buf: sched.Out, Index: sched.N(0), Count: many(out)}))
}
