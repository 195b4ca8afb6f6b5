package catalog

import (
	"fmt"
	"strings"
)

// cables lists what joins two ports: "dac-ndr" is passive copper, "acc" active
// copper, "aoc" active optical, "smf" single-mode fibre with a transceiver at
// each end. At 200 Gb/s a lane there is neither passive copper nor active
// optical. "cat6" is twisted pair. Watts and prices are of both ends together.
func cables() []Cable {
	rates := []struct {
		name string   // the rate in the cable's name
		gens []string // the links it fits
		dac  float64  // USD
		acc  float64
		aoc  float64
		smf  float64
		watt float64 // one optical end
		date string
	}{
		{"1g", []string{"1gbe"}, 10, 20, 40, 60, 1, "2023-06"},
		{"10g", []string{"10gbe"}, 20, 40, 60, 90, 1, "2023-06"},
		{"25g", []string{"25gbe"}, 35, 60, 100, 150, 1, "2023-06"},
		{"50g", []string{"50gbe"}, 60, 100, 180, 280, 2, "2023-06"},
		{"40g", []string{"40gbe", "sdr", "ddr", "qdr", "fdr", "fdr10"}, 60, 100, 200, 300, 1.5, "2023-06"},
		{"100g", []string{"100gbe", "edr", "hdr100"}, 90, 160, 300, 500, 3.5, "2023-06"},
		{"200g", []string{"200gbe", "hdr", "ndr200"}, 150, 300, 500, 800, 5, "2023-06"},
		{"400g", []string{"400gbe", "ndr", "xdr400"}, 250, 450, 900, 1300, 8, "2024-08"},
		{"800g", []string{"800gbe", "xdr"}, 450, 800, 1800, 2600, 15, "2025-03"},
	}
	const sheet Source = "NVIDIA LinkX product lines: reach by sort and lane rate; watts estimated from module power classes"
	var list []Cable
	for _, r := range rates {
		for _, gen := range r.gens {
			reach := 3.0
			if r.name == "400g" || r.name == "800g" {
				reach = 2 // 100 Gb/s and 200 Gb/s a lane run out of copper sooner
			}
			price := guess
			if r.name == "400g" {
				price = "$1,280 to $1,320 for a 400 Gb/s fibre with its optics in a public cost sheet of H100 clusters; copper estimated"
			}
			add := func(sort string, reach float64, optics int, watts, usd float64) {
				list = append(list, Cable{Name: fmt.Sprintf("%s-%s", sort, gen), Link: gen, Reach: reach, Optics: optics,
					Watts: watts, Price: Price{usd, r.date, price}, Source: sheet})
			}
			add("acc", reach+2, 0, 0.4*r.watt, r.acc)
			if !strings.HasPrefix(gen, "xdr") {
				add("dac", reach, 0, 0.2, r.dac)
				add("aoc", 30, 0, 1.8*r.watt, r.aoc)
			}
			add("smf", 500, 2, 2*r.watt, r.smf)
		}
	}
	return append(list, Cable{Name: "cat6-1gbe", Link: "1gbe", Reach: 100, Price: Price{8, "2023-06", guess},
		Source: "IEEE 802.3ab: 100 m of twisted pair; its ends are the ports' own"})
}
