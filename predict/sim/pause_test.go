package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// fabric is links and the ways of flows over them, from the sender's first link on. Some flows have more ways of the same length, which
// their packets take in turn.
type fabric struct {
	caps []float64 // Gb/s
	ways [][]int
	more map[int][][]int
}

// all lists the ways of a flow.
func (f fabric) all(flow int) [][]int { return append([][]int{f.ways[flow]}, f.more[flow]...) }

// fluid gives the rates that pausing finds, in Gb/s.
func (f fabric) fluid(c Congestion) []float64 {
	var s sharing
	p := &pausing{mild: c == Notices}
	for _, v := range f.caps {
		s.resource(int64(v * 1e9))
		p.queues = append(p.queues, true)
	}
	for k := range f.ways {
		var loads []load
		var before []uint8
		ways := f.all(k)
		for _, way := range ways {
			for i, l := range way {
				at := slices.IndexFunc(loads, func(x load) bool { return x.res == int32(l) })
				if at < 0 {
					at = len(loads)
					loads, before = append(loads, load{res: int32(l)}), append(before, uint8(i))
				}
				loads[at].share += int64(whole / len(ways))
			}
		}
		s.flow(loads)
		p.before = append(p.before, before)
	}
	p.size(len(f.caps), len(f.ways))
	p.number(s.flows)
	if c != FairShares {
		s.pause = p
	}
	for i := range f.ways {
		s.start(int32(i))
	}
	if c == Notices {
		p.now = noticeTime * 100
		for r := range s.res {
			s.touch(int32(r))
		}
	}
	s.solve()
	var rates []float64
	for i := range f.ways {
		rates = append(rates, float64(s.flows[i].rate)/1e9)
	}
	return rates
}

