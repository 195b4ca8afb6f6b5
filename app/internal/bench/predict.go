package bench

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/run/comm"
)

// Ran is what an operation ran by: the program, where the ranks are, and what messages were seen to take there.
type Ran struct {
	Program string     `json:"program"` // its text
	Name    string     `json:"name"`
	Links   cost.Links `json:"links"`
	Hosts   []int      `json:"hosts"`            // by rank
	Phases  bool       `json:"phases,omitempty"` // ranks of a host work in the memory that they share
	Message int        `json:"message"`          // bytes of the longest message; longer ones go run by run
	Gauge   *Gauge     `json:"gauge,omitempty"`
}

// ran asks a communicator.
func ran(c *comm.Comm, cfg *Config, bytes int64) (*Ran, error) {
	p := cfg.program
	if p == nil {
		var err error
		if p, err = c.Chosen(cfg.Op.Collective, cfg.Root, bytes); err != nil {
			return nil, err
		}
	}
	return &Ran{Program: p.String(), Name: p.Name, Links: *c.Links(), Hosts: c.Hosts(), Message: c.Message(cfg.Op.Collective)}, nil
}

// Predict simulates what ran on a cluster made of what was measured:
//
//	rank ── memory of the host ── rank      what the processors of both do for a message
//	          │
//	         NIC ── switch ── NIC           at the rate of the host's way out
//
// Ranks share the cores of their machine (sim.Processors): where ranks are many or hosts are namespaces, cores are what there is too
// little of. repeat is how many operations were measured one after another: a rank that is done with its part goes on to the next, so
// that the root of a broadcast is ahead of the others. What is given is the time of one.
func (r *Ran) Predict(bytes int64, repeat int) (unit.Time, error) {
	p, err := sched.Parse(r.Program)
	if err != nil {
		return 0, err
	}
	if r.Gauge == nil {
		return 0, errors.New("what messages take was not measured")
	}
	m, err := newModel(r)
	if err != nil {
		return 0, err
	}
	chunk := bytes / int64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out), 1))
	runs := 1
	if p.Channels() == 1 && r.Message > 0 && !r.Phases {
		runs = int((chunk + int64(r.Message) - 1) / max(int64(r.Message), 1))
	}
	runs = max(runs, 1)
	if err := m.fit(p, bytes, runs); err != nil {
		return 0, err
	}
	repeat = min(max(repeat, 1), steady)
	us, err := m.run(p, bytes/int64(runs), repeat*runs)
	return cost.Span(us * float64(runs)), err
}

const (
	steady = 16        // operations after which another one takes as long as the one before
	room   = 16 << 20  // bytes that a rank may have under way to another (package tcp)
	kept   = 256 << 10 // bytes of a message that is copied, so that its sender need not wait (package tcp)

	wireSize = 512 << 10 // bytes by which a wire is known
)

// model is a cluster and what messages take there.
type model struct {
	r     *Ran
	g     *topo.Graph
	place []topo.NodeID
	wire  float64 // us a byte, of a host's way out
	crowd float64 // ranks that share a core, or 1
	away  float64 // the same of those that exchange messages between hosts where all do (Gauge.All)
	p     sim.Processors
}

// newModel puts hosts on machines: hosts in namespaces of one machine share its cores, and are slower for it.
func newModel(r *Ran) (*model, error) {
	m := &model{r: r}
	hosts := hostsOf(r.Hosts)
	for h := range hosts {
		m.p.Machine = append(m.p.Machine, h/max(r.Links.Hosts, 1))
	}
	machines := m.p.Machine[hosts-1] + 1
	m.p.Cores = slices.Repeat([]float64{float64(r.Links.Cores)}, machines)
	cores := float64(machines * r.Links.Cores)
	m.crowd, m.away = max(1, float64(len(r.Hosts))/cores), max(1, float64(narrowest(r.Hosts)*hosts)/cores)
	m.wire = m.wireByte()
	var err error
	m.g, m.place, err = m.graph()
	return m, err
}

