package msccl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

func do(op sched.Op, src, dst sched.Ref) sched.Stmt {
	return sched.Stmt{Step: &sched.Step{Op: op, Src: src, Dst: dst}}
}

// parts names some parts of chunks.
func parts(buf sched.Buffer, index, count int) sched.Ref {
	r := sched.Ref{Buf: buf, Index: sched.N(index)}
	if count > 1 {
		r.Count = sched.N(count)
	}
	return r
}

func length(r sched.Ref) int {
	if r.Count == nil {
		return 1
	}
	return int(r.Count.Val)
}

// Where things lie in scratch of the program: scratch of the plan, its packets, the input where it is written, and what thread
// blocks hold.
func (d *planDecoder) packetBase() int { return d.scratch }
func (d *planDecoder) onesBase() int   { return 2 * d.scratch }
func (d *planDecoder) holdBase() int {
	if d.moved() {
		return d.onesBase() + d.chunks
	}
	return d.onesBase()
}

// moved reports whether input lies in scratch of the program.
func (d *planDecoder) moved() bool { return d.copied || d.inside && d.op == sched.ReduceScatter }

// ones reports whether chunks lie in the one memory of in and out.
func (d *planDecoder) ones(r sched.Ref) bool {
	return d.inside && d.moved() && r.Buf == sched.Tmp && int(r.Index.Val) >= d.onesBase() && int(r.Index.Val) < d.holdBase()
}

// span says which parts of a buffer an operation is about.
func (d *planDecoder) span(o *unrolled, b planBuf) (index, count int, err error) {
	index, count = b.Index*d.fine, b.Size*d.fine
	if s := o.Slice; s != nil {
		count /= s.Of
		index += s.Part * count
	}
	if o.piece >= 0 {
		unit := d.fine / d.pieces
		if o.piece*unit >= count {
			return 0, 0, fmt.Errorf("it has %d chunks, fewer than the num_chunks of its pipeline", b.Size)
		}
		index, count = index+o.piece*unit, unit
	}
	return index, count, nil
}

// buffer says where parts of a buffer of a GPU lie in the program.
func (d *planDecoder) buffer(gpu int, kind string, b planBuf, o *unrolled) (sched.Ref, error) {
	g := &d.plan.GPUs[gpu]
	most, ok := map[string]int{"i": *g.In, "o": *g.Out, "s": *g.Scratch}[kind]
	if !ok {
		return sched.Ref{}, fmt.Errorf("buffer type %q; known: i, o, s", kind)
	}
	if kind == "o" && d.inside && most == 0 {
		most = *g.In
	}
	if b.Index+b.Size > most {
		return sched.Ref{}, fmt.Errorf("%s[%d +: %d] is outside the %d chunks there are", kind, b.Index, b.Size, most)
	}
	at, count, err := d.span(o, b)
	if err != nil {
		return sched.Ref{}, err
	}
	per := d.chunks / d.n
	switch {
	case kind == "s":
		for i := range count {
			d.plain[gpu][at+i] = true
		}
		return parts(sched.Tmp, at, count), nil
	case d.inside && d.op == sched.ReduceScatter:
		if kind == "o" && *g.Out*d.fine < d.chunks {
			at += gpu * per
		}
		return parts(sched.Tmp, d.onesBase()+at, count), nil
	case d.inside:
		if kind == "i" && *g.In*d.fine < d.chunks {
			at += gpu * per
		}
		return parts(sched.Out, at, count), nil
	case kind == "o":
		return parts(sched.Out, at, count), nil
	case d.copied:
		return parts(sched.Tmp, d.onesBase()+at, count), nil
	}
	return parts(sched.In, at, count), nil
}

// packet says where packets of a GPU lie in the program.
func (d *planDecoder) packet(gpu int, kind string, b planBuf, o *unrolled) (sched.Ref, error) {
	if kind != "s" {
		return sched.Ref{}, fmt.Errorf("packets in buffer %q; they are in scratch, s", kind)
	}
	if most := *d.plan.GPUs[gpu].Scratch; b.Index+b.Size > most {
		return sched.Ref{}, fmt.Errorf("s[%d +: %d] is outside the %d chunks there are", b.Index, b.Size, most)
	}
	at, count, err := d.span(o, b)
	return parts(sched.Tmp, d.packetBase()+at, count), err
}

