package format

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// matrix lists the connections of a host's GPUs and NICs as text.
func matrix(g *topo.Graph) string {
	var w strings.Builder
	devices := append(parts(g, 0, topo.GPU), parts(g, 0, topo.NIC)...)
	for _, a := range devices {
		for _, b := range devices {
			fmt.Fprintf(&w, "%s ", g.Connection(a, b))
		}
		w.WriteString("\n")
	}
	return w.String()
}

func matrixSurvives(t *testing.T, g *topo.Graph) {
	t.Helper()
	var out bytes.Buffer
	if err := encodeSMI(&out, g); err != nil {
		t.Fatal(err)
	}
	got, err := decodeSMI("n0", out.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if want, have := matrix(g), matrix(got); want != have {
		t.Errorf("want\n%s\ngot\n%s\nfrom\n%s", want, have, out.String())
	}
}

func TestMatrixOfEveryHostKind(t *testing.T) {
	c := catalog.Default()
	for _, kind := range build.HostKinds() {
		t.Run(kind, func(t *testing.T) {
			g, err := build.Host(c, kind, "n0")
			if err != nil {
				t.Fatal(err)
			}
			matrixSurvives(t, g)
		})
	}
}

// randomHost grows a PCIe forest at random and, half the time, NVLinks on top.
func randomHost(r *rand.Rand) *topo.Graph {
	b := topo.NewBuilder("random")
	h := b.Host(topo.Host{Name: "n0", Pod: topo.None, Rack: topo.None})
	pcieClass, smp := b.Class(class("pcie4", 16)), b.Class(class("iomesh", 0))
	count := map[topo.Kind]int{}
	add := func(kind topo.Kind, prefix string, up topo.NodeID, cl topo.ClassID) topo.NodeID {
		n := b.Node(topo.Part(kind, h, fmt.Sprintf("%s%d", prefix, count[kind])))
		count[kind]++
		if up != topo.None {
			b.Link(topo.Link{A: up, B: n, Class: cl})
		}
		return n
	}
	var gpus []topo.NodeID
	var below func(up topo.NodeID, depth int)
	below = func(up topo.NodeID, depth int) {
		for range 1 + r.IntN(3) {
			switch k := r.IntN(4); {
			case k == 0 && depth < 3:
				below(add(topo.PCIeSwitch, "pex", up, pcieClass), depth+1)
			case k == 1:
				add(topo.NIC, "nic", up, pcieClass)
			default:
				gpus = append(gpus, add(topo.GPU, "gpu", up, pcieClass))
			}
		}
	}
	first := topo.NodeID(topo.None)
	for range 1 + r.IntN(3) {
		cpu := add(topo.CPU, "cpu", first, smp)
		if first == topo.None {
			first = cpu
		}
		if r.IntN(3) == 0 { // no root ports: the CPU is one
			below(cpu, 0)
			continue
		}
		for range 1 + r.IntN(3) {
			below(add(topo.RootPort, "root", cpu, smp), 0)
		}
	}
	if len(gpus) == 0 {
		gpus = append(gpus, add(topo.GPU, "gpu", first, pcieClass))
	}
	nv := b.Class(class("nvlink3", 0))
	switch r.IntN(3) {
	case 0:
		for i := range gpus {
			for j := range i {
				if r.IntN(2) == 0 {
					b.Link(topo.Link{A: gpus[j], B: gpus[i], Class: nv, Count: uint16(1 + r.IntN(4))})
				}
			}
		}
	case 1:
		s := add(topo.NVSwitch, "nvs", topo.None, nv)
		for _, g := range gpus {
			b.Link(topo.Link{A: g, B: s, Class: nv, Count: uint16(10 + r.IntN(9))})
		}
	}
	g, err := b.Graph()
	if err != nil {
		panic(err)
	}
	return g
}

func TestMatrixOfRandomHosts(t *testing.T) {
	for seed := range uint64(400) {
		g := randomHost(rand.New(rand.NewPCG(seed, 1)))
		matrixSurvives(t, g)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// smi builds an input from rows of cells separated by blanks.
func smi(rows ...string) []byte {
	return []byte(strings.ReplaceAll(strings.Join(rows, "\n"), " ", "\t") + "\n")
}

func TestMatrixAsItIsFoundInTheWild(t *testing.T) {
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"underlined header, GPU NUMA ID, legend of NICs", []byte("\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n" +
			"GPU0\t X \tNV18\tPIX\t0-55,112-167\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t56-111,168-223\t1\t\tN/A\nNIC0\tPIX\tSYS\t X \t\t\t\t\n\n" +
			"Legend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_4\n"), "X NV18 PIX/NV18 X SYS/PIX SYS X"},
		{"blank CPU affinity", []byte("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t\tN/A\nGPU1\tPHB\t X \t\tN/A\n"),
			"X PHB/PHB X"},
		{"spaces, a prompt, no legend",
			[]byte("$ nvidia-smi topo -m\n        GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity\nGPU0     X      NODE    PIX     0-23,48-71      0-1\nGPU1    NODE     X      NODE    0-23,48-71      0-1\nmlx5_0  PIX     NODE     X\n"),
			"X NODE PIX/NODE X NODE/PIX NODE X"},
		{"names run together, SOC, NICs out of order",
			[]byte("\t    GPU0GPU1mlx5_0\tmlx5_2\tCPU Affinity\nGPU0\t X \tNV1\tPIX\tSOC\t1-1\nGPU1\tNV1\t X \tSOC\tPIX\t1-1\nmlx5_0\tPIX\tSOC\t X \tSOC\nmlx5_2\tSOC\tPIX\tSOC\t X\n"),
			"X NV1 PIX SYS/NV1 X SYS PIX/PIX SYS X SYS/SYS PIX SYS X"},
		{"dcgmi's own, with a board of two", []byte("      GPU0 GPU1 GPU2\nGPU0     X  PSB  PHB\nGPU1   PSB    X  PHB\nGPU2   PHB  PHB    X\n"),
			"X PIX PHB/PIX X PHB/PHB PHB X"},
		{"a last line cut off", []byte("\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tSYS\tNODE\t0-5\nGPU1\tSYS\t X \tSYS\t6-11\nNIC0\tNODE\tS"),
			"X SYS NODE/SYS X SYS/NODE SYS X"},
		{"a hybrid cube mesh", smi("_ GPU0 GPU1 GPU2 GPU3", "GPU0 X NV1 NV1 NV2", "GPU1 NV1 X NV2 NV1", "GPU2 NV1 NV2 X NV2",
			"GPU3 NV2 NV1 NV2 X")[1:], "X NV1 NV1 NV2/NV1 X NV2 NV1/NV1 NV2 X NV2/NV2 NV1 NV2 X"},
		{"escapes without their first byte",
			[]byte("NVIDIA Topology: \n\t[4mGPU0\tGPU1\tCPU Affinity[0m\nGPU0\t X \tPHB\t0-3\nGPU1\tPHB\t X \t0-3\n"), "X PHB/PHB X"},
		{"no header, no rows of NICs",
			[]byte("All pairs:\n\nGPU0\t X \tNV18\tPXB\tSYS\t0-31,64-95\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\tPXB\t32-63\t1\t\tN/A\n"),
			"X NV18 PXB SYS/NV18 X SYS PXB/PXB SYS X SYS/SYS PXB SYS X"},
		{"rows of NICs left out",
			[]byte("\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\nGPU0\t X \tNV18\tPIX\tNODE\t0-31\nGPU1\tNV18\t X \tNODE\tPIX\t0-31\n```\n"),
			"X NV18 PIX NODE/NV18 X NODE PIX/PIX NODE X NODE/NODE PIX NODE X"},
		{"columns out of order", []byte("\tGPU2\tmlx5_1\tGPU0\nGPU2\t X \tPIX\tNV4\nmlx5_1\tPIX\t X \tSYS\nGPU0\tNV4\tSYS\t X \n"),
			"X NV4 SYS/NV4 X PIX/SYS PIX X"},
		{"one GPU", []byte("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-19\t0\t\tN/A\n"), "X"},
		{"two GPUs that a container sees of eight", []byte("\tGPU4\tGPU6\tCPU Affinity\nGPU4\t X \tNV12\t0-31\nGPU6\tNV12\t X \t0-31\n"),
			"X NV12/NV12 X"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d, ok := Detect(c.data); (!ok || d.Name != "nvidia-smi") && !strings.HasPrefix(c.name, "no header") {
				t.Errorf("detected as %q", d.Name)
			}
			g := again(t, "nvidia-smi", c.data)
			got := strings.ReplaceAll(strings.TrimSuffix(matrix(g), " \n"), " \n", "/")
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestMatrixKeepsNamesAndAffinity(t *testing.T) {
	g := again(t, "nvidia-smi",
		[]byte("\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV12\tPXB\t48-63,176-191\t3\t\t8\nGPU1\tNV12\t X \tPXB\t48-63,176-191\t3\t\t16\nNIC0\tPXB\tPXB\t X \t\t\t\t\n\nNIC Legend:\n\n  NIC0: ibp12s0\n"))
	gpu, err := g.Lookup("gpu1")
	if err != nil {
		t.Fatal(err)
	}
	if a := g.Attrs[gpu]; a["smi.cpus"] != "48-63,176-191" || a["smi.numa"] != "3" || a["smi.gpu-numa"] != "16" {
		t.Errorf("got %v", a)
	}
	nic, err := g.Lookup("nic0")
	if err != nil {
		t.Fatal(err)
	}
	if a := g.Attrs[nic]; a["smi.device"] != "ibp12s0" {
		t.Errorf("got %v", a)
	}
	if cpu := g.CPUOf(gpu); g.Nodes[cpu].Name != "cpu3" {
		t.Errorf("gpu1 is on %s, want cpu3", g.Nodes[cpu].Name)
	}
}

// The text is that of drivers from 535 on, tabs included, less the codes that underline the header.
func TestMatrixIsPrintedAsNvidiaSmiPrintsIt(t *testing.T) {
	g, err := build.Host(catalog.Default(), "gh200", "n0")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := encodeSMI(&out, g); err != nil {
		t.Fatal(err)
	}
	nics := len(parts(g, 0, topo.NIC))
	lines := strings.Split(out.String(), "\n")
	head, row, nic := "\tGPU0", "GPU0\t X ", "NIC0\tNODE"
	for i := range nics {
		head += fmt.Sprintf("\tNIC%d", i)
		row += "\tNODE"
	}
	if want := head + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"; lines[0] != want {
		t.Errorf("got %q, want %q", lines[0], want)
	}
	if want := row + "\tN/A\t0\t\tN/A"; lines[1] != want {
		t.Errorf("got %q, want %q", lines[1], want)
	}
	if !strings.HasPrefix(lines[2], nic) || !strings.HasSuffix(lines[2], "\t\t\t\t") {
		t.Errorf("got %q, want %q and four tabs at the end", lines[2], nic)
	}
	if want := "\nLegend:\n\n  X    = Self\n  SYS  = "; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, out.String())
	}
	if want := "\nNIC Legend:\n\n  NIC0: mlx5_0\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, out.String())
	}
}

