package design

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Wish is what somebody wants to buy, in a line: "2048 h100, 1:1, under $90M".
type Wish struct {
	GPUs   int     `json:"gpus"`
	GPU    string  `json:"gpu"`             // beginning of the model's name, in small letters
	Ratio  float64 `json:"ratio"`           // oversubscription at most; 0: whatever
	USD    float64 `json:"usd,omitempty"`   // at most; 0: whatever
	Watts  float64 `json:"watts,omitempty"` // at most; 0: whatever
	Kind   string  `json:"kind,omitempty"`  // infiniband or ethernet; empty: either
	Family string  `json:"family,omitempty"`
}

const wishForms = `a number of GPUs and their model ("2048 h100"), an oversubscription ("1:1"), a price ("under $90M"), a power ("under 3MW"), infiniband or ethernet, rail or fat-tree; with commas between them`

var (
	wishGPUs  = regexp.MustCompile(`^(\d[\d,_]*)\s*(?:x\s*)?([a-z][a-z0-9-]*)$`)
	wishRatio = regexp.MustCompile(`^(?:at most )?(\d+(?:\.\d+)?)\s*:\s*1$`)
	wishUSD   = regexp.MustCompile(`^(?:under|below|at most|<)?\s*\$\s*(\d+(?:\.\d+)?)\s*([kmb]?)$`)
	wishWatts = regexp.MustCompile(`^(?:under|below|at most|<)?\s*(\d+(?:\.\d+)?)\s*([km])w$`)
)

// wishWords are the parts of a wish without a number.
var wishWords = map[string]func(*Wish){
	"infiniband":   func(w *Wish) { w.Kind = "infiniband" },
	"ib":           func(w *Wish) { w.Kind = "infiniband" },
	"ethernet":     func(w *Wish) { w.Kind = "ethernet" },
	"roce":         func(w *Wish) { w.Kind = "ethernet" },
	"rail":         func(w *Wish) { w.Family = "rail" },
	"rails":        func(w *Wish) { w.Family = "rail" },
	"fat-tree":     func(w *Wish) { w.Family = "fat-tree" },
	"non-blocking": func(w *Wish) { w.Ratio = 1 },
}

// ParseWish reads a wish.
func ParseWish(text string) (Wish, error) {
	var w Wish
	for part := range strings.SplitSeq(text, ",") {
		part = strings.ToLower(strings.Join(strings.Fields(part), " "))
		var wrong error
		number := func(s string, unit string) float64 {
			n, _ := strconv.ParseFloat(s, 64) // the form is checked
			if n > 1e15 {
				wrong = fmt.Errorf("%q: want a number below 10^15", part)
			}
			return n * map[string]float64{"": 1, "k": 1e3, "m": 1e6, "b": 1e9}[unit]
		}
		switch {
		case part == "":
		case wishWords[part] != nil:
			wishWords[part](&w)
		case wishRatio.MatchString(part):
			w.Ratio = number(wishRatio.FindStringSubmatch(part)[1], "")
		case wishUSD.MatchString(part):
			m := wishUSD.FindStringSubmatch(part)
			w.USD = number(m[1], m[2])
		case wishWatts.MatchString(part):
			m := wishWatts.FindStringSubmatch(part)
			w.Watts = number(m[1], m[2])
		case wishGPUs.MatchString(part):
			m := wishGPUs.FindStringSubmatch(part)
			n, err := strconv.Atoi(strings.NewReplacer(",", "", "_", "").Replace(m[1]))
			if err != nil || n < 1 || n > 1<<20 {
				return w, fmt.Errorf("%q: want 1 to %d GPUs", part, 1<<20)
			}
			w.GPUs, w.GPU = n, m[2]
		default:
			return w, fmt.Errorf("%q is none of %s", part, wishForms)
		}
		if wrong != nil {
			return w, wrong
		}
	}
	if w.GPUs == 0 {
		return w, fmt.Errorf("%q names no GPUs; give %s", text, wishForms)
	}
	if w.Ratio > 0 && w.Ratio < 1 {
		return w, fmt.Errorf("an oversubscription of %g:1; want 1:1 or more", w.Ratio)
	}
	return w, nil
}

