// Package verify proves programs: every rank ends with what the collective promises,
// each contribution exactly once and summed in the same association on every rank; no
// rank waits forever with the given slots; no chunk is read before it is written or
// while another channel may write it, in any execution order.
//
// One run covers all orders. Channels are sequential, and messages between two ranks on
// a channel keep their order, so a program is a Kahn network (1974): its results do not
// depend on scheduling, even with bounded queues, because a full queue is a wait for a
// returned slot. The one exception, two channels of a rank touching the same chunk, is
// checked by happens-before (vector clocks).
//
// If the text treats all ranks alike up to rotation, the proof follows one rank: what it
// receives from its predecessor is what it sent itself, rotated. A ring of 100,000 ranks
// takes the time of one rank's steps. A test compares this proof with plain unrolling on
// small counts.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// Report is what a proof found out besides.
type Report struct {
	Program  string `json:"program"`
	Digest   string `json:"digest"`
	Op       string `json:"op"`
	Ranks    int    `json:"ranks"`
	Channels int    `json:"channels"`
	Method   string `json:"method"` // "rotation" or "unrolled"
	Actions  int64  `json:"actions"`
	Steps    int    `json:"steps"`     // messages one after another on the longest chain
	MaxSent  int64  `json:"max_sent"`  // chunks sent by the rank that sends most
	MaxRecv  int64  `json:"max_recv"`  // chunks received by the rank that receives most
	Chunks   int64  `json:"chunks"`    // of the larger buffer, to put the two above into proportion
	Peers    int    `json:"max_peers"` // of the rank that has most
	Direct   bool   `json:"direct"`    // receivers may read senders' buffers in place of a copy; false where not proven
	InPlace  bool   `json:"in_place"`  // in and out may be the same memory; false where not proven
	Both     bool   `json:"direct_in_place"`

	// Canonical says that the collective sums and that every output is summed in the canonical order of package sched, so that
	// its bits depend on the ranks' numbers alone; false where not proven.
	Canonical bool `json:"canonical"`

	// Aligned says that chunks of in and out hold only values of chunks at the
	// same place of a block, and Placed, that they hold only what belongs to their
	// place in the end. Where chunks differ in length, a world may then move them
	// as they are.
	Aligned bool `json:"-"`
	Placed  bool `json:"-"`

	Sent  []int64        `json:"-"` // chunks by rank, unrolled only
	Links map[Pair]int64 `json:"-"` // chunks from rank to rank, unrolled only
}

// Pair is a directed pair of ranks.
type Pair struct{ From, To sched.Rank }

// Violation is a program that is wrong. Error gives one line; printed with
// %+v it gives the steps that led there.
type Violation struct {
	Program string
	Rank    sched.Rank
	What    string
	Trace   []string // the steps that led to it, oldest first
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s: rank %d %s", v.Program, v.Rank, v.What)
}

// Format prints the causal trace under %+v.
func (v *Violation) Format(f fmt.State, verb rune) {
	fmt.Fprint(f, v.Error())
	if verb == 'v' && f.Flag('+') {
		for _, t := range v.Trace {
			fmt.Fprintf(f, "\n    %s", t)
		}
	}
}

// Limits of unrolling, beyond which Program asks for a smaller count.
const (
	maxWorld   = 1 << 16 // ranks and switches unrolled
	maxActions = 1 << 27
	maxChunks  = 1 << 24 // of a buffer
)

// ErrTooLarge is returned for programs that neither rotate nor fit unrolling.
var ErrTooLarge = errors.New("too large to prove")

// Program proves a program, by rotation where its text allows it and else by
// unrolling. The error is a *Violation, a *step.Stuck or a *step.Fault for a
// wrong program.
func Program(p *sched.Program) (*Report, error) { return prove(context.Background(), p, true) }

// Right is Program, but for the modes of the report (Direct, InPlace, Both), which take
// longer to find out than that the program is right.
func Right(p *sched.Program) (*Report, error) { return prove(context.Background(), p, false) }

