package prove

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Tenant is a partition that hosts are meant to be in: full members reach all of it, limited ones
// the full ones. Hosts of no tenant reach all.
type Tenant struct {
	Name    string
	Hosts   map[string]bool
	Limited map[string]bool
}

// SubnetReport is what holds of an InfiniBand fabric.
type SubnetReport struct {
	Name     string    `json:"name"`
	Adapters int       `json:"adapters"`
	Switches int       `json:"switches"`
	Cables   int       `json:"cables"`
	Engine   string    `json:"engine"` // that routes
	Verdicts []Verdict `json:"verdicts"`
}

// routes are the ways of a subnet while some of it is broken.
//
// OpenSM's engines ftree and updn send packets up, towards the roots, and then down, never up again. A switch's rank is its
// distance from the nearest root; between equals the greater GUID is above, and of two roots each is above the other. A switch
// forwards by target alone. Minhop does the same without up and down. Nue reaches whatever cables reach; its paths are those of
// its tables, if there is a dump of them.
type routes struct {
	s      *Subnet
	dead   []bool // switches
	cut    []bool // cables
	rank   []int32
	free   bool // of up and down
	none   bool // no engine routes
	engine string

	dist  []int32 // to the target, in cables
	fell  []bool  // whether the path from the target came down to a switch
	queue []int32
}

// far is the distance of what is out of reach.
const far = int32(1) << 29

func (s *Subnet) begin() *routes {
	return &routes{s: s, dead: make([]bool, len(s.switches)), cut: make([]bool, s.trunks), rank: make([]int32, len(s.switches)),
		dist: make([]int32, len(s.switches)), fell: make([]bool, len(s.switches))}
}

// elect ranks the switches and picks the engine.
func (r *routes) elect() {
	q := r.queue[:0]
	for i, x := range r.s.switches {
		r.rank[i] = far
		if x.root && !r.dead[i] {
			r.rank[i] = 0
			q = append(q, int32(i))
		}
	}
	r.none, r.free, r.engine = true, false, "none"
	for _, e := range r.s.engines {
		if free := !slices.Contains(rooted, e); free || len(q) > 0 {
			r.none, r.free, r.engine = false, free, e
			break
		}
	}
	r.count(q)
	if r.engine == "ftree" && !r.layered() && slices.Contains(r.s.engines, "updn") {
		r.engine = "updn"
	}
}

// count ranks the switches below the roots.
func (r *routes) count(q []int32) {
	for ; len(q) > 0; q = q[1:] {
		for _, l := range r.s.switches[q[0]].next {
			if !r.cut[l.cable] && !r.dead[l.to] && r.rank[l.to] == far {
				r.rank[l.to] = r.rank[q[0]] + 1
				q = append(q, l.to)
			}
		}
	}
}

// layered says whether cables join ranks that follow one another, as ftree wants it.
func (r *routes) layered() bool {
	for u, x := range r.s.switches {
		for _, l := range x.next {
			if d := r.rank[u] - r.rank[l.to]; d != 1 && d != -1 {
				return false
			}
		}
	}
	return true
}

// climbs says whether a step from u to v is up.
func (r *routes) climbs(u, v int32) bool {
	switch a, b := r.rank[u], r.rank[v]; {
	case a == 0 && b == 0:
		return true
	case a != b:
		return a > b
	}
	return r.s.switches[u].guid > r.s.switches[v].guid
}

// to finds the distances of all switches from a target, as OpenSM does: from the target outwards, by ports in their order. It
// keeps for each switch whether the path by which it was first found came down to it, and does not go up from there,
// also where another path of equal length would let it. Paths are walked the other way round, so that up is down for packets.
func (r *routes) to(d int32) {
	for i := range r.dist {
		r.dist[i], r.fell[i] = far, false
	}
	if r.dead[d] || r.none {
		return
	}
	r.dist[d] = 0
	q := append(r.queue[:0], d)
	for head := 0; head < len(q); head++ {
		v := q[head]
		for _, l := range r.s.switches[v].next {
			if r.dist[l.to] == far && r.extends(v, l) {
				r.dist[l.to], r.fell[l.to] = r.dist[v]+1, !r.free && !r.climbs(v, l.to)
				q = append(q, l.to)
			}
		}
	}
	r.queue = q
}

