package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// machine writes a /sys as the kernel lays it out: device folders nested by
// the PCIe tree, and relative links to them from bus/pci/devices.
type machine struct {
	t    *testing.T
	root string
}

func (m machine) write(path, text string) {
	m.t.Helper()
	full := filepath.Join(m.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text+"\n"), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m machine) device(path string, class, vendor, id uint32, numa int, speed string, width int) string {
	dir := "sys/devices/" + path
	addr := filepath.Base(path)
	for file, text := range map[string]string{
		"class": fmt.Sprintf("0x%06x", class), "vendor": fmt.Sprintf("0x%04x", vendor), "device": fmt.Sprintf("0x%04x", id),
		"numa_node": fmt.Sprint(numa), "current_link_speed": speed, "current_link_width": fmt.Sprint(width),
	} {
		m.write(dir+"/"+file, text)
	}
	link := filepath.Join(m.root, "sys/bus/pci/devices", addr)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink("../../../devices/"+path, link); err != nil {
		m.t.Fatal(err)
	}
	return dir
}

// h100 is two sockets, each with two switches, each with a GPU and a NIC.
func h100(t *testing.T) machine {
	m := machine{t, t.TempDir()}
	m.write("sys/devices/system/node/node0/cpulist", "0-55")
	m.write("sys/devices/system/node/node1/cpulist", "56-111")
	for i, bus := range []int{0x15, 0x37, 0x97, 0xb7} {
		numa := i / 2
		up := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", bus, bus, bus+1)
		m.device(filepath.Dir(up), 0x060400, 0x8086, 0x352a, numa, "32.0 GT/s PCIe", 16)
		m.device(up, 0x060400, 0x1000, 0xc030, numa, "32.0 GT/s PCIe", 16)
		for j := range 2 {
			down := fmt.Sprintf("%s/0000:%02x:%02x.0", up, bus+2, j)
			m.device(down, 0x060400, 0x1000, 0xc030, numa, "32.0 GT/s PCIe", 16)
			dev := fmt.Sprintf("%s/0000:%02x:00.0", down, bus+3+j)
			if j == 0 {
				m.device(dev, 0x030200, 0x10de, 0x2330, numa, "32.0 GT/s PCIe", 16)
				continue
			}
			dir := m.device(dev, 0x020700, 0x15b3, 0x1021, numa, "32.0 GT/s PCIe", 16)
			rdma := fmt.Sprintf("mlx5_%d", i)
			m.write(dir+"/infiniband/"+rdma+"/node_type", "1: CA")
			m.write("sys/class/infiniband/"+rdma+"/ports/1/rate", "400 Gb/sec (4X NDR)")
			m.write("sys/class/infiniband/"+rdma+"/ports/1/state", "4: ACTIVE")
		}
	}
	return m
}