// local gives a buffer of the thread block's own GPU.
func (d *planDecoder) local(t *planThread, o *unrolled, list []planBuf, i int) (sched.Ref, error) {
	if i >= len(list) || list[i].Remote != nil || list[i].Switch != nil {
		return sched.Ref{}, fmt.Errorf("buffer %d is not a local one", i)
	}
	r, err := d.buffer(t.gpu, list[i].Type, list[i], o)
	if err == nil && o.Type != "port" && !o.packets() {
		err = t.touch(o, r, len(o.Dst) > 0 && &list[0] == &o.Dst[0])
	}
	return r, err
}

// packets reports whether the operation is on packets, each of which is there for itself.
func (o *unrolled) packets() bool { return strings.HasSuffix(o.Name, "pkt") }

func (t *planThread) add(st ...sched.Stmt) { t.own.body = append(t.own.body, st...) }

// step carries out one operation of a thread block, or says in t.blocked what it waits for.
func (d *planDecoder) step(t *planThread, o unrolled) error {
	if o.Reduce != "" && o.Reduce != "sum" {
		return fmt.Errorf("reduce_op %q: MSCCL++ ignores it and adds", o.Reduce)
	}
	if o.packets() {
		switch {
		case d.plan.Protocol != "LL":
			return fmt.Errorf("packets with protocol %s: only LL makes room for their flags", d.plan.Protocol)
		case o.piece >= 0:
			return fmt.Errorf("packets in a pipeline: MSCCL++ sends all of them in every round")
		}
	}
	if err := d.synchronised(t, &o); err != nil {
		return err
	}
	switch o.Name {
	case "nop":
		t.meet()
		return nil
	case "copy":
		return d.copy(t, &o)
	case "re", "rre", "rres", "res":
		return d.reduce(t, &o)
	case "put", "pws", "pwsf":
		return d.puts(t, &o)
	case "get":
		return d.gets(t, &o)
	case "signal", "rlxsignal":
		for _, id := range o.Channels {
			if err := d.signal(t, o.Type, id); err != nil {
				return err
			}
		}
		return nil
	case "wait", "rlxwait":
		return d.wait(t, &o)
	case "flush":
		return d.flush(t, o.Type, o.Channels)
	case "barrier":
		return d.barrier(t, &o)
	case "sem_acquire", "sem_release":
		return d.semaphores(t, &o)
	case "ppkt", "rppkt", "cpkt", "upkt", "repkt", "recpkt", "respkt", "recspkt":
		return d.packed(t, &o)
	case "glres", "gstore", "gstorepkt":
		return d.multimem(t, &o)
	case "glre":
		return fmt.Errorf("MSCCL++'s loader does not take it; a reduction through the switch is stored through it, too (glres)")
	}
	return fmt.Errorf("unknown operation; known: nop, copy, re, rre, rres, res, put, pws, pwsf, get, signal, rlxsignal, wait, rlxwait, flush, barrier, sem_acquire, sem_release, ppkt, rppkt, cpkt, upkt, repkt, recpkt, respkt, recspkt, glres, gstore, gstorepkt, pipeline")
}

// synchronised checks that the threads of a block know of one another what an operation needs: waits and signals are those of a
// few threads, data is moved by all, and a nop makes them meet.
func (d *planDecoder) synchronised(t *planThread, o *unrolled) error {
	all := slices.Contains([]string{"copy", "re", "rre", "rres", "res", "put", "get", "glres", "gstore"}, o.Name) && o.Type != "port"
	switch {
	case all && t.pending:
		return flaw("it follows a wait with no nop between: the other threads of the block have not waited")
	case t.dirty && slices.Contains([]string{"signal", "rlxsignal", "sem_release"}, o.Name):
		return flaw("it follows an operation on data with no nop between: the other threads of the block may not be done")
	}
	t.dirty = t.dirty || all
	t.pending = t.pending || slices.Contains([]string{"wait", "rlxwait", "sem_acquire"}, o.Name)
	return nil
}

func (d *planDecoder) copy(t *planThread, o *unrolled) error {
	src, err := d.local(t, o, o.Src, 0)
	if err != nil {
		return err
	}
	dst, err := d.local(t, o, o.Dst, 0)
	if err == nil {
		err = t.move(src, dst)
	}
	return err
}

