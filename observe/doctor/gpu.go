package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var hexDigits = regexp.MustCompile(`[^0-9a-f]`)

// sameBus compares a bus id of NCCL (9b000, 1b000) with a PCI address (0000:9b:00).
func sameBus(nccl, pci string) bool {
	n := strings.TrimLeft(hexDigits.ReplaceAllString(strings.ToLower(strings.TrimPrefix(nccl, "0x")), ""), "0")
	p := strings.ToLower(pci)
	if i := strings.LastIndexByte(p, '.'); i >= 0 {
		p = p[:i] + p[i+1:]
	} else {
		p += "0"
	}
	p = strings.TrimLeft(hexDigits.ReplaceAllString(p, ""), "0")
	return n != "" && n == p
}

func (d *diag) gpuRules() {
	links, clocks := d.gpuModels()
	for _, g := range d.c.GPUs {
		s := Subject{Hosts: []string{g.Host}, Devices: []string{named(g.Host, g.device())}}
		d.nvlinks(g, s, links[g.Name])
		d.gpuMemory(g, s)
		d.gpuClocks(g, s, clocks[g.Name])
		d.gpuSlot(g, s)
	}
	d.spinning()
}

func (g GPU) device() string { return cmp.Or(g.Bus, fmt.Sprintf("GPU%d", g.Index)) }

// gpuModels collects what GPUs of one model have in common: GPUs by the number of their active links, and clocks under load.
func (d *diag) gpuModels() (links map[string]map[int]int, clocks map[string][]float64) {
	links = map[string]map[int]int{}
	clocks = map[string][]float64{}
	for _, g := range d.c.GPUs {
		n := 0
		for _, l := range g.Links {
			if l.Active && l.GBps != 0 {
				n++
			}
		}
		if len(g.Links) > 0 {
			if links[g.Name] == nil {
				links[g.Name] = map[int]int{}
			}
			links[g.Name][n]++
		}
		if g.Util > 80 && g.ClockSM > 0 {
			clocks[g.Name] = append(clocks[g.Name], g.ClockSM)
		}
	}
	return links, clocks
}

// nvlinkErrors judges a link's counters. A few CRC errors are normal, replays and recoveries are not.
func (d *diag) nvlinkErrors(g GPU, l NVLink, s Subject) {
	for _, name := range slices.Sorted(maps.Keys(l.Errors)) {
		n := l.Errors[name]
		recovery := strings.Contains(name, "recovery")
		if n > 0 && (recovery || strings.Contains(name, "replay")) || n > 100 && strings.Contains(name, "crc") {
			s.Links = []string{fmt.Sprintf("%s NVLink %d", named(g.Host, g.device()), l.Index)}
			f := d.find("nvlink-errors", s, l.At)
			if recovery {
				f.Severity = Critical
			}
		}
	}
}

// nvlinks judges the NVLinks of a GPU; counts says how many GPUs of its model have how many active links.
func (d *diag) nvlinks(g GPU, s Subject, counts map[int]int) {
	dev := g.device()
	inactive, most := 0, slices.Max(slices.AppendSeq([]int{0}, maps.Keys(counts)))
	for _, l := range g.Links {
		if !l.Active {
			inactive++
			if most > 0 || inactive < len(g.Links) {
				x := s
				x.Links = []string{fmt.Sprintf("%s NVLink %d", named(g.Host, dev), l.Index)}
				d.find("nvlink-inactive", x, l.At)
			} else if l.Down && inactive == len(g.Links) { // all of them
				f := d.find("nvlink-inactive", s, l.At)
				f.Severity, f.Confidence = Warning, 0.5
				f.Cause = "all links are down: NVLinks that did not train (bridge, NVSwitch, fabric manager), or a PCIe card that has none"
			}
		}
		d.nvlinkErrors(g, l, s)
	}
	if inactive == 0 && len(g.Links) > 0 && len(g.Links) < most {
		x := d.find("nvlink-inactive", s, g.At)
		x.Cause = fmt.Sprintf("%d links, other GPUs of the model have %d", len(g.Links), most)
	}
}

