package choice

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// way is a way to do a collective: everything that a program is built from.
type way struct {
	algo     string
	op       sched.Collective
	root     int
	pieces   int
	channels int
	own      bool // every rank has its own number, for canonical sums; else ranks of a host are neighbours
}

// program builds the program of a way, once.
func (t *Table) program(w way) (*sched.Program, error) {
	if p, known := t.built[w]; known {
		if p == nil {
			return nil, errUnfit
		}
		return p, nil
	}
	name, levels, _ := strings.Cut(w.algo, " ")
	a, err := algo.Find(name)
	if err != nil {
		return nil, err
	}
	s := algo.Spec{Op: w.op, Ranks: t.n, Root: w.root, Channels: w.channels, Pieces: w.pieces}
	if inner, outer, nested := strings.Cut(levels, "/"); nested {
		s.Inner, s.Outer = inner, outer
	}
	if a.Layers {
		s.Local = t.local
	}
	if t.order != nil && !w.own && name != "one-shot" && name != "rank-order" { // these two are about ranks' numbers
		for range w.channels {
			s.Orders = append(s.Orders, t.order)
		}
	}
	p, err := a.Program(s)
	if err != nil || p.Switches > 0 || !t.visible && p.Channels() > t.own || t.single && (p.Channels() > 1 || len(p.Orders) > 0) {
		t.built[w] = nil
		return nil, errors.Join(errUnfit, err)
	}
	t.built[w] = p
	return p, nil
}

var errUnfit = errors.New("the algorithm does not fit these ranks or their cores")

// sums reports whether a collective's result depends on the order of its sums.
func sums(op sched.Collective) bool {
	return op == sched.AllReduce || op == sched.ReduceScatter || op == sched.Reduce
}

// names lists the algorithms to choose from when messages carry the data: all
// but those for switches that compute or for a torus, which these links are not.
// Canonical sums leave those that sum in that order. Where hosts have several ranks each, hierarchical
// stands there with what it may have inside and between hosts.
func (t *Table) names(op sched.Collective, canonical bool) []string {
	var list []string
	for _, a := range algo.All() {
		switch {
		case !a.Serves(op), a.Torus, a.Shares:
		case canonical && sums(op) && !a.Canonical(algo.Spec{Op: op, Ranks: t.n}):
		case a.Layers && (t.many == 1 || t.local < 2):
		case a.Outer:
			for _, inner := range algo.All() {
				for _, outer := range algo.All() {
					if (inner.Name == "direct" || inner.Name == "ring") && algo.IsInner(inner, op) && algo.IsOuter(outer, op) && !outer.Torus {
						list = append(list, a.Name+" "+inner.Name+"/"+outer.Name)
					}
				}
			}
		default:
			list = append(list, a.Name)
		}
	}
	return list
}

// liked lists algorithms from the plainest on. Of those that take equally long
// within a slack, which is less than the links can be known, the plainest is
// chosen; those not listed come last.
var liked = []string{"direct", "recursive-doubling", "halving-doubling", "ring", "one-shot", "rank-order", "rabenseifner", "bcube",
	"binomial", "tree", "double-binary-tree", "bruck", "pairwise", "pat", "dissemination", "hierarchical"}

