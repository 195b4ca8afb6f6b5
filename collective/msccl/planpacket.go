package msccl

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

// flag notes that packets of a GPU are written. Their flag is that of the run, so they can be written once in it.
func (d *planDecoder) flag(gpu int, at sched.Ref, by packet) error {
	first := int(at.Index.Val) - d.packetBase()
	for i := range length(at) {
		if _, ok := d.packets[gpu][first+i]; ok {
			return flaw("packets s[%d] of gpu %d are written twice: the flag is the same, so that a reader cannot tell the second from the first",
				(first+i)/d.fine, gpu)
		}
		d.packets[gpu][first+i] = by
	}
	return nil
}

// flagged reports whether packets are written, and lets a thread block wait for them. A packet tells nothing but that it is there.
func (d *planDecoder) flagged(t *planThread, at sched.Ref) bool {
	first := int(at.Index.Val) - d.packetBase()
	var k knowledge
	for i := range length(at) {
		by, ok := d.packets[t.gpu][first+i]
		if !ok {
			t.blocked = fmt.Sprintf("packets s[%d], which nobody has written", (first+i)/d.fine)
			return false
		}
		k.set(by.strand, by.time)
		t.know.set(by.gpu, 1)
	}
	d.await(t.own, k)
	return true
}

// packetAt gives packets of the thread block's own GPU.
func (d *planDecoder) packetAt(t *planThread, o *unrolled, list []planBuf, i int) (sched.Ref, error) {
	if i >= len(list) || list[i].Remote != nil || list[i].Switch != nil {
		return sched.Ref{}, fmt.Errorf("buffer %d is not a local one", i)
	}
	return d.packet(t.gpu, list[i].Type, list[i], o)
}

// packed is an operation on packets. Whoever reads them waits for each one's flag; so no wait comes before and no signal after.
func (d *planDecoder) packed(t *planThread, o *unrolled) error {
	if len(o.Src) == 0 || len(o.Dst) == 0 {
		return fmt.Errorf("%d sources and %d targets", len(o.Src), len(o.Dst))
	}
	switch o.Name {
	case "ppkt":
		return d.putPackets(t, o)
	case "rppkt":
		src, err := d.packetAt(t, o, o.Src, 0)
		if err != nil || !d.flagged(t, src) {
			return err
		}
		return d.forward(t, o, src, o.Dst, true)
	case "cpkt":
		return d.copyIntoPackets(t, o)
	case "upkt":
		return d.copyFromPackets(t, o)
	}
	return d.reducePackets(t, o)
}

func (d *planDecoder) copyIntoPackets(t *planThread, o *unrolled) error {
	src, err := d.local(t, o, o.Src, 0)
	if err != nil {
		return err
	}
	dst, err := d.packetAt(t, o, o.Dst, 0)
	if err != nil {
		return err
	}
	return d.pack(t, src, dst)
}

func (d *planDecoder) copyFromPackets(t *planThread, o *unrolled) error {
	src, err := d.packetAt(t, o, o.Src, 0)
	if err != nil {
		return err
	}
	dst, err := d.local(t, o, o.Dst, 0)
	if err != nil || !d.flagged(t, src) {
		return err
	}
	return t.move(src, dst)
}

// pack copies chunks into packets of the same GPU.
func (d *planDecoder) pack(t *planThread, src, dst sched.Ref) error {
	if err := t.move(src, dst); err != nil {
		return err
	}
	return d.flag(t.gpu, dst, packet{t.own.index, len(t.own.at), t.gpu})
}

// putPackets writes packets to peers. A port channel sends them as they lie in scratch, and waits for no flag.
func (d *planDecoder) putPackets(t *planThread, o *unrolled) error {
	if len(o.Src) != len(o.Dst) {
		return fmt.Errorf("%d sources and %d targets", len(o.Src), len(o.Dst))
	}
	for i := range o.Src {
		from := d.local
		if o.Type == "port" {
			from = d.packetAt
		}
		src, err := from(t, o, o.Src, i)
		if err != nil {
			return err
		}
		if err := d.put(t, o, src, i, o.Dst[i], true); err != nil {
			return err
		}
	}
	return nil
}