func TestReadsAServer(t *testing.T) {
	found, err := Host(h100(t).root, "box", catalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	g := found.Graph
	for kind, want := range map[topo.Kind]int{topo.GPU: 4, topo.NIC: 4, topo.CPU: 2, topo.PCIeSwitch: 4, topo.RootPort: 4} {
		if got := g.Count(kind); got != want {
			t.Errorf("%d %ss, want %d", got, kind, want)
		}
	}
	for i := range 4 {
		gpu, _ := g.Lookup(fmt.Sprintf("gpu%d", i))
		nic := g.Near(gpu)
		if nic == topo.None || g.Nodes[nic].Name != fmt.Sprintf("nic%d", i) {
			t.Errorf("gpu%d is served by %v", i, nic)
		}
		if m := g.Nodes[gpu].Model; m != "H100-SXM" {
			t.Errorf("gpu%d is a %q", i, m)
		}
		if a := g.Attrs[nic]; a["smi.device"] != fmt.Sprintf("mlx5_%d", i) || a["port.rate"] != "400 Gb/sec (4X NDR)" {
			t.Errorf("nic%d: %v", i, a)
		}
	}
	way, err := g.Route(topo.Flow{From: 0, To: 3}, nil)
	if err != nil || len(way) != 7 { // gpu pex root cpu0 cpu1 root pex gpu
		t.Errorf("gpu0 to gpu3: %d links, %v", len(way), err)
	}
	if len(found.Notes) != 1 || !strings.Contains(found.Notes[0], "NVLink") {
		t.Errorf("notes: %q", found.Notes)
	}
}

// A copy of /sys itself, without the folder above it, is as good.
func TestReadsACopyOfSys(t *testing.T) {
	found, err := Host(filepath.Join(h100(t).root, "sys"), "box", catalog.Default())
	if err != nil || found.Graph.Count(topo.GPU) != 4 {
		t.Fatal(found, err)
	}
}

func TestOddMachines(t *testing.T) {
	m := machine{t, t.TempDir()}
	m.write("sys/devices/system/node/node0/cpulist", "0-1")
	m.device("pci0000:00/0000:00:01.0", 0x030200, 0x10de, 0xffff, -1, "Unknown", 255) // a virtual GPU on the root bus
	nic := m.device("pci0000:00/0000:00:02.0", 0x020000, 0x1af4, 0x1041, 7, "", 0)    // virtio, NUMA node that is not there
	m.write(nic+"/virtio1/net/eth0/ifindex", "2")
	m.device("pci0000:00/0000:00:03.0", 0x010802, 0x144d, 0xa80a, 0, "16.0 GT/s PCIe", 4)
	found, err := Host(m.root, "vm", catalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	if g := found.Graph; g.Count(topo.GPU) != 1 || g.Count(topo.NIC) != 1 || g.Count(topo.RootPort) != 1 {
		t.Errorf("%+v", g.Nodes)
	}
	if n, err := found.Graph.Lookup("nic0"); err != nil || found.Graph.Attrs[n]["smi.device"] != "eth0" {
		t.Errorf("the virtio card's interface is not named: %v", err)
	}
	if len(found.Notes) == 0 {
		t.Error("nothing said about speeds that are not known")
	}
	if _, err := Host(filepath.Join(m.root, "nowhere"), "x", catalog.Default()); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Error(err)
	}
}

func TestNVLinkTable(t *testing.T) {
	b := topo.NewBuilder("x")
	p := &prober{c: catalog.Default(), b: b, host: b.Host(topo.Host{Name: "x"})}
	g0, g1 := b.Node(topo.Part(topo.GPU, p.host, "gpu0")), b.Node(topo.Part(topo.GPU, p.host, "gpu1"))
	gpus := map[string]topo.NodeID{"a": g0, "b": g1}
	tab := nvlinkTable{}
	for range 2 {
		tab.add(g0, "b", 2)
		tab.add(g1, "a", 2)
	}
	for range 4 {
		tab.add(g0, "sw", 2)
		tab.add(g1, "sw", 2)
	}
	p.wire(tab, gpus)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Links) != 3 || g.Links[0].Count != 2 || g.Links[1].Count != 4 || g.Count(topo.NVSwitch) != 1 {
		t.Errorf("%+v", g.Links)
	}
}