// Proposal is a design that may fulfil a wish.
type Proposal struct {
	Host     string   `json:"host"`
	Hosts    int      `json:"hosts"`
	GPUs     int      `json:"gpus"`
	Family   string   `json:"family"`
	Switch   string   `json:"switch"`
	Switches int      `json:"switches"`
	Cables   int      `json:"cables"`
	Ratio    float64  `json:"oversubscription"`
	USD      float64  `json:"cost_usd"`
	Watts    float64  `json:"power_watts"`
	Network  float64  `json:"network_usd"` // switches and cables
	Unpriced []string `json:"unpriced"`    // what the catalogue has no price of: the cost is higher
	Fits     bool     `json:"fits"`
	Misses   []string `json:"misses"`  // why it does not
	Why      string   `json:"why"`     // beside the best one
	Cluster  string   `json:"cluster"` // the cluster file
}

// Refused is a design that cannot be built, or a switch that would slow NICs down.
type Refused struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Found is the answer to a wish: proposals, the best first, and what was tried in vain.
type Found struct {
	Wish      Wish       `json:"wish"`
	Proposals []Proposal `json:"proposals"`
	Refused   []Refused  `json:"refused"`
}

// Search tries every known host with the GPUs, every switch that its NICs can be plugged into, rails and fat-trees, at the
// oversubscription that is allowed and, to show what it costs, at 1:1. It ranks what fits by price.
func Search(w Wish, c *catalog.Catalog, progress func(done, of int)) (*Found, error) {
	if c == nil {
		c = catalog.Default()
	}
	f := &Found{Wish: w, Proposals: []Proposal{}, Refused: []Refused{}}
	tries, slow, err := w.tries(c)
	if err != nil {
		return nil, err
	}
	for i, t := range tries {
		progress(i, len(tries))
		ratio := ""
		if t.ratio != 1 {
			ratio = fmt.Sprintf(", oversubscription: \"%g:1\"", t.ratio)
		}
		text := fmt.Sprintf("name: %d-%s-%s\nhosts: {\"n[0-%d]\": {kind: %s, rack: 4}}\nfabric: {family: %s, switch: %s%s}\n",
			w.GPUs, w.GPU, t.family, t.hosts-1, t.host, t.family, t.sw, ratio)
		p, err := propose(text, c)
		if err != nil {
			f.Refused = append(f.Refused, Refused{fmt.Sprintf("%d %s, %s of %s at %g:1", t.hosts, t.host, t.family, t.sw, t.ratio), firstLine(err)})
			continue
		}
		p.Host, p.Family, p.Switch = t.host, t.family, t.sw
		p.judge(w)
		f.Proposals = append(f.Proposals, *p)
	}
	for _, sw := range slices.Sorted(maps.Keys(slow)) {
		f.Refused = append(f.Refused, Refused{sw, slow[sw]})
	}
	slices.SortStableFunc(f.Proposals, func(a, b Proposal) int {
		if a.Fits != b.Fits {
			if a.Fits {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(len(a.Misses), len(b.Misses)), cmp.Compare(len(a.Unpriced), len(b.Unpriced)), cmp.Compare(a.USD, b.USD),
			cmp.Compare(a.Ratio, b.Ratio))
	})
	f.explain()
	return f, nil
}

// try is a design to look at: hosts of a kind, and a fabric for them.
type try struct {
	host, family, sw string
	hosts            int
	ratio            float64
}

// tries are all designs that could fulfil the wish; slow says which switches run the hosts' NICs below their rate.
func (w Wish) tries(c *catalog.Catalog) (tries []try, slow map[string]string, err error) {
	models := map[string]bool{}
	slow = map[string]string{}
	for _, kind := range build.HostKinds() {
		box, err := build.HostBox(c, kind)
		if err != nil {
			continue
		}
		gpus, nic := 0, ""
		for _, d := range box.Devices {
			if d.Kind == topo.GPU {
				models[strings.ToLower(d.Model)] = true
				if strings.HasPrefix(strings.ToLower(d.Model), w.GPU) {
					gpus++
				}
			}
			if d.Kind == topo.NIC && nic == "" {
				nic = d.Model
			}
		}
		if gpus == 0 || nic == "" || strings.HasPrefix(kind, "aws-") { // a cloud's hosts come with its network
			continue
		}
		full := unit.Rate(0) // of the NIC
		for _, sw := range switches(c, "") {
			if class, err := build.LinkBetween(c, nic, c.Switches[sw]); err == nil {
				full = max(full, class.Rate)
			}
		}
		for _, sw := range switches(c, w.Kind) {
			class, err := build.LinkBetween(c, nic, c.Switches[sw])
			if err != nil {
				continue
			}
			if class.Rate < full*0.99 {
				slow[sw] = fmt.Sprintf("runs NICs of %s at %s of their %s", kind, class.Rate, full)
				continue
			}
			for _, family := range []string{"rail", "fat-tree"} {
				if w.Family != "" && w.Family != family {
					continue
				}
				tries = append(tries, try{kind, family, sw, (w.GPUs + gpus - 1) / gpus, 1})
				if w.Ratio != 1 {
					tries = append(tries, try{kind, family, sw, (w.GPUs + gpus - 1) / gpus, cmp.Or(w.Ratio, 2)})
				}
			}
		}
	}
	if len(tries) == 0 {
		known := slices.Sorted(maps.Keys(models))
		return nil, nil, fmt.Errorf("no known host has a GPU %q and a NIC for the switches that are asked for; known GPUs: %s",
			w.GPU, strings.Join(known, ", "))
	}
	return tries, slow, nil
}

// switches lists those of a kind of link that a fabric is built of, by name.
func switches(c *catalog.Catalog, kind string) []string {
	var out []string
	for name, s := range c.Switches {
		ib := s.Kind == topo.InfiniBand
		if s.Ports >= 32 && (ib || s.Kind == topo.Ethernet) && (kind == "" || ib == (kind == "infiniband")) && s.Link != "1gbe" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// propose counts and prices a design; failures and bisection are left to Analyze.
func propose(text string, c *catalog.Catalog) (*Proposal, error) {
	cl, err := cluster.Parse("proposal.yaml", []byte(text), nil)
	if err != nil {
		return nil, err
	}
	v, err := look(cl.Graph)
	if err != nil {
		return nil, err
	}
	r := &Report{perCable: max(cl.LinksPerCable, 1), fibre: true}
	r.count(v)
	r.oversubscribe(v, withDefaults(cl.Needs).Oversub)
	r.bill(v, c)
	p := &Proposal{Hosts: r.Hosts, GPUs: r.GPUs, Switches: r.Switches.Leaf + r.Switches.Spine + r.Switches.Core, Ratio: r.Oversubscription,
		USD: r.CostUSD, Watts: r.PowerWatts, Unpriced: append([]string{}, r.Unpriced...), Misses: []string{}, Cluster: text}
	for _, it := range r.Bill {
		switch it.Kind {
		case "cable":
			p.Cables += it.Count
			p.Network += it.USD
		case "switch":
			p.Network += it.USD
		}
	}
	return p, nil
}

// judge says what a proposal lacks.
func (p *Proposal) judge(w Wish) {
	if w.Ratio > 0 && p.Ratio > w.Ratio*1.001 {
		p.Misses = append(p.Misses, fmt.Sprintf("oversubscription %.3g:1, above %.3g:1", p.Ratio, w.Ratio))
	}
	if w.USD > 0 && p.USD > w.USD {
		p.Misses = append(p.Misses, fmt.Sprintf("%s over the price", dollars(p.USD-w.USD)))
	}
	if w.Watts > 0 && p.Watts > w.Watts {
		p.Misses = append(p.Misses, fmt.Sprintf("%.2f MW over the power", (p.Watts-w.Watts)/1e6))
	}
	if p.GPUs < w.GPUs {
		p.Misses = append(p.Misses, fmt.Sprintf("%d GPUs too few", w.GPUs-p.GPUs))
	}
	p.Fits = len(p.Misses) == 0
}

func dollars(v float64) string {
	if math.Abs(v) >= 1e6 {
		return fmt.Sprintf("$%.1fM", v/1e6)
	}
	return fmt.Sprintf("$%.0fK", v/1e3)
}

// explain says of each proposal how it differs from the best.
func (f *Found) explain() {
	for i := range f.Proposals {
		p, best := &f.Proposals[i], &f.Proposals[0]
		switch {
		case i == 0 && p.Fits:
			p.Why = "the cheapest that fits"
			if len(p.Unpriced) > 0 {
				p.Why += "; not all of its parts have a price"
			}
		case i == 0:
			p.Why = "nothing fits; this comes closest"
		default:
			p.Why = strings.Join(p.against(best), "; ")
		}
	}
}

// against lists what a proposal has where the best one has something else.
func (p *Proposal) against(best *Proposal) (why []string) {
	if d := p.USD - best.USD; math.Abs(d) > 5e4 {
		word := "more"
		if d < 0 {
			word, d = "less", -d
		}
		why = append(why, fmt.Sprintf("%s %s", dollars(d), word))
	}
	if p.Host != best.Host {
		why = append(why, "hosts "+p.Host+" for "+best.Host)
	}
	if p.Switch != best.Switch {
		why = append(why, "switches "+p.Switch+" for "+best.Switch)
	}
	if p.Switches != best.Switches {
		why = append(why, fmt.Sprintf("%d switches for %d", p.Switches, best.Switches))
	}
	if math.Abs(p.Ratio-best.Ratio) > 0.001 {
		why = append(why, fmt.Sprintf("%.3g:1 for %.3g:1", p.Ratio, best.Ratio))
	}
	if p.Family != best.Family {
		what := map[string]string{"rail": "NIC i of all hosts of a pod on leaf i: all-to-all crosses spines less",
			"fat-tree": "all NICs of a host on one leaf: a leaf that dies takes its hosts with it"}[p.Family]
		why = append(why, what)
	}
	if len(why) == 0 {
		why = append(why, "the same figures")
	}
	return why
}

// Text prints the answer for people: at most a number of proposals.
func (f *Found) Text(most int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-4s %-12s %6s %-9s %-10s %8s %7s %8s %9s %9s\n", "rank", "host", "hosts", "fabric", "switch", "switches", "ratio",
		"power", "network", "cost")
	for i := range f.Proposals {
		if i == most {
			fmt.Fprintf(&b, "     and %d more; --json has all\n", len(f.Proposals)-i)
			break
		}
		p := &f.Proposals[i]
		rank := strconv.Itoa(i + 1)
		if !p.Fits {
			rank = "-"
		}
		fmt.Fprintf(&b, "%-4s %-12s %6d %-9s %-10s %8d %7s %8s %9s %9s\n", rank, p.Host, p.Hosts, p.Family, p.Switch, p.Switches,
			fmt.Sprintf("%.3g:1", p.Ratio), fmt.Sprintf("%.2f MW", p.Watts/1e6), dollars(p.Network), dollars(p.USD))
		fmt.Fprintf(&b, "     %s\n", p.Why)
		for _, m := range p.Misses {
			fmt.Fprintf(&b, "     misses: %s\n", m)
		}
		if len(p.Unpriced) > 0 {
			fmt.Fprintf(&b, "     without a price: %s\n", strings.Join(p.Unpriced, ", "))
		}
	}
	for i, r := range f.Refused {
		if i == 0 {
			fmt.Fprintln(&b, "\nnot proposed:")
		}
		if i == most {
			fmt.Fprintf(&b, "  and %d more\n", len(f.Refused)-i)
			break
		}
		fmt.Fprintf(&b, "  %s: %s\n", r.What, r.Why)
	}
	return b.String()
}