func TestNVSwitchOrDirect(t *testing.T) {
	for _, c := range []struct {
		gpus, links int
		switches    int
	}{{4, 4, 0}, {2, 12, 0}, {8, 2, 0}, {8, 12, 1}, {8, 18, 1}, {2, 18, 1}, {4, 6, 0}, {16, 6, 1}} {
		rows := []string{"_"}
		for i := range c.gpus {
			rows[0] += fmt.Sprintf(" GPU%d", i)
			row := fmt.Sprintf("GPU%d", i)
			for j := range c.gpus {
				if i == j {
					row += " X"
				} else {
					row += fmt.Sprintf(" NV%d", c.links)
				}
			}
			rows = append(rows, row)
		}
		g, err := decodeSMI("n0", smi(rows...)[1:])
		if err != nil {
			t.Fatal(err)
		}
		if n := g.Count(topo.NVSwitch); n != c.switches {
			t.Errorf("%d GPUs at NV%d: %d NVSwitches, want %d", c.gpus, c.links, n, c.switches)
		}
	}
}

func TestMatrixRefusals(t *testing.T) {
	for _, c := range []struct{ name, data, want string }{
		{"asymmetric", "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tSYS\t X \n", "line 3: GPU1 to GPU0 is SYS, but GPU0 to GPU1 is PIX in line 2"},
		{"no such tree", "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\tPIX\nGPU1\tPIX\t X \tSYS\nGPU2\tPIX\tSYS\t X \n",
			"GPU2 to GPU1 is SYS, but both are within PIX of the same devices"},
		{"unknown word", "\tGPU0\tGPU1\nGPU0\t X \tPXY\nGPU1\tPXY\t X \n", `line 2: GPU0 to GPU1: found "PXY"; expected X, NV#, PIX`},
		{"off the diagonal", "\tGPU0\tGPU1\nGPU0\tPIX\t X \nGPU1\t X \tPIX\n", "expected X on the diagonal"},
		{"NVLink to a NIC", "\tGPU0\tNIC0\nGPU0\t X \tNV4\nNIC0\tNV4\t X \n", "only GPUs have such links"},
		{"missing rows", "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\tPIX\n", "nothing says how GPU1 and GPU2 are joined"},
		{"a row too many", "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \nGPU2\tPIX\tPIX\n", `a row for "GPU2", which has no column`},
		{"a column twice", "\tGPU0\tGPU0\nGPU0\t X \tPIX\n", "column GPU0 appears twice"},
		{"another text", "hello\nworld\n", "line 1: no line of columns GPU0 GPU1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decodeSMI("n0", []byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestCPUList(t *testing.T) {
	for mask, want := range map[string]string{"000000ff,ffff0000,00ffffff": "0-23,48-71", "1": "0", "5": "0,2", "80000000,00000001": "0,63",
		"": "", "0-15": "", "ffffffff,ffffffff": "0-63"} {
		if got := cpuList(mask); got != want {
			t.Errorf("%q: got %q, want %q", mask, got, want)
		}
	}
}