// extends says whether paths from the target to switch v go on over a link.
func (r *routes) extends(v int32, l ibLink) bool {
	return !r.cut[l.cable] && !r.dead[l.to] && (r.free || !r.fell[v] || !r.climbs(v, l.to))
}

// onward says whether switch u forwards packets for the target over a link.
func (r *routes) onward(u int32, l ibLink) bool {
	return r.dist[u] < far && !r.dead[l.to] && r.dist[l.to]+1 == r.dist[u] && r.extends(l.to, ibLink{to: u, cable: l.cable})
}

// walk follows packets from a switch to the target by the first of several ports, or by the last.
func (r *routes) walk(u int32, last bool, each func(u int32, l ibLink)) {
	for r.dist[u] > 0 && r.dist[u] < far {
		var take *ibLink
		next := r.s.switches[u].next
		for i := range next {
			if r.onward(u, next[i]) && (take == nil || last) {
				take = &next[i]
			}
		}
		each(u, *take)
		u = take.to
	}
}

// edges are the switches with adapters.
func (s *Subnet) edges() (out []int32) {
	for i, x := range s.switches {
		if len(x.hung) > 0 {
			out = append(out, int32(i))
		}
	}
	return out
}

// ProveSubnet looks at every property of an InfiniBand fabric.
func (n *Net) ProveSubnet(s *Subnet, tenants []Tenant, o Options) *SubnetReport {
	p := &subnetProof{s: s, net: n, r: s.begin(), edges: s.edges(), intent: tenants}
	p.r.elect()
	out := &SubnetReport{Name: s.Name, Adapters: len(s.adapters), Switches: len(s.switches),
		Cables: len(s.adapters) + s.trunks, Engine: p.r.engine}
	list := []Verdict{p.read(), p.unique()}
	list = append(list, p.joined()...)
	list = append(list, p.apart(), p.size())
	if o.Failures {
		list = append(list, p.single())
	}
	if groups := p.groups(o); len(groups) > 0 {
		list = append(list, p.several(groups, o.Pairs > 0))
	}
	for _, v := range list {
		if v.Holds = v.Broken == 0; v.Cases > 0 || v.Broken > 0 {
			out.Verdicts = append(out.Verdicts, v)
		}
	}
	return out
}

// subnetProof is a proof under way.
type subnetProof struct {
	s      *Subnet
	net    *Net
	r      *routes
	edges  []int32
	intent []Tenant
}

func (p *subnetProof) read() Verdict {
	s := p.s
	v := Verdict{Property: "files are modelled", Of: "files", Cases: 2 + len(s.named)}
	if s.tables != nil {
		v.Cases++
		for _, line := range s.tables.Unread {
			v.refute(1, Counterexample{Why: "the model does not know " + line})
		}
	}
	for _, line := range s.Unread {
		v.refute(1, Counterexample{Why: "the model does not know " + line})
	}
	if !s.routing || len(s.engines) == 0 {
		v.refute(1, Counterexample{Why: "opensm.conf names no routing engine"})
	}
	for option, file := range smFiles {
		if option == "root_guid_file" && !slices.ContainsFunc(s.engines, func(e string) bool { return slices.Contains(rooted, e) }) {
			continue
		}
		if !s.named[option] {
			v.refute(1, Counterexample{Why: fmt.Sprintf("opensm.conf does not read %s: it has no %s", file, option)})
		}
	}
	return v
}

// unique also looks for roots that are no switches, and hosts' ports without a GUID: OpenSM would not know them.
func (p *subnetProof) unique() Verdict {
	s := p.s
	v := Verdict{Property: "GUIDs are unique and have cables", Of: "GUIDs", Cases: len(s.guids)}
	for _, why := range append(slices.Clone(s.doubles), s.loose...) {
		v.refute(1, Counterexample{Why: why})
	}
	for _, a := range s.adapters {
		if a.guid == 0 {
			v.refute(1, Counterexample{Why: a.String() + " has a cable, and no GUID in cn_guids.conf"})
		}
	}
	for _, g := range s.roots {
		if !slices.ContainsFunc(s.switches, func(x *ibSwitch) bool { return x.guid == g }) {
			v.refute(1, Counterexample{Why: fmt.Sprintf("root_guids.conf has 0x%016x, which no switch has", g)})
		}
	}
	return v
}

// pairs are those between the adapters of two switches, in one direction; of one switch, its own.
func (p *subnetProof) pairs(u, v int32) int {
	a, b := len(p.s.switches[u].hung), len(p.s.switches[v].hung)
	if u == v {
		return a * (a - 1)
	}
	return a * b
}

