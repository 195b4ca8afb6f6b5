package paths

import (
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// Report is a path with names instead of numbers, as --json prints it. Rates are
// bytes a second, times microseconds.
type Report struct {
	Rank      int          `json:"rank"`
	Mechanism Mechanism    `json:"mechanism"`
	Detail    string       `json:"detail,omitempty"`
	Rate      float64      `json:"wire_bytes_per_s"`
	Expected  float64      `json:"expected_bytes_per_s"`
	Loaded    float64      `json:"loaded_bytes_per_s"`
	Latency   float64      `json:"latency_us"`
	Size      int64        `json:"size_bytes"`
	Time      float64      `json:"time_us"`
	Count     uint64       `json:"equal_cost_ways"`
	Stores    int          `json:"stored_and_forwarded"`
	Limit     string       `json:"limit"`
	Crowd     string       `json:"shared,omitempty"`
	Reason    string       `json:"reason"`
	Terms     []TermReport `json:"latency_terms"`
	Hops      []HopReport  `json:"hops"`
}

// TermReport is a Term in a Report.
type TermReport struct {
	What string  `json:"what"`
	Time float64 `json:"us"`
}

// HopReport is one link of a path in a Report.
type HopReport struct {
	From  string  `json:"from"`
	To    string  `json:"to"`
	Gen   string  `json:"link"`
	Count int     `json:"links"`
	Rate  float64 `json:"bytes_per_s"`
	Share float64 `json:"share"`
}

// Reports writes ranked paths with names; size is that for which Rank ranked them.
func Reports(g *topo.Graph, paths []Path, size unit.Bytes) []Report {
	list := make([]Report, 0, len(paths))
	for i := range paths {
		p := &paths[i]
		r := Report{
			Rank: i + 1, Mechanism: p.Mechanism, Detail: p.Detail,
			Rate: float64(p.Rate), Expected: float64(p.Expected), Loaded: float64(p.Loaded),
			Latency: p.Latency.Microseconds(), Size: int64(size), Time: p.Time(size).Microseconds(),
			Count: p.Count, Stores: len(p.Stores), Limit: p.Limit, Crowd: p.Crowd, Reason: p.Reason,
		}
		for _, t := range p.Terms {
			r.Terms = append(r.Terms, TermReport{t.What, t.Time.Microseconds()})
		}
		for _, u := range p.Hops {
			from, to := g.Links[u.Link].Ends(u.Forward)
			r.Hops = append(r.Hops, HopReport{g.NodeName(from), g.NodeName(to), g.Class(u.Link).Gen, int(g.Links[u.Link].Count),
				float64(g.Rate(u.Link)), float64(u.Share)})
		}
		list = append(list, r)
	}
	return list
}