// packets sends packets of one size through switches that lose none: a switch counts what came by each of its links and has not
// left, and pauses a link above a threshold, until less is left. Every link sends first what came first. Rates are those after a while.
func (f fabric) packets(seed uint64) []float64 {
	const (
		stop, resume = 12, 8
		steps        = 12000
	)
	type packet struct {
		way       []int
		flow, hop int
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	queue := make([][]packet, len(f.caps)) // that wait to be sent on a link
	waiting := make([]int, len(f.caps))    // that came by a link and are in the switch behind it
	paused := make([]bool, len(f.caps))
	credit := make([]float64, len(f.caps))
	turns := map[int][]int{} // by first link: its flows
	for i, way := range f.ways {
		turns[way[0]] = append(turns[way[0]], i)
	}
	got := make([]float64, len(f.ways))
	top := slices.Max(f.caps)
	for step := range steps {
		for _, l := range rnd.Perm(len(f.caps)) {
			credit[l] = min(credit[l]+f.caps[l]/top/2, 1.5)
			if list := turns[l]; len(list) > 0 && len(queue[l]) < 2 { // the sender has always more
				ways := f.all(list[0])
				queue[l] = append(queue[l], packet{ways[rnd.IntN(len(ways))], list[0], 0})
				turns[l] = append(list[1:], list[0])
			}
			if credit[l] < 1 || paused[l] || len(queue[l]) == 0 {
				continue
			}
			credit[l]--
			x := queue[l][0]
			queue[l] = queue[l][1:]
			way := x.way
			if x.hop > 0 {
				by := way[x.hop-1]
				if waiting[by]--; waiting[by] <= resume {
					paused[by] = false
				}
			}
			if x.hop++; x.hop == len(way) {
				if step > steps/3 {
					got[x.flow]++
				}
				continue
			}
			if waiting[l]++; waiting[l] >= stop {
				paused[l] = true
			}
			queue[way[x.hop]] = append(queue[way[x.hop]], x)
		}
	}
	for i := range got {
		got[i] *= 2 * top / (steps - steps/3 - 1)
	}
	return got
}

func show(rates []float64) string {
	s := ""
	for _, r := range rates {
		s += fmt.Sprintf(" %.1f", r)
	}
	return s
}

// TestPausesHarmOthers: the testbed of Zhu et al. (Congestion control for large-scale RDMA deployments, SIGCOMM 2015, section 2.2):
// four leaves with two uplinks each, all links 40 Gb/s. Four senders under leaf 1 send to R under leaf 4;
// VS under leaf 1 sends to VR under leaf 2. VS's fair share is 20 Gb/s. Measured were 10 with PFC alone, and 4.5 once two senders
// under leaf 3 join in; with DCQCN the victim kept its share.
func TestPausesHarmOthers(t *testing.T) {
	f := fabric{caps: slices.Repeat([]float64{40}, 30)}
	const ( // links
		up1, up2       = 5, 6   // leaf 1 to its two aggregation switches
		spineA, spineB = 7, 8   // on to the spine
		down1, down2   = 9, 10  // to the aggregation switches of leaf 4
		last1, last2   = 11, 12 // to leaf 4
		toR            = 13
		vLast, vR      = 15, 16
		up3, up4       = 19, 20 // leaf 3, under the same aggregation switches as leaf 4
	)
	for h := range 4 {
		if h%2 == 0 {
			f.ways = append(f.ways, []int{h, up1, spineA, down1, last1, toR})
		} else {
			f.ways = append(f.ways, []int{h, up2, spineB, down2, last2, toR})
		}
	}
	victim := len(f.ways)
	f.ways = append(f.ways, []int{4, up1, vLast, vR}) // leaf 2 is under leaf 1's aggregation switches
	for _, c := range []struct {
		kind Congestion
		want float64 // Gb/s
	}{{FairShares, 20}, {Notices, 20}, {Pauses, 10}} {
		if got := f.fluid(c.kind)[victim]; math.Abs(got-c.want) > 0.5 {
			t.Errorf("congestion %d: the victim gets %.1f Gb/s, want %.1f", c.kind, got, c.want)
		}
	}
	f.ways = append(f.ways, []int{17, up3, last1, toR}, []int{18, up4, last2, toR})
	if got := f.fluid(Pauses)[victim]; got < 4 || got > 6.7 {
		t.Errorf("with two more senders under leaf 3 the victim gets %.1f Gb/s, measured were 4.5", got)
	}
	t.Logf("model%s, packets%s", show(f.fluid(Pauses)), show(f.packets(1)))
}

// TestPausesAgainstPackets holds the rates to packets in switches that pause, on random fabrics of two tiers.
func TestPausesAgainstPackets(t *testing.T) {
	t.Run("one way", func(t *testing.T) { againstPackets(t, false, 0.15) })
	t.Run("all ways", func(t *testing.T) { againstPackets(t, true, 0.5) })
}

func againstPackets(t *testing.T, spread bool, most float64) {
	var off, fair []float64
	for seed := range uint64(40) {
		f := randomFabric(seed, spread)
		want, got, even := f.packets(seed), f.fluid(Pauses), f.fluid(FairShares)
		for i := range want {
			off = append(off, math.Abs(got[i]-want[i])/max(want[i], 1))
			fair = append(fair, math.Abs(even[i]-want[i])/max(want[i], 1))
		}
		if testing.Verbose() {
			t.Logf("seed %d:\n model  %s\n packets%s\n fair   %s", seed, show(got), show(want), show(even))
		}
	}
	slices.Sort(off)
	slices.Sort(fair)
	t.Logf("on %d flows, off by %.1f%% (median), %.0f%% (p90), %.0f%% (p95); fair shares by %.1f%%, %.0f%%, %.0f%%", len(off),
		100*off[len(off)/2], 100*off[len(off)*9/10], 100*off[len(off)*19/20],
		100*fair[len(fair)/2], 100*fair[len(fair)*9/10], 100*fair[len(fair)*19/20])
	if off[len(off)/2] > 0.05 || off[len(off)*9/10] > most || off[len(off)*9/10] > 0.7*fair[len(fair)*9/10] {
		t.Error("the rates are too far from those of packets")
	}
}

// TestCongestedJobs: a gather of 96 ranks slows down another flow of one of their NICs where switches pause links, less so where
// senders are told to slow down, and not at all by fair shares.
func TestCongestedJobs(t *testing.T) {
	g := preset(t, "fat-tree", map[string]int{"hosts": 48})
	var place []topo.NodeID
	g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) {
		if len(place) < 16*8 {
			place = append(place, n)
		}
	})
	many := place[:96:96] // all send to the first
	a, err := algo.Find("direct")
	if err != nil {
		t.Fatal(err)
	}
	job := func(op sched.Collective, gpus []topo.NodeID, size unit.Bytes) Job {
		p, err := Wish{}.ProgramOn(a, g, op, gpus, size)
		if err != nil {
			t.Fatal(err)
		}
		return Job{Program: p, Size: size, Place: gpus}
	}
	jobs := []Job{job(sched.Gather, many, 512*unit.MiB), job(sched.SendRecv, []topo.NodeID{place[40], place[120]}, 64*unit.MiB)}
	took := map[Congestion]unit.Time{}
	for _, c := range []Congestion{FairShares, Pauses, Notices} {
		r, err := Run(g, jobs, Options{Congestion: c, Routing: ECMP})
		if err != nil {
			t.Fatal(err)
		}
		took[c] = r.Jobs[1].End
		t.Logf("congestion %d: %s, gather %s, stuck %.3f", c, r.Jobs[1].End, r.Jobs[0].End, r.Paused)
	}
	if took[Pauses] < took[FairShares]*5/4 || took[Notices] > took[Pauses] || took[Notices] < took[FairShares] {
		t.Errorf("times are %v", took)
	}
}