// run simulates operations one after another, and gives the time of one in us.
func (m *model) run(p *sched.Program, bytes int64, repeat int) (float64, error) {
	q := *p
	// Transports have room for more messages than programs ask for.
	chunk := bytes / int64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out), 1))
	q.Slots = max(p.Slots, int(min(room/max(chunk, 1), 4*steady)))
	res, err := sim.Run(m.g, []sim.Job{{Program: &q, Size: unit.Bytes(bytes), Place: m.place, Repeat: repeat}},
		sim.Options{Processors: &m.p, Catalog: chips})
	if err != nil {
		return 0, err
	}
	return res.Time.Microseconds() / float64(repeat), nil
}

// fit gives the messages of a program the costs that were measured of like ones: of the same length, in as much memory, with as many others
// at the same time.
func (m *model) fit(p *sched.Program, bytes int64, runs int) error {
	near, far, err := m.messages(p, bytes/int64(runs))
	if err != nil {
		return err
	}
	chunk := float64(bytes) / float64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out), 1))
	span := chunk * float64(p.NumChunks(sched.In)+p.NumChunks(sched.Out)+p.NumChunks(sched.Tmp))
	g := m.r.Gauge
	begin := 0.0 // what an operation takes besides its messages: that of several exchanges in one is known
	if m.crowd == 1 {
		all := m.at(g.All, 8, 0)
		begin = max(all-max(m.at(g.Chain, 8, 0)-all, 0)/(links-1), 0)
	}
	m.p.Begin = cost.Span(begin / float64(runs))
	m.fitFar(p, far, span, begin)
	m.fitNear(near, span)
	m.p.Copy = m.at(g.Passes, float64(bytes), span) / float64(max(bytes, 1)) * 1e3 / m.crowd
	m.p.Sum = m.p.Copy
	return nil
}

// late is what an exchange in phases, met, takes more than one without, since ranks of a host wait for one another.
func (m *model) late(met, list []Took, bytes float64) float64 {
	if !m.r.Phases || len(met) == 0 {
		return 0
	}
	size := min(bytes, float64(met[len(met)-1].Bytes))
	if m.wire > 0 {
		size = 8
	}
	return max(m.at(met, size, 0)-m.at(m.r.Gauge.Inside, 8, 0)-m.at(list, size, 0), 0)
}

// fitFar is fit of messages between hosts. An exchange takes what the sender and the receiver do, one after the other, and one way the
// longer of these. Where ranks share cores, what is more than their work is time until they notice a message. In phases that is longer, as
// ranks of a host wait for one another before and after.
func (m *model) fitFar(p *sched.Program, far sent, span, begin float64) {
	g := m.r.Gauge
	list, met, crowd := g.All, g.Seats, m.away
	if m.r.Phases && far.senders <= hostsOf(m.r.Hosts) && widest(m.r.Hosts) > 1 { // of first ranks alone
		list, met, crowd = g.Pair, g.Leaders, 1
	}
	small := max(m.at(list, 8, 0)-begin, 0)
	long := max(m.at(list, far.bytes, span)-m.at(list, 8, 0), 0)
	if together := widestOf(g.Channels, p.Channels()); together != nil { // side by side they are no faster than they were seen to be
		long = max(m.at(together, far.bytes*float64(p.Channels()), span)-small-begin, 0)
	}
	late := m.late(met, list, far.bytes)
	share := min(max((m.at(g.OneWay, far.bytes, span)-begin)/max(m.at(g.Pair, far.bytes, span)-begin, 1e-3), 0.5), 0.9)
	if m.wire > 0 { // what waits for a wire is no work; both ends copy and check a byte
		share, long = 0.5, 4*m.at(g.Passes, far.bytes, span)
	}
	work := small
	if m.crowd > 1 && len(g.Pair) > 0 {
		work = min(g.Pair[0].Least, g.Pair[0].CPU/2, m.at(g.All, 8, 0)/m.away)
	}
	byte := long / max(far.bytes, 1) * 1e3 / crowd
	m.p.Far = sim.Work{Send: cost.Span(work * share), Take: cost.Span(work * (1 - share)), SendByte: byte * share,
		TakeByte: byte * (1 - share),
		Wake:     cost.Span(max(small-work*crowd, 0) + late), Kept: kept}
}