// crowded is the order where ranks outnumber cores: every rank that another
// waits for has to get a core first, so that fewer steps are better. 8 ranks on 2
// cores take, in ms and in place (medians of 7 turns, 2026-11-15):
//
//	          bcube  halving-doubling  ring  direct
//	 64 KiB    0.35              0.36  0.59    0.70
//	256 KiB    0.84              0.84  1.13    1.09
//	  1 MiB     2.6               2.9   3.2     3.6
//	  2 MiB     4.7               6.4   7.7     7.6
//	 16 MiB      56                63    73      68
//
// Of calls that take equally long within the slack by their replay, those that this order chooses and those that liked would choose
// take, in us over tcp and out of place (medians of 5 turns of 8 to 14 batches, beside other work, 2026-11-19):
//
//	                             crowded          liked
//	4 ranks, broadcast of 8 B         22  binomial     38  direct
//	4 ranks, broadcast of 2 KiB       33  binomial     61  direct
//	4 ranks, reduce-scatter 512 KiB  735  ring        671  direct
//	4 ranks, reduce-scatter 2 MiB   2439  ring       2804  direct
//	8 ranks, reduce-scatter 2 MiB   7624  ring       8690  direct
//
// Ranks that send to the root of a gather or a reduce wait for nobody: that is done directly. In the same turns reduces take so
//
//	           8 B  2 KiB  8 KiB  64 KiB  256 KiB  1 MiB
//	4 ranks     26     26     39      97      283   1135  direct
//	            23     36     40     118      318   1110  binomial
//	8 ranks     61            79     193      576   2479  direct
//	            72            90     200      698   2683  binomial
var crowded = append([]string{"recursive-doubling", "bcube", "halving-doubling", "ring", "binomial", "direct"},
	slices.DeleteFunc(slices.Clone(liked[4:]), func(name string) bool { return name == "bcube" || name == "binomial" })...)

// slack is the part of a time that a choice must save over a plainer one.
const slack = 25

// liking is an algorithm's place in the list.
func (t *Table) liking(w way, class int) int {
	name, _, _ := strings.Cut(w.algo, " ")
	list := liked
	if t.crowd && w.op != sched.Gather && w.op != sched.Reduce {
		list = crowded
	}
	// Several hosts: one partner at a time keeps senders and receivers on each other's heels. 8 ranks on 2 hosts take 78 ms for 16 MiB
	// directly and 57 pairwise, 9.3 and 6.8 for 2 MiB; 32 KiB take 0.55 and 0.77 (2026-11-16).
	// Where ranks are paired up, all of a host turn to another host together, and nobody waits inside his host for one who is held up outside:
	// on
	// 16 cores 8 ranks on 2 hosts take 0.65 ms for 1 MiB so, pairwise 1.1. Senders of longer messages wait for their receivers, who take them
	// also while they wait inside their hosts, so long as cores are to spare: 16 ranks on 4 hosts take 24 to 29 ms for 16 MiB paired up and 12
	// to 13 pairwise, 8 on 2 hosts 11 to 12 and 9 to 10 (2026-11-17). Hosts of one rank each that share cores have nothing to gain before
	// senders wait: 4 of them take 0.97 ms for 512 KiB directly and 1.19 pairwise, 2.53 and 2.48 for 1 MiB, 67 and 46 for 16 MiB (2026-11-19).
	from := int64(16 << 10)
	if t.crowd && t.local == 1 {
		from = int64(max(t.can.Copies, 16<<10))
	}
	if w.op == sched.AllToAll && t.many > 1 && class >= classOf(int64(t.n)*from) {
		taken := t.can.Copies > 0 && smallest(class)/int64(t.n) >= int64(t.can.Copies) && !t.crowd
		switch {
		case name == "pairwise-xor" && t.local > 1 && t.local&(t.local-1) == 0 && t.order == nil && !taken:
			return -2
		case name == "pairwise":
			return -1
		}
	}
	// Of canonical sums, rank-order adds in scratch memory, which long messages push out of the caches. All-reduces of 4 ranks on 4 hosts take
	// 0.79 processor seconds a GB so for 16 MiB and 0.67 by rabenseifner, 0.67 and 0.60 for 1 MiB; over tcp on one host 0.58 and 0.53, 0.46
	// and
	// 0.34 (medians of 5 turns, 2026-11-17).
	if w.op == sched.AllReduce && w.own {
		switch name {
		case "rank-order":
			name = "rabenseifner"
		case "rabenseifner":
			name = "rank-order"
		}
	}
	if i := slices.Index(list, name); i >= 0 {
		return i
	}
	return len(list)
}

// timed is a way with the time that the links say it takes.
type timed struct {
	way
	cost.Replayed
}

