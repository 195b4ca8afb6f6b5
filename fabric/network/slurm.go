package network

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/format"
)

// slurm chooses the topology that the scheduler's files describe, so that
// slurm.conf and topology.conf cannot disagree, and checks its blocks.
func (m *maker) slurm() {
	in := &m.in.Slurm
	if in.Topology == "" {
		in.Topology = m.slurmDefault()
	}
	switch switches := m.computeSwitches(); {
	case in.Topology == "tree" && !switches:
		m.fail("slurm.topology", "tree; no switch joins the hosts: leave topology out, or write none")
	case in.Topology == "block" && len(m.plan.Hosts) > 0:
		m.blocks()
	}
}

// slurmDefault is blocks where NVLink joins all hosts and Slurm has them, else a
// tree where switches join hosts.
func (m *maker) slurmDefault() string {
	inside := 0
	for _, d := range format.NVLinkDomains(m.g) {
		inside += len(d)
	}
	switch {
	case inside > 0 && inside == len(m.g.Hosts) && m.in.Slurm.HasBlocks():
		return "block"
	case m.computeSwitches():
		return "tree"
	}
	return "none"
}

// computeSwitches reports whether switches of a compute fabric join hosts.
func (m *maker) computeSwitches() bool {
	return slices.ContainsFunc(m.plan.Switches, func(s Switch) bool {
		f := m.g.Nodes[s.Node].Fabric
		return f < 0 || !m.g.Fabrics[f].Service
	})
}

// Blocks lists the hosts of every block of Slurm's block topology: an NVLink
// domain each, or where NVLink joins no hosts the intent's number of them, or a pod.
func (p *Plan) Blocks() [][]topo.HostID {
	if domains := format.NVLinkDomains(p.Graph); len(domains) > 0 {
		return domains
	}
	index := map[int]int{}
	var out [][]topo.HostID
	for i := range p.Graph.Hosts {
		key := int(p.Graph.Hosts[i].Pod)
		if size := p.Intent.Slurm.Block; size > 0 {
			key = i / size
		}
		if _, known := index[key]; !known {
			index[key] = len(out)
			out = append(out, nil)
		}
		out[index[key]] = append(out[index[key]], topo.HostID(i))
	}
	return out
}

// blocks checks that no block is smaller than the base: before 25.05 Slurm gives
// jobs none of its hosts.
func (m *maker) blocks() {
	n, block := len(m.plan.Hosts), m.in.Slurm.Block
	least, most, inside := n, 0, 0
	for _, b := range m.plan.Blocks() {
		least, most, inside = min(least, len(b)), max(most, len(b)), inside+len(b)
	}
	domains := len(format.NVLinkDomains(m.g)) > 0
	switch {
	case inside < n:
		m.fail("slurm.topology", "block; %d of %d hosts are in no NVLink domain and so in no block: write topology: tree", n-inside, n)
	case domains && block > least:
		m.fail("slurm.block", "%d is more than the %d hosts of an NVLink domain, and a block is one domain; write %d or less",
			block, least, least)
	case block == 0 && least != most:
		what := map[bool]string{true: "NVLink domains", false: "pods"}[domains]
		m.warn("slurm.topology block: %s have %d to %d hosts, and the smallest is the base: jobs see %d hosts of each; write block",
			what, least, most, least)
	case block > 0 && !domains && n%block != 0:
		m.fail("slurm.block", "%d does not divide %d hosts, and Slurm leaves the hosts of a smaller block idle; write %s",
			block, n, divisors(n, block))
	}
}

// divisors names the divisors of n next to a number that is none.
func divisors(n, near int) string {
	fix := ""
	for d := 1; d <= n; d++ {
		if n%d == 0 && d < near {
			fix = fmt.Sprintf("%d", d)
		} else if n%d == 0 {
			return fix + fmt.Sprintf(" or %d", d)
		}
	}
	return fix
}
