package msccl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

// How a plan becomes a program.
//
//	thread block 3 of gpu 0      a lane: its channel of the program
//	  put  ──────────────────►   at gpu 1, a strand on the same channel takes what is put
//	  read ◄──────────────────   and sends what is read
//	  signal                     the message before it, or one of no chunks
//
// A lane is a channel of the program. The thread block runs on it at its own GPU; at every other GPU that it touches, a strand
// stands for the memory there. A port channel is a lane of its own, as a proxy works for the thread block. Multimem passes a
// switch that adds and copies.
//
// The thread blocks are run once, to find out who knows what: a signal, a semaphore or a barrier passes on what its giver knows,
// and a packet that it is there. Before a strand goes on it waits for what it knows of its own GPU, and a strand that is read
// from waits for what the reader knows. So the order between two uses of memory that the plan gives, and no other, is in the
// program; verify finds the uses that have none.

// strand is what a rank does on a lane.
type strand struct {
	rank   int
	index  int // in knowledge
	lane   *lane
	body   []sched.Stmt
	at     []int // of a thread block: steps after each operation; nil where knowledge counts steps
	waited []int // by strand: how many of its steps were waited for
	sentTo int   // the last step sends to this rank, if the body is still that long
	length int
}

type lane struct {
	channel *sched.Expr
	strands []*strand
}

// knowledge is how far strands are, in operations of thread blocks and in steps of others.
type knowledge []int

func (k *knowledge) set(strand, n int) {
	for len(*k) <= strand {
		*k = append(*k, 0)
	}
	(*k)[strand] = max((*k)[strand], n)
}

func (k *knowledge) join(o knowledge) {
	for i, n := range o {
		if n > 0 {
			k.set(i, n)
		}
	}
}

func (k knowledge) of(strand int) int {
	if strand < len(k) {
		return k[strand]
	}
	return 0
}

// counter counts signals of a channel or releases of a semaphore.
type counter struct {
	init   int
	totals map[*planThread]int // posts of the whole plan
	posts  map[*planThread][]knowledge
	posted int
	took   []stamp // by those who waited
}

type stamp struct{ strand, time int }

// planThread is a thread block that runs.
type planThread struct {
	gpu, id int
	ops     []unrolled
	lane    *lane
	own     *strand
	know    knowledge
	pending bool  // waited, and not all threads know
	dirty   bool  // moved data, and not all threads are done
	since   []use // what all threads used since they met
	arrived bool  // at a barrier
	met     bool  // all were there
	hold    int   // scratch of its own: where, and how much
	held    int
	cell    int // the same of the switch
	wide    int
	blocked string // why it cannot go on
}

// use is a use of local memory by all threads of a block since they last met.
type use struct {
	at     sched.Ref
	writes bool
	op     int
}

// unrolled is an operation, of a pipeline for one piece of its chunks.
type unrolled struct {
	*planOp
	number int
	piece  int // -1 if it is not of a pipeline
}

// meet notes that all threads of the block are done with what came before.
func (t *planThread) meet() { t.pending, t.dirty, t.since = false, false, t.since[:0] }

// touch notes a use of local memory. One that follows from another needs a nop between.
func (t *planThread) touch(o *unrolled, at sched.Ref, writes bool) error {
	lo, hi := int(at.Index.Val), int(at.Index.Val)+length(at)
	for _, u := range t.since {
		first := int(u.at.Index.Val)
		if u.op != len(t.own.at) && (writes || u.writes) && u.at.Buf == at.Buf && first < hi && lo < first+length(u.at) {
			return flaw("it uses %s after op %d, one of them writes there, and no nop is between: the other threads of the block may not be done",
				at, t.ops[u.op-1].number)
		}
	}
	t.since = append(t.since, use{at, writes, len(t.own.at)})
	return nil
}

func (t *planThread) done() bool { return len(t.own.at)-1 == len(t.ops) }

// packet is where packets come from.
type packet struct{ strand, time, gpu int }

// begun refuses to touch input and output of a GPU that may still work on what comes before.
func (t *planThread) begun(gpu int, kind string) error {
	if kind == "s" || t.know.of(gpu) > 0 {
		return nil
	}
	return flaw("it uses %s of gpu %d, which may not have begun: wait for a signal of it first", kind, gpu)
}