func (p *subnetProof) between(u, v int32) string {
	return fmt.Sprintf("%s to %s", p.s.switches[u].hung[0], p.s.switches[v].hung[0])
}

func (p *subnetProof) allPairs() int { return len(p.s.adapters) * (len(p.s.adapters) - 1) }

// joined looks at which adapters reach one another, whether by shortest paths, and whether buffers wait in a circle.
func (p *subnetProof) joined() []Verdict {
	reach := Verdict{Property: "adapters reach one another", Of: "pairs", Cases: p.allPairs()}
	short := Verdict{Property: "paths are as short as cables allow", Of: "pairs", Cases: p.allPairs(), Advice: true}
	if p.s.tables != nil {
		return p.tabled(reach, short)
	}
	t := &turns{r: p.r}
	for _, d := range p.edges {
		p.r.to(d)
		hops := p.hops(d)
		for _, u := range p.edges {
			switch {
			case p.r.dist[u] >= far:
				reach.refute(p.pairs(u, d), Counterexample{Packet: p.between(u, d), Why: p.lost(u, d)})
			case p.r.dist[u] > hops[u]:
				short.refute(p.pairs(u, d), Counterexample{Packet: p.between(u, d), Path: p.trail(u, d),
					Why: fmt.Sprintf("%d cables between switches, where %d would do", p.r.dist[u], hops[u])})
			}
		}
		t.add(p.edges)
	}
	if p.r.engine == "nue" { // which path it takes is in its tables alone
		short.Cases = 0
	}
	return []Verdict{reach, short, p.credits(t)}
}

// hops are the distances by cables alone.
func (p *subnetProof) hops(d int32) []int32 {
	out := make([]int32, len(p.s.switches))
	for i := range out {
		out[i] = far
	}
	out[d] = 0
	for q := []int32{d}; len(q) > 0; q = q[1:] {
		for _, l := range p.s.switches[q[0]].next {
			if out[l.to] == far {
				out[l.to] = out[q[0]] + 1
				q = append(q, l.to)
			}
		}
	}
	return out
}

// trail names the switches of a path.
func (p *subnetProof) trail(u, d int32) (out []string) {
	p.r.walk(u, false, func(u int32, l ibLink) { out = append(out, p.s.switches[u].name) })
	return append(out, p.s.switches[d].name)
}

// lost says why there is no path.
func (p *subnetProof) lost(u, d int32) string {
	a, b := p.s.switches[u].name, p.s.switches[d].name
	switch {
	case p.r.none:
		return "no root is left, and no routing engine works without one"
	case p.r.free:
		return fmt.Sprintf("no cables join %s and %s", a, b)
	}
	return fmt.Sprintf("no path leads from %s up towards a root and then down to %s", a, b)
}

// apart looks at who shares a partition, and who should.
func (p *subnetProof) apart() Verdict {
	v := Verdict{Property: "partitions join and part hosts as meant", Of: "pairs"}
	classes, count := p.classes()
	for i, a := range classes {
		for j, b := range classes {
			cases := count[i] * count[j]
			if i == j {
				cases -= count[i]
			}
			if v.Cases += cases; cases == 0 {
				continue
			}
			want, have := p.meant(a.host, b.host), p.share(a, b)
			if want != have {
				why := "they share no partition in which one of them is a full member"
				if have {
					why = "partitions.conf joins them, and their tenants are apart"
				}
				v.refute(cases, Counterexample{Packet: fmt.Sprintf("%s to %s", a, b), Why: why})
			}
		}
	}
	return v
}

// classes are adapters that partitions and tenants treat alike, one of each, and how many there are.
func (p *subnetProof) classes() (first []*adapter, count []int) {
	at := map[string]int{}
	for _, a := range p.s.adapters {
		var key strings.Builder
		for i := range p.s.partitions {
			in, full := p.s.partitions[i].member(a.guid)
			fmt.Fprint(&key, in, full)
		}
		for _, t := range p.intent {
			fmt.Fprint(&key, t.Hosts[a.host], t.Limited[a.host])
		}
		i, known := at[key.String()]
		if !known {
			i = len(first)
			at[key.String()] = i
			first, count = append(first, a), append(count, 0)
		}
		count[i]++
	}
	return first, count
}