func prove(ctx context.Context, p *sched.Program, modes bool) (*Report, error) {
	if err := cmp.Or(ctx.Err(), p.Check(), sized(p)); err != nil {
		return nil, err
	}
	if period := rotates(p); p.Ranks > smallest && period > 0 && period < p.Ranks {
		if err := bounded(p, period); err != nil {
			return nil, err
		}
		return rotated(ctx, p, period, modes)
	}
	return unrolled(ctx, p, modes)
}

// bounded refuses programs of which some ranks, the first ones, take more steps than
// anybody will wait for.
func bounded(p *sched.Program, ranks int) error {
	list := make([]sched.Rank, ranks)
	for r := range list {
		list[r] = sched.Rank(r)
	}
	if _, why := step.Compile(p).Count(list, maxActions); why != "" {
		return fmt.Errorf("%w: %s takes more than %d steps, choices and rounds of loops (%s)", ErrTooLarge, p.Name, maxActions, why)
	}
	return nil
}

// sized refuses buffers of more chunks than anybody will follow one by one.
func sized(p *sched.Program) error {
	for b := sched.In; b <= sched.Tmp; b++ {
		if n := p.NumChunks(b); n > maxChunks {
			return fmt.Errorf("%w: %s has %d chunks of %s; proofs end at %d", ErrTooLarge, p.Name, n, b, maxChunks)
		}
	}
	return nil
}

// smallest is the number of ranks up to which every program is unrolled: cheap,
// and it tells more (in place, direct, chunks by link).
const smallest = 64

func newReport(p *sched.Program, method string) *Report {
	return &Report{Program: p.Name, Digest: p.Digest(), Op: p.Op.String(), Ranks: p.Ranks, Channels: p.Channels(),
		Method: method, Chunks: int64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out)))}
}

// Unrolled proves a program by running every rank with symbols.
func Unrolled(p *sched.Program) (*Report, error) { return unrolled(context.Background(), p, true) }

// unrolled proves a program by carrying out all of it. What fails is run again with a trace: keeping one always would
// cost more than the proof.
func unrolled(ctx context.Context, p *sched.Program, modes bool) (*Report, error) {
	if p.Ranks+p.Switches > maxWorld {
		return nil, fmt.Errorf("%w: %s has %d ranks and its text does not rotate; unrolling ends at %d", ErrTooLarge, p.Name, p.Ranks, maxWorld)
	}
	if err := bounded(p, p.Ranks+p.Switches); err != nil {
		return nil, err
	}
	w := newWorld(ctx, p, p.Ranks+p.Switches, false)
	if err := w.run(); err != nil {
		again := newWorld(ctx, p, p.Ranks+p.Switches, false) // once more, the same way, to tell what led there
		again.trace = &trace{}
		return nil, again.run()
	}
	rep := newReport(p, "unrolled")
	w.report(rep)
	rep.Canonical = w.canonical()
	if err := ordered(ctx, p, rep, w.sharing(), w.awaited); err != nil || !modes {
		return rep, err
	}
	findModes(ctx, p, rep, w.awaited)
	return rep, ctx.Err()
}

// run carries the program out and checks what every rank ends with.
func (w *world) run() error {
	if err := step.Run(w.p, w.do); err != nil {
		return err
	}
	for r := range w.p.Ranks {
		if err := w.promised(sched.Rank(r)); err != nil {
			return err
		}
	}
	return nil
}

// message is a symbolic message: what its chunks hold, and how long the chain
// of messages is that it ends.
type message struct {
	runs  []run // chunk indices counted from the message's start
	depth int
}

// world holds what every buffer of every rank contains.
type world struct {
	ctx     context.Context // whose end ends the proof
	p       *sched.Program
	n       int64
	per     int64 // chunks of a block
	alias   bool  // in and out are the same memory
	turns   bool  // one rank stands for all, rotated
	mem     [][4]store
	depth   [][]int   // by rank and channel
	past    [][][]int // the same after each action, kept where there are Waits
	awaited []moment  // what Waits waited for
	shared  []bool    // by rank: two channels touch one chunk, at least one of them writing, and no wait of the rank orders them
	touched []map[step.Chunks]touches
	waited  [][][]heard // by rank and channel: what it heard of other channels by waiting
	rep     Report
	peers   []map[sched.Rank]bool
	trace   *trace // nil until there is something to explain
}