// reducePackets adds packets up, then the first source, into the first target. Some pack the sum and put it to peers.
func (d *planDecoder) reducePackets(t *planThread, o *unrolled) error {
	src, err := d.local(t, o, o.Src, 0)
	if err != nil {
		return err
	}
	dst, err := d.local(t, o, o.Dst, 0)
	if err != nil {
		return err
	}
	var srcs []sched.Ref
	for i := range o.Src[1:] {
		p, err := d.packetAt(t, o, o.Src, 1+i)
		if err != nil || !d.flagged(t, p) {
			return err
		}
		srcs = append(srcs, p)
	}
	if len(srcs) == 0 {
		return fmt.Errorf("one source; want packets, too")
	}
	if err := d.sum(t, append(srcs, src), dst); err != nil {
		return err
	}
	to := o.Dst[1:]
	if o.Name == "recpkt" || o.Name == "recspkt" {
		pkt, err := d.packetAt(t, o, o.Dst, 1)
		if err != nil {
			return err
		}
		if err := d.pack(t, dst, pkt); err != nil {
			return err
		}
		to = to[1:]
	}
	return d.forward(t, o, dst, to, true)
}

// multimem is an operation through the switch, which adds chunks of a group of GPUs up, or copies chunks to all of them.
func (d *planDecoder) multimem(t *planThread, o *unrolled) error {
	if len(o.Src) != 1 || len(o.Dst) != 1 || o.Dst[0].Switch == nil || (o.Src[0].Switch != nil) != (o.Name == "glres") {
		return fmt.Errorf("%d sources and %d targets; want one of each, and a switch_channel_id", len(o.Src), len(o.Dst))
	}
	packets := o.Name == "gstorepkt"
	kind, ranks, err := d.plan.group(t.gpu, t.id, *o.Dst[0].Switch)
	if err != nil {
		return err
	}
	where := func(rank int) (sched.Ref, error) {
		if packets {
			return d.packet(rank, kind, o.Dst[0], o)
		}
		if err := t.begun(rank, kind); err != nil {
			return sched.Ref{}, err
		}
		return d.buffer(rank, kind, o.Dst[0], o)
	}
	d.switches = 1
	centre := d.n
	cell, err := d.gather(t, o, centre)
	if err != nil || t.blocked != "" {
		return err
	}
	for _, rank := range ranks {
		dst, err := where(rank)
		if err != nil {
			return err
		}
		if length(dst) != length(cell) {
			return fmt.Errorf("it moves %d parts of chunks to %d", length(cell), length(dst))
		}
		if packets && rank == t.gpu && o.Src[0].Index == o.Dst[0].Index {
			continue // they are there, with this flag
		}
		d.message(t.lane, centre, rank, cell, dst)
		there := d.strand(t.lane, rank)
		if rank != t.gpu {
			t.know.set(there.index, len(there.body))
		}
		if !packets {
			continue
		}
		by := packet{there.index, len(there.body), t.gpu}
		if there == t.own {
			by.time = len(t.own.at)
		}
		if err := d.flag(rank, dst, by); err != nil {
			return err
		}
	}
	return nil
}

// gather brings what an operation through the switch reads into a cell of the switch.
func (d *planDecoder) gather(t *planThread, o *unrolled, centre int) (cell sched.Ref, err error) {
	if o.Name == "glres" {
		return d.gatherGroup(t, o, centre)
	}
	from := d.local
	if o.Name == "gstorepkt" {
		from = d.packetAt
	}
	src, err := from(t, o, o.Src, 0)
	if err != nil || o.Name == "gstorepkt" && !d.flagged(t, src) {
		return cell, err
	}
	cell = d.cell(t, length(src))
	d.message(t.lane, t.gpu, centre, src, cell)
	return cell, nil
}

