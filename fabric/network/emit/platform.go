package emit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
)

// platform is a switch as SONiC knows it. Each cage has eight lanes.
type platform struct {
	name    string
	skus    map[int]string // by ports per cage
	block   func(cage int) int
	first   int // number of the first lane
	alias   func(panel) string
	metres  []int // cable lengths that have a row in pg_profile_lookup.ini
	dynamic bool  // buffers are computed from speed and cable; otherwise they are the SKU's own
}

// platforms are those whose port_config.ini is known, by the catalogue's model without its split.
var platforms = map[string]*platform{
	"SN5600": {
		name:    "x86_64-nvidia_sn5600-r0",
		skus:    map[int]string{1: "ACS-SN5600", 2: "Mellanox-SN5600-O128", 4: "Mellanox-SN5600-V256"},
		block:   func(cage int) int { return cage - 1 },
		alias:   etp,
		metres:  []int{5, 40, 300},
		dynamic: true,
	},
	"TH5": { // Arista 7060X6-64PE
		name:   "x86_64-arista_7060x6_64pe",
		skus:   map[int]string{1: "Arista-7060X6-64PE-P64", 2: "Arista-7060X6-64PE-O128", 4: "Arista-7060X6-64PE-256x200G"},
		block:  arista,
		first:  1,
		alias:  func(x panel) string { return fmt.Sprintf("Ethernet%d/%d", x.cage, 1+lanesOf/x.legs*x.leg) },
		metres: []int{5, 40, 150},
	},
}

// etp is NVIDIA's name of a port: etp1, or etp1a for a leg.
func etp(x panel) string {
	if x.legs == 1 {
		return fmt.Sprintf("etp%d", x.cage)
	}
	return fmt.Sprintf("etp%d%c", x.cage, 'a'+x.leg)
}

// arista is which eight lanes of the chip a cage of the 7060X6-64PE has: four cages share
// 32 lanes, in another order at the beginning of each half.
func arista(cage int) int {
	order := []int{3, 1, 0, 2}
	if group := (cage - 1) / 4; group%8 == 0 {
		order = []int{2, 0, 1, 3}
	}
	return (cage-1)/4*4 + order[(cage-1)%4]
}

// lanes lists the lanes of a port.
func (f *platform) lanes(x panel) string {
	width := lanesOf / x.legs
	var out []string
	for i := range width {
		out = append(out, fmt.Sprint(f.first+lanesOf*f.block(x.cage)+width*x.leg+i))
	}
	return strings.Join(out, ",")
}

// length rounds a cable's length up to one that has buffers.
func (f *platform) length(metres float64) (int, bool) {
	for _, m := range f.metres {
		if metres <= float64(m) {
			return m, true
		}
	}
	return 0, false
}

// platformOf finds what SONiC calls a switch.
func platformOf(p *network.Plan, s *network.Switch) (*platform, string, error) {
	model := p.Graph.Nodes[s.Node].Model
	base, _, _ := strings.Cut(model, "-")
	legs := panelOf(p, s, 1).legs
	f := platforms[base]
	if f == nil || f.skus[legs] == "" {
		return nil, "",
			fmt.Errorf("%s is a %s with %d ports per cage, of which SONiC's platform is not known here; known: %s with 1, 2 or 4: write render: {leaf: frr, spine: frr}",
				s.Name, model, legs, strings.Join(slices.Sorted(maps.Keys(platforms)), ", "))
	}
	return f, f.skus[legs], nil
}

// sonicKnown refuses switches and cables that SONiC would not bring up lossless.
func sonicKnown(p *network.Plan) error {
	for _, s := range switchesIn(p, "sonic") {
		f, _, err := platformOf(p, s)
		if err != nil {
			return err
		}
		for _, q := range s.Ports {
			if m := p.Graph.Metres(q.Link); m > float64(f.metres[len(f.metres)-1]) && p.Intent.RoCE.Mode == "lossless" {
				return fmt.Errorf("%s:%s has a cable of %.0f m, and SONiC has buffers for at most %d m on it; write roce: {mode: lossy}, or a shorter cable",
					s.Name, PortName(p, s, q.Number), m, f.metres[len(f.metres)-1])
			}
		}
	}
	return nil
}

// sonicBuffers are the pools and profiles of a switch whose buffers are computed. Sizes are left
// out: SONiC computes them from speed, cable and MTU of every port.
func sonicBuffers(db map[string]table) {
	db["BUFFER_POOL"] = table{
		"ingress_lossless_pool": {"type": "ingress", "mode": "dynamic"},
		"egress_lossless_pool":  {"type": "egress", "mode": "dynamic"},
		"egress_lossy_pool":     {"type": "egress", "mode": "dynamic"},
	}
	db["BUFFER_PROFILE"] = table{
		"ingress_lossy_profile":   {"pool": "ingress_lossless_pool", "size": "0", "dynamic_th": "3"},
		"egress_lossless_profile": {"pool": "egress_lossless_pool", "size": "0", "dynamic_th": "7"},
		"egress_lossy_profile":    {"pool": "egress_lossy_pool", "size": "0", "dynamic_th": "7"},
	}
}

// sonicPortBuffers gives the lossless priority of a port its headroom, and the others what is left.
// A profile of NULL is SONiC's word for one that it computes.
func sonicPortBuffers(db map[string]table, port string, prio, cnp int) {
	put(db, "BUFFER_PG", port+"|0", map[string]any{"profile": "ingress_lossy_profile"})
	put(db, "BUFFER_PG", fmt.Sprintf("%s|%d", port, prio), map[string]any{"profile": "NULL"})
	put(db, "BUFFER_QUEUE", port+"|0", map[string]any{"profile": "egress_lossy_profile"})
	put(db, "BUFFER_QUEUE", fmt.Sprintf("%s|%d", port, prio), map[string]any{"profile": "egress_lossless_profile"})
	put(db, "BUFFER_QUEUE", fmt.Sprintf("%s|%d", port, cnp), map[string]any{"profile": "egress_lossy_profile"})
}
