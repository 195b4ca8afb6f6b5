package catalog

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

func TestDefaultIsSound(t *testing.T) {
	if err := Default().Check(); err != nil {
		t.Fatal(err)
	}
}

// Every figure says where it comes from, and every price when it was true.
func TestEveryEntryHasASource(t *testing.T) {
	c := Default()
	sourced := func(what, key string, s Source, prices ...Price) {
		if s == "" {
			t.Errorf("%s %q has no source", what, key)
		}
		for _, p := range prices {
			if p.USD > 0 && (p.Source == "" || len(p.Date) != len("2024-03")) {
				t.Errorf("%s %q: price %+v wants a date and a source", what, key, p)
			}
		}
	}
	for k, v := range c.Links {
		sourced("link", k, v.Source)
	}
	for k, v := range c.GPUs {
		sourced("GPU", k, v.Source, v.Price)
	}
	for k, v := range c.NICs {
		sourced("NIC", k, v.Source, v.Price)
	}
	for k, v := range c.Switches {
		sourced("switch", k, v.Source, v.Price)
	}
	for k, v := range c.Hosts {
		sourced("host", k, v.Source, v.Price, v.Rent)
	}
	for k, v := range c.Cables {
		sourced("cable", k, v.Source, v.Price)
	}
}

// Lane rate, lanes and code of each generation give the payload it is known for, to the bit.
func TestLinkRatesFollowFromLanesAndCode(t *testing.T) {
	c := Default()
	for gen, want := range map[string]unit.Rate{
		"nvlink1": 20e9, "nvlink2": 25e9, "nvlink3": 25e9, "nvlink4": 25e9, "nvlink5": 50e9,
		"c2c": 450e9, "xgmi3": 64e9, "ici4": 50e9, "xbus": 64e9, "upi1": 20.8e9, "qpi": 19.2e9,
		"sdr": 1e9, "ddr": 2e9, "qdr": 4e9, "fdr10": 5e9, "edr": 12.5e9, "hdr100": 12.5e9, "hdr": 25e9, "ndr200": 25e9, "ndr": 50e9, "xdr": 100e9,
		"1gbe": 0.125e9, "10gbe": 1.25e9, "25gbe": 3.125e9, "40gbe": 5e9, "50gbe": 6.25e9, "100gbe": 12.5e9, "200gbe": 25e9, "400gbe": 50e9,
		"800gbe": 100e9,
		"pcie1":  4e9, "pcie2": 8e9, "pcie6": 118e9,
	} {
		l, err := c.Link(gen)
		if err != nil {
			t.Error(err)
		} else if got := l.Class(0).Rate; got != want {
			t.Errorf("%s: %.17g, want %.17g", gen, got, want)
		}
	}
	for gen, want := range map[string]float64{"pcie3": 16 * 128.0 / 130, "pcie4": 32 * 128.0 / 130, "pcie5": 64 * 128.0 / 130,
		"fdr": 54.5454545454545 / 8} {
		if got := float64(c.Links[gen].Class(0).Rate) / 1e9; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v GB/s, want %v", gen, got, want)
		}
	}
}

func TestHalfTheLanesCarryHalf(t *testing.T) {
	for gen, l := range Default().Links {
		if l.Lanes%2 == 0 {
			if half, full := l.Class(l.Lanes/2), l.Class(0); !near(2*float64(half.Rate), float64(full.Rate)) || half.Latency != full.Latency {
				t.Errorf("%s: %v and %v", gen, half, full)
			}
		}
	}
}

