package design

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/floor"
)

// Floor is what the floor plan comes to.
type Floor struct {
	Racks     int         `json:"racks"`
	HostRacks int         `json:"host_racks"`
	Rows      int         `json:"rows"`
	Width     float64     `json:"width_m"`
	Depth     float64     `json:"depth_m"`
	RackWatts float64     `json:"rack_watts"`     // that a rack gives; 0: not limited
	Fullest   string      `json:"fullest_rack"`   // the one that draws the most
	MostWatts float64     `json:"most_watts"`     // of it
	Metres    float64     `json:"cable_metres"`   // of all cables of the graph
	Longest   float64     `json:"longest_metres"` // of them
	Fits      []floor.Fit `json:"fits"`
	Plan      *floor.Plan `json:"plan"`
}

// stand sums the floor plan up.
func (r *Report) stand(c *cluster.Cluster, v *view) {
	p := c.Floor
	if p == nil {
		return
	}
	f := &Floor{Rows: p.Rows, Width: p.Width, Depth: p.Depth, RackWatts: p.Intent.Power, Fits: p.Fits, Plan: p}
	for i := range p.Racks {
		if p.Racks[i].Use == "" {
			continue
		}
		f.Racks++
		if p.Racks[i].Use == "hosts" {
			f.HostRacks++
		}
		if p.Racks[i].Watts > f.MostWatts {
			f.Fullest, f.MostWatts = p.Racks[i].Name, p.Racks[i].Watts
		}
	}
	for i := range v.g.Links {
		m := v.g.Metres(topo.LinkID(i))
		f.Metres += m * float64(v.g.Links[i].Count)
		f.Longest = math.Max(f.Longest, m)
	}
	r.Sizes.Racks = f.HostRacks
	r.Floor = f
}

// floorSections is empty where the file has no floor.
func (r *Report) floorSections() []section {
	f := r.Floor
	if f == nil {
		return nil
	}
	limit := "not limited"
	if f.RackWatts > 0 {
		limit = watts(f.RackWatts)
	}
	t := table{Bare: true, Cols: []col{left("what"), right("amount")}, Rows: [][]string{
		{"racks", fmt.Sprintf("%s, %s with hosts", count(f.Racks), count(f.HostRacks))},
		{"rows", count(f.Rows)},
		{"area of racks and aisles between them", fmt.Sprintf("%.1f m x %.1f m", f.Width, f.Depth)},
		{"power a rack gives", limit},
		{"rack that draws the most", fmt.Sprintf("%s, %s", f.Fullest, watts(f.MostWatts))},
		{"cable of the fabrics, all together", fmt.Sprintf("%s m", count(int(f.Metres+0.5)))},
		{"longest cable", fmt.Sprintf("%s m", trim(f.Longest))},
	}}
	fit := table{Title: "Hosts a rack holds", Cols: []col{left("kind"), right("units"), right("draws"), right("by height"), right("by power"),
		right("placed")}}
	for _, x := range f.Fits {
		by := "not limited"
		if x.ByPower >= 0 {
			by = count(x.ByPower)
		}
		fit.Rows = append(fit.Rows, []string{x.Model, count(x.Units), watts(x.Watts), count(x.ByHeight), by, count(x.Most)})
	}
	return []section{{ID: "floor", Title: "Floor plan", Tables: []table{t, fit}}}
}