// fitNear is fit of messages inside hosts: of phases, in which ranks read one another's memory, or of messages, of which both ends do half.
func (m *model) fitNear(near sent, span float64) {
	g, n := m.r.Gauge, widest(m.r.Hosts)
	if n == 1 || len(g.Near) == 0 {
		return
	}
	list, size := g.Near, near.bytes
	if m.r.Phases {
		list, size = g.Inside, size*float64(n)
	}
	small := m.at(list, 8, 0)
	byte := max(m.at(list, size, span)-small, 0) / max(size, 1) * 1e3 / m.crowd
	work, wake := small, 0.0
	if m.crowd > 1 {
		work, wake = 0, small
	}
	if m.r.Phases {
		m.p.Near = sim.Work{Take: cost.Span(work / float64(n-1)), TakeByte: byte, Wake: cost.Span(wake), Shared: true}
		return
	}
	m.p.Near = sim.Work{Send: cost.Span(work / 2), Take: cost.Span(work / 2), SendByte: byte / 2, TakeByte: byte / 2, Wake: cost.Span(wake)}
	if m.r.Links.Kind == "tcp" {
		m.p.Near.Kept = kept
	}
}

// hostsOf is how many hosts there are.
func hostsOf(hosts []int) int { return slices.Max(hosts) + 1 }

// widestOf is what was measured on that number of channels, or on fewer; nil of one.
func widestOf(lists map[int][]Took, channels int) (list []Took) {
	for n := 2; n <= channels; n++ {
		if l := lists[n]; l != nil {
			list = l
		}
	}
	return list
}

// at is how long something takes for a number of bytes, in us, where operations pass over a span of memory: what was measured is of one
// place, which caches hold, and of places all over a longer span.
func (m *model) at(list []Took, bytes, span float64) float64 {
	one := m.between(list, bytes, false)
	wide, least := 0.0, 0.0 // the longer span, and the smallest size that was measured there
	for _, t := range list {
		if t.Span > 0 && wide == 0 {
			wide, least = float64(t.Span), float64(t.Bytes)
		}
	}
	if wide == 0 || span <= 2*bytes || wide <= 2*bytes {
		return one
	}
	size := max(bytes, least)
	more := max(m.between(list, size, true)-m.between(list, size, false), 0) * bytes / size
	return one + more*min(math.Log(span/(2*bytes))/math.Log(wide/(2*bytes)), 1)
}

// between is the time of a number of bytes, between those of two sizes that were measured, of one place or of many.
func (m *model) between(list []Took, bytes float64, many bool) float64 {
	var last, before Took
	known := 0
	for _, t := range list {
		if (t.Span > 0) != many {
			continue
		}
		if before, last = last, t; known == 0 && bytes <= float64(t.Bytes) {
			return m.time(&t)
		}
		if known++; bytes <= float64(t.Bytes) {
			break
		}
	}
	if known < 2 {
		return m.time(&last) * max(bytes/float64(max(last.Bytes, 1)), 1)
	}
	return max(m.time(&before)+(m.time(&last)-m.time(&before))*(bytes-float64(before.Bytes))/float64(last.Bytes-before.Bytes), 0)
}

// time is what counts of several batches: the fastest, as what else runs only makes others longer. Where ranks share cores it is of ranks
// that happened to be awake, and what is usual counts.
func (m *model) time(t *Took) float64 {
	if m.crowd > 1 {
		return t.Mostly
	}
	return t.Least
}

// wireByte is what a byte takes of a host's way out, in us: nothing where processors are what large messages wait for. A wire carries both
// directions at once, and processors do not. And where ranks have a core each, it is a wire if it is shared.
func (m *model) wireByte() float64 {
	g := m.r.Gauge
	if len(g.All) == 0 || len(g.Pair) == 0 || len(g.OneWay) == 0 {
		return 0
	}
	bytes := float64(wireSize)
	one, pair, all := m.between(g.OneWay, bytes, false), m.between(g.Pair, bytes, false), m.between(g.All, bytes, false)
	if pair > 1.25*one && all < 2*m.away*pair {
		return 0
	}
	return all / bytes / float64(narrowest(m.r.Hosts))
}

