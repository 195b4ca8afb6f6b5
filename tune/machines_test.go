package tune

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"testing"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/build"
	"github.com/weft-fabric/weft/topo/catalog"
	"github.com/weft-fabric/weft/unit"
)

const dataDir = "../../shared/reference/data/"

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

// testCatalog is the default with what the measured machines need besides.
func testCatalog() *catalog.Catalog {
	c := catalog.Default()
	if _, ok := c.GPUs["RTX-PRO-6000"]; !ok {
		c.Merge(&catalog.Catalog{GPUs: map[string]catalog.GPU{"RTX-PRO-6000": {
			Name: "RTX-PRO-6000", Arch: "Blackwell", Compute: 120, Memory: 96 * unit.GB, MemoryRate: 1597 * unit.GBps, PCIe: "pcie5"}}})
	}
	return c
}

// paired is a two-socket host with two GPUs and so many NICs behind each of four
// PCIe switches.
func paired(gpu, pcie, nic, nicPCIe string, nicsPerSwitch, lanes int, cpu, smp string) build.Box {
	b := build.Box{Name: "paired-" + gpu + nic, CPU: cpu, Devices: []build.Device{{Name: "cpu0", Kind: topo.CPU}, {Name: "cpu1", Kind: topo.CPU}},
		Joins: []build.Join{{A: "cpu0", B: "cpu1", Link: smp, Count: 3}}}
	for i := range 4 {
		root, pex := fmt.Sprint("root", i), fmt.Sprint("pex", i)
		b.Devices = append(b.Devices, build.Device{Name: root, Kind: topo.RootPort, Parent: fmt.Sprint("cpu", i/2)},
			build.Device{Name: pex, Kind: topo.PCIeSwitch, Parent: root, Link: pcie})
		for j := range 2 {
			b.Devices = append(b.Devices, build.Device{Name: fmt.Sprint("gpu", 2*i+j), Kind: topo.GPU, Model: gpu, Parent: pex, Link: pcie})
		}
		for j := range nicsPerSwitch {
			b.Devices = append(b.Devices, build.Device{Name: fmt.Sprint("nic", nicsPerSwitch*i+j), Kind: topo.NIC, Model: nic, Parent: pex, Link: nicPCIe,
				Lanes: lanes, Rail: nicsPerSwitch*i + j})
		}
	}
	return b
}

// switched adds NVSwitches with counts[i] links from every GPU to the i-th.
func switched(b build.Box, link, model string, counts ...int) build.Box {
	for i, count := range counts {
		nvs := fmt.Sprint("nvs", i)
		b.Devices = append(b.Devices, build.Device{Name: nvs, Kind: topo.NVSwitch, Model: model})
		for g := range 8 {
			b.Joins = append(b.Joins, build.Join{A: fmt.Sprint("gpu", g), B: nvs, Link: link, Count: count})
		}
	}
	return b
}

// machines builds every measured machine, so many hosts of it.
type machines struct {
	t      testing.TB
	c      *catalog.Catalog
	graphs map[string]*topo.Graph
	models map[string]*NCCL
}

func newMachines(t testing.TB) *machines {
	return &machines{t: t, c: testCatalog(), graphs: map[string]*topo.Graph{}, models: map[string]*NCCL{}}
}

func (s *machines) host(name string) *topo.Graph {
	s.t.Helper()
	var g *topo.Graph
	var err error
	switch name {
	case "rtx_pro_6000_server": // two cards at each of four switches, as in servers with ConnectX-8 as the switch
		g, err = paired("RTX-PRO-6000", "pcie5", "ConnectX-7", "pcie5", 1, 16, "Xeon-8480+", "upi2").Build(s.c, "n0")
	case "aws_p4de_a100":
		g, err = switched(paired("A100-SXM-80GB", "pcie4", "EFA-100", "pcie4", 1, 16, "Xeon-8275CL", "upi1"), "nvlink3", "NVSwitch-2", 2, 2, 2, 2, 2, 2).Build(s.c, "n0")
	case "aws_p5_h100":
		g, err = switched(paired("H100-SXM", "pcie5", "EFA-100", "pcie4", 8, 16, "EPYC-7R13", "xgmi3-cpu"), "nvlink4", "NVSwitch-3", 5, 4, 4, 5).Build(s.c, "n0")
	case "aws_p5en_h200":
		g, err = switched(paired("H200", "pcie5", "EFA-200", "pcie5", 4, 16, "Xeon-8488C", "upi2"), "nvlink4", "NVSwitch-3", 5, 4, 4, 5).Build(s.c, "n0")
	default:
		kind := map[string]string{"a100_sxm": "dgx-a100", "a100": "dgx-a100", "h100_sxm": "dgx-h100", "b300_sxm": "dgx-b300", "v100": "dgx-1v"}[name]
		if kind == "" {
			kind = name
		}
		g, err = build.Host(s.c, kind, "n0")
	}
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
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("the measured points %s are not beside this checkout; nothing to compare with", name)
	}
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

var dataOps = map[string]sched.Collective{"all_reduce": sched.AllReduce, "all_gather": sched.AllGather, "reduce_scatter": sched.ReduceScatter, "alltoall": sched.AllToAll}

// singleNode reads the points of single nodes.
func singleNode(t testing.TB, s *machines) []row {
	t.Helper()
	var rows []row
	for _, r := range readCSV(t, "nccl_single_node.csv") {
		rows = append(rows, row{machine: r[0], op: dataOps[r[2]], gpus: int(number(t, r[4])), nodes: 1, bytes: number(t, r[5]), us: number(t, r[6])})
	}
	for _, r := range readCSV(t, "v100_a100_allreduce.csv") {
		rows = append(rows, row{machine: r[0], op: sched.AllReduce, gpus: int(number(t, r[1])), nodes: 1, bytes: number(t, r[2]), us: number(t, r[3])})
	}
	choose(s, rows)
	return rows
}

// multiNode reads the points of several nodes.
func multiNode(t testing.TB, s *machines) []row {
	t.Helper()
	var rows []row
	for _, r := range readCSV(t, "nccl_multi_node.csv") {
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
			x.us = x.bytes * BusFactor(x.op, x.gpus) / number(t, r[8]) / 1e3
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