// TestPausesNeedAllConnections: what cannot be worked out is refused, and not answered with fair shares.
func TestPausesNeedAllConnections(t *testing.T) {
	g := example(t, "rail-131k.yaml")
	a, err := algo.Find("pairwise")
	if err != nil {
		t.Fatal(err)
	}
	j, err := Wish{}.Job(a, g, sched.AllToAll, 8192, 8*unit.MiB, catalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Run(g, []Job{j}, Options{Congestion: Pauses}); err == nil || !strings.Contains(err.Error(), "use fewer GPUs") {
		t.Errorf("answered with %v, %v", r, err)
	}
}

// TestFlowletsStay: messages that follow each other closely stay on one path, so that flowlets are ECMP; after a pause they take another.
func TestFlowletsStay(t *testing.T) {
	x := flowlets{paths: []flowlet{{flow: 1}, {flow: 2}}}
	for _, c := range []struct {
		now  unit.Time
		want int32
	}{{0, 1}, {40, 1}, {120, 2}, {150, 2}, {260, 1}} {
		if got := x.next(c.now * unit.Microsecond); got != c.want {
			t.Errorf("at %d us flow %d is taken, want %d", c.now, got, c.want)
		}
		x.left((c.now+10)*unit.Microsecond, 1)
	}
}

// randomFabric has leaves of four hosts and two spines.
func randomFabric(seed uint64, spread bool) fabric {
	rnd := rand.New(rand.NewPCG(seed, 2))
	const leaves, hosts, spines = 4, 4, 2
	f := fabric{more: map[int][][]int{}}
	link := func(c float64) int {
		f.caps = append(f.caps, c)
		return len(f.caps) - 1
	}
	var send, receive [leaves * hosts]int
	var up, down [leaves][spines]int
	for h := range send {
		send[h], receive[h] = link(40), link(40)
	}
	for l := range up {
		for s := range spines {
			up[l][s], down[l][s] = link(40), link(40)
		}
	}
	for range 3 + rnd.IntN(8) {
		a, b := rnd.IntN(leaves*hosts), rnd.IntN(leaves*hosts)
		switch {
		case a == b:
		case a/hosts == b/hosts:
			f.ways = append(f.ways, []int{send[a], receive[b]})
		default:
			s := rnd.IntN(spines)
			f.ways = append(f.ways, []int{send[a], up[a/hosts][s], down[b/hosts][s], receive[b]})
			if spread {
				f.more[len(f.ways)-1] = [][]int{{send[a], up[a/hosts][1-s], down[b/hosts][1-s], receive[b]}}
			}
		}
	}
	return f
}

// The links before each load are those of the longest way to where it begins, whichever order loads come in.
func TestStepsAreTheLongestWay(t *testing.T) {
	g := preset(t, "fat-tree", map[string]int{"hosts": 16, "tiers": 3})
	net, err := networkOf(g, Options{})
	if err != nil {
		t.Fatal(err)
	}
	gpus := nodesOf(g, topo.GPU)
	rnd := rand.New(rand.NewPCG(5, 5))
	depth := make([]uint8, len(g.Nodes))
	deepest := 0
	for range 200 {
		from, to := gpus[rnd.IntN(len(gpus))], gpus[rnd.IntN(len(gpus))]
		if from == to {
			continue
		}
		w := &world{net: net}
		var p path
		if err := net.route(from, to, 0, &p); err != nil {
			t.Fatal(err)
		}
		uses := append(slices.Clone(p.uses), p.mid...)
		rnd.Shuffle(len(uses), func(i, j int) { uses[i], uses[j] = uses[j], uses[i] })
		w.wires = make([]int32, 2*(len(g.Links)+len(g.Nodes)))
		loads := w.loads(uses)
		got := w.steps(loads, depth)
		ends := func(i int) (a, b topo.NodeID) {
			x := w.resWire[loads[i].res]
			if x < 0 || int(x>>1) >= len(g.Links) {
				return topo.None, topo.None
			}
			return g.Links[x>>1].Ends(x&1 == 0)
		}
		var longest func(i int) int
		known := map[int]int{}
		longest = func(i int) (most int) {
			if most, there := known[i]; there {
				return most
			}
			defer func() { known[i] = most }()
			at, _ := ends(i)
			for j := range loads {
				if _, b := ends(j); at != topo.None && b == at {
					most = max(most, longest(j)+1)
				}
			}
			return most
		}
		for i := range loads {
			if want := longest(i); int(got[i]) != want {
				t.Fatalf("%d links are before load %d of %d, not %d", want, i, len(loads), got[i])
			}
			deepest = max(deepest, int(got[i]))
		}
	}
	if deepest < 5 || slices.Max(depth) != 0 {
		t.Errorf("the longest way has %d links; room for depths has %d", deepest+1, slices.Max(depth))
	}
}

// Flows that are spread over the same ways share what is known of their links: preparing pauses for them takes memory by flow and link, not
// by flow and pair of links.
func TestPausesKnowWaysOnce(t *testing.T) {
	g := preset(t, "fat-tree", map[string]int{"hosts": 32})
	p := program(t, "pairwise", algo.Spec{Op: sched.AllToAll, Ranks: 128})
	j, err := Job{Program: p, Size: unit.MiB}.placed(g)
	if err != nil {
		t.Fatal(err)
	}
	net, err := networkOf(g, Options{Congestion: Pauses})
	if err != nil {
		t.Fatal(err)
	}
	var w *world
	used := allocated(func() { w, err = newWorld(net, []Job{j}, net.o) })
	if err != nil {
		t.Fatal(err)
	}
	loads := 0
	for i := range w.conns {
		loads += len(w.share.flows[w.conns[i].flow].loads)
	}
	each := float64(used) / float64(loads)
	t.Logf("%d connections, %.1f links each, %.0f bytes for each of these", len(w.conns), float64(loads)/float64(len(w.conns)), each)
	if each > 150 {
		t.Errorf("%.0f bytes for each link of each connection", each)
	}
}