// move copies chunks, unless they are there.
func (t *planThread) move(src, dst sched.Ref) error {
	if length(src) != length(dst) {
		return fmt.Errorf("it moves %d parts of chunks to %d", length(src), length(dst))
	}
	if src.String() != dst.String() {
		t.add(do(sched.Copy, src, dst))
	}
	return nil
}

// target says where a put goes.
func (d *planDecoder) target(t *planThread, o *unrolled, b planBuf, packets bool) (rank int, dst sched.Ref, err error) {
	if b.Remote == nil {
		return 0, dst, fmt.Errorf("its target is not a remote buffer")
	}
	r, err := d.plan.remote(t.gpu, t.id, o.Type, *b.Remote)
	if err != nil {
		return 0, dst, err
	}
	if packets {
		dst, err = d.packet(r.Rank, r.Type, b, o)
	} else if err = t.begun(r.Rank, r.Type); err == nil {
		dst, err = d.buffer(r.Rank, r.Type, b, o)
	}
	return r.Rank, dst, err
}

// put writes chunks to a peer: the i-th buffer of an operation.
func (d *planDecoder) put(t *planThread, o *unrolled, src sched.Ref, i int, b planBuf, packets bool) error {
	rank, dst, err := d.target(t, o, b, packets)
	if err != nil {
		return err
	}
	if length(src) != length(dst) {
		return fmt.Errorf("it puts %d parts of chunks to %d", length(src), length(dst))
	}
	l := t.lane
	if o.Type == "port" {
		if i >= len(o.Channels) {
			return fmt.Errorf("%d targets and %d channel_ids", len(o.Dst), len(o.Channels))
		}
		w, err := d.plan.wire(t.gpu, t.id, o.Type, o.Channels[i])
		if err != nil {
			return err
		}
		if w.to != rank {
			return fmt.Errorf("port channel %d leads to gpu %d, remote buffer %d is on gpu %d", o.Channels[i], w.to, *b.Remote, rank)
		}
		l = d.port(t, w)
	}
	d.message(l, t.gpu, rank, src, dst)
	there := d.strand(l, rank)
	if o.Type != "port" {
		t.know.set(there.index, len(there.body))
	}
	if packets {
		return d.flag(rank, dst, packet{there.index, len(there.body), t.gpu})
	}
	return nil
}

// port gives the lane of a port channel, whose proxy does what a thread block asks once it has come so far.
func (d *planDecoder) port(t *planThread, w wire) *lane {
	l := d.ports[w]
	if l == nil {
		l = d.newLane()
		d.ports[w] = l
	}
	proxy := d.strand(l, t.gpu)
	d.await(proxy, t.know)
	d.after(proxy, t.own, len(t.own.body))
	return l
}

// checkPuts refuses what is not a put from each source to its target, and signals where the channel has none with a put.
func (o *planOp) checkPuts() error {
	if len(o.Src) != len(o.Dst) || len(o.Src) == 0 {
		return fmt.Errorf("%d sources and %d targets", len(o.Src), len(o.Dst))
	}
	if o.Name != "put" && o.Type != "port" {
		return fmt.Errorf("a %s channel; only port channels put and signal in one", o.Type)
	}
	return nil
}

// puts lowers put and its fused forms: signal follows each copy, and flush all of them.
func (d *planDecoder) puts(t *planThread, o *unrolled) error {
	if err := o.checkPuts(); err != nil {
		return err
	}
	for i := range o.Src {
		src, err := d.local(t, o, o.Src, i)
		if err != nil {
			return err
		}
		if err := d.put(t, o, src, i, o.Dst[i], false); err != nil {
			return err
		}
		if o.Name != "put" {
			if err := d.signal(t, o.Type, o.Channels[i]); err != nil {
				return err
			}
		}
	}
	if o.Name == "pwsf" {
		return d.flush(t, o.Type, o.Channels)
	}
	return nil
}

// flush waits until what was put through port channels has been read here, and is there.
func (d *planDecoder) flush(t *planThread, kind string, ids []int) error {
	for _, id := range ids {
		w, err := d.plan.wire(t.gpu, t.id, kind, id)
		if err != nil {
			return err
		}
		l := d.ports[w]
		if l == nil {
			continue
		}
		var k knowledge
		for _, s := range l.strands {
			k.set(s.index, len(s.body))
		}
		d.learn(t, k)
	}
	return nil
}

