package lab

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/weft-fabric/weft/fabric/network"
)

// Port is a host's address on a network that switches of the lab join.
type Port struct {
	Net    string // "rail 0", "storage"
	Addr   string
	Tenant string // of the host; empty where it has none
}

// ports lists the addresses of a host on networks that switches of the plan join.
func ports(p *network.Plan, h *network.Host) (out []Port) {
	for j := range h.Interfaces {
		x := &h.Interfaces[j]
		if !x.Addr.IsValid() || h.Leg(x).Link == network.None {
			continue
		}
		name := x.Role.String()
		if x.Role == network.Backend {
			name = fmt.Sprintf("rail %d", x.Rail)
		}
		out = append(out, Port{Net: name, Addr: x.Addr.Addr().String(), Tenant: p.Tenant(h.Name)})
	}
	return out
}

// Transfer is a connection between two addresses of a lab: what it carried, or why it did not.
type Transfer struct {
	Net    string  `json:"network"`
	From   string  `json:"from"`
	To     string  `json:"to"`
	Source string  `json:"source"`
	Target string  `json:"target"`
	Wanted bool    `json:"wanted"` // the two are of one tenant
	Bytes  int64   `json:"bytes"`
	Rate   float64 `json:"bytes_per_s,omitempty"`
	Error  string  `json:"error,omitempty"`
	Leaked bool    `json:"leaked,omitempty"` // a packet of one tenant arrived at another, whether or not an answer came back
}

// AsPlanned reports whether the connection is there exactly if it should be.
func (t *Transfer) AsPlanned() bool { return (t.Error == "") == t.Wanted && !t.Leaked }

// wrong says what is not as planned.
func (t *Transfer) wrong() string {
	if t.Leaked && t.Error != "" {
		return "no connection, but a packet arrived, and they are of two tenants"
	}
	return cmp.Or(t.Error, "it arrived, and they are of two tenants")
}

// transfers lists all connections between two hosts on one network: within tenants and across them.
func (s *Spec) transfers() (out []Transfer) {
	for i := range s.Nodes {
		for j := range s.Nodes {
			for _, a := range s.Nodes[i].Ports {
				for _, b := range s.Nodes[j].Ports {
					if i != j && a.Net == b.Net {
						out = append(out, Transfer{Net: a.Net, From: s.Nodes[i].Name, To: s.Nodes[j].Name, Source: a.Addr, Target: b.Addr,
							Wanted: a.Tenant == b.Tenant})
					}
				}
			}
		}
	}
	return out
}

// TrafficConfig says how much is sent.
type TrafficConfig struct {
	Bytes int64         // by each connection
	Limit time.Duration // for each, to connect and to send
	Apart time.Duration // likewise for those of two tenants, which come to nothing; Limit if it is 0
}

// total is what a network carried.
type total struct {
	pairs, arrived, across, apart int
	bytes                         int64
	rates                         []float64
}

// add counts a transfer. Where none should pass, only one that did not arrive and leaked nothing is right.
func (x *total) add(t *Transfer) {
	switch arrived := t.Error == ""; {
	case !t.Wanted:
		x.across++
		if !arrived && !t.Leaked {
			x.apart++
		}
	case arrived:
		x.arrived++
		x.bytes += t.Bytes
		x.rates = append(x.rates, t.Rate)
		fallthrough
	default:
		x.pairs++
	}
}

// PrintTraffic writes a line for each network, and one for each connection that is not as planned.
func PrintTraffic(w io.Writer, list []Transfer) error {
	totals := map[string]*total{}
	for k := range list {
		x := totals[list[k].Net]
		if x == nil {
			x = &total{}
			totals[list[k].Net] = x
		}
		x.add(&list[k])
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "network\tpairs\tarrived\tverified\tmedian\tslowest\tapart")
	for _, name := range slices.Sorted(maps.Keys(totals)) {
		x := totals[name]
		slices.Sort(x.rates)
		median, slowest, apart := "-", "-", "-"
		if n := len(x.rates); n > 0 {
			median, slowest = fmt.Sprintf("%.0f MB/s", x.rates[n/2]/1e6), fmt.Sprintf("%.0f MB/s", x.rates[0]/1e6)
		}
		if x.across > 0 {
			apart = fmt.Sprintf("%d of %d", x.apart, x.across)
		}
		fmt.Fprintf(out, "%s\t%d\t%d\t%.1f MB\t%s\t%s\t%s\n", name, x.pairs, x.arrived, float64(x.bytes)/1e6, median, slowest, apart)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	for _, t := range list {
		if !t.AsPlanned() {
			fmt.Fprintf(w, "%s %s -> %s %s on %s: %s\n", t.From, t.Source, t.To, t.Target, t.Net, t.wrong())
		}
	}
	return nil
}