// score is what counts of a way's time. Broadcasts and scatters overlap: their root goes on to the next one while others receive. So half
// of it is what lies between two calls at least. 4 ranks on 4 hosts of two cores take, in us (medians of 4 turns, 2026-11-19):
//
//	                     direct  binomial
//	broadcast of 8 B         78        69
//	broadcast of 4 KiB      153       116
//	scatter of 128 KiB      287       229
func (x *timed) score() unit.Time {
	if overlap(x.op) {
		return x.Time/2 + x.Period/2
	}
	return x.Time
}

// overlap reports whether calls in a row do: ranks other than the root wait for nobody but those that send to them.
func overlap(op sched.Collective) bool { return op == sched.Broadcast || op == sched.Scatter }

func byScore(a, b timed) int { return cmp.Compare(a.score(), b.score()) }

// part is a way and the size classes for which it was replayed together.
type part struct {
	way
	window int
}

const window = 16 // size classes replayed together

// sizesOf are the smallest sizes of the classes of a window.
func sizesOf(k int) []unit.Bytes {
	var sizes []unit.Bytes
	for c := k * window; c < min((k+1)*window, classes); c++ {
		sizes = append(sizes, unit.Bytes(smallest(c)))
	}
	return sizes
}

// curve gives the times of a way for a window of size classes, or cost.ErrSlower if it is slower than within at all.
func (t *Table) curve(key part, within []unit.Time) ([]cost.Replayed, error) {
	if known := t.curves[key]; known != nil {
		return known, nil
	}
	p, err := t.program(key.way)
	if err != nil {
		return nil, err
	}
	links := t.links
	links.Run = unit.Bytes(max(t.Message(key.op), t.Undivided(key.op)))
	curve, err := links.Curve(p, sizesOf(key.window), t.hosts, within)
	if err == nil {
		t.curves[key] = curve
	}
	return curve, err
}

// replay gives the time of a way for a size class.
func (t *Table) replay(w way, class int) (timed, error) {
	curve, err := t.curve(part{w, class / window}, nil)
	if err != nil {
		return timed{}, err
	}
	return timed{w, curve[class%window]}, nil
}

// contest is what a choice among plain ways for a window of size classes depends on.
type contest struct {
	op        sched.Collective
	canonical bool
	window    int
}

// field is who takes part in a contest: the ways that may be first or second at some size, and how many there are in all.
type field struct {
	ways []way
	all  int
}

// enter replays every algorithm for a window of size classes. All ranks do so when they first call, so that it must not
// take long with many of them: algorithms with few steps go first, and one that is slower than two others at all sizes
// is given up as soon as that is certain. 64 ranks on 2 cores take half the time to begin then.
func (t *Table) enter(key contest) (*field, error) {
	if f := t.fields[key]; f != nil {
		return f, nil
	}
	f := &field{}
	type entrant struct {
		way
		steps    int64
		place    int
		channels int
	}
	var list []entrant
	for i, name := range t.names(key.op, key.canonical) {
		w := way{name, key.op, 0, 1, 1, key.canonical && sums(key.op)}
		p, err := t.program(w)
		switch {
		case err == nil && t.many == 1 && p.Channels() > 1:
			// Channels are goroutines: what they gain on links of their own they
			// lose on one host, where 2 ranks take 300 us for 256 KiB by a ring in
			// both directions and 100 by one after the other.
		case err == nil:
			list = append(list, entrant{w, t.steps(p), i, p.Channels()})
		case !errors.Is(err, errUnfit):
			return nil, err
		}
	}
	f.all = len(list)
	slices.SortStableFunc(list, func(a, b entrant) int { return cmp.Compare(a.steps, b.steps) })
	const never = math.MaxInt64
	sizes := len(sizesOf(key.window))
	first, second, within := slices.Repeat([]unit.Time{never}, sizes), slices.Repeat([]unit.Time{never}, sizes), make([]unit.Time, sizes)
	in := list[:0]
	for _, x := range list {
		for k, t := range second {
			within[k] = never
			if t < never/2 && !overlap(key.op) { // see score
				within[k] = t + t/slack
			}
		}
		curve, err := t.curve(part{x.way, key.window}, within)
		switch {
		case errors.Is(err, cost.ErrSlower):
			continue
		case err != nil:
			return nil, err
		}
		in = append(in, x)
		for k, r := range curve {
			if t.narrow(key.op, x.channels, key.window*window+k) {
				continue // it does not count at this size
			}
			second[k] = min(second[k], max(first[k], r.Time))
			first[k] = min(first[k], r.Time)
		}
	}
	slices.SortFunc(in, func(a, b entrant) int { return cmp.Compare(a.place, b.place) })
	for _, x := range in {
		f.ways = append(f.ways, x.way)
	}
	t.fields[key] = f
	return f, nil
}

