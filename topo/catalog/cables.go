package catalog

import "fmt"

// cables lists what joins two ports, by rate: copper to 3 m, active copper to
// 5 m, active optical to 30 m, fibre with a transceiver at each end beyond.
// Watts and prices are of both ends together.
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
		{"40g", []string{"40gbe", "qdr", "fdr", "fdr10"}, 60, 100, 200, 300, 1.5, "2023-06"},
		{"100g", []string{"100gbe", "edr", "hdr100"}, 90, 160, 300, 500, 3.5, "2023-06"},
		{"200g", []string{"200gbe", "hdr", "ndr200"}, 150, 300, 700, 1200, 5, "2023-06"},
		{"400g", []string{"400gbe", "ndr", "xdr400"}, 250, 450, 1200, 2000, 8, "2024-03"},
		{"800g", []string{"800gbe", "xdr"}, 450, 800, 2200, 3600, 15, "2025-03"},
	}
	const reseller Source = "reseller prices of compatible parts (FS, NADDOD), rounded; the vendor's own cost two to three times as much"
	const sheet Source = "NVIDIA LinkX and IEEE 802.3 data: copper loss, module power classes"
	var list []Cable
	for _, r := range rates {
		for _, gen := range r.gens {
			reach := 3.0
			if r.name == "400g" || r.name == "800g" {
				reach = 2 // 100 Gb/s and 200 Gb/s a lane run out of copper sooner
			}
			add := func(sort string, reach float64, optics int, watts, usd float64) {
				list = append(list, Cable{Name: fmt.Sprintf("%s-%s", sort, gen), Link: gen, Reach: reach, Optics: optics,
					Watts: watts, Price: Price{usd, r.date, reseller}, Source: sheet})
			}
			add("dac", reach, 0, 0.2, r.dac)
			add("acc", 5, 0, 0.4*r.watt, r.acc)
			add("aoc", 30, 0, 1.8*r.watt, r.aoc)
			add("smf", 500, 2, 2*r.watt, r.smf)
		}
	}
	return list
}
