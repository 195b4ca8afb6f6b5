package format

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
)

// classic has the oddities of real dumps: a director, SHARP, firmware's own
// descriptions, a name used twice, a card of two ports, a router, a chassis,
// links of several widths and speeds, and no word of the other end.
const classic = `#
# Topology file: generated on Mon Jan  1 00:00:00 2024
#
# Max of 3 hops discovered
# Initiated from node b8599f0300000010 port b8599f0300000010

Chassis 1 (guid 0x5442ba00003000)

vendid=0x2c9
devid=0xd2f0
sysimgguid=0xb8599f0300000000
switchguid=0xb8599f0300000001(b8599f0300000001)
Switch	41 "S-b8599f0300000001"		# "MF0;core-1:MCS8500/L01/U1" enhanced port 0 lid 3 lmc 0
[1]	"S-b8599f0300000002"[40]		# "MF0;leaf1:MQM8700/U1" lid 4 4xHDR s=4 w=2 v=4 e=4
[2][ext 7]	"S-b8599f0300000003"[40][ext 1]		# "Infiniscale-IV Mellanox Technologies" lid 5 4xQDR
[41]	"H-b8599f0300000009"[1](b8599f0300000009) 		# "Mellanox Technologies Aggregation Node" lid 6 4xHDR

vendid=0x2c9
devid=0xd2f0
sysimgguid=0xb8599f0300000000
switchguid=0xb8599f030000000a(b8599f030000000a)
Switch	41 "S-b8599f030000000a"		# "MF0;core-1:MCS8500/S02/U1" enhanced port 0 lid 30 lmc 0

Non-Chassis Nodes

vendid=0x2c9
devid=0xd2f0
sysimgguid=0xb8599f0300000002
switchguid=0xb8599f0300000002(b8599f0300000002)
Switch	40 "S-b8599f0300000002"		# "MF0;leaf1:MQM8700/U1" base port 0 lid 4 lmc 0
[1]	"H-b8599f0300000010"[1](b8599f0300000010) 		# "n1 mlx5_0" lid 7 4xHDR
[2]	"H-b8599f0300000020"[1](b8599f0300000021) 		# "n2 HCA-1" lid 8 2xHDR
[3]	"H-b8599f0300000020"[2](b8599f0300000022) 		# "n2 HCA-1" lid 9 2xHDR
[4]	"H-b8599f0300000030"[1](b8599f0300000031) 		# "localhost HCA-1" lid 10 4xEDR
[5]	"H-b8599f0300000040"[1](b8599f0300000041) 		# "localhost HCA-1" lid 11 12xSDR
[6]	"H-b8599f0300000050"[1](b8599f0300000051) 		# "MT4123 ConnectX6   Mellanox Technologies" lid 12 4xFDR10
[7]	"R-b8599f0300000060"[1](b8599f0300000061) 		# "gateway" lid 13 4xFDR
[40]	"S-b8599f0300000001"[1]		# "MF0;core-1:MCS8500/L01/U1" lid 3 4xHDR s=4 w=2 v=4 e=4

vendid=0x2c9
devid=0xbd36
sysimgguid=0xb8599f0300000003
switchguid=0xb8599f0300000003(b8599f0300000003)
Switch	40 "S-b8599f0300000003"		# "Infiniscale-IV Mellanox Technologies" base port 0 lid 5 lmc 0
[1]	"H-b8599f0300000070"[1](b8599f0300000071) 		# "atlas35" lid 1252
[40]	"S-b8599f0300000001"[2]		# "MF0;core-1:MCS8500/L01/U1" lid 3 4xQDR

vendid=0x2c9
devid=0x1013
sysimgguid=0xb8599f0300000023
caguid=0xb8599f0300000020
Ca	2 "H-b8599f0300000020"		# "n2 HCA-1"
[1](b8599f0300000021) 	"S-b8599f0300000002"[2]		# lid 8 lmc 1 "MF0;leaf1:MQM8700/U1" lid 4 2xHDR
[2](b8599f0300000022) 	"S-b8599f0300000002"[3]		# lid 9 lmc 1 "MF0;leaf1:MQM8700/U1" lid 4 2xHDR

vendid=0x2c9
devid=0xcf09
sysimgguid=0xb8599f0300000000
caguid=0xb8599f0300000009
Ca	1 "H-b8599f0300000009"		# "Mellanox Technologies Aggregation Node"
[1](b8599f0300000009) 	"S-b8599f0300000001"[41]		# lid 6 lmc 0 "MF0;core-1:MCS8500/L01/U1" lid 3 4xHDR
`