// narrow reports that a size is too small for a program of some channels: each of them is a goroutine that has to be woken, which takes
// longer than short messages do. 2 ranks on 2 hosts take 27 us for an all-gather of 512 bytes in both directions, and 9 for one of 8
// bytes in one (16 cores, 2026-11-16).
func (t *Table) narrow(op sched.Collective, channels, class int) bool {
	return channels > 1 && (smallest(class)/int64(channels)/int64(t.n) < wide || channels > t.mostChannels(op, class))
}

// queues reports that every rank sends a long message to every other, one after another, and each waits until its receiver, who does the
// same, has taken it. The replay knows nothing of such waits: of an all-gather of 16 MiB on 8 hosts it says 6.5 ms directly and 7.3 by a
// ring, which take 16 to 60 and 7 to 10 (16 cores, 2026-11-17).
func (t *Table) queues(w way, class int) bool {
	return w.algo == "direct" && t.many > 1 && t.n > 2 && t.can.Copies > 0 && smallest(class)/int64(t.n) >= int64(t.can.Copies) &&
		slices.Contains([]sched.Collective{sched.AllGather, sched.AllToAll, sched.AllReduce, sched.ReduceScatter}, w.op)
}

// steps is how many steps all ranks of a program take together.
func (t *Table) steps(p *sched.Program) int64 {
	ranks := make([]sched.Rank, t.n)
	for r := range ranks {
		ranks[r] = sched.Rank(r)
	}
	n, _ := step.Compile(p).Count(ranks, math.MaxInt32)
	return n
}