// gatherGroup adds up what all GPUs of a group have in the same place.
func (d *planDecoder) gatherGroup(t *planThread, o *unrolled, centre int) (cell sched.Ref, err error) {
	s := d.strand(t.lane, centre)
	kind, ranks, err := d.plan.group(t.gpu, t.id, *o.Src[0].Switch)
	if err != nil {
		return cell, err
	}
	for i, rank := range ranks {
		if err := t.begun(rank, kind); err != nil {
			return cell, err
		}
		src, err := d.buffer(rank, kind, o.Src[0], o)
		if err != nil {
			return cell, err
		}
		cell = d.cell(t, length(src))
		if rank != t.gpu {
			d.await(d.strand(t.lane, rank), t.know)
		}
		d.strand(t.lane, rank).send(src, centre)
		st := &sched.Step{Op: sched.Recv, Dst: cell, From: sched.N(rank)}
		if i > 0 {
			st.Op, st.Src = sched.RecvReduce, cell
		}
		s.body = append(s.body, sched.Stmt{Step: st})
	}
	if len(ranks) == 0 {
		return cell, fmt.Errorf("its group has no gpus")
	}
	return cell, nil
}

// cell gives scratch of the switch that only the thread block uses.
func (d *planDecoder) cell(t *planThread, count int) sched.Ref {
	if count > t.wide {
		t.cell, t.wide = d.cells, count
		d.cells += count
	}
	return parts(sched.Tmp, t.cell, count)
}

// programName makes one word of a plan's name, which the text form of a program can hold.
func programName(plan string) string {
	name := strings.Join(strings.Fields(plan), "-")
	if name == "" || strings.HasPrefix(name, "#") {
		return "plan"
	}
	return name
}

// program puts the strands together. Channel 0 copies the input where the plan writes to it.
func (d *planDecoder) program() (*sched.Program, error) {
	p := &sched.Program{From: d.plan, Name: programName(d.plan.Name), Op: d.op, Ranks: d.n, Switches: d.switches,
		Chunks: sched.N(d.chunks), Slots: 8}
	first := 0
	if d.framed() {
		first = 1
	}
	channels := d.color(first)
	if tmp := max(d.holdBase()+d.holds, d.cells); tmp > 0 {
		p.Scratch = sched.N(tmp)
	}
	p.Groups = make([]sched.Group, max(channels, 1))
	for i := range p.Groups {
		p.Groups[i].Count = 1
	}
	r := &sched.Expr{Kind: sched.Var, Name: "r"}
	rank := func(c, g int, body []sched.Stmt) {
		if len(body) > 0 {
			p.Groups[c].Body = append(p.Groups[c].Body,
				sched.Stmt{If: &sched.If{Cond: &sched.Expr{Kind: sched.Eq, L: r, R: sched.N(g)}, Then: body}})
		}
	}
	if d.framed() {
		for g := range d.n {
			rank(0, g, d.frame(p, g))
		}
	}
	for _, l := range d.lanes {
		for _, s := range l.strands {
			rank(int(l.channel.Val), s.rank, s.body)
		}
	}
	return p, p.Check()
}

// color gives every lane a channel that no other lane with a rank in common has.
func (d *planDecoder) color(first int) (channels int) {
	used := make([]map[int]bool, d.n+1)
	for i := range used {
		used[i] = map[int]bool{}
	}
	channels = first
	for _, l := range d.lanes {
		c := first
		for free := false; !free; {
			free = true
			for _, s := range l.strands {
				if used[s.rank][c] {
					free = false
					c++
					break
				}
			}
		}
		for _, s := range l.strands {
			used[s.rank][c] = true
		}
		l.channel.Val = int64(c)
		channels = max(channels, c+1)
	}
	return channels
}

// frame copies in to where the plan writes it before anybody looks, and the result of a reduce-scatter in place to out in the end.
func (d *planDecoder) frame(p *sched.Program, g int) []sched.Stmt {
	in, out := p.NumChunks(sched.In), p.NumChunks(sched.Out)
	dst := parts(sched.Out, 0, in)
	switch {
	case d.moved():
		dst = parts(sched.Tmp, d.onesBase(), in)
	case d.op == sched.AllGather:
		dst = parts(sched.Out, g*in, in)
	}
	body := []sched.Stmt{do(sched.Copy, parts(sched.In, 0, in), dst)}
	if !d.inside || !d.moved() {
		return body
	}
	for _, t := range d.threads {
		if t.gpu == g && len(t.own.body) > 1 {
			body = append(body, sched.Stmt{Step: &sched.Step{Op: sched.Wait, Channel: t.lane.channel, Done: sched.N(len(t.own.body))}})
		}
	}
	return append(body, do(sched.Copy, parts(sched.Tmp, d.onesBase()+g*out, out), parts(sched.Out, 0, out)))
}