// touch is the use of a chunk by a channel, in its time-th action, counted from 1.
type touch struct {
	channel int32
	time    int64
}

// touches are the last write of a chunk and the last read of each channel since.
type touches struct {
	write touch
	reads []touch
}

// heard is how far all channels of a rank were, as far as one of them knows after an
// action of its own.
type heard struct {
	time int64
	of   []int64
}

func newWorld(ctx context.Context, p *sched.Program, all int, alias bool) *world {
	w := &world{ctx: ctx, p: p, n: int64(p.Ranks), alias: alias, turns: all < p.Ranks, mem: make([][4]store, all), depth: make([][]int, all),
		per: block(p)}
	w.rep.Sent, w.rep.Links = make([]int64, all), map[Pair]int64{}
	w.rep.Aligned, w.rep.Placed = true, true
	w.peers = make([]map[sched.Rank]bool, all)
	w.touched, w.shared, w.waited = make([]map[step.Chunks]touches, all), make([]bool, all), make([][][]heard, all)
	if waits(p) {
		w.past = make([][][]int, all)
	}
	for r := range all {
		w.depth[r] = make([]int, p.Channels())
		if w.past != nil {
			w.past[r] = make([][]int, p.Channels())
		}
		w.peers[r] = map[sched.Rank]bool{}
		if r < p.Ranks {
			in := step.Chunks{Buf: sched.In}
			in = w.at(sched.Rank(r), in)
			w.mem[r][in.Buf].put(from(w.input(sched.Rank(r)), -in.Index))
		}
		if p.Channels() > 1 {
			w.touched[r], w.waited[r] = map[step.Chunks]touches{}, make([][]heard, p.Channels())
		}
	}
	return w
}

// block is the number of chunks of a block, or 1 where the collective has none.
func block(p *sched.Program) int64 {
	if !p.Op.Blocks() {
		return 1
	}
	return int64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out))) / int64(p.Ranks)
}

// at says where chunks lie: in place, in is out, or that block of the larger
// buffer which belongs to the rank.
func (w *world) at(r sched.Rank, c step.Chunks) step.Chunks {
	if !w.alias || c.Buf == sched.Tmp {
		return c
	}
	switch w.p.Op {
	case sched.AllGather, sched.Gather:
		if c.Buf == sched.In {
			c.Index += int64(r) * w.per
		}
	case sched.ReduceScatter, sched.Scatter:
		if c.Buf == sched.Out {
			c.Index += int64(r) * w.per
		}
	}
	c.Buf = sched.Out
	return c
}

// input is what a rank's in holds at the start: its own contribution to every
// chunk. At ranks other than the root of a broadcast or scatter it counts for nothing.
func (w *world) input(r sched.Rank) []run {
	p := w.p
	chunks := int64(p.NumChunks(sched.In))
	if (p.Op == sched.Broadcast || p.Op == sched.Scatter) && int(r) != p.Root {
		return nil
	}
	if !w.turns {
		return []run{{0, chunks, 0, one(int32(r)), leaf(int64(r), 0, w.n)}}
	}
	if p.Op != sched.AllReduce && p.Op != sched.ReduceScatter {
		return []run{{0, chunks, 0, one(int32(r)), leaf(int64(r), 0, 1)}} // moved, never summed: association says nothing
	}
	var blocks []run
	for b := range w.n { // contributions are named relative to the chunk's block
		lo, hi := b*chunks/w.n, (b+1)*chunks/w.n
		if lo < hi {
			blocks = append(blocks, run{lo, hi, 0, one(int32(r)), leaf(int64(r), b, w.n)})
		}
	}
	return blocks
}

