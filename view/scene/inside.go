package scene

import (
	"math"

	"github.com/weft-fabric/weft/model/topo"
)

// inside lays out one host: NICs at the top, where the network is, then CPUs and PCIe, GPUs below, NVLink switches under
// them. GPUs that are joined directly stand in a circle, so that every link between two of them can be seen.
//
//	nic nic nic nic          ▫ ▫ ▫ ▫
//	cpu root pcie            ▪ ▪
//	gpu gpu gpu gpu          ▣ ▣ ▣ ▣      or a circle
//	nvs nvs                  ▪ ▪
func inside(g *topo.Graph, h topo.HostID) Inside {
	host := &g.Hosts[h]
	in := Inside{Model: host.Model}
	rows := [4][]int{} // NICs; CPUs and PCIe; GPUs; NVLink switches
	for i := range int(host.Count) {
		n := &g.Nodes[host.First+topo.NodeID(i)]
		in.Names, in.Kinds = append(in.Names, n.Name), append(in.Kinds, int(n.Kind))
		row := map[topo.Kind]int{topo.NIC: 0, topo.GPU: 2, topo.NVSwitch: 3}
		at, known := row[n.Kind]
		if !known {
			at = 1
		}
		rows[at] = append(rows[at], i)
	}
	n := len(in.Names)
	in.X, in.Y, in.Size = make([]float64, n), make([]float64, n), make([]float64, n)
	mesh := insideLinks(g, h, &in)
	gpus := len(rows[2])
	wide := max(1, min(8, gpus))
	in.W = max(float64(wide)*(cell+gap)-gap+2*margin, 76)
	if mesh {
		in.W = max(in.W, 2*margin+2*radius(gpus)+cell)
	}
	y := title + 2*gap
	for i, row := range rows {
		size := map[int]float64{0: 8, 1: 8, 2: cell, 3: 10}[i]
		switch {
		case len(row) == 0:
		case i == 2 && mesh:
			r := radius(gpus)
			for j, at := range row {
				a := 2*math.Pi*(float64(j)+.5)/float64(gpus) - math.Pi/2
				in.X[at], in.Y[at], in.Size[at] = in.W/2+r*math.Cos(a), y+r+cell/2+r*math.Sin(a), size
			}
			y += 2*r + cell + gap
		default:
			y = in.line(row, y, size)
		}
	}
	in.H = y + gap
	return in
}

// radius is that of a circle of GPUs.
func radius(n int) float64 { return max(20, float64(n)*(cell+2*gap)/(2*math.Pi)*1.15) }

// line places parts side by side, in several lines where there are many, and gives the height below them.
func (in *Inside) line(row []int, y, size float64) float64 {
	per := 8
	if size < cell {
		per = max(8, int((in.W-2*margin)/(size+2)))
	}
	for j, at := range row {
		here := min(per, len(row)-j/per*per)
		step := (in.W - 2*margin + gap) / float64(here)
		if size == cell {
			step = cell + gap
		}
		in.X[at] = in.W/2 + (float64(j%per)-float64(here-1)/2)*step
		in.Y[at] = y + float64(j/per)*(size+gap) + size/2
		in.Size[at] = size
	}
	return y + float64((len(row)+per-1)/per)*(size+gap) + gap
}

// insideLinks collects the links that stay in a host, and reports whether GPUs are joined directly.
func insideLinks(g *topo.Graph, h topo.HostID, in *Inside) (mesh bool) {
	host := &g.Hosts[h]
	for i := range int(host.Count) {
		id := host.First + topo.NodeID(i)
		for _, e := range g.Edges(id) {
			if e.Peer <= id || g.Nodes[e.Peer].Host != h {
				continue
			}
			in.Links = append(in.Links, int32(i), int32(e.Peer-host.First))
			in.Count = append(in.Count, int(g.Links[e.Link].Count))
			mesh = mesh || g.Nodes[id].Kind == topo.GPU && g.Nodes[e.Peer].Kind == topo.GPU
		}
	}
	return mesh
}
