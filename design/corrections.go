package design

import (
	"fmt"

	"github.com/weft-fabric/weft/topo/catalog"
)

// Correction is a figure of the documents beside the right one.
type Correction struct {
	Source   string `json:"source"` // S0 to S4
	Document string `json:"document"`
	Computed string `json:"computed"`
	Agrees   bool   `json:"agrees"`
	Why      string `json:"why"`
}

// corrections recomputes the documents' figures on network design from their own inputs.
func corrections(c *catalog.Catalog) []Correction {
	hour, from := instance(c)
	s1 := newNeed(175e9, 4, 1, 10_000, 1250, 8, 50e9)
	const (
		s0Size, s0Rate, s0GPUs = 350e9, 25e9, 256
		gpt3Flop               = 6 * 175e9 * 300e9
		a100                   = 312e12 // dense bf16 FLOP/s
		s3Step                 = 6 * 13e9 * 32 * 2048
		s3Hours                = 1e6 * 0.110 / 3600
		dgxWatts               = 6500 // DGX A100, whole machine at most
		llamaStops, llamaDays  = 268, 54
	)
	ring := ringShare(s0GPUs) * s0Size / s0Rate
	return []Correction{
		{"S1", "175B on 10,000 GPUs: 1.4 TB a step, so 11.2 Tb/s for the cluster at one step a second",
			fmt.Sprintf("%s through every NIC: %s at 400 Gb/s; shared over 8 NICs a host %s, or %s on each of 10,000 NICs to fit 1 s",
				size(s1.FlatBytes), seconds(s1.FlatSeconds), seconds(s1.ShardedSeconds), bits(s1.NeedPerNIC)), false,
			"a ring moves 2(n-1)/n of the data through every rank; 1.4 TB is one rank's share, not the cluster's"},
		{"S0", "350 GB over 200 Gb/s on 256 GPUs: 14 ms",
			fmt.Sprintf("%s unsharded, %s over 8 NICs a host", seconds(ring), seconds(ringShare(s0GPUs/8)*s0Size/s0Rate/8)), false,
			fmt.Sprintf("a ring does not divide by the number of ranks; and the document's own term, 350 GB / 25 GB/s / 256, is %s", seconds(s0Size/s0Rate/s0GPUs))},
		{"S1", "10,000 GPUs at 2% a year: 200 failures, one every 1.8 days; 50 NICs",
			fmt.Sprintf("%.0f failures, one every %.3g days; %.0f NICs", 10_000*defaultRates["gpu"], daysAYear/(10_000*defaultRates["gpu"]), 10_000*defaultRates["nic"]), true, "the same"},
		{"S1", "mean time between failures of a GPU: 50,000 hours",
			fmt.Sprintf("%s hours", money(hoursAYear/defaultRates["gpu"])), false,
			fmt.Sprintf("2%% a year is one failure in 50 years; 50,000 hours would be %.1f%% a year, %s failures on 10,000 GPUs", 100*hoursAYear/50_000.0, money(10_000*hoursAYear/50_000.0))},
		{"S1", "a GPU fails at 2% a year",
			fmt.Sprintf("%.0f%% a year measured: %d stops by GPUs in %d days on 16,384 H100", 100*llamaStops/(16_384*llamaDays/float64(daysAYear)), llamaStops, llamaDays), false,
			"Llama 3 (2024), table 5: a stop is not always a dead GPU, but the job stops all the same; needs may give failure rates of their own"},
		{"S1", "SuperPOD of 140 SU: 22,400 GPUs, 44.8 Tb/s",
			fmt.Sprintf("140 DGX A100 in 7 SU: %s GPUs, %s into the fabric, %s across its bisection", money(140*8), bits(140*8*25e9), bits(140*4*25e9)), false,
			"SU taken for DGX; 22,400 GPUs of 200 Gb/s would be 4.48 Pb/s"},
		{"S1", "Meta RSC: 16,000 GPUs of 200 Gb/s, 3.2 Tb/s for the cluster", bits(16_000 * 25e9), false, "a thousand too small"},
		{"S1", "TPU v4: 4,096 chips as a torus of 4 x 4 x 256",
			fmt.Sprintf("16 x 16 x 16: %d links across the bisection instead of %d", 2*16*16, 2*4*4), false, "published as cubes of 4 x 4 x 4 joined to 16 x 16 x 16 (Jouppi et al., ISCA 2023); bisection is 2 N/k links for the longest dimension k"},
		{"S2", "electricity, 700 W x 8 x 45 days x $0.10: $12,000",
			fmt.Sprintf("$%.2f", energy(s2Watts, s2PCIeDays, s2Price)), false, "5.6 kW x 1,080 h = 6,048 kWh"},
		{"S2", "electricity of the DGX for 18 days: $4,800",
			fmt.Sprintf("$%.2f at the same 5.6 kW; $%.2f at the machine's 6.5 kW", energy(s2Watts, s2DGXDays, s2Price), energy(dgxWatts, s2DGXDays, s2Price)), false, "the same slip; 700 W is an H100's, an A100 draws 300 to 400 W and the machine the rest"},
		{"S2", "cloud: $35 a GPU hour x 8 x 18 days = $120,960",
			fmt.Sprintf("$%s as a product; $%s at $%.2f an hour for all eight", money(s2Cloud*8*24*s2DGXDays), money(hour*24*s2DGXDays), hour), false, "$33 to $41 an hour is the price of an instance of eight A100, not of one GPU (" + from + ")"},
		{"S2", "GPT-3 175B trained on eight A100 in 18 days",
			fmt.Sprintf("%s days at the very least", money(gpt3Flop/(8*a100)/86400)), false, "6 x 175e9 parameters x 300e9 tokens = 3.15e23 FLOP; eight A100 do 2.5e15 a second at their peak"},
		{"S3", "a million steps of 110 ms: 30.6 hours; of 200 ms: 55.6",
			fmt.Sprintf("%.1f and %.1f hours", s3Hours, 1e6*0.2/3600), true, "the same"},
		{"S3", "a step of GPT-3 13B, batch 32 of 2,048 tokens, in 110 ms on eight A100",
			fmt.Sprintf("%s or more", seconds(s3Step/(8*a100))), false, "6 x 13e9 x 65,536 = 5.1e15 FLOP, at most 2.5e15 a second"},
		{"S3", "electricity of 30.6 h at 3.2 kW: $9.79",
			fmt.Sprintf("$%.2f for the GPUs, $%.2f for the whole machine", 3.2*s3Hours*0.1, dgxWatts/1000.0*s3Hours*0.1), false, "3.2 kW is eight GPUs of 400 W; a DGX A100 draws up to 6.5 kW"},
		{"S3", "100 runs save 2,500 hours, 104 days, and so pay for NVLink's $80,000",
			fmt.Sprintf("%.0f hours, %.0f days; $%.0f of electricity", 100*(1e6*0.09/3600), 100*(1e6*0.09/3600)/24, 100*energy(3200, 1e6*0.09/86400, 0.1)), true, "time is what NVLink buys; electricity pays a hundredth of the difference"},
	}
}