func (w *world) do(r sched.Rank, a *step.Action, in message) (message, error) {
	if err := w.stopped(); err != nil {
		return in, err
	}
	if w.rep.Actions > maxActions {
		return in, fmt.Errorf("%w: %s takes more than %d actions", ErrTooLarge, w.p.Name, maxActions)
	}
	if w.trace != nil {
		w.trace.record(r, a)
	}
	w.touch(r, a)
	if a.Op == sched.Wait && a.Done > 0 {
		w.depth[r][a.Channel] = max(w.depth[r][a.Channel], w.past[r][a.On][a.Done-1])
		w.awaited = append(w.awaited, moment{int(r)*w.p.Channels() + int(a.On), a.Done})
	}
	if w.past != nil {
		defer func() { w.past[r][a.Channel] = append(w.past[r][a.Channel], w.depth[r][a.Channel]) }()
	}
	if a.Op.Receives() {
		if err := w.received(r, a, &in); err != nil {
			return in, err
		}
	}
	if a.Op.Reads() && a.Op.Stores() && w.at(r, a.Src).Shifted(w.at(r, a.Dst)) { // without alias the interpreter refuses it
		return in, w.violation(r, a, "reads %s and stores %s, which overlap in place", a.Src, a.Dst)
	}
	value, err := step.Do(w, r, a, in.runs)
	if err != nil || !a.Op.Sends() {
		return message{}, err
	}
	w.rep.Sent[r] += a.Count
	w.rep.Links[Pair{r, a.To}] += a.Count
	w.peers[r][a.To] = true
	return message{value, w.depth[r][a.Channel] + 1}, nil
}

// Load gives what chunks hold, all of which something must have been written to.
func (w *world) Load(r sched.Rank, a *step.Action, c step.Chunks) ([]run, error) {
	at := w.at(r, c)
	runs, whole := w.mem[r][at.Buf].cut(at.Index, at.Index+at.Count)
	if !whole {
		return nil, w.violation(r, a, "reads %s before anything is written there", c)
	}
	return from(runs, at.Index), nil
}

// Store puts a value into chunks.
func (w *world) Store(r sched.Rank, _ *step.Action, c step.Chunks, v []run) error {
	at := w.at(r, c)
	v = from(v, -at.Index)
	if c.Buf == sched.Out {
		for i := range v {
			w.placed(r, &v[i], at.Index-c.Index)
		}
	}
	w.mem[r][at.Buf].put(v)
	return nil
}

// placed notes whether what is stored to out belongs there; out begins at base.
func (w *world) placed(r sched.Rank, x *run, base int64) {
	lo, hi := x.lo-base, x.hi-base // chunks of out
	label := x.label + x.lo        // the input chunk that the first of them will hold
	per := w.per
	if !w.p.Op.Blocks() {
		per = int64(w.p.NumChunks(sched.Out))
	}
	if lo%per != label%per {
		w.rep.Aligned = false
	}
	belongs, set, _ := promise(w.p, r, lo, w.per)
	if belongs != label || lo/per != (hi-1)/per || !w.p.Op.Reduces() && !same(set, x.set) {
		w.rep.Placed = false
	}
}

// received checks the size of a message and lengthens the chain.
func (w *world) received(r sched.Rank, a *step.Action, in *message) error {
	w.peers[r][a.From] = true
	got := int64(0)
	for _, x := range in.runs {
		got += x.hi - x.lo
	}
	if got != a.Count {
		return w.violation(r, a, "expects %d chunks from rank %d and gets %d", a.Count, a.From, got)
	}
	w.depth[r][a.Channel] = max(w.depth[r][a.Channel], in.depth)
	w.rep.Steps = max(w.rep.Steps, in.depth)
	return nil
}

// from renumbers runs so that chunk base becomes chunk 0; what they hold stays.
func from(runs []run, base int64) []run {
	out := make([]run, len(runs))
	for i, r := range runs {
		r.lo, r.hi, r.label = r.lo-base, r.hi-base, r.label+base
		out[i] = r
	}
	return out
}