// signal passes on what a thread block knows.
func (d *planDecoder) signal(t *planThread, kind string, id int) error {
	w, err := d.plan.wire(t.gpu, t.id, kind, id)
	if err != nil {
		return err
	}
	l := t.lane
	if kind == "port" {
		l = d.port(t, w)
	}
	d.notify(l, w.from, w.to)
	k := slices.Clone(t.know)
	there := d.strand(l, w.to)
	k.set(there.index, len(there.body))
	d.post(t, w, k)
	return nil
}

// wait takes one signal from each channel. If one has not been given yet, the thread is blocked and nothing is taken:
// it will be tried again as a whole.
func (d *planDecoder) wait(t *planThread, o *unrolled) error {
	var keys []wire
	for _, id := range o.Channels {
		w, err := d.plan.wire(t.gpu, t.id, o.Type, id)
		if err != nil {
			return err
		}
		if c := d.counter(w.back()); !c.there(1) {
			t.blocked = fmt.Sprintf("signal %d of gpu %d on %s channel %d, which gives %d", len(c.took)+1, w.to, o.Type, id, c.posted)
			return nil
		}
		keys = append(keys, w.back())
	}
	for _, key := range keys {
		d.take(t, key)
	}
	return nil
}

// semaphores acquires or releases. Acquiring is all or nothing, as wait is.
func (d *planDecoder) semaphores(t *planThread, o *unrolled) error {
	for _, id := range o.Sems {
		if id < 0 || id >= len(d.plan.GPUs[t.gpu].Semaphores) {
			return fmt.Errorf("there is no semaphore %d", id)
		}
		if c := d.counter(semaphore{t.gpu, id}); o.Name == "sem_acquire" && !c.there(1) {
			t.blocked = fmt.Sprintf("release %d of semaphore %d, which is released %d times", len(c.took)+1-c.init, id, c.posted)
			return nil
		}
	}
	for _, id := range o.Sems {
		if o.Name == "sem_acquire" {
			d.take(t, semaphore{t.gpu, id})
		} else {
			d.post(t, semaphore{t.gpu, id}, t.know)
		}
	}
	return nil
}

// barrier makes thread blocks of a GPU wait for one another; the last one frees the others.
func (d *planDecoder) barrier(t *planThread, o *unrolled) error {
	if o.Barrier == nil || o.Count < 1 {
		return fmt.Errorf("no barrier_id, or no num_threadblocks")
	}
	key := [2]int{t.gpu, *o.Barrier}
	m := d.meetings[key]
	if m == nil {
		m = &meeting{count: o.Count}
		d.meetings[key] = m
	}
	if m.count != o.Count {
		return fmt.Errorf("num_threadblocks is %d here and %d elsewhere", o.Count, m.count)
	}
	if t.met {
		t.met = false
		return nil
	}
	if !t.arrived {
		t.arrived = true
		m.who = append(m.who, t)
	}
	if len(m.who) < m.count {
		t.blocked = fmt.Sprintf("the others at barrier %d: %d of %d are there", *o.Barrier, len(m.who), m.count)
		return nil
	}
	var all knowledge
	for _, w := range m.who {
		all.join(w.know)
	}
	for _, w := range m.who {
		d.learn(w, all)
		w.arrived, w.met = false, w != t
		w.meet()
	}
	m.who = nil
	return nil
}

// fetch lets a peer send chunks to a thread block that reads them, which waits for what the reader knows.
func (d *planDecoder) fetch(t *planThread, o *unrolled, b planBuf) (rank, count int, err error) {
	if b.Remote == nil {
		return 0, 0, fmt.Errorf("its source is not a remote buffer")
	}
	r, err := d.plan.remote(t.gpu, t.id, o.Type, *b.Remote)
	if err != nil {
		return 0, 0, err
	}
	if err := t.begun(r.Rank, r.Type); err != nil {
		return 0, 0, err
	}
	src, err := d.buffer(r.Rank, r.Type, b, o)
	if err != nil {
		return 0, 0, err
	}
	s := d.strand(t.lane, r.Rank)
	d.await(s, t.know)
	s.send(src, t.gpu)
	return r.Rank, length(src), nil
}