// messages picks among programs whose data goes by messages, by replaying them:
// first every algorithm plainly, then the best few with more pieces and channels.
func (t *Table) messages(key plain) (*Pick, error) {
	f, err := t.enter(contest{key.op, key.canonical, key.class / window})
	if err != nil {
		return nil, err
	}
	var list []timed
	for _, w := range f.ways {
		x, err := t.replay(w, key.class)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	if fit := slices.DeleteFunc(slices.Clone(list), func(x timed) bool {
		p, err := t.program(x.way)
		return err != nil || t.narrow(key.op, p.Channels(), key.class) || t.queues(x.way, key.class)
	}); len(fit) > 0 {
		list = fit
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no algorithm does %s with %d ranks on %d hosts", key.op, t.n, t.many)
	}
	slices.SortStableFunc(list, byScore)
	for i := range list[:min(len(list), 3)] {
		if err := t.refine(&list[i], key.class); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, byScore)
	first := 0
	for i, x := range list {
		if x.score()-list[0].score() <= list[0].score()/slack && t.liking(x.way, key.class) < t.liking(list[first].way, key.class) {
			first = i
		}
	}
	best, err := t.withChannels(list[first], key.class)
	if err != nil {
		return nil, err
	}
	p := &Pick{Algo: best.algo, Pieces: best.pieces, Channels: best.channels, Predicted: best.Time}
	if p.Program, err = t.program(best.way); err != nil {
		return nil, err
	}
	p.Reason = "the only one; bound by " + best.Limit()
	if len(list) > 1 {
		p.Reason = fmt.Sprintf("best of %d, bound by %s", f.all, best.Limit())
		next := list[(min(first, 1)+1)%2] // the fastest of the others
		p.next, p.then = next.String(), next.Time
	}
	return p, nil
}

// withChannels gives a way as many channels as its messages are long enough for. The replay takes the rate of links for what it is with one
// caller, so that it sees no gain.
func (t *Table) withChannels(x timed, class int) (timed, error) {
	if t.many == 1 || x.op.Rooted() {
		return x, nil
	}
	for channels := t.mostChannels(x.op, class); channels > x.channels; channels /= 2 {
		w := x.way
		w.channels = channels
		p, err := t.program(w)
		if errors.Is(err, errUnfit) || err == nil && p.Channels() != channels {
			continue
		}
		if err != nil {
			return x, err
		}
		y, err := t.replay(w, class)
		y.Time = min(x.Time, y.Time)
		return y, err
	}
	return x, nil
}

// mostChannels is how many channels a call between hosts may have. A caller sends, receives, checks and adds one after another, so where
// messages are long, ranks have cores to spare and the transport has connections for each channel, several callers are faster. On 16 cores,
// in ms with one, two and four channels (2026-11-17):
//
//	                 all-reduce          all-to-all        all-gather   reduce-scatter
//	2 hosts    1 MiB  0.56  0.53  0.52   0.32  0.32  0.30   0.28  0.30    0.28  0.30
//	           4 MiB  2.56  1.83  1.30   1.33  0.92  0.64   1.42  0.96    1.24  0.94
//	          16 MiB  11.9  5.85  4.03   5.45  3.42  2.05   5.33  3.18    5.80  3.07
//	8 hosts    4 MiB  4.85  5.72         2.31  2.52         2.19  2.54    2.63  3.06
//	          16 MiB  22.5  23.3         11.7  10.3         9.17  9.36    12.4  11.1
//
// So half of the cores stay for others. Eight hosts with two channels leave none: besides the above, all-reduces of 16 MiB took 20 to 24 ms
// so in other runs where one channel took 22 to 29, and 31 to 39 where it took 24; processor time is 1.4 times as much.
func (t *Table) mostChannels(op sched.Collective, class int) int {
	if t.many == 1 || op.Rooted() || t.can.Channels == 0 {
		return t.own
	}
	const least = 512 << 10 // bytes of a message
	message := smallest(class) / int64(t.n)
	switch {
	case t.can.Channels >= 4 && t.own >= 8 && message >= 4*least:
		return 4
	case t.can.Channels >= 2 && t.own >= 4 && message >= 2*least:
		return 2
	}
	return 1
}

// refine tries more pieces and channels. Neither helps where a host's cores or
// its way out are busy all the time, nor where messages are small already.
func (t *Table) refine(x *timed, class int) error {
	for _, pieces := range []int{1, 4, 16} {
		for _, channels := range []int{1, 2, 4} {
			cut := int64(pieces * channels)
			message := smallest(class) / cut / int64(t.n)
			switch {
			case cut == 1, message < finest:
				continue
			case pieces > 1 && !t.cuts(x.way):
				continue
			case channels > 1 && (message < wide || t.many == 1 || channels > t.mostChannels(x.op, class)):
				continue // within a host all channels end up on the same two cores' sockets
			case x.Time-max(x.Cores, x.Wire) < x.Time/slack:
				return nil
			}
			w := x.way
			w.pieces, w.channels = pieces, channels
			y, err := t.replay(w, class)
			if err != nil && !errors.Is(err, errUnfit) {
				return err
			}
			if err == nil && y.Time < x.Time-x.Time/slack {
				*x = y
			}
		}
	}
	return nil
}

// The sizes in bytes of a rank's messages below which they are not cut any
// further: into pieces, about where a message's own cost is that of its bytes;
// into channels, each of which takes a goroutine besides.
const (
	finest = 4 << 10
	wide   = 64 << 10
)

// cuts reports whether an algorithm's program depends on the number of pieces.
func (t *Table) cuts(w way) bool {
	w.pieces, w.channels = 1, 1
	one, err := t.program(w)
	if err != nil {
		return false
	}
	w.pieces = 2
	two, err := t.program(w)
	return err == nil && one.Digest() != two.Digest()
}

func (w way) String() string {
	s := w.algo
	if w.pieces > 1 {
		s += fmt.Sprintf(", %d pieces", w.pieces)
	}
	if w.channels > 1 {
		s += fmt.Sprintf(", %d channels", w.channels)
	}
	return s
}