func TestClassicDumpWithEveryOddity(t *testing.T) {
	g := again(t, "ibnetdiscover", []byte(classic))
	var hosts []string
	for _, h := range g.Hosts {
		hosts = append(hosts, h.Name)
	}
	if got, want := strings.Join(hosts, " "),
		"atlas35 gateway host-b8599f0300000050 localhost-b8599f0300000030 localhost-b8599f0300000040 n1 n2"; got != want {
		t.Errorf("hosts %s\nwant  %s", got, want)
	}
	for name, tier := range map[string]uint8{"leaf1": 1, "switch-b8599f0300000003": 1, "core-1/L01": 2, "core-1/S02": 0} {
		n, err := g.Lookup(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if g.Nodes[n].Tier != tier {
			t.Errorf("%s is in tier %d, want %d", name, g.Nodes[n].Tier, tier)
		}
	}
	hca, err := g.Lookup("n2:HCA-1")
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Edges(hca)) != 2 || g.Nodes[hca].Ports != 2 || g.Attrs[hca]["ib.p2.lmc"] != "1" || g.Attrs[hca]["ib.devid"] != "0x1013" {
		t.Errorf("n2:HCA-1 has %d links, %d ports, %v", len(g.Edges(hca)), g.Nodes[hca].Ports, g.Attrs[hca])
	}
	if c := g.Class(g.Edges(hca)[0].Link); c.Gen != "hdr100" {
		t.Errorf("two lanes of HDR are %s, want hdr100", c.Gen)
	}
	core, _ := g.Lookup("core-1/L01")
	if an := g.Attrs[core]["ib.an41"]; !strings.Contains(an, "Aggregation Node") {
		t.Errorf("the aggregation node is lost: %v", g.Attrs[core])
	}
	for _, c := range g.Classes {
		if c.Gen == "sdr" && c.Lanes == 12 && c.Rate != 3e9 {
			t.Errorf("12xSDR carries %s, want 3 GB/s", c.Rate)
		}
	}
}

func TestReportLines(t *testing.T) {
	g := again(t, "ibnetdiscover", []byte(`# comment
CA   134  1 0x7cfe900300000001 4x NDR - SW  1719 10 0x7cfe900300000002 ( 'o0001 HCA-1' - 'ib leaf 1' )
SW  1719 10 0x7cfe900300000002 4x NDR - CA   134  1 0x7cfe900300000001 ( 'ib leaf 1' - 'o0001 HCA-1' )
SW  1719 37 0x7cfe900300000002 4x ???                                    'ib leaf 1'
SW  1719  1 0x7cfe900300000002 2x HDR - SW     9  1 0x7cfe900300000003 ( ib leaf 1 - spine )
CA   135  1 0x7cfe900300000005 4x SDR                                    'o0002 HCA-1'
`))
	leaf, err := g.Lookup("ib-leaf-1")
	if err != nil {
		t.Fatal(err)
	}
	if g.Nodes[leaf].Ports != 37 || g.Attrs[leaf]["ib.lid"] != "1719" || len(g.Edges(leaf)) != 2 {
		t.Errorf("leaf has %d ports, %v, %d links", g.Nodes[leaf].Ports, g.Attrs[leaf], len(g.Edges(leaf)))
	}
	if len(g.Hosts) != 2 {
		t.Errorf("%d hosts, want 2: a host whose port is down is still there", len(g.Hosts))
	}
}

// A net file as the simulator's users write it, with free names and no numbers.
func TestIbsimFileWithFreeNames(t *testing.T) {
	g := again(t, "ibsim", []byte(`# two switches
Switch 8 "sw 1"
[1] "node1"[1]
[2] "node2"
[3] "sw 2"[3]
[4] "sw 2"[4]

Hca 2 "node1"
[1] "sw 1"[1]
[2] "sw 2"[1]

Hca 1 "node2"
[1]  "sw 1"[2]

Switch 8 "sw 2"
`))
	if len(g.Hosts) != 2 || g.Count(topo.Switch) != 2 || len(g.Links) != 5 || g.Classes[0].Gen != "sdr" {
		t.Errorf("got %d hosts, %d switches, %d links, class %s", len(g.Hosts), g.Count(topo.Switch), len(g.Links), g.Classes[0].Gen)
	}
}

