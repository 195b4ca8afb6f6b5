package tune

import (
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

const dataDir = "testdata/measured/"

// row is one measured point, with NCCL's choice for it.
type row struct {
	machine string
	op      sched.Collective
	algo    string // forced, else empty
	gpus    int
	nodes   int
	bytes   float64
	us      float64
	m       *NCCL
	a       algorithm
	p       protocol
}

// machines builds every measured machine, with any number of hosts.
type machines struct {
	t      testing.TB
	c      *catalog.Catalog
	graphs map[string]*topo.Graph
	models map[string]*NCCL
}

func newMachines(t testing.TB) *machines {
	return &machines{t: t, c: catalog.Default(), graphs: map[string]*topo.Graph{}, models: map[string]*NCCL{}}
}

func (s *machines) host(name string) *topo.Graph {
	s.t.Helper()
	kind := map[string]string{"a100_sxm": "dgx-a100", "a100": "dgx-a100", "h100_sxm": "dgx-h100", "b300_sxm": "dgx-b300", "v100": "dgx-1v",
		"rtx_pro_6000_server": "rtx-pro-6000-8", "aws_p4de_a100": "aws-p4de", "aws_p5_h100": "aws-p5", "aws_p5en_h200": "aws-p5en"}[name]
	if kind == "" {
		kind = name
	}
	g, err := build.Host(s.c, kind, "n0")
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

// graph stamps hosts without cabling: NICs then count with their card's rate.
func (s *machines) graph(name string, hosts int) *topo.Graph {
	s.t.Helper()
	key := fmt.Sprint(name, "/", hosts)
	if g := s.graphs[key]; g != nil {
		return g
	}
	g := s.host(name)
	if hosts > 1 {
		b := topo.NewBuilder(name)
		for i := range hosts {
			b.Stamp(g, topo.Host{Name: fmt.Sprint("n", i), Model: g.Hosts[0].Model, Pod: topo.None, Rack: topo.None})
		}
		var err error
		if g, err = b.Graph(); err != nil {
			s.t.Fatal(err)
		}
	}
	s.graphs[key] = g
	return g
}

func preset(t testing.TB, c *catalog.Catalog, name string, params map[string]int) *topo.Graph {
	t.Helper()
	b, err := build.BuildPreset(c, name, params)
	if err != nil {
		t.Fatal(err)
	}
	return b.Graph
}

func allGPUs(g *topo.Graph) (set []topo.NodeID) {
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { set = append(set, id) })
	return set
}

// model gives NCCL on the first GPUs of the first hosts.
func (s *machines) model(name string, gpus, nodes int, o NCCLOptions) *NCCL {
	s.t.Helper()
	key := fmt.Sprint(name, "/", gpus, "/", nodes, "/", o)
	if m := s.models[key]; m != nil {
		return m
	}
	g := s.graph(name, nodes)
	var set []topo.NodeID
	count := map[topo.HostID]int{}
	for _, id := range allGPUs(g) {
		if h := g.Nodes[id].Host; count[h] < gpus/nodes {
			count[h]++
			set = append(set, id)
		}
	}
	m, err := NewNCCL(g, set, s.c, o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.models[key] = m
	return m
}

func readCSV(t testing.TB, name string) [][]string {
	t.Helper()
	f, err := os.Open(dataDir + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows[1:]
}

func number(t testing.TB, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var dataOps = map[string]sched.Collective{"all_reduce": sched.AllReduce, "all_gather": sched.AllGather,
	"reduce_scatter": sched.ReduceScatter, "alltoall": sched.AllToAll}

// singleNode reads the points of single nodes.
func singleNode(t testing.TB, s *machines) []row {
	t.Helper()
	var rows []row
	for _, r := range readCSV(t, "single_node.csv") {
		rows = append(rows, row{machine: r[0], op: dataOps[r[2]], gpus: int(number(t, r[4])), nodes: 1, bytes: number(t, r[5]),
			us: number(t, r[6])})
	}
	for _, r := range readCSV(t, "v100_a100_allreduce.csv") {
		rows = append(rows, row{machine: r[0], op: sched.AllReduce, gpus: int(number(t, r[1])), nodes: 1, bytes: number(t, r[2]),
			us: number(t, r[3])})
	}
	choose(s, rows)
	return rows
}

// multiNode reads the points of several nodes.
func multiNode(t testing.TB, s *machines) []row {
	t.Helper()
	var rows []row
	for _, r := range readCSV(t, "several_nodes.csv") {
		x := row{machine: r[0], op: sched.AllReduce, gpus: int(number(t, r[1])), nodes: int(number(t, r[2])), bytes: number(t, r[6])}
		switch r[5] {
		case "all_reduce_ring":
			x.algo = "Ring"
		case "all_reduce_nvlstree":
			x.algo = "NVLSTree"
		}
		if r[7] != "" {
			x.us = number(t, r[7])
		} else {
			x.us = x.bytes * x.op.BusFactor(x.gpus) / number(t, r[8]) / 1e3
		}
		rows = append(rows, x)
	}
	choose(s, rows)
	return rows
}

// choose asks NCCL's model for every row.
func choose(s *machines, rows []row) {
	for i := range rows {
		r := &rows[i]
		var o NCCLOptions
		if r.algo != "" {
			o.Algos = []string{r.algo}
		}
		r.m = s.model(r.machine, r.gpus, r.nodes, o)
		c := r.m.Choose(r.op, unit.Bytes(r.bytes))
		r.a, r.p = indices(c)
	}
}