// Reduce sums two stretches chunk by chunk: the same input chunk, and no contribution twice.
func (w *world) Reduce(r sched.Rank, a *step.Action, x, y []run) ([]run, error) {
	var out []run
	for i, j := 0, 0; i < len(x) && j < len(y); {
		lo, hi := max(x[i].lo, y[j].lo), min(x[i].hi, y[j].hi)
		if x[i].label != y[j].label {
			return nil, w.violation(r, a, "adds input chunk %d to input chunk %d", y[j].label+lo, x[i].label+lo)
		}
		set, twice := union(x[i].set, y[j].set)
		if twice >= 0 && w.p.Op != sched.Barrier {
			return nil, w.violation(r, a, "reduces the contribution of rank %d to chunk %d twice", twice, x[i].label+lo)
		}
		out = append(out, run{lo, hi, x[i].label, set, sum(x[i].how, y[j].how)})
		if x[i].hi == hi {
			i++
		}
		if j < len(y) && y[j].hi == hi {
			j++
		}
	}
	return out, nil
}

// promise says what an output chunk must hold: which input chunk, of whom. A
// rank that is promised nothing has ok false.
func promise(p *sched.Program, r sched.Rank, chunk, per int64) (label int64, set ranks, ok bool) {
	all, n := upTo(p.Ranks), int64(p.Ranks)
	switch p.Op {
	case sched.AllReduce, sched.Barrier:
		return chunk, all, true
	case sched.ReduceScatter:
		return int64(r)*per + chunk, all, true
	case sched.AllGather:
		return chunk % per, one(int32(chunk / per)), true
	case sched.Broadcast:
		return chunk, one(int32(p.Root)), true
	case sched.Reduce:
		return chunk, all, int(r) == p.Root
	case sched.AllToAll:
		return int64(r)*per + chunk%per, one(int32(chunk / per)), true
	case sched.Gather:
		return chunk % per, one(int32(chunk / per)), int(r) == p.Root
	case sched.Scatter:
		return int64(r)*per + chunk, one(int32(p.Root)), true
	default: // SendRecv
		return chunk, one(int32((int64(r) - 1 + n) % n)), true
	}
}

// promised checks a rank's output against the collective's promise. Within a
// run and a block, what is promised and what is there both count up by one a
// chunk, so the first chunk stands for the rest.
func (w *world) promised(r sched.Rank) error {
	chunks := int64(w.p.NumChunks(sched.Out))
	base := w.at(r, step.Chunks{Buf: sched.Out}).Index
	for c := int64(0); c < chunks; {
		label, set, ok := promise(w.p, r, c, w.per)
		if !ok {
			return nil
		}
		got, ok := w.mem[r][sched.Out].find(base + c)
		if !ok {
			return w.wrong(r, c, "never gets out[%d]", c)
		}
		if got.label+base+c != label {
			return w.wrong(r, c, "ends with input chunk %d in out[%d], not %d", got.label+base+c, c, label)
		}
		if !same(got.set, set) {
			if missing := minus(set, got.set); !missing.empty() {
				return w.wrong(r, c, "lacks the contribution of rank %d in out[%d]", missing[0].lo, c)
			}
			return w.wrong(r, c, "has the contribution of rank %d in out[%d], where it does not belong", minus(got.set, set)[0].lo, c)
		}
		next := min(got.hi-base, chunks)
		if w.p.Op.Blocks() {
			next = min(next, (c/w.per+1)*w.per)
		}
		if w.p.Op == sched.AllReduce {
			alike, err := w.associated(r, c, got)
			if err != nil {
				return err
			}
			next = min(next, alike)
		}
		c = next
	}
	return nil
}

// associated checks that a chunk is summed as on another rank, and says up to where this holds. Where the first ranks
// stand for all, their block b is what a rank some periods before has in one of the first blocks, so these must be alike.
func (w *world) associated(r sched.Rank, c int64, got run) (next int64, err error) {
	at, next, other := c, math.MaxInt64, "rank 0 does"
	if w.turns {
		per := int64(w.p.NumChunks(sched.Out)) / w.n
		at, next, other = c%(per*int64(len(w.mem))), (c/per+1)*per, "another rank does"
	}
	first, ok := w.mem[0][sched.Out].find(at)
	switch {
	case !ok:
		return next, nil
	case first.how != got.how:
		return 0, w.wrong(r, c,
			"sums out[%d] in another association than %s: the bits may differ; let all ranks add in one order, such as (x0+x1)+x2", c, other)
	}
	return min(next, c+first.hi-at), nil
}

