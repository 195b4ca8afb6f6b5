package design

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Textbook holds worked figures of introductory texts on GPU clusters beside
// what the same inputs give here. It has nothing to do with the cluster that a
// report is about, so a report holds it only when it is asked for.
type Textbook struct {
	Corrections []Correction `json:"corrections"`
	Options     []Option     `json:"options"`   // three ways to train once on eight A100
	Crossings   []Verdict    `json:"crossings"` // from which run on one of them is cheaper than another
}

// NewTextbook recomputes the figures with a catalogue's prices; years is how long machines are in service.
func NewTextbook(c *catalog.Catalog, years float64) *Textbook {
	t := &Textbook{Corrections: corrections(c)}
	t.Options, t.Crossings = options(years, c)
	return t
}

// The texts by their subject.
const (
	networkText  = "text on network layers"
	clusterText  = "text on cluster design"
	nvlinkText   = "text on NVLink"
	trainingText = "text on parallel training"
)

// The yearly failure rates of a part that the text on cluster design gives.
const (
	textGPURate = 0.02
	textNICRate = 0.005
)

// Correction is a figure of a text beside the right one.
type Correction struct {
	Source   string `json:"source"` // which text
	Document string `json:"document"`
	Computed string `json:"computed"`
	Agrees   bool   `json:"agrees"`
	Why      string `json:"why"`
}