// meant says whether two hosts are to reach one another.
func (p *subnetProof) meant(a, b string) bool {
	inA, inB := false, false
	for _, t := range p.intent {
		if t.Hosts[a] && t.Hosts[b] && !(t.Limited[a] && t.Limited[b]) {
			return true
		}
		inA, inB = inA || t.Hosts[a], inB || t.Hosts[b]
	}
	return !inA || !inB
}

// share says whether the partitions let two adapters talk.
func (p *subnetProof) share(a, b *adapter) bool {
	for i := range p.s.partitions {
		x := &p.s.partitions[i]
		inA, fullA := x.member(a.guid)
		inB, fullB := x.member(b.guid)
		if inA && inB && (fullA || fullB) {
			return true
		}
	}
	return false
}

// size holds the hosts' IP interfaces to what the default partition carries: 4 bytes of a packet are IPoIB's own.
func (p *subnetProof) size() Verdict {
	v := Verdict{Property: "full packets pass", Of: "adapters"}
	carried := 2044
	for i := range p.s.partitions {
		if x := &p.s.partitions[i]; x.key == 0x7fff && x.mtu > 0 {
			carried = x.mtu - 4
		}
	}
	for _, a := range p.s.adapters {
		d := p.net.Devices[a.host]
		if d == nil || d.Ports[a.port] == nil || d.Ports[a.port].MTU == 0 {
			continue
		}
		v.Cases++
		if mtu := d.Ports[a.port].MTU; mtu > carried {
			v.refute(1, Counterexample{Packet: fmt.Sprintf("%d bytes from %s", mtu, a),
				Why: fmt.Sprintf("the default partition carries %d bytes of IP", carried)})
		}
	}
	return v
}

// single breaks every switch, every cable between switches and every adapter, one by one. Adapters of a broken switch are
// not asked of: they have one cable.
func (p *subnetProof) single() Verdict {
	s := p.s
	v := Verdict{Property: "any one failure is survived", Of: "pairs and failures",
		Cases: p.allPairs() * (len(s.switches) + s.trunks + len(s.adapters)),
		Note:  fmt.Sprintf("%d switches, %d cables, %d adapters", len(s.switches), s.trunks, len(s.adapters))}
	ranks := slices.Clone(p.r.rank)
	engine, layered := p.r.engine, p.r.layered()
	// Failures after which all is computed anew: those that change which way is up, and all where there are no tiers.
	whole := map[int32]bool{}
	for e := range int32(len(s.switches) + s.trunks) {
		p.fail(e, true)
		p.r.elect()
		if !layered || !p.alike(ranks, e) || engine != p.r.engine {
			whole[e] = true
			p.broken(&v, s.failure(e))
		}
		p.fail(e, false)
	}
	p.r.elect()
	for _, d := range p.edges {
		for _, e := range p.shared(d) {
			if whole[e] {
				continue
			}
			p.fail(e, true)
			p.r.to(d)
			p.brokenTo(&v, d, s.failure(e))
			p.fail(e, false)
		}
	}
	return v
}

// fail breaks an element, or mends it: a switch, or behind the switches a cable.
func (p *subnetProof) fail(e int32, broken bool) {
	if n := int32(len(p.s.switches)); e >= n {
		p.r.cut[e-n] = broken
	} else {
		p.r.dead[e] = broken
	}
}

// failure names an element.
func (s *Subnet) failure(e int32) string {
	n := int32(len(s.switches))
	if e < n {
		return s.switches[e].name
	}
	for _, x := range s.switches {
		for _, l := range x.next {
			if l.cable == e-n {
				return fmt.Sprintf("a cable between %s and %s", x.name, s.switches[l.to].name)
			}
		}
	}
	return ""
}

// alike says whether the ranks of what is left are those of before.
func (p *subnetProof) alike(ranks []int32, e int32) bool {
	for i, rank := range p.r.rank {
		if int32(i) != e && rank != ranks[i] {
			return false
		}
	}
	return true
}

// shared are the elements that two different choices of paths to a target have in common, but for the ends: only their
// failure can cut anyone off.
func (p *subnetProof) shared(d int32) []int32 {
	p.r.to(d)
	n := int32(len(p.s.switches))
	found := map[int32]bool{}
	var one []int32
	for _, u := range p.edges {
		one = one[:0]
		note := func(at int32, l ibLink) {
			if one = append(one, n+l.cable); at != u {
				one = append(one, at)
			}
		}
		p.r.walk(u, false, note)
		p.r.walk(u, true, func(at int32, l ibLink) {
			if slices.Contains(one, n+l.cable) {
				found[n+l.cable] = true
			}
			if at != u && slices.Contains(one, at) {
				found[at] = true
			}
		})
	}
	out := make([]int32, 0, len(found))
	for e := range found {
		out = append(out, e)
	}
	slices.Sort(out)
	return out
}