type meeting struct {
	count int
	who   []*planThread
}

type planDecoder struct {
	plan     *Plan
	n        int
	op       sched.Collective
	fine     int  // parts of a chunk
	pieces   int  // of a chunk in a pipeline
	inside   bool // in and out are one memory
	copied   bool // in is written, and not out: it is copied first
	chunks   int  // parts of the larger buffer
	scratch  int  // parts
	holds    int
	cells    int // of a switch
	switches int
	threads  []*planThread
	lanes    []*lane
	ports    map[wire]*lane
	strands  []*strand
	counters map[any]*counter
	meetings map[[2]int]*meeting
	packets  []map[int]packet // by GPU and part of scratch
	plain    []map[int]bool   // by GPU: parts of scratch that are used without packets
}

// Flaw is what is wrong with a plan that can be read.
type Flaw struct{ error }

func flaw(format string, args ...any) error { return &Flaw{fmt.Errorf(format, args...)} }

// Program gives the plan's meaning as a program.
func (p *Plan) Program() (*sched.Program, error) {
	d := &planDecoder{plan: p, n: len(p.GPUs), op: p.op(), ports: map[wire]*lane{}, counters: map[any]*counter{},
		meetings: map[[2]int]*meeting{}}
	if err := d.sizes(); err != nil {
		return nil, err
	}
	if err := d.unroll(); err != nil {
		return nil, err
	}
	if err := d.run(); err != nil {
		return nil, err
	}
	if err := d.settled(); err != nil {
		return nil, err
	}
	return d.program()
}

func (l *planLoop) valid() bool {
	return l != nil && l.Unit >= 1 && l.Chunks >= 1 && l.Chunks <= maxPlanChunks
}

// each calls do for every operation, those of pipelines too.
func (p *Plan) each(do func(g *planGPU, b *planBlock, o *planOp, k int, loop *planLoop) error) error {
	for i := range p.GPUs {
		g := &p.GPUs[i]
		for j := range g.Blocks {
			b := &g.Blocks[j]
			for k := range b.Ops {
				o := &b.Ops[k]
				if o.Name != "pipeline" {
					if err := do(g, b, o, k, nil); err != nil {
						return opError(g.ID, b.ID, k, o.Name, err)
					}
					continue
				}
				if !o.Iterate.valid() {
					return opError(g.ID, b.ID, k, o.Name, fmt.Errorf("no iter_context with unit_size, and num_chunks up to %d", maxPlanChunks))
				}
				for m := range o.Ops {
					if err := do(g, b, &o.Ops[m], k, o.Iterate); err != nil {
						return opError(g.ID, b.ID, k, "pipeline, "+o.Ops[m].Name, err)
					}
				}
			}
		}
	}
	return nil
}

