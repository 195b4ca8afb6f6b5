package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Without gives the graph with the links of dead parts taken out; nodes keep their numbers.
func Without(g *topo.Graph, fail []string) (*topo.Graph, error) {
	if len(fail) == 0 {
		return g, nil
	}
	return without(g, fail)
}

// Net gives the network of some GPUs as options leave it: without dead parts,
// slow ones slower, and at measured rates if they say so.
func Net(g *topo.Graph, gpus []topo.NodeID, o Options) (*synth.Net, error) {
	if o.Catalog == nil {
		o.Catalog = catalog.Default()
	}
	cut, err := Without(g, o.Fail)
	if err != nil {
		return nil, err
	}
	n, err := newNetwork(cut, o)
	if err != nil {
		return nil, err
	}
	return synth.FromGraph(cut, gpus, synth.Options{Slow: n.slow, Reach: n.efficiency})
}

// SynthWish says what a synthesised program should be like.
type SynthWish struct {
	Root     int
	Channels int     // at most this number; 0 for no limit
	Trees    int     // at most this number; 0 for no limit
	Pieces   int     // 0 for what suits the size
	Loss     float64 // share of the bound that may be given up for fewer trees
	Split    bool    // messages may be split over ways of different length, as the trees count on
	Most     int64   // actions of a program, about, that are worth simulating; 0 for any number

	Tell func(form string) // what is simulated next; nil for nobody
	Stop func() bool       // whether to make do with what was found; nil for never
}

// DefaultLoss is the share of the bound that is given up for fewer trees.
const DefaultLoss = 0.02

// Synthesis is the best program that was made for a network, and what bounds it.
// Result is nil where many ranks of which no two are alike would take too long to simulate.
type Synthesis struct {
	Net     *synth.Net
	Plan    *synth.Plan // the trees that reach the bound, or nearly
	Form    string      // what the program is, in words
	Program *sched.Program
	Result  *Result
	Tried   []Tried // forms, in the order they were tried
	Stopped bool    // forms were left out, as it was to stop
	Split   bool    // it was simulated with messages split over ways of different length, as Plan.Routes says

	skip bool  // too much to simulate
	most int64 // actions of a program that is simulated; 0 for any number
}

// Synthesise makes programs for some GPUs and keeps the one that the simulation
// finds fastest at a size: trees packed to the bound, with few lanes or many,
// and up to synth.MostShallow ranks those of the fewest hops.
func Synthesise(g *topo.Graph, gpus []topo.NodeID, op sched.Collective, size unit.Bytes, o Options, wish SynthWish) (*Synthesis, error) {
	net, err := Net(g, gpus, o)
	if err != nil {
		return nil, err
	}
	plan, err := net.Make(op, wish.Root, synth.Wish{Loss: wish.Loss, Trees: wish.Trees})
	if err != nil {
		return nil, err
	}
	s := &Synthesis{Net: net, Plan: plan, most: wish.Most}
	o.Stop = wish.Stop
	hop := o.Costs.Local + unit.Microsecond/2
	if wish.Split {
		o.ways = split(g, plan)
	}
	try := func(form shape) error {
		if s.Program != nil && wish.Stop != nil && wish.Stop() {
			s.Stopped = true
			return nil
		}
		if wish.Tell != nil {
			wish.Tell(form.name)
		}
		return s.try(g, gpus, form, size, o, wish.Channels)
	}
	if plan.Exchange() {
		if err := s.linked(plan, hop, wish, try, size); err != nil {
			return nil, err
		}
		return s, s.none(wish.Channels)
	}
	most := enough(net.Ranks)
	for {
		if net.Ranks > synth.MostShallow { // a channel for each child would be very many
			if err := s.ordered(plan, wish, try); err != nil {
				return nil, err
			}
		}
		if net.Ranks <= MostDivided && !s.reached(plan, most) {
			if err := s.forms(plan, hop, wish, try, size); err != nil {
				return nil, err
			}
		}
		if net.Ranks <= synth.MostShallow && (s.Program == nil || s.Program.Channels() > 32) {
			if err := s.ordered(plan, wish, try); err != nil {
				return nil, err
			}
		}
		if s.Program != nil || wish.Channels == 0 || len(plan.Ways) == 1 {
			break
		}
		// No form has so few channels: fewer trees.
		less, err := net.Make(op, wish.Root, synth.Wish{Loss: 0.9, Trees: max(min(len(plan.Ways)-1, wish.Channels/2), 1)})
		if err != nil {
			return nil, err
		}
		if len(less.Ways) >= len(plan.Ways) {
			break
		}
		plan, s.Plan = less, less
		if wish.Split {
			o.ways = split(g, plan)
		}
	}
	if op == sched.AllReduce && net.Ranks <= synth.MostShallow && wish.Trees == 0 && !s.reached(plan, nearly) {
		// Lower trees lose some rate and win where hops count.
		for _, loss := range []float64{wish.Loss, 0.3} {
			low, err := net.Twice(synth.Wish{Loss: loss})
			if err != nil || low.Height() >= plan.Height() {
				continue
			}
			if wish.Split {
				o.ways = split(g, low)
			}
			if err := s.low(low, hop, wish, try, size); err != nil {
				return nil, err
			}
		}
	}
	o.ways = nil // the others count on shortest ways
	if net.Ranks <= synth.MostShallow && wish.Pieces == 0 {
		if err := s.shallow(op, wish.Root, size, try); err != nil {
			return nil, err
		}
	}
	if err := s.none(wish.Channels); err != nil {
		return nil, err
	}
	return s, nil
}