func (w *world) violation(r sched.Rank, a *step.Action, format string, args ...any) error {
	what := fmt.Sprintf("channel %d step %d (%s) ", a.Channel, a.Step, a) + fmt.Sprintf(format, args...)
	return &Violation{Program: w.p.Name, Rank: r, What: what, Trace: w.trace.leading(r, a)}
}

func (w *world) wrong(r sched.Rank, chunk int64, format string, args ...any) error {
	return &Violation{Program: w.p.Name, Rank: r, What: fmt.Sprintf(format, args...),
		Trace: w.trace.writers(r, step.Chunks{Buf: sched.Out, Index: chunk, Count: 1})}
}

// touch finds out whether channels share chunks in an order that the rank's own waits do
// not give; only then clocks of all ranks are needed.
func (w *world) touch(r sched.Rank, a *step.Action) {
	if w.touched[r] == nil || w.shared[r] {
		return
	}
	c, now := a.Channel, int64(a.Step)+1
	if a.Op == sched.Wait {
		w.hear(r, c, now, a.On, a.Done)
		return
	}
	after := func(t touch) bool { return t.time == 0 || t.channel == c || t.time <= w.known(r, c, t.channel) }
	visit := func(chunks step.Chunks, writes bool) {
		if chunks.Buf == sched.In {
			return
		}
		for i := range chunks.Count {
			key := step.Chunks{Buf: chunks.Buf, Index: chunks.Index + i, Count: 1}
			t := w.touched[r][key]
			ok := after(t.write)
			if writes {
				for _, read := range t.reads {
					ok = ok && after(read)
				}
				t = touches{write: touch{c, now}, reads: t.reads[:0]}
			} else if k := slices.IndexFunc(t.reads, func(x touch) bool { return x.channel == c }); k >= 0 {
				t.reads[k].time = now
			} else {
				t.reads = append(t.reads, touch{c, now})
			}
			w.shared[r] = w.shared[r] || !ok
			w.touched[r][key] = t
		}
	}
	if a.Op.Reads() {
		visit(a.Src, false)
	}
	if a.Op.Stores() {
		visit(a.Dst, true)
	}
}

// known is how far a channel knows another one of its rank to be.
func (w *world) known(r sched.Rank, channel, other int32) int64 {
	if list := w.waited[r][channel]; len(list) > 0 {
		return list[len(list)-1].of[other]
	}
	return 0
}

// hear lets a channel know what another one knew after some of its actions.
func (w *world) hear(r sched.Rank, channel int32, now int64, on int32, done int64) {
	list := w.waited[r]
	of := make([]int64, w.p.Channels())
	if mine := list[channel]; len(mine) > 0 {
		copy(of, mine[len(mine)-1].of)
	}
	of[on] = max(of[on], done)
	theirs := list[on]
	if k, _ := slices.BinarySearchFunc(theirs, done, func(h heard, t int64) int { return cmp.Compare(h.time, t+1) }); k > 0 {
		for other, t := range theirs[k-1].of {
			of[other] = max(of[other], t)
		}
	}
	list[channel] = append(list[channel], heard{now, of})
}

// sharing lists the ranks whose channels share chunks, in order.
func (w *world) sharing() []sched.Rank {
	var list []sched.Rank
	for r, shared := range w.shared {
		if shared {
			list = append(list, sched.Rank(r))
		}
	}
	return list
}

func (w *world) report(rep *Report) {
	rep.Actions, rep.Steps, rep.Sent, rep.Links = w.rep.Actions, w.rep.Steps, w.rep.Sent, w.rep.Links
	rep.Aligned, rep.Placed = w.rep.Aligned, w.rep.Placed
	recv := make([]int64, w.p.Ranks+w.p.Switches)
	for pair, n := range rep.Links {
		recv[pair.To] += n
	}
	for r := range w.mem {
		rep.MaxSent, rep.MaxRecv = max(rep.MaxSent, rep.Sent[r]), max(rep.MaxRecv, recv[r])
		rep.Peers = max(rep.Peers, len(w.peers[r]))
	}
}
