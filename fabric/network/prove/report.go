package prove

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Area is a network whose hosts reach one another. Where Open, they also reach the other
// open areas of their group. Areas of different groups are apart.
type Area struct {
	Name, Group string
	Prefix      netip.Prefix
	Open        bool
	Hosts       map[string]bool // whose addresses in the prefix are meant; nil: all
}

// meets reports whether hosts of one area reach those of another.
func (a *Area) meets(b *Area) bool { return a == b || a.Group == b.Group && a.Open && b.Open }

// Counterexample is a case for which a property does not hold.
type Counterexample struct {
	Packet  string   `json:"packet,omitempty"` // from whom to whom, and its size where that matters
	Failure string   `json:"failure,omitempty"`
	Path    []string `json:"path,omitempty"` // devices, up to where the packet ended
	Why     string   `json:"why"`
}

func (c Counterexample) String() string {
	var out []string
	if c.Packet != "" {
		out = append(out, c.Packet)
	}
	if c.Failure != "" {
		out = append(out, "without "+c.Failure)
	}
	if len(c.Path) > 0 {
		out = append(out, "by "+strings.Join(c.Path, ", "))
	}
	return strings.Join(append(out, c.Why), ": ")
}

// Verdict is what was found of one property.
type Verdict struct {
	Property string           `json:"property"`
	Holds    bool             `json:"holds"`
	Cases    int              `json:"cases"`
	Broken   int              `json:"broken"` // of the cases
	Of       string           `json:"of"`     // what a case is
	Note     string           `json:"note,omitempty"`
	Counter  []Counterexample `json:"counterexamples,omitempty"` // the first few
	Advice   bool             `json:"advice,omitempty"`          // no fault of the files: it may be broken
}

// maxCounter is how many counterexamples of a property are kept.
const maxCounter = 5

func (v *Verdict) refute(cases int, c Counterexample) {
	v.Broken += cases
	if len(v.Counter) < maxCounter {
		v.Counter = append(v.Counter, c)
	}
}

// Report is what holds of a network.
type Report struct {
	Hosts    int       `json:"hosts"`
	Switches int       `json:"switches"`
	Cables   int       `json:"cables"`
	Classes  int       `json:"classes"` // of targets that all routers treat alike
	Decided  int       `json:"decided"` // classes of which no symmetry takes one to another
	Verdicts []Verdict `json:"verdicts"`
	Seconds  float64   `json:"seconds"` // that it took, for whoever calls to fill in

	InfiniBand []*SubnetReport `json:"infiniband,omitempty"` // for whoever calls to fill in
	Slurm      []Verdict       `json:"slurm,omitempty"`      // likewise
}

// Holds reports whether no property was refuted.
func (r *Report) Holds() bool {
	refuted := func(v Verdict) bool { return !v.Holds && !v.Advice }
	return !slices.ContainsFunc(r.Verdicts, refuted) && !slices.ContainsFunc(r.Slurm, refuted) &&
		!slices.ContainsFunc(r.InfiniBand, func(s *SubnetReport) bool { return slices.ContainsFunc(s.Verdicts, refuted) })
}

// Verdict finds a property's by name; nil if it was not looked at.
func (r *Report) Verdict(name string) *Verdict {
	for i := range r.Verdicts {
		if r.Verdicts[i].Property == name {
			return &r.Verdicts[i]
		}
	}
	return nil
}

// Options say how much is proven.
type Options struct {
	Failures bool       // every single failure of a switch, a cable between switches or a NIC
	Pairs    int        // pairs of switches that fail together: all of them, or this many of them
	Together [][]string // switches by name that fail together
	Each     bool       // decide every class by itself, whatever the symmetries
}

// Prove looks at every property for all pairs of addresses in each area.
func (n *Net) Prove(areas []Area, o Options) *Report {
	p := newProver(n, areas, o)
	r := &Report{Switches: len(n.routers), Cables: len(n.cables), Hosts: len(n.devices) - len(n.routers)}
	p.classify()
	r.Classes = len(p.classes)
	p.run()
	r.Decided = p.decided
	list := []Verdict{n.read(), n.unique(), n.spoken(), p.bridged, p.reach, p.loops, p.apart, p.ecmp, p.mtu, n.paused(), p.cyclic,
		p.polarised()}
	if o.Failures {
		list = append(list, p.single)
	}
	if len(p.groups) > 0 {
		list = append(list, p.double)
	}
	for _, v := range list {
		v.Holds = v.Broken == 0
		if v.Cases > 0 || v.Broken > 0 {
			r.Verdicts = append(r.Verdicts, v)
		}
	}
	return r
}

// read refutes what no reader knows: a line that is passed over may change everything.
func (n *Net) read() Verdict {
	v := Verdict{Property: "files are modelled", Of: "devices", Cases: len(n.devices)}
	for _, line := range n.Unread {
		v.refute(1, Counterexample{Why: "the model does not know " + line})
	}
	return v
}

// unique looks for addresses, router ids and AS numbers that two devices have. Spines share
// a number by design; routers with hosts must not: they would refuse one another's routes.
func (n *Net) unique() Verdict {
	v := Verdict{Property: "addresses and numbers are unique", Of: "values"}
	seen := map[string]string{}
	claim := func(what, who string) {
		v.Cases++
		if other, twice := seen[what]; twice {
			v.refute(1, Counterexample{Why: fmt.Sprintf("%s is that of %s and of %s", what, other, who)})
			return
		}
		seen[what] = who
	}
	for _, d := range n.devices {
		for _, p := range d.ports {
			for _, a := range p.Addrs {
				claim("address "+a.Addr().String(), d.Name+":"+p.Name)
			}
		}
		if d.BGP == nil {
			continue
		}
		claim("router id "+d.BGP.ID, d.Name)
		if slices.ContainsFunc(d.ports, func(p *Port) bool { return p.Peer != nil && !p.Peer.Device.Router }) {
			claim(fmt.Sprintf("AS number %d", d.BGP.ASN), d.Name)
		}
	}
	return v
}

// spoken looks for cables between switches without a BGP session.
func (n *Net) spoken() Verdict {
	v := Verdict{Property: "cables between switches carry BGP", Of: "cables"}
	for i := range n.cables {
		c := &n.cables[i]
		if !c.trunk() {
			continue
		}
		v.Cases++
		for _, p := range []*Port{c.a, c.b} {
			if p.on.BGP == nil || p.on.session(p.Name) == nil {
				v.refute(1, Counterexample{Why: fmt.Sprintf("%s has no session: %s", c, silent(p))})
				break
			}
		}
	}
	return v
}

// silent says why a port has no session.
func silent(p *Port) string {
	far := p.Peer.Device
	switch {
	case p.on.BGP == nil || !slices.Contains(p.on.BGP.Neighbours, p.Name):
		return p.on.Name + " has no neighbor " + p.Name
	case far.BGP == nil || !slices.Contains(far.BGP.Neighbours, p.Peer.Port.Name):
		return far.Name + " has no neighbor " + p.Peer.Port.Name
	}
	if why := p.on.BGP.refuses(p.Name, p.Peer); why != "" {
		return p.on.Name + ": " + why
	}
	if why := far.BGP.refuses(p.Peer.Port.Name, p.Peer.Port.Peer); why != "" {
		return far.Name + ": " + why
	}
	if far.BGP.ASN != p.on.BGP.ASN {
		return "their passwords or their TTL security differ"
	}
	return fmt.Sprintf("both have AS number %d", far.BGP.ASN)
}