// shallow tries forms of few hops, for small sizes.
func (s *Synthesis) shallow(op sched.Collective, root int, size unit.Bytes, try func(shape) error) error {
	if low, err := s.Net.Shallow(op, root); err == nil {
		for _, pieces := range []int{1, 4} {
			form := shape{fmt.Sprintf("fewest hops, %s", pieceWord(pieces)),
				func() (*sched.Program, error) { return low.Program("synth", pieces, 0) }}
			if err := try(form); err != nil {
				return err
			}
		}
	}
	if op != sched.AllReduce || size > 4*unit.MiB {
		return nil
	}
	return try(shape{"one shot: every input to everybody", func() (*sched.Program, error) { return s.Net.OneShot("synth") }})
}

// none says why there is no program, if there is none.
func (s *Synthesis) none(channels int) error {
	if s.Program != nil {
		return nil
	}
	why := "no form was tried"
	if k := len(s.Tried); k > 0 {
		why = s.Tried[k-1].Algo + ": " + s.Tried[k-1].Why
	}
	if channels > 0 {
		return fmt.Errorf("no synthesised program has at most %d channels (%s)", channels, why)
	}
	return fmt.Errorf("trees were found, but no program of them (%s)", why)
}

// split gives the links of what trees send by other ways than the shortest; nil where they do not, or where a
// link of the network stands for several of the graph.
func split(g *topo.Graph, p *synth.Plan) ways {
	var all ways
	for pair, shares := range p.Routes() {
		var way []topo.Use
		node := func(v int) topo.NodeID {
			id, err := g.Lookup(p.Net.Names[v])
			if err != nil {
				return topo.None
			}
			return id
		}
		for _, s := range shares {
			a, b := node(s.From), node(s.To)
			if a == topo.None || b == topo.None {
				return nil
			}
			found := false
			for _, e := range g.Edges(a) {
				if e.Peer == b && !found {
					way, found = append(way, topo.Use{Link: e.Link, Forward: g.Links[e.Link].A == a, Share: float32(s.Part)}), true
				}
			}
			if !found {
				return nil
			}
		}
		if all == nil {
			all = ways{}
		}
		all[[2]topo.NodeID{node(pair[0]), node(pair[1])}] = way
	}
	return all
}

func pieceWord(n int) string {
	if n == 1 {
		return "1 piece"
	}
	return fmt.Sprintf("%d pieces", n)
}

// treeWord says how many trees a plan has, and how high they are.
func treeWord(p *synth.Plan) string {
	if p.Exchange() {
		return fmt.Sprintf("%d paths of up to %d hops", len(p.Ways), p.Height())
	}
	trees, hops := fmt.Sprintf("%d trees", len(p.Ways)), fmt.Sprintf("%d hops", p.Height())
	if len(p.Ways) == 1 {
		trees = "1 tree"
	}
	if p.Height() == 1 {
		hops = "1 hop"
	}
	return trees + " of up to " + hops
}

// shape is a program that may be made of a plan.
type shape struct {
	name string
	make func() (*sched.Program, error)
}

