package format

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

func imported(t *testing.T, dialect, path string) *topo.Graph {
	t.Helper()
	d, err := Find(dialect)
	if err != nil {
		t.Fatal(err)
	}
	g, err := d.Decode("host", fixture(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// The DGX A100, Azure's NDv4 and Amazon's p4d are the same board of eight GPUs,
// and NCCL sees the same in all three: four PCIe islands of two GPUs with a NIC
// in each. NDv4 agrees with the DGX in every count; p4d differs in what its own
// file says: one NIC an island instead of two, two NUMA nodes instead of four,
// and links of 8 GT/s. The cloud files leave NVLink to be found at run time.
func TestBuiltDGXA100AgreesWithCloudFiles(t *testing.T) {
	dgx, err := build.Host(catalog.Default(), "dgx-a100", "n0")
	if err != nil {
		t.Fatal(err)
	}
	built := compute(ViewNCCL(dgx, 0))
	ndv4 := ViewNCCL(imported(t, "nccl-xml", "nccl-topo/azure-ndv4.xml"), 0)
	p4d := ViewNCCL(imported(t, "nccl-xml", "nccl-topo/aws-p4d.xml"), 0)
	const layout = "2 GPUs with NIC, 2 GPUs with NIC, 2 GPUs with NIC, 2 GPUs with NIC"
	for name, v := range map[string]NCCLView{"dgx-a100": built, "NDv4": ndv4, "p4d": p4d} {
		if v.GPUs != 8 || v.Layout() != layout {
			t.Errorf("%s: %d GPUs, %s; want 8, %s", name, v.GPUs, v.Layout(), layout)
		}
	}
	if !slices.Equal(built.Islands, ndv4.Islands) {
		t.Errorf("islands of dgx-a100 %v, of NDv4 %v", built.Islands, ndv4.Islands)
	}
	if want := []int{2, 2, 2, 2}; !slices.Equal(built.NUMA, want) || !slices.Equal(ndv4.NUMA, want) {
		t.Errorf("GPUs a NUMA node: dgx-a100 %v, NDv4 %v, want %v", built.NUMA, ndv4.NUMA, want)
	}
	if want := []int{4, 4}; !slices.Equal(p4d.NUMA, want) || p4d.NICs != 4 || p4d.Islands[0].GPULink != "pcie3 x16" {
		t.Errorf("p4d: NUMA %v, %d NICs, %s; want %v, 4, pcie3 x16", p4d.NUMA, p4d.NICs, p4d.Islands[0].GPULink, want)
	}
	// Four pairs of GPUs below a switch, the other 24 farther apart, in each of them.
	for name, v := range map[string]NCCLView{"dgx-a100": built, "NDv4": ndv4, "p4d": p4d} {
		near := 0
		for _, c := range v.GPUPairs {
			if c.Span <= topo.PXB {
				near += c.Pairs
			}
		}
		if near != 4 {
			t.Errorf("%s: %d pairs of GPUs below a switch, want 4", name, near)
		}
	}
}

// compute drops the islands that hold only NICs: the DGX has storage NICs besides, the clouds' files do not show theirs.
func compute(v NCCLView) NCCLView {
	v.Islands = slices.DeleteFunc(v.Islands, func(i Island) bool { return i.GPUs == 0 })
	return v
}

func TestDeviceNumbersGiveModels(t *testing.T) {
	for id, model := range pciModels {
		if _, err := known().GPU(model); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	g := imported(t, "nccl-xml", "nccl-topo/aws-p4d.xml")
	g.Each(topo.GPU, func(n topo.NodeID, node *topo.Node) {
		if node.Model != "A100-SXM-40GB" {
			t.Errorf("%s of a p4d is a %q", g.NodeName(n), node.Model)
		}
	})
}

func TestG5HasEightGPUsAndANIC(t *testing.T) {
	g := imported(t, "nccl-xml", "nccl-topo/aws-g5.xml")
	if g.Count(topo.GPU) != 8 || g.Count(topo.NIC) != 1 {
		t.Errorf("got %d GPUs and %d NICs; a g5.48xlarge has 8 and 1", g.Count(topo.GPU), g.Count(topo.NIC))
	}
}

// NVML numbers GPUs by bus id, so GPU 0 of an NDv4 is the one at 0001:00:00.0, on NUMA node 1.
func TestNDv4NumbersGPUsByBusID(t *testing.T) {
	g := imported(t, "nccl-xml", "nccl-topo/azure-ndv4.xml")
	for gpu, cpu := range map[string]string{"gpu0": "cpu1", "gpu1": "cpu1", "gpu2": "cpu0", "gpu4": "cpu3", "gpu6": "cpu2"} {
		n, err := g.Lookup(gpu)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.Nodes[g.CPUOf(n)].Name; got != cpu {
			t.Errorf("%s is on %s, want %s", gpu, got, cpu)
		}
	}
}

// Every kind of host survives as NCCL sees it: spans, NVLinks, widths and rates.
func TestEveryHostKindAsNCCLXML(t *testing.T) {
	c := catalog.Default()
	for _, kind := range build.HostKinds() {
		t.Run(kind, func(t *testing.T) {
			g, err := build.Host(c, kind, "n0")
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := encodeNCCL(&out, g); err != nil {
				t.Fatal(err)
			}
			got, err := decodeNCCL("n0", out.Bytes())
			if err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			want, have := ViewNCCL(g, 0), ViewNCCL(got, 0)
			if want.GPUs != have.GPUs || want.NICs != have.NICs || !slices.Equal(want.NUMA, have.NUMA) ||
				!slices.Equal(want.GPUPairs, have.GPUPairs) || !slices.Equal(want.NICPairs, have.NICPairs) {
				t.Errorf("want %+v\ngot  %+v\n%s", want, have, out.String())
			}
			gpus, again := parts(g, 0, topo.GPU), parts(got, 0, topo.GPU)
			for i := range gpus {
				for j := range i {
					a, b := g.Connection(gpus[i], gpus[j]), got.Connection(again[i], again[j])
					if a.Via != b.Via || a.Links != b.Links {
						if a.Via == topo.ICI { // NCCL knows no TPUs
							continue
						}
						t.Errorf("GPUs %d and %d: %s, want %s", i, j, b, a)
					}
				}
			}
		})
	}
}

// dump has what NCCL writes on a machine of its own choosing: two hosts fused,
// NVSwitches, a NIC of two ports, a NIC without PCI function, C2C, a PCIe link
// between switches, and words of versions to come.
const dump = `<?xml version="1.0"?>
<!-- of no machine there is -->
<system version="2" kind="test">
  <cpu host_hash="0x1a" numaid="1" affinity="0000,00ff" arch="arm64" vendor="NVIDIA" familyid="0" modelid="1">
    <pci busid="0008:01:00.0" class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x1" subsystem_device="0x2" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0008:03:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_1" dev="1" latency="0.000000" speed="400000" port="1" guid="0xabc" maxconn="131072" gdr="1" coll="1" keep="1"/>
          <net name="mlx5_1" dev="2" latency="0.000000" speed="200000" port="2" guid="0xabd" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
      <pcilink target="0009:01:00.0"/>
      <pci busid="0008:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" mig="0" rank="3" gdr="1">
          <nvlink target="0000:07:00.0" count="9" tclass="0x068000"/>
          <nvlink target="0000:06:00.0" count="9" tclass="0x068000"/>
          <c2c bw="44712" count="10"/>
        </gpu>
      </pci>
    </pci>
    <nic>
      <net name="bond0" dev="0" speed="10000" port="0" guid="0x0" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
  <cpu host_hash="0x1b" numaid="0" arch="arm64">
    <pci busid="0008:02:00.0" class="0x030200" link_speed="" link_width="0" later="yes &amp; &lt;no&gt;">
      <gpu dev="0" sm="90" rank="1" gdr="1">
        <nvlink target="0000:06:00.0" count="18" tclass="0x068000"/>
      </gpu>
    </pci>
  </cpu>
</system>
`

func TestNothingOfADumpIsLost(t *testing.T) {
	g := again(t, "nccl-xml", []byte(dump))
	if len(g.Hosts) != 2 || g.Count(topo.GPU) != 2 || g.Count(topo.NIC) != 3 || g.Count(topo.NVSwitch) != 2 {
		t.Fatalf("got %d hosts, %d GPUs, %d NICs, %d NVSwitches", len(g.Hosts), g.Count(topo.GPU), g.Count(topo.NIC), g.Count(topo.NVSwitch))
	}
	var out bytes.Buffer
	if err := encodeNCCL(&out, g); err != nil {
		t.Fatal(err)
	}
	// The elements and attributes are the same, in the same order of elements.
	want, err := readElements([]byte(dump))
	if err != nil {
		t.Fatal(err)
	}
	got, err := readElements(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if w, h := serialize([]*element{want}), serialize([]*element{got}); w != h {
		t.Errorf("want %s\ngot  %s", w, h)
	}
	gpu, err := g.Lookup("host-0:gpu1")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range g.Edges(gpu) {
		if c := g.Class(e.Link); c.Kind == topo.C2C && c.Rate != 447.12e9 {
			t.Errorf("C2C at %s, want 447.12 GB/s", c.Rate)
		}
	}
}

func TestNCCLXMLRefusals(t *testing.T) {
	for _, c := range []struct{ name, data, want string }{
		{"another file of NCCL's", "<graphs version=\"1\"><graph id=\"0\"/></graphs>", "line 1: found <graphs>; expected <system>"},
		{"cut off", "<system version=\"1\">\n<cpu numaid=\"0\">\n", "unexpected EOF"},
		{"no CPU", "<system version=\"1\"/>", "<system> holds no <cpu>"},
		{"no bus id", "<system>\n<cpu>\n<pci bus=\"01:00.0\"/>\n</cpu></system>", `line 3: <pci> has busid ""; expected one like`},
		{"a GPU at a CPU", "<system>\n<cpu>\n<gpu dev=\"0\"/></cpu></system>", "line 3: found <gpu> in <cpu>; expected <pci> or <nic>"},
		{"links that disagree",
			`<system><cpu><pci busid="1:00.0"><gpu dev="0"><nvlink target="2:00.0" count="2" tclass="0x030200"/></gpu></pci><pci busid="2:00.0"><gpu dev="1"><nvlink target="1:00.0" count="1" tclass="0x030200"/></gpu></pci></cpu></system>`,
			"2:00.0 lists 1 links to 1:00.0, which lists 2"},
		{"text inside", "<system><cpu>hello</cpu></system>", `found text "hello"`},
		{"a deep nest", "<system>" + strings.Repeat("<cpu>", 100), "nested more than 64 deep"},
		{"an attribute twice", `<system a="1" a="2"/>`, "attribute a appears twice"},
		{"two roots", "<system><cpu/></system><system/>", "a second <system>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decodeNCCL("n0", []byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestNCCLRefusesATwiceUsedBusID: two functions cannot have one address.
func TestNCCLRefusesATwiceUsedBusID(t *testing.T) {
	const file = `<system version="1">
  <cpu numaid="0">
    <pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="90"/></pci>
    <pci busid="0000:01:00.0" class="0x030200"><gpu dev="1" sm="90"/></pci>
  </cpu>
</system>`
	if _, err := decodeNCCL("x", []byte(file)); err == nil ||
		!strings.Contains(err.Error(), `line 4: <pci> has busid "0000:01:00.0", which is in line 3 already`) {
		t.Error(err)
	}
}

// TestNCCLNotesLinksToNowhere: a job that used some GPUs leaves the others out of
// its file; their links are not in the graph, and that is said.
func TestNCCLNotesLinksToNowhere(t *testing.T) {
	const file = `<system version="1">
  <cpu numaid="0">
    <pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="70"><nvlink target="0000:02:00.0" count="2" tclass="0x030200"/><nvlink target="0000:0b:00.0" count="1" tclass="0x030200"/></gpu></pci>
    <pci busid="0000:02:00.0" class="0x030200"><gpu dev="1" sm="70"><nvlink target="0000:01:00.0" count="2" tclass="0x030200"/></gpu></pci>
  </cpu>
</system>`
	g := again(t, "nccl-xml", []byte(file))
	notes := strings.Join(Notes(g), "; ")
	if !strings.Contains(notes, "1 accelerator links lead to devices that the file does not hold: 0000:0b:00.0") {
		t.Errorf("notes: %q", notes)
	}
	self := strings.Replace(file, "0000:0b:00.0", "0000:01:00.0", 1)
	if _, err := decodeNCCL("x", []byte(self)); err == nil || !strings.Contains(err.Error(), "leads to itself") {
		t.Error(err)
	}
}

// TestOneHostOfSeveral: dialects of one host ask which one, and write the one asked for.
func TestOneHostOfSeveral(t *testing.T) {
	b, err := build.BuildPreset(catalog.Default(), "rail", map[string]int{"hosts": 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nccl-xml", "nvidia-smi"} {
		d, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := d.Encode(&out, b.Graph); err == nil || !strings.Contains(err.Error(), `"n0" and "n1" among them; say which with --host`) ||
			out.Len() > 0 {
			t.Errorf("%s: %v, %d bytes", name, err, out.Len())
		}
		if err := d.EncodeHost(&out, b.Graph, 2); err != nil || out.Len() == 0 {
			t.Errorf("%s: %v, %d bytes", name, err, out.Len())
		}
		g, err := d.Decode("n2", out.Bytes())
		if err != nil || g.Count(topo.GPU) != 8 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
