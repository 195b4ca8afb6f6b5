package design

import (
	"fmt"

	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Alternative is another way to as many GPUs, from the catalogue's prices.
// GPUs differ between machines, so the money is also set against what they compute.
type Alternative struct {
	Name       string  `json:"name"`
	Hosts      int     `json:"hosts"`
	USD        float64 `json:"usd"`   // machines alone, without a network, but for this cluster
	Watts      float64 `json:"watts"` // at most
	PFLOPS     float64 `json:"pflops_bf16"`
	PerPFLOPS  float64 `json:"usd_per_pflops"`
	PerGPUHour float64 `json:"usd_per_gpu_hour"` // with electricity, over the years in service
	Rent       float64 `json:"rent_usd_per_gpu_hour"`
}

// alternatives sets this cluster beside PCIe servers and DGX machines of as many GPUs.
func (r *Report) alternatives(v *view, c *catalog.Catalog) {
	e := &r.Economics
	if r.GPUs == 0 {
		return
	}
	hour := func(usd, watts float64) float64 {
		return (usd + watts/1000*hoursAYear*e.PowerPrice*e.Years) / (float64(r.GPUs) * hoursAYear * e.Years)
	}
	flops := 0.0
	for h := range v.g.Hosts {
		flops += float64(v.gpus[h]) * c.GPUs[c.Hosts[v.g.Hosts[h].Model].GPU].Dense["bf16"]
	}
	add := func(a Alternative) {
		if a.PFLOPS > 0 {
			a.PerPFLOPS = a.USD / a.PFLOPS
		}
		a.PerGPUHour = hour(a.USD, a.Watts)
		e.Alternatives = append(e.Alternatives, a)
	}
	add(Alternative{Name: "this cluster, with its network", Hosts: r.Hosts, USD: r.CostUSD, Watts: r.PowerWatts, PFLOPS: flops / 1e15,
		Rent: e.CloudPrice})
	for _, kind := range []string{"pcie-8", "dgx-a100", "dgx-h100", "dgx-b200"} {
		h, err := c.Host(kind)
		if err != nil || h.GPUs == 0 || h.Price.USD == 0 {
			continue
		}
		n := (r.GPUs + h.GPUs - 1) / h.GPUs
		add(Alternative{Name: fmt.Sprintf("%s (%s), %s", kind, h.GPU, h.Price.Date), Hosts: n, USD: float64(n) * h.Price.USD,
			Watts:  float64(n) * h.Watts,
			PFLOPS: float64(n*h.GPUs) * c.GPUs[h.GPU].Dense["bf16"] / 1e15, Rent: h.Rent.USD})
	}
}

func (r *Report) alternativeTable() table {
	years := trim(r.Economics.Years)
	t := table{Title: "As many GPUs in other machines, without a network",
		Cols: []col{left("machine"), right("hosts"), right("cost"), right("power"),
			right("bf16 PFLOP/s"), right("$ a PFLOP/s"), right("GPU hour, " + years + " years"), right("rented")}}
	for _, a := range r.Economics.Alternatives {
		cells := []string{a.Name, count(a.Hosts), "$" + money(a.USD), watts(a.Watts), money(a.PFLOPS), "$" + money(a.PerPFLOPS),
			fmt.Sprintf("$%.2f", a.PerGPUHour), fmt.Sprintf("$%.2f", a.Rent)}
		for i, unknown := range []bool{false, false, a.USD == 0, a.Watts == 0, a.PFLOPS == 0, a.PerPFLOPS == 0, a.USD == 0, a.Rent == 0} {
			if unknown {
				cells[i] = "unknown"
			}
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}