// corrections recomputes the texts' figures on network design from their own inputs.
func corrections(c *catalog.Catalog) []Correction {
	hour, from := instance(c)
	all := &Need{Params: 175e9, BytesPer: 4, StepSeconds: 1, Ranks: 10_000, Groups: 1250, NICs: 8, NICRate: 50e9}
	all.settle()
	const (
		ringSize, ringRate, ringGPUs = 350e9, 25e9, 256
		gpt3Flop                     = 6 * 175e9 * 300e9
		a100                         = 312e12 // dense bf16 FLOP/s
		runStep                      = 6 * 13e9 * 32 * 2048
		runHours                     = 1e6 * 0.110 / 3600
		dgxWatts                     = 6500 // DGX A100, whole machine at most
		llamaStops, llamaDays        = 268, 54
	)
	ring := ringShare(ringGPUs) * ringSize / ringRate
	return []Correction{
		{clusterText, "175B on 10,000 GPUs: 1.4 TB a step, so 11.2 Tb/s for the cluster at one step a second",
			fmt.Sprintf("%s through every NIC: %s at 400 Gb/s; shared over 8 NICs a host %s, or %s on each of 10,000 NICs to fit 1 s",
				size(all.FlatBytes), seconds(all.FlatSeconds), seconds(all.ShardedSeconds), bits(all.NeedPerNIC)), false,
			"a ring moves 2(n-1)/n of the data through every rank; 1.4 TB is one rank's share, not the cluster's"},
		{networkText, "350 GB over 200 Gb/s on 256 GPUs: 14 ms",
			fmt.Sprintf("%s unsharded, %s over 8 NICs a host", seconds(ring), seconds(ringShare(ringGPUs/8)*ringSize/ringRate/8)), false,
			fmt.Sprintf("a ring does not divide by the number of ranks; and the text's own term, 350 GB / 25 GB/s / 256, is %s",
				seconds(ringSize/ringRate/ringGPUs))},
		{clusterText, "10,000 GPUs at 2% a year: 200 failures, one every 1.8 days; 50 NICs",
			fmt.Sprintf("%.0f failures, one every %.3g days; %.0f NICs", 10_000*textGPURate, daysAYear/(10_000*textGPURate), 10_000*textNICRate),
			true, "the same"},
		{clusterText, "mean time between failures of a GPU: 50,000 hours",
			fmt.Sprintf("%s hours", money(hoursAYear/textGPURate)), false,
			fmt.Sprintf("2%% a year is one failure in 50 years; 50,000 hours would be %.1f%% a year, %s failures on 10,000 GPUs",
				100*hoursAYear/50_000.0, money(10_000*hoursAYear/50_000.0))},
		{clusterText, "a GPU fails at 2% a year",
			fmt.Sprintf("%.0f%% a year measured: %d stops by GPUs in %d days on 16,384 H100",
				100*llamaStops/(16_384*llamaDays/float64(daysAYear)), llamaStops, llamaDays), false,
			"Llama 3 (2024), table 5: a stop is not always a dead GPU, but the job stops all the same; needs may give failure rates of their own"},
		{clusterText, "SuperPOD of 140 SU: 22,400 GPUs, 44.8 Tb/s",
			fmt.Sprintf("140 DGX A100 in 7 SU: %s GPUs, %s into the fabric, %s across its bisection",
				money(140*8), bits(140*8*25e9), bits(140*4*25e9)), false,
			"SU taken for DGX; 22,400 GPUs of 200 Gb/s would be 4.48 Pb/s"},
		{clusterText, "Meta RSC: 16,000 GPUs of 200 Gb/s, 3.2 Tb/s for the cluster", bits(16_000 * 25e9), false, "a thousand too small"},
		{clusterText, "TPU v4: 4,096 chips as a torus of 4 x 4 x 256",
			fmt.Sprintf("16 x 16 x 16: %d links across the bisection instead of %d", 2*16*16, 2*4*4), false,
			"published as cubes of 4 x 4 x 4 joined to 16 x 16 x 16 (Jouppi et al., ISCA 2023); bisection is 2 N/k links for the longest dimension k"},
		{nvlinkText, "electricity, 700 W x 8 x 45 days x $0.10: $12,000",
			fmt.Sprintf("$%.2f", energy(textWatts, textPCIeDays, textPrice)), false, "5.6 kW x 1,080 h = 6,048 kWh"},
		{nvlinkText, "electricity of the DGX for 18 days: $4,800",
			fmt.Sprintf("$%.2f at the same 5.6 kW; $%.2f at the machine's 6.5 kW",
				energy(textWatts, textDGXDays, textPrice), energy(dgxWatts, textDGXDays, textPrice)), false,
			"the same slip; 700 W is an H100's, an A100 draws 300 to 400 W and the machine the rest"},
		{nvlinkText, "cloud: $35 a GPU hour x 8 x 18 days = $120,960",
			fmt.Sprintf("$%s as a product; $%s at $%.2f an hour for all eight", money(textCloud*8*24*textDGXDays), money(hour*24*textDGXDays), hour),
			false, "$33 to $41 an hour is the price of an instance of eight A100, not of one GPU (" + from + ")"},
		{nvlinkText, "GPT-3 175B trained on eight A100 in 18 days",
			fmt.Sprintf("%s days at the very least", money(gpt3Flop/(8*a100)/86400)), false,
			"6 x 175e9 parameters x 300e9 tokens = 3.15e23 FLOP; eight A100 do 2.5e15 a second at their peak"},
		{trainingText, "a million steps of 110 ms: 30.6 hours; of 200 ms: 55.6",
			fmt.Sprintf("%.1f and %.1f hours", runHours, 1e6*0.2/3600), true, "the same"},
		{trainingText, "a step of GPT-3 13B, batch 32 of 2,048 tokens, in 110 ms on eight A100",
			fmt.Sprintf("%s or more", seconds(runStep/(8*a100))), false, "6 x 13e9 x 65,536 = 5.1e15 FLOP, at most 2.5e15 a second"},
		{trainingText, "electricity of 30.6 h at 3.2 kW: $9.79",
			fmt.Sprintf("$%.2f for the GPUs, $%.2f for the whole machine", 3.2*runHours*0.1, dgxWatts/1000.0*runHours*0.1), false,
			"3.2 kW is eight GPUs of 400 W; a DGX A100 draws up to 6.5 kW"},
		{trainingText, "100 runs save 2,500 hours, 104 days, and so pay for NVLink's $80,000",
			fmt.Sprintf("%.0f hours, %.0f days; $%.0f of electricity", 100*(1e6*0.09/3600), 100*(1e6*0.09/3600)/24,
				100*energy(3200, 1e6*0.09/86400, 0.1)), true, "time is what NVLink buys; electricity pays a hundredth of the difference"},
	}
}

// Option is a way to get eight GPUs for training runs.
type Option struct {
	Name          string  `json:"name"`
	Hardware      float64 `json:"hardware_usd"`
	Days          float64 `json:"days_per_run"`
	PerRun        float64 `json:"usd_per_run"`   // electricity or rent
	First         float64 `json:"usd_first_run"` // hardware and one run
	Ten           float64 `json:"usd_ten_runs"`  // hardware and ten
	RunsPerYear   float64 `json:"runs_per_year"` // one after the other
	PerRunOverAll float64 `json:"usd_per_run_over_years"`
	Document      string  `json:"document"`
}

