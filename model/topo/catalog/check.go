package catalog

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// Types that GPU.Dense may have keys for.
var denseTypes = []string{"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8", "int4"}

// Check says what is wrong with a catalogue, which matters after a user's
// entries were merged in: keys that differ from names, rates and numbers that
// are not positive, references to entries that do not exist. Every error names
// the entry, the field and the value.
func (c *Catalog) Check() error {
	k := &checker{c: c}
	k.links()
	k.gpus()
	k.nics()
	k.switches()
	k.hosts()
	k.cables()
	return errors.Join(k.all...)
}

func (k *checker) links() {
	c := k.c
	for _, key := range slices.Sorted(maps.Keys(c.Links)) {
		l := c.Links[key]
		k.entry("link", key, l.Gen)
		if l.Kind < topo.NVLink || l.Kind > topo.Ethernet {
			k.add("kind is %s; it must be one of nvlink, c2c, xgmi, ici, pcie, smp, infiniband, ethernet", l.Kind)
		}
		k.positive("lane rate", float64(l.LaneRate))
		k.positive("lanes", float64(l.Lanes))
		if l.Lanes > math.MaxUint16 {
			k.add("lanes is %d; at most %d", l.Lanes, math.MaxUint16)
		}
		if e := l.Encoding; (e != Encoding{}) && (e.Data <= 0 || e.Wire < e.Data) {
			k.add("encoding carries %d bits of data in %d on the wire; data must be positive and no more than wire", e.Data, e.Wire)
		}
		k.notNegative("latency", float64(l.Latency))
		if !(l.Efficiency >= 0 && l.Efficiency <= 1) {
			k.add("efficiency is %v; it must be between 0 (unknown) and 1", l.Efficiency)
		}
	}
}

func (k *checker) gpus() {
	c := k.c
	for _, key := range slices.Sorted(maps.Keys(c.GPUs)) {
		g := c.GPUs[key]
		k.entry("GPU", key, g.Name)
		k.positive("memory", float64(g.Memory))
		k.positive("memory rate", float64(g.MemoryRate))
		if len(g.Dense) == 0 {
			k.add("dense FLOP/s are missing; give at least one of %s", strings.Join(denseTypes, ", "))
		}
		for _, t := range slices.Sorted(maps.Keys(g.Dense)) {
			if !slices.Contains(denseTypes, t) {
				k.add("dense FLOP/s have type %q; known: %s", t, strings.Join(denseTypes, ", "))
			}
			k.positive("dense "+t, g.Dense[t])
		}
		if g.Link != "" {
			k.link("link", g.Link, topo.LinkKind.Accelerator, "an accelerator link")
			k.positive("links", float64(g.Links))
		} else if g.Links != 0 {
			k.add("links is %d, but link is empty; name the generation", g.Links)
		}
		k.link("pcie", g.PCIe, isPCIe, "a PCIe link")
		k.power(g.Watts, g.Price)
	}
}

func (k *checker) nics() {
	c := k.c
	for _, key := range slices.Sorted(maps.Keys(c.NICs)) {
		n := c.NICs[key]
		k.entry("NIC", key, n.Name)
		k.positive("ports", float64(n.Ports))
		k.link("link", n.Link, topo.LinkKind.Network, "a network link")
		k.link("pcie", n.PCIe, isPCIe, "a PCIe link")
		k.positive("lanes", float64(n.Lanes))
		k.notNegative("latency", float64(n.Latency))
		k.power(n.Watts, n.Price)
	}
}

func (k *checker) switches() {
	c := k.c
	for _, key := range slices.Sorted(maps.Keys(c.Switches)) {
		s := c.Switches[key]
		k.entry("switch", key, s.Name)
		if s.Ports < 1 || s.Ports > math.MaxUint16 {
			k.add("ports is %d; it must be between 1 and %d", s.Ports, math.MaxUint16)
		}
		if l, ok := c.Links[s.Link]; ok && l.Kind != s.Kind {
			k.add("kind is %s, but link %q is %s", s.Kind, s.Link, l.Kind)
		}
		k.link("link", s.Link, func(kind topo.LinkKind) bool { return kind.Network() || kind.Accelerator() }, "a network or accelerator link")
		k.notNegative("latency", float64(s.Latency))
		k.notNegative("split", float64(s.Split))
		k.notNegative("per-cage", float64(s.PerCage))
		k.power(s.Watts, s.Price)
	}
}

func (k *checker) hosts() {
	c := k.c
	for _, key := range slices.Sorted(maps.Keys(c.Hosts)) {
		h := c.Hosts[key]
		k.entry("host", key, h.Name)
		k.positive("gpus", float64(h.GPUs))
		known(k, "gpu", h.GPU, c.GPUs)
		if h.NIC != "" || h.NICs != 0 {
			known(k, "nic", h.NIC, c.NICs)
			k.positive("nics", float64(h.NICs))
		}
		k.notNegative("units", float64(h.Units))
		k.power(h.Watts, h.Price)
		k.notNegative("rent", h.Rent.USD)
	}
}

func (k *checker) cables() {
	c := k.c
	for _, key := range slices.Sorted(maps.Keys(c.Cables)) {
		w := c.Cables[key]
		k.entry("cable", key, w.Name)
		k.link("link", w.Link, topo.LinkKind.Network, "a network link")
		k.positive("reach", w.Reach)
		k.notNegative("optics", float64(w.Optics))
		k.power(w.Watts, w.Price)
	}
}

func isPCIe(k topo.LinkKind) bool { return k == topo.PCIe }

// checker collects what is wrong with one entry after another.
type checker struct {
	c         *Catalog
	what, key string
	all       []error
}

func (k *checker) entry(what, key, name string) {
	k.what, k.key = what, key
	if key != name {
		k.add("stands under the key %q but is named %q; they must be equal", key, name)
	}
}

func (k *checker) add(format string, args ...any) {
	k.all = append(k.all, fmt.Errorf("%s %q: "+format, append([]any{k.what, k.key}, args...)...))
}

func (k *checker) positive(field string, v float64) {
	if !(v > 0) || math.IsInf(v, 0) {
		k.add("%s is %v; it must be positive", field, v)
	}
}

func (k *checker) notNegative(field string, v float64) {
	if !(v >= 0) || math.IsInf(v, 0) {
		k.add("%s is %v; it must not be negative", field, v)
	}
}

func (k *checker) power(watts float64, price Price) {
	k.notNegative("watts", watts)
	k.notNegative("price", price.USD)
	if price.USD > 0 && price.Date == "" {
		k.add("price is $%v without a date; write date: 2024-03", price.USD)
	}
}

// link checks a reference to a link generation of the right sort.
func (k *checker) link(field, gen string, fits func(topo.LinkKind) bool, sort string) {
	l, ok := k.c.Links[gen]
	if ok && fits(l.Kind) {
		return
	}
	var names []string
	for _, g := range slices.SortedFunc(maps.Keys(k.c.Links), topo.Natural) {
		if fits(k.c.Links[g].Kind) {
			names = append(names, g)
		}
	}
	if ok {
		k.add("%s is %q, which is %s, not %s; known: %s", field, gen, l.Kind, sort, strings.Join(names, ", "))
	} else {
		k.add("%s is %q, which is unknown; known: %s", field, gen, strings.Join(names, ", "))
	}
}

func known[T any](k *checker, field, key string, m map[string]T) {
	if _, ok := m[key]; !ok {
		k.add("%s is %q, which is unknown; known: %s", field, key, strings.Join(slices.SortedFunc(maps.Keys(m), topo.Natural), ", "))
	}
}
