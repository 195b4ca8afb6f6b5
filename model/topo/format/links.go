package format

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// known is the catalogue that gives links their rates; files name generations, not rates.
var known = sync.OnceValue(catalog.Default)

// class gives the class of a generation in the catalogue. The generations asked
// for are constants of this package, which a test checks against the catalogue.
func class(gen string, lanes int) topo.Class {
	l, err := known().Link(gen)
	if err != nil {
		panic("model/topo/format: " + err.Error())
	}
	return l.Class(lanes)
}

// unstated is the class of links whose rate a file does not say. Every link must
// have some rate; this one is that of the slowest link in use today, so that
// nothing looks faster than it is, and Class.Stated tells that it means nothing.
func unstated(kind topo.LinkKind) topo.Class {
	return topo.Class{Kind: kind, Gen: topo.Unstated, Lanes: 1, Rate: (100 * unit.Gbps).Bytes(), Latency: class("100gbe", 0).Latency}
}

// pcieGens are the generations by their lane rate in GT/s.
var pcieGens = []struct {
	gts float64
	gen string
}{{2.5, "pcie1"}, {5, "pcie2"}, {8, "pcie3"}, {16, "pcie4"}, {32, "pcie5"}, {64, "pcie6"}}

// pcie gives the class of a PCIe link from what the kernel calls its speed,
// "16.0 GT/s PCIe", and its width. As NCCL does, an unknown speed counts as 8
// GT/s and an unknown width as 16 lanes.
func pcie(speed string, width int) topo.Class {
	gts := 8.0
	if fields := strings.Fields(speed); len(fields) >= 2 && fields[1] == "GT/s" {
		if v, err := strconv.ParseFloat(fields[0], 64); err == nil {
			gts = v
		}
	}
	if width <= 0 || width > 32 {
		width = 16
	}
	for _, g := range pcieGens {
		if g.gts != gts {
			continue
		}
		if l, err := known().Link(g.gen); err == nil {
			return l.Class(width)
		}
		// Generations 1 and 2 are too old for the catalogue; both code 8 bits in 10.
		rate := unit.BitRate(gts * 1e9 * float64(width) * 0.8).Bytes()
		return topo.Class{Kind: topo.PCIe, Gen: g.gen, Lanes: uint16(width), Rate: rate, Latency: class("pcie3", 16).Latency}
	}
	return class("pcie3", width)
}

// pcieSpeed is the reverse of pcie, as the kernel prints it.
func pcieSpeed(gen string) string {
	for _, g := range pcieGens {
		if g.gen == gen {
			return fmt.Sprintf("%.1f GT/s PCIe", g.gts)
		}
	}
	return "8.0 GT/s PCIe"
}

// nvlink gives the class of one NVLink from the GPU's compute capability times
// ten and, where that is unknown, from how many links a GPU was seen to have:
// V100 has 6, A100 12, H100 and later 18.
func nvlink(sm, links int) topo.Class {
	for _, g := range []struct {
		name      string
		sm, links int
	}{{"nvlink5", 100, 18}, {"nvlink4", 90, 12}, {"nvlink3", 80, 6}} {
		if sm >= g.sm || sm == 0 && links > g.links {
			return class(g.name, 0)
		}
	}
	if sm >= 60 && sm < 70 {
		return class("nvlink1", 0)
	}
	return class("nvlink2", 0)
}

// infiniband lists what a lane carries behind its code, Gb/s, for speeds that the catalogue leaves out.
var infiniband = []struct {
	speed string
	lane  float64
}{{"SDR", 2}, {"DDR", 4}, {"QDR", 8}, {"FDR10", 10}, {"FDR", 13.636363636363637}, {"EDR", 25}, {"HDR", 50}, {"NDR", 100}, {"XDR", 200}}

// unknownSpeed is what ibnetdiscover prints for a speed it does not know.
const unknownSpeed = "???"

// ibClass gives the class of an InfiniBand link from width and speed, "4x" and "HDR".
func ibClass(width int, speed string) (topo.Class, bool) {
	if speed == unknownSpeed {
		return unstated(topo.InfiniBand), true
	}
	gen := strings.ToLower(speed)
	switch {
	case gen == "hdr" && width == 2:
		gen = "hdr100"
	case gen == "ndr" && width == 2:
		gen = "ndr200"
	}
	for _, s := range infiniband {
		if s.speed != strings.ToUpper(speed) {
			continue
		}
		if l, err := known().Link(gen); err == nil && l.Kind == topo.InfiniBand {
			return l.Class(width), true
		}
		rate := unit.BitRate(s.lane * 1e9 * float64(width)).Bytes()
		return topo.Class{Kind: topo.InfiniBand, Gen: gen, Lanes: uint16(width), Rate: rate, Latency: class("qdr", 4).Latency}, true
	}
	return topo.Class{}, false
}

// ibName gives width and speed of a link's class as InfiniBand tools print
// them. A class of another network gets the InfiniBand speed of its rate, at
// four lanes, or the next below: 100 Gb/s Ethernet is 4xEDR.
func ibName(c topo.Class) (width int, speed string) {
	if !c.Stated() {
		return 4, unknownSpeed
	}
	gen := strings.ToUpper(strings.TrimRight(c.Gen, "0123456789"))
	if c.Gen == "fdr10" {
		gen = "FDR10"
	}
	if c.Kind == topo.InfiniBand && c.Lanes > 0 {
		for _, s := range infiniband {
			if s.speed == gen {
				return int(c.Lanes), gen
			}
		}
	}
	speed = infiniband[0].speed
	for _, s := range infiniband {
		if s.speed != "FDR10" && float64(c.Rate.Bits()) >= 4*s.lane*1e9*0.999 {
			speed = s.speed
		}
	}
	return 4, speed
}