// Mission A1: 160, 300, 600, 900, 1800 GB/s both ways over 4, 6, 12, 18, 18 links.
func TestNVLinkTotalsBothWays(t *testing.T) {
	c := Default()
	for name, want := range map[string]unit.BothWays{
		"P100-SXM": 160e9, "V100-SXM": 300e9, "V100-SXM-16GB": 300e9, "A100-SXM-40GB": 600e9, "A100-SXM-80GB": 600e9,
		"A800-SXM": 400e9, "H800-SXM": 400e9, "H20": 900e9, "H100-SXM": 900e9, "H200": 900e9, "GH200": 900e9, "B200": 1800e9, "GB200": 1800e9,
		"B300": 1800e9, "GB300": 1800e9, "MI300X": 896e9, "TPU-v4": 600e9,
	} {
		g, err := c.GPU(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.OneWay(c).BothWays(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestC2CIs900BothWays(t *testing.T) {
	if got := Default().Links["c2c"].Class(0).Rate.BothWays(); got != 900e9 {
		t.Error(got)
	}
}

// The chips' throughput both ways as NVIDIA prints it: 0.9, 1.8, 3.2 and 7.2 TB/s.
func TestNVSwitchThroughput(t *testing.T) {
	c := Default()
	for name, want := range map[string]unit.BothWays{"NVSwitch-1": 0.9e12, "NVSwitch-2": 1.8e12, "NVSwitch-3": 3.2e12, "NVSwitch-4": 7.2e12} {
		s := c.Switches[name]
		if got := (unit.Rate(s.Ports) * c.Links[s.Link].Class(0).Rate).BothWays(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// Throughput one way of network switches as their makers print it.
func TestSwitchThroughput(t *testing.T) {
	c := Default()
	for name, want := range map[string]unit.BitRate{
		"QM8790": 8e12, "QM9700": 25.6e12, "Q3400": 115.2e12, "SN5600": 51.2e12, "SN5600-400": 51.2e12,
		"TH3": 12.8e12, "TH4": 25.6e12, "TH4-200": 25.6e12, "TH5": 51.2e12, "TH5-400": 51.2e12,
	} {
		s, err := c.Switch(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := (unit.Rate(s.Ports) * c.Links[s.Link].Class(0).Rate).Bits(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// FLOP/s are dense: tensor figures of one chip double from type to type, and a
// sparse figure slipped in would break the ladder.
func TestDenseLadder(t *testing.T) {
	for name, g := range Default().GPUs {
		if tf, ok := g.Dense["tf32"]; ok && g.Arch != "CDNA3" {
			if r := g.Dense["bf16"] / tf; r < 1.9 || r > 2.1 {
				t.Errorf("%s: bf16 is %.2f of tf32, want 2", name, r)
			}
		}
		if f8, ok := g.Dense["fp8"]; ok {
			if r := f8 / g.Dense["bf16"]; r < 1.9 || r > 2.1 {
				t.Errorf("%s: fp8 is %.2f of bf16, want 2", name, r)
			}
		}
	}
}

func TestDefaultIsAFreshCopy(t *testing.T) {
	a, b := Default(), Default()
	a.GPUs["H100-SXM"].Dense["bf16"] = 1
	delete(a.Links, "ndr")
	if b.GPUs["H100-SXM"].Dense["bf16"] == 1 || b.GPUs["H200"].Dense["bf16"] == 1 || len(b.Links) == len(a.Links) {
		t.Error("two catalogues share entries")
	}
	if a.GPUs["H200"].Dense["bf16"] == 1 {
		t.Error("two GPUs share their table")
	}
}

// A broken entry is found, and the error names entry, field and value.
func TestCheckNamesTheEntry(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(*Catalog)
		want  []string
	}{
		{"rate", func(c *Catalog) { l := c.Links["ndr"]; l.LaneRate = 0; c.Links["ndr"] = l }, []string{`link "ndr"`, "lane rate is 0"}},
		{"encoding", func(c *Catalog) { l := c.Links["ndr"]; l.Encoding = Encoding{10, 8}; c.Links["ndr"] = l },
			[]string{`link "ndr"`, "10 bits of data in 8"}},
		{"efficiency", func(c *Catalog) { l := c.Links["ndr"]; l.Efficiency = math.NaN(); c.Links["ndr"] = l },
			[]string{`link "ndr"`, "efficiency is NaN"}},
		{"kind", func(c *Catalog) { l := c.Links["ndr"]; l.Kind = 99; c.Links["ndr"] = l },
			[]string{`link "ndr"`, "kind is unknown(99)", "infiniband"}},
		{"key", func(c *Catalog) { c.Links["x"] = c.Links["ndr"] }, []string{`link "x"`, `named "ndr"`}},
		{"gpu link", func(c *Catalog) { g := c.GPUs["B200"]; g.Link = "nvlink9"; c.GPUs["B200"] = g },
			[]string{`GPU "B200"`, `"nvlink9"`, "nvlink5"}},
		{"gpu pcie", func(c *Catalog) { g := c.GPUs["B200"]; g.PCIe = "ndr"; c.GPUs["B200"] = g },
			[]string{`GPU "B200"`, `pcie is "ndr"`, "infiniband, not a PCIe link"}},
		{"gpu type", func(c *Catalog) { c.GPUs["B200"].Dense["fp9"] = 1 }, []string{`GPU "B200"`, `"fp9"`, "fp8"}},
		{"gpu links", func(c *Catalog) { g := c.GPUs["A10"]; g.Links = 2; c.GPUs["A10"] = g }, []string{`GPU "A10"`, "links is 2"}},
		{"nic", func(c *Catalog) { n := c.NICs["ConnectX-7"]; n.Link = "pcie5"; c.NICs["ConnectX-7"] = n },
			[]string{`NIC "ConnectX-7"`, `link is "pcie5"`, "ndr"}},
		{"switch", func(c *Catalog) { s := c.Switches["QM9700"]; s.Ports = 0; c.Switches["QM9700"] = s },
			[]string{`switch "QM9700"`, "ports is 0"}},
		{"switch kind", func(c *Catalog) { s := c.Switches["QM9700"]; s.Kind = topo.Ethernet; c.Switches["QM9700"] = s },
			[]string{`switch "QM9700"`, "kind is ethernet", "infiniband"}},
		{"host", func(c *Catalog) { h := c.Hosts["dgx-h100"]; h.GPU = "H900"; c.Hosts["dgx-h100"] = h },
			[]string{`host "dgx-h100"`, `gpu is "H900"`, "H100-SXM"}},
		{"price", func(c *Catalog) { h := c.Hosts["dgx-h100"]; h.Price = Price{USD: 5}; c.Hosts["dgx-h100"] = h },
			[]string{`host "dgx-h100"`, "without a date"}},
		{"cable", func(c *Catalog) { w := c.Cables["dac-ndr"]; w.Reach = -1; c.Cables["dac-ndr"] = w },
			[]string{`cable "dac-ndr"`, "reach is -1"}},
	} {
		c := Default()
		test.spoil(c)
		err := c.Check()
		if err == nil {
			t.Errorf("%s: not found", test.name)
			continue
		}
		for _, w := range test.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", test.name, err, w)
			}
		}
	}
}

func TestMergeReplacesWholeEntries(t *testing.T) {
	c := Default()
	mine := &Catalog{GPUs: map[string]GPU{"H100-SXM": {Name: "H100-SXM", Watts: 650}}, Switches: map[string]Switch{"S1": {Name: "S1"}}}
	c.Merge(mine)
	if g := c.GPUs["H100-SXM"]; g.Watts != 650 || g.Memory != 0 {
		t.Errorf("%+v", g)
	}
	if _, err := c.Switch("S1"); err != nil {
		t.Error(err)
	}
	if _, err := c.Switch("S2"); err == nil || !strings.Contains(err.Error(), "QM9700") {
		t.Errorf("unknown switch: %v", err)
	}
}

// Every network generation has at least one cable that reaches across a room.
func TestEveryNetworkLinkHasAFibre(t *testing.T) {
	c := Default()
	for _, gen := range slices.Sorted(maps.Keys(c.Links)) {
		if l := c.Links[gen]; !l.Kind.Network() {
			continue
		}
		if _, err := c.Cable("smf-" + gen); err != nil {
			t.Errorf("%s: %v", gen, err)
		}
	}
	for _, no := range []string{"dac-xdr", "aoc-xdr"} {
		if _, ok := c.Cables[no]; ok {
			t.Errorf("%s does not exist at 200 Gb/s a lane", no)
		}
	}
}

func claim(t *testing.T, start string) Claim {
	t.Helper()
	for _, c := range Claims() {
		if strings.HasPrefix(c.Says, start) {
			return c
		}
	}
	t.Fatalf("no claim starts with %q", start)
	return Claim{}
}

func right(t *testing.T, start string, want ...string) {
	t.Helper()
	c := claim(t, start)
	for _, w := range want {
		if !strings.Contains(c.Right, w) {
			t.Errorf("%s: right is %q, which lacks %q", c.Says, c.Right, w)
		}
	}
	if c.Why == "" || c.Source == "" {
		t.Errorf("%+v has neither reason nor source", c)
	}
}

// A guide says 10, 80 and 180 GB/s for 10 GbE, 100 GbE and HDR.
func TestS0EthernetCountsBitsNotBytes(t *testing.T) {
	right(t, "10 GbE", "1.25 GB/s")
	right(t, "100 GbE", "12.5 GB/s")
	right(t, "InfiniBand HDR", "25 GB/s")
}

// A guide says 16, 32 and 64 GB/s.
func TestS2PCIeIsBeforeItsCode(t *testing.T) {
	right(t, "PCIe", "15.75 GB/s", "31.51 GB/s", "63.02 GB/s")
}

// A guide says that four links of 20 GB/s both ways make 160.
func TestS2NVLink1CountsOneWay(t *testing.T) {
	right(t, "NVLink 1: four", "20 GB/s each way", "40 GB/s both ways", "160 GB/s both ways")
}

// A guide says 8b/10b and eight lanes of 25 Gb/s.
func TestS2NVLinkLanes(t *testing.T) {
	right(t, "NVLink 1 and 2 code", "nvlink1 8 x 20 Gb/s = 20 GB/s", "nvlink2 8 x 25 Gb/s", "nvlink3 4 x 50 Gb/s",
		"nvlink4 2 x 100 Gb/s = 25 GB/s", "nvlink5 2 x 200 Gb/s = 50 GB/s")
}

// A guide says 50 GB/s between two A100, 200 between two H100.
func TestS2PairsUseAllTheirLinks(t *testing.T) {
	right(t, "two A100", "300 GB/s each way")
	right(t, "two H100", "450 GB/s each way")
	right(t, "each A100", "12 links", "600 GB/s both ways")
	right(t, "NVSwitch 2", "36 ports", "1.8 TB/s")
	right(t, "an OSFP port", "100 GB/s each way")
}

// A guide says $12,000 and $35.
func TestS2Costs(t *testing.T) {
	right(t, "eight GPUs of 700 W", "$605")
	right(t, "a cloud A100", "$1.50")
}

func ExampleLink_Class() {
	c := Default()
	fmt.Println(c.Links["pcie5"].Class(0))
	fmt.Println(c.Links["pcie5"].Class(8))
	fmt.Println(c.Links["nvlink4"].Class(0))
	fmt.Println(c.Links["ndr"].Class(0))
	// Output:
	// pcie5 x16, 63.02 GB/s each way
	// pcie5 x8, 31.51 GB/s each way
	// nvlink4 x2, 25 GB/s each way
	// ndr x4, 50 GB/s each way
}
