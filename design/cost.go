package design

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/cluster"
	"github.com/weft-fabric/weft/topo/catalog"
)

// Economics compares owning this cluster with renting as many GPUs.
type Economics struct {
	Years         float64       `json:"years"`
	PowerPrice    float64       `json:"usd_per_kwh"`
	CloudPrice    float64       `json:"cloud_usd_per_gpu_hour"`
	CloudSource   string        `json:"cloud_source"`
	EnergyPerYear float64       `json:"energy_usd_per_year"` // at full draw, without cooling
	CloudPerYear  float64       `json:"cloud_usd_per_year"`  // all GPUs, all hours
	OwnTotal      float64       `json:"own_usd_over_years"`
	CloudTotal    float64       `json:"cloud_usd_over_years"`
	BreakEven     *float64      `json:"break_even_months"` // of use at all hours; absent if renting stays cheaper
	Utilisation   float64       `json:"break_even_utilisation"`
	OwnPerGPUHour float64       `json:"own_usd_per_gpu_hour"`
	NetworkShare  float64       `json:"network_share"` // switches and cables, of the whole cost
	Alternatives  []Alternative `json:"alternatives"`
	Options       []Option      `json:"options"` // S2's three ways to train once, recomputed
	Crossings     []Verdict     `json:"crossings"`
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

const hoursAYear = 8760

// defaultCloud is used where neither the owner nor the catalogue has a price.
const (
	defaultCloud       = 4.92
	defaultCloudSource = "AWS EC2 Capacity Blocks, p5.48xlarge (8 H100) at $39.33 an hour, 2025-01"
)

func (r *Report) economics(v *view, n cluster.Needs, c *catalog.Catalog) {
	e := &r.Economics
	e.Years, e.PowerPrice, e.CloudPrice, e.CloudSource = n.Years, n.PowerPrice, n.CloudPrice, "the cluster's needs"
	if e.CloudPrice == 0 {
		e.CloudPrice, e.CloudSource = rent(v, c)
	}
	e.EnergyPerYear = r.PowerWatts / 1000 * hoursAYear * e.PowerPrice
	e.CloudPerYear = float64(r.GPUs) * hoursAYear * e.CloudPrice
	e.OwnTotal = r.CostUSD + e.EnergyPerYear*e.Years
	e.CloudTotal = e.CloudPerYear * e.Years
	if saved := e.CloudPerYear - e.EnergyPerYear; saved > 0 && r.CostUSD > 0 {
		months := r.CostUSD / saved * 12
		e.BreakEven = &months
	}
	if e.CloudTotal > 0 {
		e.Utilisation = e.OwnTotal / e.CloudTotal
	}
	if r.GPUs > 0 && e.Years > 0 {
		e.OwnPerGPUHour = e.OwnTotal / (float64(r.GPUs) * hoursAYear * e.Years)
	}
	network := 0.0
	for _, it := range r.Bill {
		if it.Kind != "host" {
			network += it.USD
		}
	}
	if r.CostUSD > 0 {
		e.NetworkShare = network / r.CostUSD
	}
	e.Options, e.Crossings = options(e.Years, c)
}

// rent is what a GPU of the most common host costs an hour in a cloud.
func rent(v *view, c *catalog.Catalog) (usd float64, source string) {
	gpus := map[string]int{}
	best := ""
	for h := range v.g.Hosts {
		model := v.g.Hosts[h].Model
		if gpus[model] += int(v.gpus[h]); gpus[model] > gpus[best] {
			best = model
		}
	}
	if p := c.Hosts[best].Rent; p.USD > 0 {
		return p.USD, fmt.Sprintf("%s, %s", p.Source, p.Date)
	}
	return defaultCloud, defaultCloudSource
}

// energy is what a machine's electricity costs over some days.
func energy(watts, days, price float64) float64 { return watts / 1000 * 24 * days * price }

// S2's figures for training once on eight A100.
const (
	s2Watts       = 700 * 8
	s2Price       = 0.10
	s2PCIe        = 150_000
	s2PCIeDays    = 45
	s2DGX         = 250_000
	s2DGXDays     = 18
	s2Cloud       = 35 // USD a GPU hour, as S2 has it
	s2Transfer    = 5_000
	s2PCIeTotal   = 162_000
	s2DGXTotal    = 254_800
	s2CloudTotal  = 125_960
	s2PCIePower   = 12_000
	s2DGXPower    = 4_800
	s2CloudRental = 120_960

	s3NVLinkStep = 0.110 // seconds; S3's runs are a million steps
	s3PCIeStep   = 0.200
	s3Watts      = 3200
	s3Premium    = 200_000 - 120_000 // USD, a DGX A100 over a PCIe server
)

// instance is what a machine like a DGX A100 costs an hour in a cloud, all
// eight GPUs together, and where that price is from.
func instance(c *catalog.Catalog) (usd float64, source string) {
	if rent := c.Hosts["dgx-a100"].Rent; rent.USD > 0 {
		return 8 * rent.USD, fmt.Sprintf("%s, %s", rent.Source, rent.Date)
	}
	return 40.97, "AWS p4de.24xlarge on demand, 2023-06"
}

// options recomputes S2's comparison from its own inputs.
func options(years float64, c *catalog.Catalog) ([]Option, []Verdict) {
	hour, _ := instance(c)
	rent := func(perHour float64) float64 { return perHour*24*s2DGXDays + s2Transfer }
	list := []Option{
		{Name: "PCIe server", Hardware: s2PCIe, Days: s2PCIeDays, PerRun: energy(s2Watts, s2PCIeDays, s2Price), Document: "$162,000 for one run"},
		{Name: "DGX A100", Hardware: s2DGX, Days: s2DGXDays, PerRun: energy(s2Watts, s2DGXDays, s2Price), Document: "$254,800 for one run"},
		{Name: "cloud, $35 a GPU hour", Days: s2DGXDays, PerRun: rent(s2Cloud * 8), Document: "$125,960 for one run"},
		{Name: fmt.Sprintf("cloud, $%.2f for all eight", hour), Days: s2DGXDays, PerRun: rent(hour), Document: "not in S2"},
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
			fmt.Sprintf("$%s / ($%s - $%s) = %.2f runs, %.1f months of use", money(own.Hardware), money(rent.PerRun), money(own.PerRun), runs, runs*own.Days/daysAYear*12)}
	}
	pcie, dgx := list[0], list[1]
	saved := 1e6 * (s3PCIeStep - s3NVLinkStep) / 3600
	worth := saved * (hour + energy(s3Watts, 1.0/24, s2Price))
	runs := (dgx.Hardware - pcie.Hardware) / (pcie.PerRun - dgx.PerRun)
	return list, []Verdict{
		crossing(dgx, list[2]), crossing(dgx, list[3]), crossing(pcie, list[2]), crossing(pcie, list[3]),
		{"DGX A100 against PCIe server", fmt.Sprintf("run %.0f", math.Ceil(runs)),
			fmt.Sprintf("electricity alone pays the difference of $%s only after %.0f runs; but in %g years the DGX does %.0f runs at $%s each and the PCIe server %.0f at $%s",
				money(dgx.Hardware-pcie.Hardware), runs, years, dgx.RunsPerYear*years, money(dgx.PerRunOverAll), pcie.RunsPerYear*years, money(pcie.PerRunOverAll))},
		{"S3: DGX A100 for $80,000 more", fmt.Sprintf("run %.0f", math.Ceil(s3Premium/worth)),
			fmt.Sprintf("a run is %.0f hours shorter, worth $%s at $%.2f for a machine hour; 100 runs return $%s", saved, money(worth), hour, money(100*worth))},
	}
}