func TestIbsimCarriesEveryFabric(t *testing.T) {
	clos := func(nics []string) build.Fabric {
		return build.Clos{Name: "c", NICs: nics, Rails: true, Leaf: build.Tier{Model: "QM9700"}}
	}
	for name, g := range map[string]*topo.Graph{
		"rails": fabricOf(t, "dgx-h100", 40, 8, clos),
		"torus": fabricOf(t, "dgx-h100", 27, 1, func(n []string) build.Fabric {
			return build.Torus{Name: "t", NICs: n, Dims: []int{3, 3, 3}, Ports: 1, Model: "QM9700"}
		}),
	} {
		var out bytes.Buffer
		if err := encodeIbsim(&out, g); err != nil {
			t.Fatal(err)
		}
		for _, decode := range []func(string, []byte) (*topo.Graph, error){decodeIbsim, decodeDiscover} {
			got, err := decode(name, out.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			same(t, g, got)
		}
	}
}

func TestIbnetRefusals(t *testing.T) {
	const head = "Switch 4 \"S-0000000000000001\"\t# \"a\"\n"
	for _, c := range []struct{ name, data, want string }{
		{"no node", "# nothing\n", "line 1: no node found"},
		{"another text", "hello world\n", `line 1: found "hello world"; expected Switch, Ca or Rt`},
		{"a port first", "[1] \"S-0000000000000001\"[2]\n", "line 1: a port before the first node"},
		{"no port number", head + "[x] \"S-0000000000000002\"[1]\n", "line 2: no port number from 1 to 254"},
		{"no peer", head + "[1] nowhere\n", "line 2: no quoted id of a peer"},
		{"a record twice", head + head, "line 2: a second record of S-0000000000000001; the first is in line 1"},
		{"two cables in a port", head + "[1] \"S-0000000000000002\"[1]\n[1] \"S-0000000000000003\"[1]\n",
			"line 3: port 1 of \"a\" leads to port 1 of S-0000000000000003, but to port 1 of S-0000000000000002 in line 2"},
		{"ends that disagree", head + "[1] \"S-0000000000000002\"[1]\nSwitch 4 \"S-0000000000000002\"\n[1] \"S-0000000000000001\"[2]\n",
			"leads to port"},
		{"a loop", head + "[1] \"S-0000000000000001\"[2]\n", "leads back to itself"},
		{"a report cut off", "CA   134  1 0x7cfe900300000001 4x NDR - SW  1719\n", "line 1: no type, LID, port and GUID of the peer"},
		{"no GUID", "Switch 4 \"sw1\"\n", "has no GUID"},
		{"a bad number", "vendid=zz\n", `line 1: vendid is "zz"; expected a hexadecimal number`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decodeDiscover("x", []byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestIbNamesOfClasses(t *testing.T) {
	for _, s := range infiniband {
		for _, width := range []int{1, 2, 4, 8, 12} {
			c, ok := ibClass(width, s.speed)
			if !ok {
				t.Fatalf("no class for %dx%s", width, s.speed)
			}
			if w, speed := ibName(c); w != width || speed != s.speed {
				t.Errorf("%dx%s came back as %dx%s (%s)", width, s.speed, w, speed, c)
			}
			if want := s.lane * 1e9 / 8 * float64(width); float64(c.Rate) < want*0.999 || float64(c.Rate) > want*1.001 {
				t.Errorf("%dx%s carries %s, want %g B/s", width, s.speed, c.Rate, want)
			}
		}
	}
	for gen, want := range map[string]string{"400gbe": "4xNDR", "100gbe": "4xEDR", "200gbe": "4xHDR", "800gbe": "4xXDR", "25gbe": "4xDDR"} {
		if w, s := ibName(class(gen, 0)); fmt.Sprintf("%dx%s", w, s) != want {
			t.Errorf("%s is written as %dx%s, want %s", gen, w, s, want)
		}
	}
}

// randomFabric wires switches and NICs at random: several links between a pair,
// some of them counted together, ports numbered or not, switches without hosts.
func randomFabric(r *rand.Rand) *topo.Graph {
	b := topo.NewBuilder("random")
	f := b.Fabric(topo.Fabric{Name: "ib", Family: topo.Irregular})
	var switches, nics []topo.NodeID
	for i := range 1 + r.IntN(8) {
		n := topo.Part(topo.Switch, topo.None, fmt.Sprintf("sw%d", i))
		n.Fabric = f
		if r.IntN(2) == 0 {
			n.Ports = 200
		}
		switches = append(switches, b.Node(n))
	}
	for i := range r.IntN(10) {
		h := b.Host(topo.Host{Name: fmt.Sprintf("n%d", i), Pod: int32(r.IntN(3)), Rack: topo.None})
		for j := range 1 + r.IntN(3) {
			n := topo.Part(topo.NIC, h, fmt.Sprintf("mlx5_%d", j))
			n.Fabric, n.Rail = f, int16(j)
			nics = append(nics, b.Node(n))
		}
	}
	gens := []string{"edr", "hdr", "hdr100", "ndr", "xdr"}
	link := func(a, c topo.NodeID, count int) {
		b.Link(topo.Link{A: a, B: c, Class: b.Class(class(gens[r.IntN(len(gens))], 0)), Count: uint16(count)})
	}
	for _, n := range nics {
		for range 1 + r.IntN(2) {
			link(n, switches[r.IntN(len(switches))], 1)
		}
	}
	for i, a := range switches {
		for _, c := range switches[:i] {
			for range r.IntN(3) {
				link(a, c, 1+r.IntN(3))
			}
		}
	}
	g, err := b.Graph()
	if err != nil {
		panic(err)
	}
	return g
}

func TestRandomFabricsComeBack(t *testing.T) {
	for seed := range uint64(bounded.Times(60, 300)) {
		g := randomFabric(rand.New(rand.NewPCG(seed, 7)))
		for _, dialect := range []string{"ibsim", "ibnetdiscover"} {
			d, err := Find(dialect)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := d.Encode(&out, g); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			got, err := d.Decode("x", out.Bytes())
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, out.String())
			}
			if same(t, g, got); t.Failed() {
				t.Fatalf("seed %d\n%s", seed, out.String())
			}
		}
	}
}

// TestUnknownSpeedStaysUnknown: a speed that nobody knows does not become SDR.
func TestUnknownSpeedStaysUnknown(t *testing.T) {
	for _, said := range []string{"4xZDR", "???", "4x???", ""} {
		file := "Switch\t2 \"S-0002c90300001234\"\t# \"leaf\" base port 0 lid 1 lmc 0\n[1]\t\"H-0002c90300005678\"[1](2c90300005679)\t# \"n0 mlx5_0\" lid 2 " +
			said + "\n\n" +
			"Ca\t1 \"H-0002c90300005678\"\t# \"n0 mlx5_0\"\n[1](2c90300005679)\t\"S-0002c90300001234\"[1]\t# lid 2 lmc 0 \"leaf\" lid 1 " +
			said + "\n"
		g := again(t, "ibnetdiscover", []byte(file))
		if g.Unstated() != 1 {
			t.Errorf("%q reads as %s", said, g.Class(0))
		}
	}
}

// TestLargeSubnetComesBack writes 140,000 adapters and reads them again.
func TestLargeSubnetComesBack(t *testing.T) {
	if !bounded.Long() {
		t.Skip("builds 140,000 hosts; make long does")
	}
	const ports, leaves = 128, 1100 // more ends than 16 bits count
	b := topo.NewBuilder("large")
	class := b.Class(class("ndr", 0))
	fabric := b.Fabric(topo.Fabric{Name: "fabric", Family: topo.Clos})
	for l := range leaves {
		s := topo.Part(topo.Switch, topo.None, fmt.Sprintf("leaf%d", l))
		s.Fabric, s.Ports, s.Tier = fabric, ports, 1
		sw := b.Node(s)
		for p := range ports {
			h := b.Host(topo.Host{Name: fmt.Sprintf("n%d", l*ports+p), Pod: topo.None, Rack: topo.None})
			n := topo.Part(topo.NIC, h, "nic0")
			n.Fabric, n.Ports = fabric, 1
			b.Link(topo.Link{A: b.Node(n), B: sw, APort: 1, BPort: uint16(p + 1), Class: class})
		}
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := encodeDiscover(&out, g); err != nil {
		t.Fatal(err)
	}
	back, err := decodeDiscover("large", out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if len(back.Hosts) != leaves*ports || len(back.Links) != leaves*ports {
		t.Errorf("%d hosts and %d links of %d", len(back.Hosts), len(back.Links), leaves*ports)
	}
}