// An MI300X pair joined by xGMI, as the kfd driver lists it.
func TestXGMI(t *testing.T) {
	m := machine{t, t.TempDir()}
	for i := range 2 {
		m.device(fmt.Sprintf("pci0000:0%d/0000:0%d:00.0", i, i+5), 0x120000, 0x1002, 0x74a1, 0, "32.0 GT/s PCIe", 16)
		node := fmt.Sprintf("sys/class/kfd/kfd/topology/nodes/%d", i+1)
		m.write(node+"/properties", fmt.Sprintf("simd_count 1216\nlocation_id %d\ndomain 0", (i+5)<<8))
		m.write(node+"/io_links/0/properties", fmt.Sprintf("type 11\nnode_to %d\nmax_bandwidth 64000", 2-i))
	}
	m.write("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 96\nsimd_count 0")
	found, err := Host(m.root, "amd", catalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	g := found.Graph
	links := 0
	for i := range g.Links {
		if g.Class(topo.LinkID(i)).Kind == topo.XGMI {
			links++
		}
	}
	if links != 1 || g.Nodes[0].Model != "MI300X" {
		t.Errorf("%d xGMI links, model %q", links, g.Nodes[0].Model)
	}
}

func TestCPUMask(t *testing.T) {
	for list, want := range map[string]string{"0-3,8": "0000010f", "": "", "32": "00000001,00000000", "0-55": "00ffffff,ffffffff", "x": ""} {
		if got := cpuMask(list); got != want {
			t.Errorf("cpuMask(%q) = %q, want %q", list, got, want)
		}
	}
}

// TestIdleLinksCountAtTheirMost: an idle GPU's link runs at 2.5 GT/s now, and the
// slot above it allows less than the card: the smaller of the two maxima counts.
func TestIdleLinksCountAtTheirMost(t *testing.T) {
	for _, c := range []struct {
		name         string
		device, slot [2]string // most speed, most width
		now          [2]string
		gen          string
		lanes        uint16
		note         string
	}{
		{name: "idle", device: [2]string{"32.0 GT/s PCIe", "16"}, slot: [2]string{"32.0 GT/s PCIe", "16"}, now: [2]string{"2.5 GT/s PCIe", "16"},
			gen: "pcie5", lanes: 16},
		{name: "older slot", device: [2]string{"32.0 GT/s PCIe", "16"}, slot: [2]string{"16.0 GT/s PCIe", "8"},
			now: [2]string{"2.5 GT/s PCIe", "8"}, gen: "pcie4", lanes: 8},
		{name: "older card", device: [2]string{"8.0 GT/s PCIe", "8"}, slot: [2]string{"32.0 GT/s PCIe", "16"},
			now: [2]string{"8.0 GT/s PCIe", "8"}, gen: "pcie3", lanes: 8},
		{name: "lanes lost", device: [2]string{"32.0 GT/s PCIe", "16"}, slot: [2]string{"32.0 GT/s PCIe", "16"},
			now: [2]string{"32.0 GT/s PCIe", "4"}, gen: "pcie5", lanes: 16, note: "runs on 4 lanes of 16"},
		{name: "slot unknown", device: [2]string{"16.0 GT/s PCIe", "16"}, slot: [2]string{"Unknown", "255"},
			now: [2]string{"2.5 GT/s PCIe", "16"}, gen: "pcie4", lanes: 16},
		{name: "no maximum", now: [2]string{"16.0 GT/s PCIe", "8"}, gen: "pcie4", lanes: 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine{t, t.TempDir()}
			m.write("sys/devices/system/node/node0/cpulist", "0-1")
			slot := m.device("pci0000:00/0000:00:01.0", 0x060400, 0x8086, 0x352a, 0, "2.5 GT/s PCIe", 16)
			gpu := m.device("pci0000:00/0000:00:01.0/0000:01:00.0", 0x030200, 0x10de, 0x2330, 0, c.now[0], 0)
			m.write(gpu+"/current_link_width", c.now[1])
			for dir, most := range map[string][2]string{slot: c.slot, gpu: c.device} {
				if most[0] != "" {
					m.write(dir+"/max_link_speed", most[0])
					m.write(dir+"/max_link_width", most[1])
				}
			}
			found, err := Host(m.root, "box", catalog.Default())
			if err != nil {
				t.Fatal(err)
			}
			id, _ := found.Graph.Lookup("gpu0")
			class := found.Graph.Class(found.Graph.Edges(id)[0].Link)
			if class.Gen != c.gen || class.Lanes != c.lanes {
				t.Errorf("%s x%d, want %s x%d", class.Gen, class.Lanes, c.gen, c.lanes)
			}
			if notes := strings.Join(found.Notes, "; "); !strings.Contains(notes, c.note) || c.note == "" && strings.Contains(notes, "lanes of") {
				t.Errorf("notes: %s", notes)
			}
		})
	}
}

// TestModelsAreInTheCatalogue: what is found by its PCI number has its facts.
func TestModelsAreInTheCatalogue(t *testing.T) {
	c := catalog.Default()
	for id, model := range models {
		if _, err := c.GPU(model); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}