// broken looks for pairs that do not reach one another, with all that is broken now.
func (p *subnetProof) broken(v *Verdict, failure string) (cut int) {
	for _, d := range p.edges {
		if !p.r.dead[d] {
			p.r.to(d)
			cut += p.brokenTo(v, d, failure)
		}
	}
	return cut
}

func (p *subnetProof) brokenTo(v *Verdict, d int32, failure string) (cut int) {
	for _, u := range p.edges {
		if p.r.dist[u] >= far && !p.r.dead[u] && !p.r.dead[d] && u != d {
			cut += p.pairs(u, d)
			v.refute(p.pairs(u, d), Counterexample{Packet: p.between(u, d), Failure: failure, Why: p.lost(u, d)})
		}
	}
	return cut
}

// groups are the switches that are to fail together.
func (p *subnetProof) groups(o Options) (out [][]int32) {
	at := map[string]int32{}
	for i, x := range p.s.switches {
		at[x.name] = int32(i)
	}
	for _, names := range o.Together {
		var group []int32
		for _, name := range names {
			if i, mine := at[name]; mine {
				group = append(group, i)
			}
		}
		if len(group) > 0 {
			out = append(out, group)
		}
	}
	n := len(p.s.switches)
	random := rand.New(rand.NewPCG(1, 2))
	for range min(o.Pairs, n*(n-1)/2) {
		if a, b := random.IntN(n), random.IntN(n); a != b {
			out = append(out, []int32{int32(a), int32(b)})
		}
	}
	return out
}

// several breaks switches together.
func (p *subnetProof) several(groups [][]int32, random bool) Verdict {
	v := Verdict{Property: "switches that fail together", Of: "groups", Cases: len(groups), Advice: random}
	for _, group := range groups {
		var names []string
		for _, e := range group {
			p.fail(e, true)
			names = append(names, p.s.switches[e].name)
		}
		p.r.elect()
		var w Verdict
		if p.broken(&w, strings.Join(names, " and ")); w.Broken > 0 {
			v.refute(1, w.Counter[0])
		}
		for _, e := range group {
			p.fail(e, false)
		}
	}
	p.r.elect()
	return v
}

func (s *Subnet) find(name string) *adapter {
	if i := slices.IndexFunc(s.adapters, func(a *adapter) bool { return a.String() == name }); i >= 0 {
		return s.adapters[i]
	}
	return nil
}

// Has says whether an adapter, such as n0:nic0, is plugged into the fabric.
func (s *Subnet) Has(name string) bool { return s.find(name) != nil }

// Follow follows a packet between two adapters, such as n0:nic0: its hops by the first of the ports that the switches may
// choose from, and how many shortest paths there are. why says why it does not arrive.
func (s *Subnet) Follow(from, to string) (hops []string, paths int, why string) {
	a, b := s.find(from), s.find(to)
	if a == nil || b == nil {
		return nil, 0, fmt.Sprintf("%s or %s has no cable to a switch of %s", from, to, s.Name)
	}
	p := &subnetProof{s: s, r: s.begin()}
	p.r.elect()
	p.r.to(b.at)
	switch {
	case p.r.dist[a.at] >= far:
		return nil, 0, p.lost(a.at, b.at)
	case !p.share(a, b):
		return nil, 0, "they share no partition in which one of them is a full member"
	case s.tables != nil:
		hops, why := s.tables.follow(a, b)
		return hops, 1, why
	}
	return append(append([]string{from}, p.trail(a.at, b.at)...), to), p.r.paths(a.at, map[int32]int{}), ""
}

// paths counts the shortest paths from a switch to the target.
func (r *routes) paths(u int32, known map[int32]int) (n int) {
	if r.dist[u] == 0 {
		return 1
	}
	if n, ok := known[u]; ok {
		return n
	}
	for _, l := range r.s.switches[u].next {
		if r.onward(u, l) {
			n += r.paths(l.to, known)
		}
	}
	known[u] = n
	return n
}