// mostMessages bounds what a program sends that is made without a wish for pieces,
// mostFollowed the messages of those ranks that are simulated, one of each kind,
// mostTried the ranks up to which several forms are compared, and MostDivided the ranks of programs with a channel for each child.
const (
	mostMessages = 150_000
	mostFollowed = 3_000_000
	mostTried    = 256
	MostDivided  = 64
	mostAlike    = 96 // ranks that are simulated one by one in seconds
)

// Trees up to which a message costs the simulation what is usual, as with more of them more
// messages share links, and up to which trees are divided further.
const (
	usualTrees  = 24
	mostDivided = 96
)

// mostProven is how many channels of all ranks together can be proven where they share chunks.
const mostProven = 1 << 14

// turnsTry is how trees take turns on few channels: each channel has each pieces of its own. Booked ones have few
// pieces, and links of the fabric booked one after another.
type turnsTry struct {
	channels, each int
	booked         bool
}

// ordered tries trees that take turns on few channels.
func (s *Synthesis) ordered(p *synth.Plan, wish SynthWish, try func(shape) error) error {
	followed := p.Repeats()
	tries := []turnsTry{{4, 16, false}, {2, 32, false}, {8, 8, false}, {16, 4, false}, {1, 8, false}}
	if s.Net.Ranks > mostAlike { // a round has transfers enough to keep links busy, and few pieces are quickly simulated
		tries = append([]turnsTry{{4, 4, true}, {2, 4, true}}, tries...)
	}
	if followed > mostAlike { // few pieces first: every rank is simulated
		tries = append([]turnsTry{{4, 2, false}}, tries...)
	}
	if s.Net.Ranks > mostTried { // fabrics of that size have several pods, and fewer hosts are alike to the simulator
		followed, tries = max(followed, mostTried), []turnsTry{{4, 1, true}}
		if wish.Channels > 0 && wish.Channels < 4 {
			tries[0] = turnsTry{min(wish.Channels, 2), 2, true}
		}
	}
	messages := len(p.Ways) * (s.Net.Ranks - 1) / s.Net.Ranks * followed
	if p.Op == sched.AllReduce {
		messages *= 2
	}
	for _, c := range tries {
		if wish.Channels > 0 && c.channels > wish.Channels {
			continue
		}
		each := max(min(c.each, mostFollowed/messages/c.channels), 1)
		if wish.Pieces > 0 {
			each = max(wish.Pieces/max(c.channels/2, 1), 1)
		}
		make, how := p.Ordered, "in turn"
		if c.booked {
			make, how = p.Booked, "in turn by booked links"
		}
		name := fmt.Sprintf("%s %s, %s for each channel", treeWord(p), how, pieceWord(each))
		if messages*each*c.channels > 2*mostFollowed {
			s.skip = true
		}
		if err := try(shape{name, func() (*sched.Program, error) { return make("synth", each, c.channels) }}); err != nil {
			return err
		}
		if s.Program != nil && (s.Result == nil || s.reached(p, enough(s.Net.Ranks))) {
			break
		}
	}
	return nil
}

// reached reports whether the simulation reached a share of what trees allow.
func (s *Synthesis) reached(p *synth.Plan, share float64) bool {
	return s.Result != nil && float64(s.Result.AlgBW) >= share*float64(p.Rate)
}

// near is the share of what trees allow from which no other division is tried, nearly that of many ranks in turn, and
// inTurn that of those few enough to have a channel for each child instead.
const (
	near   = 0.98
	inTurn = 0.97
	nearly = 0.9
)

// enough is the share of what trees allow from which they are left in turn.
func enough(ranks int) float64 {
	if ranks <= MostDivided {
		return inTurn
	}
	return nearly
}