// The NVLink text's figures for training once on eight A100, and the training text's.
const (
	textWatts       = 700 * 8
	textPrice       = 0.10
	textPCIe        = 150_000
	textPCIeDays    = 45
	textDGX         = 250_000
	textDGXDays     = 18
	textCloud       = 35 // USD a GPU hour, as printed
	textTransfer    = 5_000
	textPCIeTotal   = 162_000
	textDGXTotal    = 254_800
	textCloudTotal  = 125_960
	textPCIePower   = 12_000
	textDGXPower    = 4_800
	textCloudRental = 120_960

	trainingNVLinkStep = 0.110 // seconds; its runs are a million steps
	trainingPCIeStep   = 0.200
	trainingWatts      = 3200
	trainingPremium    = 200_000 - 120_000 // USD, a DGX A100 over a PCIe server
)

// instance is what a machine like a DGX A100 costs an hour in a cloud, all
// eight GPUs together, and where that price is from.
func instance(c *catalog.Catalog) (usd float64, source string) {
	if rent := c.Hosts["dgx-a100"].Rent; rent.USD > 0 {
		return 8 * rent.USD, fmt.Sprintf("%s, %s", rent.Source, rent.Date)
	}
	return 40.97, "AWS p4de.24xlarge on demand, 2023-06"
}

// options recomputes the text's comparison of three ways to train, from its own inputs.
func options(years float64, c *catalog.Catalog) ([]Option, []Verdict) {
	hour, _ := instance(c)
	rent := func(perHour float64) float64 { return perHour*24*textDGXDays + textTransfer }
	list := []Option{
		{Name: "PCIe server", Hardware: textPCIe, Days: textPCIeDays, PerRun: energy(textWatts, textPCIeDays, textPrice),
			Document: "$162,000 for one run"},
		{Name: "DGX A100", Hardware: textDGX, Days: textDGXDays, PerRun: energy(textWatts, textDGXDays, textPrice),
			Document: "$254,800 for one run"},
		{Name: "cloud, $35 a GPU hour", Days: textDGXDays, PerRun: rent(textCloud * 8), Document: "$125,960 for one run"},
		{Name: fmt.Sprintf("cloud, $%.2f for all eight", hour), Days: textDGXDays, PerRun: rent(hour), Document: "not in the text"},
	}
	for i := range list {
		o := &list[i]
		o.First, o.Ten = o.Hardware+o.PerRun, o.Hardware+10*o.PerRun
		o.RunsPerYear = daysAYear / o.Days
		o.PerRunOverAll = o.PerRun
		if runs := o.RunsPerYear * years; runs > 0 {
			o.PerRunOverAll += o.Hardware / runs
		}
	}
	crossing := func(own, rent Option) Verdict {
		runs := own.Hardware / (rent.PerRun - own.PerRun)
		return Verdict{own.Name + " against " + rent.Name, fmt.Sprintf("run %.0f", math.Ceil(runs)),
			fmt.Sprintf("$%s / ($%s - $%s) = %.2f runs, %.1f months of use", money(own.Hardware), money(rent.PerRun), money(own.PerRun), runs,
				runs*own.Days/daysAYear*12)}
	}
	pcie, dgx := list[0], list[1]
	saved := 1e6 * (trainingPCIeStep - trainingNVLinkStep) / 3600
	worth := saved * (hour + energy(trainingWatts, 1.0/24, textPrice))
	runs := (dgx.Hardware - pcie.Hardware) / (pcie.PerRun - dgx.PerRun)
	return list, []Verdict{
		crossing(dgx, list[2]), crossing(dgx, list[3]), crossing(pcie, list[2]), crossing(pcie, list[3]),
		{"DGX A100 against PCIe server", fmt.Sprintf("run %.0f", math.Ceil(runs)),
			fmt.Sprintf("electricity alone pays the difference of $%s only after %.0f runs; but in %g years the DGX does %.0f runs at $%s each and the PCIe server %.0f at $%s",
				money(dgx.Hardware-pcie.Hardware), runs, years, dgx.RunsPerYear*years, money(dgx.PerRunOverAll), pcie.RunsPerYear*years,
				money(pcie.PerRunOverAll))},
		{"DGX A100 for $80,000 more", fmt.Sprintf("run %.0f", math.Ceil(trainingPremium/worth)),
			fmt.Sprintf("a run is %.0f hours shorter, worth $%s at $%.2f for a machine hour; 100 runs return $%s",
				saved, money(worth), hour, money(100*worth))},
	}
}
