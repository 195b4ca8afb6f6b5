package probe

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// xgmiLink is the kernel's number for an xGMI link in a kfd topology (HSA's io link type).
const xgmiLink = 11

// kfdGPUs finds the GPUs among the driver's nodes, by their PCI addresses. Nodes without SIMD units are CPUs.
func (p *prober) kfdGPUs(nodes []string) map[int]topo.NodeID {
	byAddr := map[string]topo.NodeID{}
	for _, g := range p.gpus {
		byAddr[g.addr] = g.node
	}
	at := map[int]topo.NodeID{}
	for _, dir := range nodes {
		id, err := strconv.Atoi(filepath.Base(dir))
		props := properties(p.read(p.rel(dir), "properties"))
		if err != nil || props["simd_count"] == 0 {
			continue
		}
		loc := props["location_id"]
		if n, ok := byAddr[fmt.Sprintf("%04x:%02x:%02x.%x", props["domain"], loc>>8, loc>>3&31, loc&7)]; ok {
			at[id] = n
		}
	}
	return at
}

// xgmi joins AMD GPUs as the kfd driver's topology in /sys says.
func (p *prober) xgmi() {
	nodes, _ := filepath.Glob(filepath.Join(p.sys, "class/kfd/kfd/topology/nodes/[0-9]*"))
	at := p.kfdGPUs(nodes)
	for _, dir := range nodes {
		from, _ := strconv.Atoi(filepath.Base(dir))
		links, _ := filepath.Glob(filepath.Join(dir, "io_links/[0-9]*"))
		for _, l := range links {
			props := properties(p.read(p.rel(l), "properties"))
			to := int(props["node_to"])
			a, okA := at[from]
			b, okB := at[to]
			if props["type"] == xgmiLink && okA && okB && from < to {
				rate := unit.Rate(props["max_bandwidth"]) * 1e6 // the driver counts MB/s one way
				p.b.Link(topo.Link{A: a, B: b, Class: p.class("xgmi3", topo.XGMI, 0, max(rate, unit.GBps))})
			}
		}
	}
}

func (p *prober) rel(path string) string {
	r, err := filepath.Rel(p.sys, path)
	if err != nil {
		return path
	}
	return r
}

// properties reads lines of "name number".
func properties(text string) map[string]int64 {
	m := map[string]int64{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 {
			if v, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				m[f[0]] = v
			}
		}
	}
	return m
}