// forms tries what can be made of trees at a size: heavy ones divided if links
// are shared badly, fewer lanes if that is as fast, fewer pieces if messages get
// too small.
func (s *Synthesis) forms(p *synth.Plan, hop unit.Time, wish SynthWish, try func(shape) error, size unit.Bytes) error {
	pieces := wish.Pieces
	if pieces == 0 {
		pieces = p.Pieces(size, hop)
	}
	// More messages than this take long to simulate.
	if messages := len(p.Ways) * (s.Net.Ranks - 1) * 2; wish.Pieces == 0 {
		pieces = min(pieces, max(mostMessages/messages*usualTrees/max(len(p.Ways), usualTrees), 8))
	}
	form := func(plan *synth.Plan, c, lanes int) error {
		name := fmt.Sprintf("%s, %s", treeWord(plan), pieceWord(c))
		if lanes == 1 {
			name += ", one lane"
		} else if lanes > 1 {
			name += fmt.Sprintf(", at most %d lanes", lanes)
		}
		return try(shape{name, func() (*sched.Program, error) { return plan.Program("synth", c, lanes) }})
	}
	best := p
	reached := func() bool { return s.reached(p, near) }
	first := []func() error{
		func() error { return form(p, pieces, 0) },
		func() error { return s.linked(p, hop, wish, try, size) },
	}
	if len(p.Ways) > usualTrees { // what is simulated quickly first: the other has channels by the hundred
		slices.Reverse(first)
	}
	for _, try := range first {
		if err := try(); err != nil {
			return err
		}
	}
	for _, more := range []int{2, 4, 8} {
		even := p.Even(more * len(p.Ways))
		if reached() || len(even.Ways) == len(best.Ways) || len(even.Ways) > mostDivided {
			break
		}
		was := s.Program
		if err := form(even, pieces, 0); err != nil {
			return err
		}
		if s.Program != was {
			best = even
		}
	}
	for _, lanes := range []int{2, 1} {
		if (s.Net.Ranks > synth.MostShallow || len(p.Ways) > usualTrees) && s.Program != nil {
			break
		}
		if err := form(best, pieces, lanes); err != nil {
			return err
		}
	}
	if wish.Pieces > 0 || reached() {
		return nil
	}
	if len(p.Ways) > usualTrees {
		return nil
	}
	for _, c := range []int{max(pieces/3, 1), 1} {
		for _, lanes := range []int{0, 1} {
			if err := form(best, c, lanes); err != nil {
				return err
			}
		}
	}
	return nil
}

// low tries lower trees, in pieces as they suit the size and in fewer.
func (s *Synthesis) low(p *synth.Plan, hop unit.Time, wish SynthWish, try func(shape) error, size unit.Bytes) error {
	pieces := p.Pieces(size, hop)
	if wish.Pieces > 0 {
		pieces = wish.Pieces
	}
	for _, c := range []int{pieces, max(pieces/3, 1)} {
		name := fmt.Sprintf("%s, %s", treeWord(p), pieceWord(c))
		if err := try(shape{name, func() (*sched.Program, error) { return p.Program("synth", c, 0) }}); err != nil {
			return err
		}
	}
	return s.linked(p, hop, wish, try, size)
}

// linked tries trees that share one channel for each link, or two of them.
func (s *Synthesis) linked(p *synth.Plan, hop unit.Time, wish SynthWish, try func(shape) error, size unit.Bytes) error {
	rounds := p.Rounds(size, hop)
	for _, copies := range []int{1, 2} {
		each := max(rounds/copies, 1)
		if wish.Pieces > 0 {
			each = max(wish.Pieces/copies, 1)
		}
		name := fmt.Sprintf("%s, %s, a channel for each link", treeWord(p), pieceWord(each*copies))
		if copies > 1 {
			name = fmt.Sprintf("%s, %s, %d channels for each link", treeWord(p), pieceWord(each*copies), copies)
		}
		if err := try(shape{name, func() (*sched.Program, error) { return p.Linked("synth", each, copies, wish.Channels) }}); err != nil {
			return err
		}
	}
	return nil
}

// try simulates one form for as long as the fastest so far takes. Of forms that
// are as good, the one with fewer channels is kept.
func (s *Synthesis) try(g *topo.Graph, gpus []topo.NodeID, form shape, size unit.Bytes, o Options, channels int) error {
	t := Tried{Algo: form.name}
	p, err := form.make()
	switch {
	case err != nil:
		t.Why = err.Error()
	case channels > 0 && p.Channels() > channels:
		t.Why = fmt.Sprintf("it has %d channels", p.Channels())
	case p.Channels()*s.Net.Ranks > mostProven:
		t.Why = fmt.Sprintf("it has %d channels, too many to prove", p.Channels())
	case slices.ContainsFunc(s.Tried, func(old Tried) bool { return old.digest == p.Digest() }):
		return nil
	case s.most > 0 && Job{Program: p, Size: size}.actions() > s.most:
		t.Why = "its messages take long to simulate"
	}
	if t.Why == "" {
		t.digest = p.Digest()
		if s.Result != nil {
			o.Deadline = s.Result.Time - 1
			if p.Channels() < s.Program.Channels() {
				o.Deadline = s.Result.Time + s.Result.Time/200
			}
		}
		if s.skip {
			if s.Program == nil || p.Channels() < s.Program.Channels() {
				s.Program, s.Form = p, form.name
			}
			s.Tried = append(s.Tried, t)
			return nil
		}
		res, err := Run(g, []Job{{Program: p, Size: size, Place: gpus}}, o)
		switch {
		case err == nil:
			t.Time = res.Time
			s.Program, s.Result, s.Form, s.Split = p, res, form.name, o.ways != nil
		case !errors.Is(err, ErrLate):
			return err
		case s.Program == nil: // stopped
			s.Program, s.Form, s.Stopped = p, form.name, true
		}
	}
	s.Tried = append(s.Tried, t)
	return nil
}

