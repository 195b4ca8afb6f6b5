package design

import (
	"fmt"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo/catalog"
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
}

const hoursAYear = 8760

// defaultCloud is used where neither the owner nor the catalogue has a price.
const (
	defaultCloud       = 2.95
	defaultCloudSource = "H100, median of 37 providers on demand, AIMultiple cloud GPU index, 2026-05"
)

// economics compares owning with renting, over the years of the needs and at all hours. Without a price there is no
// break-even, rather than one at 0.
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