// narrowest is the number of ranks of the host that has fewest.
func narrowest(hosts []int) int {
	on := map[int]int{}
	for _, h := range hosts {
		on[h]++
	}
	return slices.Min(slices.Collect(maps.Values(on)))
}

// sent are the messages of a program, inside hosts or between them.
type sent struct {
	bytes   float64 // of the mean message, weighed by bytes
	senders int     // ranks that send any
}

// messages counts those of a program.
func (m *model) messages(p *sched.Program, bytes int64) (near, far sent, err error) {
	chunk := float64(bytes) / float64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out), 1))
	var sum, squares [2]float64
	var from [2]map[sched.Rank]bool
	from[0], from[1] = map[sched.Rank]bool{}, map[sched.Rank]bool{}
	err = step.Run(p, func(r sched.Rank, a *step.Action, _ struct{}) (struct{}, error) {
		if a.Op.Sends() {
			k := 0
			if m.r.Hosts[r] != m.r.Hosts[a.To] {
				k = 1
			}
			b := float64(a.Count) * chunk
			sum[k], squares[k], from[k][r] = sum[k]+b, squares[k]+b*b, true
		}
		return struct{}{}, nil
	})
	of := func(k int) sent { return sent{squares[k] / max(sum[k], 1e-9), len(from[k])} }
	return of(0), of(1), err
}

// widest is the number of ranks of the host that has most.
func widest(hosts []int) int {
	on := map[int]int{}
	most := 1
	for _, h := range hosts {
		on[h]++
		most = max(most, on[h])
	}
	return most
}

// chips take no time of their own: what messages take on their way was measured as a whole. A way between hosts begins and ends in their
// memory, too.
var chips = &catalog.Catalog{
	NICs:     map[string]catalog.NIC{measured: {Latency: unit.Picosecond}},
	Switches: map[string]catalog.Switch{measured: {Latency: unit.Picosecond}},
}

const measured = "measured"

// graph is the cluster, and where each rank is on it.
func (m *model) graph() (*topo.Graph, []topo.NodeID, error) {
	rate := 1000 * unit.GBps
	if m.wire > 0 {
		rate = unit.Rate(1e6 / m.wire)
	}
	b := topo.NewBuilder("measured")
	inside := b.Class(topo.Class{Kind: topo.PCIe, Gen: "memory", Lanes: 1, Rate: 1000 * unit.GBps})
	outside := b.Class(topo.Class{Kind: topo.Ethernet, Gen: "measured", Lanes: 1, Rate: rate})
	fabric := b.Fabric(topo.Fabric{Name: "net"})
	leaf := topo.Part(topo.Switch, topo.HostID(topo.None), "switch")
	leaf.Tier, leaf.Fabric, leaf.Model = 1, fabric, measured
	sw := b.Node(leaf)
	cpus := map[int]topo.NodeID{}
	at := map[int]topo.HostID{}
	names := make([]string, len(m.r.Hosts))
	for rank, h := range m.r.Hosts {
		if _, known := cpus[h]; !known {
			at[h] = b.Host(topo.Host{Name: fmt.Sprintf("h%d", h)})
			cpus[h] = b.Node(topo.Part(topo.CPU, at[h], "memory"))
			part := topo.Part(topo.NIC, at[h], "nic0")
			part.Fabric, part.Model = fabric, measured
			nic := b.Node(part)
			b.Link(topo.Link{A: cpus[h], B: nic, Class: inside, Count: 1})
			b.Link(topo.Link{A: nic, B: sw, Class: outside, Count: 1})
		}
		names[rank] = fmt.Sprintf("h%d:r%d", h, rank)
		gpu := b.Node(topo.Part(topo.GPU, at[h], fmt.Sprintf("r%d", rank)))
		b.Link(topo.Link{A: cpus[h], B: gpu, Class: inside, Count: 1})
	}
	g, err := b.Graph()
	if err != nil {
		return nil, nil, err
	}
	place := make([]topo.NodeID, len(names))
	for i, name := range names {
		if place[i], err = g.Lookup(name); err != nil {
			return nil, nil, err
		}
	}
	return g, place, nil
}