// gets lowers reads of a peer's memory to receives; the sends are added at the peer.
func (d *planDecoder) gets(t *planThread, o *unrolled) error {
	if len(o.Src) != len(o.Dst) || len(o.Src) == 0 {
		return fmt.Errorf("%d sources and %d targets", len(o.Src), len(o.Dst))
	}
	if o.Type != "memory" {
		return fmt.Errorf("a %s channel; only memory channels read", o.Type)
	}
	for i := range o.Src {
		dst, err := d.local(t, o, o.Dst, i)
		if err != nil {
			return err
		}
		rank, count, err := d.fetch(t, o, o.Src[i])
		if err != nil {
			return err
		}
		if count != length(dst) {
			return fmt.Errorf("it reads %d parts of chunks into %d", count, length(dst))
		}
		t.add(sched.Stmt{Step: &sched.Step{Op: sched.Recv, Dst: dst, From: sched.N(rank)}})
	}
	return nil
}

// sum adds up local chunks into others: ((a + b) + c) + ...
func (d *planDecoder) sum(t *planThread, srcs []sched.Ref, dst sched.Ref) error {
	same := func(a, b sched.Ref) bool { return a.String() == b.String() }
	for _, s := range srcs {
		if length(s) != length(dst) {
			return fmt.Errorf("it adds %d parts of chunks to %d", length(s), length(dst))
		}
	}
	if len(srcs) == 2 && same(srcs[1], dst) {
		srcs[0], srcs[1] = srcs[1], srcs[0] // a + b is b + a
	}
	into := dst
	if slices.ContainsFunc(srcs[1:], func(s sched.Ref) bool { return same(s, dst) }) {
		into = d.hold(t, length(dst))
	}
	if err := t.move(srcs[0], into); err != nil {
		return err
	}
	for _, s := range srcs[1:] {
		t.add(do(sched.LocalReduce, s, into))
	}
	return t.move(into, dst)
}

// hold gives scratch that only the thread block uses.
func (d *planDecoder) hold(t *planThread, count int) sched.Ref {
	if count > t.held {
		t.hold, t.held = d.holds, count
		d.holds += count
	}
	return parts(sched.Tmp, d.holdBase()+t.hold, count)
}

// reduce adds sources, local ones and read ones, into the first target, and puts it to the others.
func (d *planDecoder) reduce(t *planThread, o *unrolled) error {
	if len(o.Src) < 2 || len(o.Dst) < 1 {
		return fmt.Errorf("%d sources and %d targets; want two and one at least", len(o.Src), len(o.Dst))
	}
	dst, err := d.local(t, o, o.Dst, 0)
	if err != nil {
		return err
	}
	var srcs []sched.Ref
	var far []planBuf
	for i, s := range o.Src {
		if s.Remote != nil {
			far = append(far, s)
			continue
		}
		ref, err := d.local(t, o, o.Src, i)
		if err != nil {
			return err
		}
		srcs = append(srcs, ref)
	}
	switch {
	case len(srcs) == 0:
		return fmt.Errorf("no source is local")
	case len(far) > 0 && (o.Name == "re" || o.Name == "res"):
		return fmt.Errorf("it reads a peer, which is done by rre and rres")
	case len(far) > 0 && o.Type != "memory":
		return fmt.Errorf("a %s channel; only memory channels read", o.Type)
	}
	first := srcs[0]
	if len(srcs) > 1 {
		if err := d.sum(t, srcs, dst); err != nil {
			return err
		}
		first = dst
	}
	for _, b := range far {
		rank, count, err := d.fetch(t, o, b)
		if err != nil {
			return err
		}
		if count != length(dst) || count != length(first) {
			return fmt.Errorf("it adds %d parts of chunks to %d", count, length(dst))
		}
		t.add(sched.Stmt{Step: &sched.Step{Op: sched.RecvReduce, Src: first, Dst: dst, From: sched.N(rank)}})
		first = dst
	}
	return d.forward(t, o, dst, o.Dst[1:], false)
}

// forward puts chunks to peers.
func (d *planDecoder) forward(t *planThread, o *unrolled, src sched.Ref, to []planBuf, packets bool) error {
	for i, b := range to {
		if err := d.put(t, o, src, i, b, packets); err != nil {
			return err
		}
	}
	return nil
}