func (d *diag) gpuMemory(g GPU, s Subject) {
	if g.MemTotal > 0 && float64(g.MemUsed) > 0.97*float64(g.MemTotal) {
		d.find("gpu-memory-nearly-full", s, g.At)
	}
	if g.RemapFail {
		d.find("row-remap-failed", s, g.At)
	}
	if g.RemapWait {
		d.find("row-remap-pending", s, g.At)
	}
	if g.RemapRows >= 8 {
		f := d.find("row-remap-pending", s, g.At)
		f.Title = "many rows were remapped"
	}
	if g.ECC > 0 {
		d.find("ecc-errors", s, g.At)
	}
}

// gpuClocks judges heat and clocks; clocks are those of all GPUs of the model that are at work.
func (d *diag) gpuClocks(g GPU, s Subject, clocks []float64) {
	if len(g.Throttle) > 0 {
		f := d.find("gpu-throttled", s, g.At)
		f.Cause = "active: " + strings.Join(g.Throttle, ", ") + "; cooling or power supply"
	}
	if g.Temp > 0 && g.TempSlow > 0 && g.Temp > g.TempSlow-5 {
		f := d.find("gpu-hot", s, g.At)
		if g.Temp >= g.TempSlow {
			f.Severity = Critical
		}
	}
	if g.Util > 80 && len(clocks) >= 3 {
		d.slowClock(g, s, median(clocks))
	}
}

// slowClock compares a busy GPU with the usual clock of its model. Idle GPUs clock down, so they say nothing.
func (d *diag) slowClock(g GPU, s Subject, usual float64) {
	if g.ClockSM <= 0 || g.ClockSM >= 0.9*usual {
		return
	}
	f := d.find("gpu-slow-clock", s, g.At)
	f.Cause = fmt.Sprintf("%.0f MHz, the others run at %.0f", g.ClockSM, usual)
	if g.ClockSM < 0.7*usual {
		f.Severity = Critical
	}
}

// outsideFabric says whether the GPU reports that it did not join its NVLink fabric. GPUs without one report nothing.
func (g GPU) outsideFabric() bool {
	return g.FabricState != "" && !strings.EqualFold(g.FabricState, "Completed") ||
		g.FabricCode != "" && !strings.EqualFold(g.FabricCode, "Success")
}

// gpuSlot judges the GPU's PCIe link and its part in the NVLink fabric.
func (d *diag) gpuSlot(g GPU, s Subject) {
	if g.Width > 0 && g.WidthMax > 0 && g.Width < g.WidthMax {
		f := d.find("pcie-degraded", s, g.At)
		f.Cause = fmt.Sprintf("width x%d of x%d: seating, riser, BIOS", g.Width, g.WidthMax)
	}
	if g.PCIeGen > 0 && g.PCIeGen < g.PCIeGenMax && g.Util > 50 && g.Perf == "P0" {
		f := d.find("pcie-degraded", s, g.At)
		f.Cause = fmt.Sprintf("generation %d of %d under load: seating, riser, BIOS", g.PCIeGen, g.PCIeGenMax)
	}
	if g.Replays > 1000 {
		d.find("pcie-replays", s, g.At)
	}
	if g.outsideFabric() {
		f := d.find("nvlink-fabric-degraded", s, g.At)
		f.Severity, f.Confidence = Critical, 0.85
		f.Cause = fmt.Sprintf("fabric state %s, status %s: fabric manager or IMEX", g.FabricState, g.FabricCode)
	}
}

// spinning finds GPUs that are busy and take little power.
func (d *diag) spinning() {
	spinning := map[string][]GPU{}
	for _, g := range d.c.GPUs {
		if g.Util >= 99 && g.Power > 0 && g.Cap > 0 && g.Power < 0.4*g.Cap {
			spinning[g.Host] = append(spinning[g.Host], g)
		}
	}
	for _, h := range slices.SortedFunc(maps.Keys(spinning), natural) {
		for _, g := range spinning[h] {
			f := d.find("gpu-spinning", Subject{Hosts: []string{h}, Devices: []string{named(h, cmp.Or(g.Bus, fmt.Sprintf("GPU%d", g.Index)))}}, g.At)
			f.Cause = fmt.Sprintf("%.0f%% utilisation at %.0f of %.0f W: kernels wait for data", g.Util, g.Power, g.Cap)
		}
	}
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}