func opError(gpu, block, k int, name string, err error) error {
	return fmt.Errorf("gpu %d thread block %d op %d (%s): %w", gpu, block, k, name, err)
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// sizes finds out into how many parts chunks are cut, and which buffers are written.
func (d *planDecoder) sizes() error {
	p := d.plan
	d.fine, d.pieces = 1, 1
	ops, writesIn, writesOut := 0, false, false
	err := p.each(func(g *planGPU, b *planBlock, o *planOp, _ int, loop *planLoop) error {
		ops++
		for _, buf := range slices.Concat(o.Src, o.Dst) {
			if buf.Size < 1 || buf.Index < 0 || buf.Size > maxPlanChunks || buf.Index > maxPlanChunks {
				return fmt.Errorf("chunks [%d +: %d]", buf.Index, buf.Size)
			}
			if s := o.Slice; s != nil {
				if s.Of < 1 || s.Of > 64 || s.Part < 0 || s.Part >= s.Of {
					return fmt.Errorf("tbg_info says part %d of %d", s.Part, s.Of)
				}
				need := s.Of / gcd(s.Of, buf.Size)
				d.fine = d.fine / gcd(d.fine, need) * need
			}
		}
		if loop != nil {
			d.pieces = 4
			switch {
			case o.Name == "pipeline":
				return fmt.Errorf("a pipeline in a pipeline")
			case o.Slice != nil:
				return fmt.Errorf("a part of a chunk (tbg_info) in a pipeline: MSCCL++ counts its units by the whole chunk")
			}
		}
		for _, to := range o.Dst {
			kind := to.Type
			if to.Remote != nil {
				if r, err := p.remote(g.ID, b.ID, o.Type, *to.Remote); err == nil {
					kind = r.Type
				}
			}
			if to.Switch != nil {
				kind, _, _ = p.group(g.ID, b.ID, *to.Switch)
			}
			writesIn, writesOut = writesIn || kind == "i", writesOut || kind == "o"
		}
		return nil
	})
	if err != nil {
		return err
	}
	if d.pieces > 1 && ops > 2048 {
		d.pieces = 2
	}
	if d.fine *= d.pieces; d.fine > 1024 {
		return fmt.Errorf("chunks are cut into %d parts; 1024 are read", d.fine)
	}
	for _, g := range p.GPUs {
		d.chunks, d.scratch = max(d.chunks, *g.In*d.fine, *g.Out*d.fine), max(d.scratch, *g.Scratch*d.fine)
	}
	if most := max(d.chunks, d.scratch); most > maxPlanChunks {
		return fmt.Errorf("chunks cut into %d parts make %d of a buffer; %d are read", d.fine, most, maxPlanChunks)
	}
	if d.op.Blocks() && d.chunks%d.n != 0 {
		return fmt.Errorf("%d chunks for %d gpus", d.chunks/d.fine, d.n)
	}
	d.inside = p.InPlace || writesIn && !writesOut
	d.copied = !d.inside && writesIn
	for range p.GPUs {
		d.packets, d.plain = append(d.packets, map[int]packet{}), append(d.plain, map[int]bool{})
	}
	return nil
}

func (d *planDecoder) countPosts(t *planThread) error {
	for _, o := range t.ops {
		keys, err := d.posts(t, o.planOp)
		if err != nil {
			return opError(t.gpu, t.id, o.number, o.Name, err)
		}
		for _, key := range keys {
			d.counter(key).totals[t]++
		}
	}
	return nil
}

// unroll makes the thread blocks, and counts their signals and releases. The first strands have no steps: whoever knows of one
// knows that its GPU has begun.
func (d *planDecoder) unroll() error {
	for g := range d.n {
		d.strands = append(d.strands, &strand{rank: g, index: g, lane: &lane{channel: sched.N(-1)}, at: []int{0}})
	}
	total := 0
	for i := range d.plan.GPUs {
		g := &d.plan.GPUs[i]
		for j := range g.Blocks {
			t := &planThread{gpu: i, id: j, lane: d.newLane()}
			t.own = d.strand(t.lane, i)
			t.own.at = []int{len(t.own.body)}
			t.know.set(i, 1)
			for k := range g.Blocks[j].Ops {
				o := &g.Blocks[j].Ops[k]
				if o.Name != "pipeline" {
					t.ops = append(t.ops, unrolled{o, k, -1})
					total++
					continue
				}
				rounds := o.Iterate.Chunks * d.pieces
				if total += rounds * len(o.Ops); total > maxPlanSteps {
					return opError(i, j, k, o.Name, fmt.Errorf("more than %d operations, with pipelines unrolled", maxPlanSteps))
				}
				for round := range rounds {
					for m := range o.Ops {
						t.ops = append(t.ops, unrolled{&o.Ops[m], k, round})
					}
				}
			}
			if err := d.countPosts(t); err != nil {
				return err
			}
			d.threads = append(d.threads, t)
		}
	}
	return nil
}

type semaphore struct{ gpu, id int }

// posts lists what an operation signals or releases.
func (d *planDecoder) posts(t *planThread, o *planOp) (keys []any, err error) {
	switch o.Name {
	case "signal", "rlxsignal", "pws", "pwsf":
		for _, id := range o.Channels {
			w, err := d.plan.wire(t.gpu, t.id, o.Type, id)
			if err != nil {
				return nil, err
			}
			keys = append(keys, w)
		}
	case "sem_release":
		for _, id := range o.Sems {
			keys = append(keys, semaphore{t.gpu, id})
		}
	}
	return keys, nil
}

func (d *planDecoder) counter(key any) *counter {
	c := d.counters[key]
	if c == nil {
		c = &counter{totals: map[*planThread]int{}, posts: map[*planThread][]knowledge{}}
		d.counters[key] = c
		if s, ok := key.(semaphore); ok && s.id >= 0 && s.id < len(d.plan.GPUs[s.gpu].Semaphores) {
			c.init = d.plan.GPUs[s.gpu].Semaphores[s.id].Init
		}
	}
	return c
}

func (d *planDecoder) newLane() *lane {
	l := &lane{channel: sched.N(0)}
	d.lanes = append(d.lanes, l)
	return l
}

// strand gives what a rank does on a lane.
func (d *planDecoder) strand(l *lane, rank int) *strand {
	for _, s := range l.strands {
		if s.rank == rank {
			return s
		}
	}
	s := &strand{rank: rank, index: len(d.strands), lane: l, sentTo: -1}
	if d.framed() && rank < d.n {
		s.body = append(s.body, wait(0, 1))
	}
	d.strands, l.strands = append(d.strands, s), append(l.strands, s)
	return s
}

// framed reports whether in is copied before anybody looks.
func (d *planDecoder) framed() bool { return d.inside || d.copied }

// steps turns what is known of a strand into a number of steps.
func (s *strand) steps(known int) int {
	if s.at != nil {
		return s.at[min(known, len(s.at)-1)]
	}
	return known
}

// await lets a strand wait for what is known of its rank.
func (d *planDecoder) await(s *strand, k knowledge) {
	for i, known := range k {
		if o := d.strands[i]; known > 0 && o.rank == s.rank {
			d.after(s, o, o.steps(known))
		}
	}
}

// after lets a strand wait until another one of its rank has taken some steps.
func (d *planDecoder) after(s, o *strand, steps int) {
	for len(s.waited) <= o.index {
		s.waited = append(s.waited, 0)
	}
	first := 0
	if d.framed() && o.rank < d.n {
		first = 1 // its wait for the copy
	}
	if o != s && steps > max(first, s.waited[o.index]) {
		s.waited[o.index] = steps
		s.body = append(s.body, sched.Stmt{Step: &sched.Step{Op: sched.Wait, Channel: o.lane.channel, Done: sched.N(steps)}})
	}
}

// learn lets a thread block know something.
func (d *planDecoder) learn(t *planThread, k knowledge) {
	t.know.join(k)
	d.await(t.own, t.know)
}

// message sends chunks from a rank to another one on a lane.
func (d *planDecoder) message(l *lane, from, to int, src, dst sched.Ref) {
	s := d.strand(l, from)
	s.send(src, to)
	r := d.strand(l, to)
	r.body = append(r.body, sched.Stmt{Step: &sched.Step{Op: sched.Recv, Dst: dst, From: sched.N(from)}})
}

func (s *strand) send(src sched.Ref, to int) {
	s.body = append(s.body, sched.Stmt{Step: &sched.Step{Op: sched.Send, Src: src, To: sched.N(to)}})
	s.sentTo, s.length = to, len(s.body)
}

// notify tells a rank that the strand is so far: by the message before, if there was nothing since, or by one of no chunks.
func (d *planDecoder) notify(l *lane, from, to int) {
	if s := d.strand(l, from); s.sentTo == to && s.length == len(s.body) {
		return
	}
	none := sched.Ref{Buf: sched.In, Index: sched.N(0), Count: sched.N(0)}
	d.message(l, from, to, none, sched.Ref{Buf: sched.Tmp, Index: sched.N(0), Count: sched.N(0)})
}

// run runs the thread blocks until all are done.
func (d *planDecoder) run() error {
	for {
		moved, ended := false, true
		for _, t := range d.threads {
			for !t.done() {
				t.blocked = ""
				o := t.ops[len(t.own.at)-1]
				if err := d.step(t, o); err != nil {
					return opError(t.gpu, t.id, o.number, o.Name, err)
				}
				if t.blocked != "" {
					break
				}
				moved = true
				t.own.at = append(t.own.at, len(t.own.body))
				t.know.set(t.own.index, len(t.own.at)-1)
			}
			ended = ended && t.done()
		}
		if ended {
			return nil
		}
		if !moved {
			return d.stuck()
		}
	}
}

// stuck names some of the thread blocks that wait for ever.
func (d *planDecoder) stuck() error {
	var list []string
	for _, t := range d.threads {
		if !t.done() && len(list) < 4 {
			o := t.ops[len(t.own.at)-1]
			list = append(list, fmt.Sprintf("gpu %d thread block %d op %d (%s) waits for %s", t.gpu, t.id, o.number, o.Name, t.blocked))
		}
	}
	return flaw("deadlock: %s", strings.Join(list, "; "))
}

// post gives a signal or a release of a thread block, which passes on what it knows.
func (d *planDecoder) post(t *planThread, key any, k knowledge) {
	c := d.counter(key)
	c.posts[t] = append(c.posts[t], slices.Clone(k))
	c.posted++
}

// take takes a signal or a release that is there. What it tells is what it tells whoever of those that give some was first: of
// each one, that it gave what the others cannot have given.
func (d *planDecoder) take(t *planThread, key any) {
	c := d.counter(key)
	k := 1
	for _, s := range c.took {
		if s.time <= t.know.of(s.strand) {
			k++
		}
	}
	c.took = append(c.took, stamp{t.own.index, len(t.own.at)})
	all := c.init
	for _, total := range c.totals {
		all += total
	}
	for _, by := range d.threads { // in an order that is always the same
		if total, ok := c.totals[by]; ok {
			if sure := k - (all - total); sure > 0 {
				d.learn(t, c.posts[by][sure-1])
			}
		}
	}
}

func (c *counter) there(more int) bool { return c.init+c.posted >= len(c.took)+more }

// settled reports what would be left for the next run, and what may come after the end.
func (d *planDecoder) settled() error {
	for _, t := range d.threads { // in an order that is always the same
		for _, o := range t.ops {
			keys, _ := d.posts(t, o.planOp)
			for _, key := range keys {
				c := d.counter(key)
				if c.posted == len(c.took) {
					continue
				}
				if w, ok := key.(wire); ok {
					return flaw("gpu %d gives gpu %d %d signals on a %s channel, of which it waits for %d: the next run would begin with one too many",
						w.from, w.to, c.posted, w.kind, len(c.took))
				}
				s := key.(semaphore)
				return flaw("gpu %d releases semaphore %d %d times and acquires it %d times: the next run would begin with another count",
					s.gpu, s.id, c.posted, len(c.took))
			}
		}
	}
	if err := d.apart(); err != nil {
		return err
	}
	return d.arrived()
}

// apart reports scratch that is used both plainly and by packets, which carry a flag for each word and so take more of it.
func (d *planDecoder) apart() error {
	for gpu, used := range d.plain {
		if len(used) == 0 || len(d.packets[gpu]) == 0 {
			continue
		}
		for part := range d.scratch {
			if _, ok := d.packets[gpu][part/2]; ok && used[part] {
				return flaw("gpu %d: s[%d] is used as it is, but lies where the packets of s[%d] are: packets take twice their room",
					gpu, part/d.fine, part/2/d.fine)
			}
		}
	}
	return nil
}

// lastResult finds the last step of a strand that receives into the output, and counts the steps up to it; 0 if none does.
func (d *planDecoder) lastResult(s *strand) (steps int, what sched.Ref) {
	for i, st := range s.body {
		if st.Step.Op == sched.Recv && (st.Step.Dst.Buf == sched.Out || d.ones(st.Step.Dst)) {
			steps, what = i+1, st.Step.Dst
		}
	}
	return steps, what
}

// arrived reports data that may come to a GPU after its thread blocks have ended.
func (d *planDecoder) arrived() error {
	for _, s := range d.strands {
		if s.rank >= d.n || s.at != nil {
			continue
		}
		last, what := d.lastResult(s)
		known := false
		for _, t := range d.threads {
			known = known || t.gpu == s.rank && s.index < len(t.own.waited) && t.own.waited[s.index] >= last
		}
		if last > 0 && !known {
			return flaw("gpu %d: nobody waits until %s has come from another gpu, which may be after the end", s.rank, what)
		}
	}
	return nil
}