// What Best synthesises for: few ranks, as it takes some simulations more, and
// sizes where bytes count. It is taken if it saves a twentieth: the algorithms
// that everybody knows are worth that much.
const (
	mostSynthesised  = 16
	leastSynthesised = 64 * unit.KiB
	worthwhile       = 20
	mostActions      = 30_000 // of which each takes 0.1 ms where hundreds of channels share links
)

// synthesise tries a program made for the machine, unless what was found is
// about as fast as anything can be.
func (f *Found) synthesise(g *topo.Graph, op sched.Collective, n int, size unit.Bytes, o Options, wish Wish) {
	t := Tried{Algo: "synth"}
	defer func() { f.Tried = append(f.Tried, t) }()
	switch {
	case op != sched.AllReduce && op != sched.AllGather && op != sched.ReduceScatter && op != sched.Broadcast && op != sched.Reduce:
		t.Why = "programs are made for all-reduce, all-gather, reduce-scatter, broadcast and reduce"
		return
	case wish.Plain || wish.Channels > 0 || wish.Pieces > 0:
		t.Why = "programs made for the machine were not wanted"
		return
	case n > mostSynthesised || size < leastSynthesised:
		t.Why = fmt.Sprintf("made without being asked for up to %d ranks and from %s on; 'weft algo synth' makes others",
			mostSynthesised, leastSynthesised)
		return
	}
	gpus := wish.gpus(g, n)
	net, err := Net(g, gpus, o)
	if err != nil {
		t.Why = err.Error()
		return
	}
	b, err := net.Bounds(op, 0, false)
	if err != nil {
		t.Why = err.Error()
		return
	}
	if f.Result != nil && f.Result.Time-f.Result.Time/worthwhile <= b.Time(size) {
		t.Why = fmt.Sprintf("nothing without switches that add takes less than %s", b.Time(size))
		return
	}
	s, err := Synthesise(g, gpus, op, size, o, SynthWish{Loss: DefaultLoss, Most: mostActions, Stop: o.Stop})
	if err != nil {
		t.Why = err.Error()
		return
	}
	if s.Result == nil {
		t.Why = "not simulated"
		return
	}
	t.Time = s.Result.Time
	if f.Result == nil || s.Result.Time < f.Result.Time-f.Result.Time/worthwhile {
		f.Algo, f.Program, f.Result = s.Program.Name, s.Program, s.Result
	}
}

// BestOn simulates every algorithm of weft's own that passes bytes only between
// ranks, on chosen GPUs, and keeps the fastest. Rings keep the order of the GPUs.
func BestOn(g *topo.Graph, gpus []topo.NodeID, op sched.Collective, root int, size unit.Bytes, o Options) (*Found, error) {
	f := &Found{}
	var last error
	for _, a := range algo.All() {
		if !a.Serves(op) || a.Adds != algo.NoSwitch || a.Grid && !torus(g) {
			continue
		}
		s := algo.Spec{Op: op, Ranks: len(gpus), Slots: slots, Local: DomainOf(g, gpus), Root: root}
		s.Pieces = Pieces(a, s, size)
		p, err := a.Program(s)
		if err != nil {
			continue
		}
		late := o
		if f.Result != nil {
			late.Deadline = f.Result.Time - 1
		}
		res, err := Run(g, []Job{{Program: p, Size: size, Place: gpus}}, late)
		switch {
		case err == nil:
			f.Program, f.Result = p, res
		case !errors.Is(err, ErrLate):
			last = err
		}
	}
	if f.Program == nil {
		return nil, fmt.Errorf("no algorithm of weft's own runs here: %w", last)
	}
	return f, nil
}
