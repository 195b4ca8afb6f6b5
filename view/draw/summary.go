package draw

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// plural is the noun for a count.
func plural(n int, noun string) string {
	_, word, _ := strings.Cut(count(n, noun), " ")
	return word
}

// allGPUs counts the cluster's accelerators, with their model if they have one.
func (p *page) allGPUs() string {
	total := 0
	var models []string
	p.g.Each(topo.GPU, func(_ topo.NodeID, n *topo.Node) {
		total++
		if !slices.Contains(models, n.Model) {
			models = append(models, n.Model)
		}
	})
	if total == 0 {
		return ""
	}
	noun := "GPU"
	if strings.HasPrefix(strings.ToUpper(models[0]), "TPU") {
		noun = "chip"
	}
	text := count(total, noun)
	if len(models) == 1 && models[0] != "" {
		text += " (" + models[0] + ")"
	}
	return text
}

// summary is the line below the title: what there is, in numbers.
func (p *page) summary() string {
	var parts []string
	if text := p.allGPUs(); text != "" {
		parts = append(parts, text)
	}
	text := count(len(p.g.Hosts), "host")
	if len(p.g.Hosts) > 0 {
		if m := p.g.Hosts[0].Model; m != "" && !slices.ContainsFunc(p.g.Hosts, func(h topo.Host) bool { return h.Model != m }) {
			text += " (" + m + ")"
		}
	}
	parts = append(parts, text)
	if n := p.g.Count(topo.Switch); n > 0 {
		parts = append(parts, count(n, "switch"))
	}
	outside := 0
	p.g.Each(topo.NVSwitch, func(_ topo.NodeID, n *topo.Node) {
		if n.Host == topo.None {
			outside++
		}
	})
	if outside > 0 {
		parts = append(parts, count(outside, "NVSwitch"))
	}
	if len(p.g.Fabrics) > 1 {
		parts = append(parts, count(len(p.g.Fabrics), "fabric"))
	}
	return strings.Join(parts, ", ")
}

// apart draws the hosts that no network of the page holds, so that none is missing from it.
func (p *page) apart(parts []*panel) {
	gr := &group{plane: topo.None}
	for h := range p.g.Hosts {
		if !slices.ContainsFunc(parts, func(pn *panel) bool { return pn.member[h] }) {
			gr.hosts = append(gr.hosts, topo.HostID(h))
		}
	}
	if len(gr.hosts) == 0 {
		return
	}
	p.c.Group("", svg.Class("panel"), svg.Attr{Name: "data-panel", Value: "apart"})
	title := "Hosts joined to no switch: "
	if len(parts) == 0 {
		title = "Hosts: "
	}
	p.section(title + thousands(len(gr.hosts)))
	p.prepare(gr)
	w := min(max(gr.view.want, gr.view.low), p.width-2*margin)
	h := gr.view.place(w)
	gr.view.settle(svg.Box{X: margin, Y: p.y, W: w, H: h})
	p.paint(gr)
	p.y += h
	p.c.End()
	p.y += 26
}

func (p *page) hostSummary(h topo.HostID) string {
	var parts []string
	if m := p.g.Hosts[h].Model; m != "" && !strings.Contains(p.title, m) {
		parts = append(parts, m)
	}
	nodes := p.g.HostNodes(h)
	for k, noun := range []string{topo.GPU: "GPU", topo.CPU: "NUMA node", topo.PCIeSwitch: "PCIe switch", topo.NVSwitch: "NVSwitch",
		topo.NIC: "NIC"} {
		var list []string
		for i := range nodes {
			if int(nodes[i].Kind) == k && noun != "" {
				list = append(list, nodes[i].Model)
			}
		}
		if len(list) > 0 {
			parts = append(parts, models(len(list), func(i int) string { return list[i] }, noun))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("host %s", p.g.Hosts[h].Name)
	}
	return strings.Join(parts, ", ")
}
