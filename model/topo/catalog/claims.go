package catalog

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/model/unit"
)

// Claim is a figure that documents about this hardware repeat and that physics
// or the data sheets do not bear out.
type Claim struct {
	Says   string // the figure as it is repeated
	Right  string // computed from the built-in catalogue
	Why    string // where the difference comes from
	Source Source // of the figure as it is repeated
}

// The introductory texts that repeat them.
const (
	docNetwork  Source = "text on network layers"
	docNVLink   Source = "text on NVLink"
	docParallel Source = "text on parallel training"
)

// Claims lists the figures about hardware that want correcting, for reports to
// print beside the right ones.
func Claims() []Claim {
	c := Default()
	rate := func(gen string) unit.Rate { return c.Links[gen].Class(0).Rate }
	port := func(gen string) string { return fmt.Sprintf("%s a port each way", rate(gen)) }
	var lanes []string
	for _, gen := range []string{"nvlink1", "nvlink2", "nvlink3", "nvlink4", "nvlink5"} {
		l := c.Links[gen]
		lanes = append(lanes, fmt.Sprintf("%s %d x %s = %s", gen, l.Lanes, l.Class(1).Rate.Bits(), l.Class(0).Rate))
	}
	a100, h100 := c.GPUs["A100-SXM-80GB"], c.GPUs["H100-SXM"]
	nvs2 := c.Switches["NVSwitch-2"]
	cage := 4 * rate("nvlink4")
	rent := c.Hosts["dgx-a100"].Rent
	const bits = "bits taken for bytes, or several ports added up"
	return []Claim{
		{"10 GbE gives 10 GB/s", port("10gbe"), bits, docNetwork},
		{"100 GbE gives 80 GB/s over TCP and 90 GB/s over RoCE", port("100gbe") + " before any protocol", bits, docNetwork},
		{"InfiniBand HDR gives 180 GB/s", port("hdr"), bits, docNetwork},
		{"PCIe 3, 4, 5 x16 give 16, 32, 64 GB/s",
			fmt.Sprintf("%s, %s, %s each way", rate("pcie3"), rate("pcie4"), rate("pcie5")),
			"the figures are before the 128b/130b code; packet headers come off as well: a large copy reaches 55 GB/s of PCIe 5", docNVLink},
		{"NVLink 1: four links of 20 GB/s both ways make 160 GB/s",
			fmt.Sprintf("%s each way a link, %s; four links %s", rate("nvlink1"), rate("nvlink1").BothWays(), (4 * rate("nvlink1")).BothWays()),
			"one way mixed with both ways", docNVLink},
		{"NVLink 1 and 2 code 8b/10b, later ones 128b/130b; eight lanes of 25 Gb/s up to NVLink 4, of 50 Gb/s in NVLink 5",
			strings.Join(lanes, "; "),
			"rates are quoted behind the code: with 8b/10b a link of NVLink 1 would carry 16 GB/s, and 25 Gb/s x 8 x 128/130 is 24.6 GB/s and not 25; lanes were halved as their rate doubled",
			docNVLink},
		{"two A100 behind NVSwitch: 2 x 25 = 50 GB/s", fmt.Sprintf("up to %s each way", a100.OneWay(c)),
			"every link of the GPU reaches every switch, so any pair may use all twelve", docNVLink},
		{"two H100 behind NVSwitch: 4 x 50 = 200 GB/s", fmt.Sprintf("up to %s each way", h100.OneWay(c)),
			"a pair may use all eighteen links, over all four switches at once; 50 GB/s is a link both ways", docNVLink},
		{"DGX-2 has six NVSwitches", "twelve", "each of the two boards of eight GPUs has six, and pairs of them are joined by eight links",
			docNVLink},
		{"NVSwitch 2 has 32 ports and 1.6 TB/s",
			fmt.Sprintf("%d ports, %s", nvs2.Ports, (unit.Rate(nvs2.Ports) * rate("nvlink3")).BothWays()), "as published with A100", docNVLink},
		{"an OSFP port of the NVLink network carries 8 x 25 = 200 GB/s", fmt.Sprintf("%s each way, %s", cage, cage.BothWays()),
			"a cage holds eight lanes, which are four links of NVLink 4", docNVLink},
		{"each A100 has 6 NVLinks to NVSwitch, 600 GB/s",
			fmt.Sprintf("%d links, %s each way, %s", a100.Links, a100.OneWay(c), a100.OneWay(c).BothWays()),
			"six is the number of switches; each has two of the links", docParallel},
		{"eight GPUs of 700 W for 45 days at $0.10 a kWh cost $12,000", fmt.Sprintf("$%.0f", 8*0.7*45*24*0.10),
			"8 x 0.7 kW x 1,080 h x $0.10; the printed sum is twenty times that", docNVLink},
		{"a cloud A100 costs $35 an hour, eight of them $280",
			fmt.Sprintf("$%.2f an hour and GPU in %s (%s)", rent.USD, rent.Date, rent.Source),
			"the price of a whole instance of eight taken for that of one GPU", docNVLink},
	}
}

// OneWay is what a GPU's accelerator links carry in one direction together, zero if it has none.
func (g GPU) OneWay(c *Catalog) unit.Rate { return unit.Rate(g.Links) * c.Links[g.Link].Class(0).Rate }
