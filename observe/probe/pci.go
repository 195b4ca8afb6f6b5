package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

const (
	nvidiaVendor = 0x10de
	amdVendor    = 0x1002
	googleVendor = 0x1ae0
	intelVendor  = 0x8086
	habanaVendor = 0x1da3
)

// models gives the catalogue's name for a PCI vendor and device.
var models = map[string]string{
	"10de:15f9": "P100-SXM", "10de:1db1": "V100-SXM-16GB", "10de:1db5": "V100-SXM", "10de:1db4": "V100-PCIe",
	"10de:20b0": "A100-SXM-40GB", "10de:20b2": "A100-SXM-80GB", "10de:20b5": "A100-PCIe", "10de:20f1": "A100-PCIe",
	"10de:2330": "H100-SXM", "10de:2331": "H100-PCIe", "10de:2335": "H200", "10de:2342": "GH200",
	"10de:2901": "B200", "10de:2941": "GB200", "10de:3182": "B300", "10de:31c2": "GB300", "10de:26b9": "L40S", "10de:2236": "A10",
	"1002:74a1": "MI300X", "1ae0:005e": "TPU-v4",
}

// device is one entry of /sys/bus/pci/devices.
type device struct {
	addr       string // 0000:3b:00.0
	dir        string // where its files are
	root       string // its host bridge: pci0000:3a
	switches   []device
	class      uint32
	vendor, id uint32
	numa       int
	speed      string
	width      int
}

var (
	address    = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	hostBridge = regexp.MustCompile(`^pci[0-9a-f]{4,}:[0-9a-f]{2}$`)
)

// devices lists the PCI devices in the order of their addresses, each with the switches above it.
func (p *prober) devices() ([]device, error) {
	base := filepath.Join(p.sys, "bus/pci/devices")
	entries, err := os.ReadDir(base)
	if err != nil {
		if os.IsNotExist(err) {
			p.note("no PCI bus in /sys")
			return nil, nil
		}
		return nil, err
	}
	var all []device
	for _, e := range entries {
		if !address.MatchString(e.Name()) {
			continue
		}
		dir, err := filepath.EvalSymlinks(filepath.Join(base, e.Name()))
		if err != nil {
			p.note("%s: %v", e.Name(), err)
			continue
		}
		if virtualFunction(dir) {
			continue // the physical function stands for it
		}
		all = append(all, p.device(dir))
	}
	slices.SortFunc(all, func(a, b device) int { return strings.Compare(a.addr, b.addr) })
	return all, nil
}

func virtualFunction(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "physfn"))
	return err == nil
}

// device reads a PCI device and the switches above it, the outermost first. Where the path has no host bridge, domain
// and bus name the root.
func (p *prober) device(dir string) device {
	d := p.attributes(dir)
	// The path of a device is its host bridge, a root port, and then an
	// upstream and a downstream port for every switch on the way.
	var ports []string
	for path := filepath.Dir(dir); ; path = filepath.Dir(path) {
		name := filepath.Base(path)
		if hostBridge.MatchString(name) {
			d.root = name
			break
		}
		if !address.MatchString(name) {
			d.root = "pci" + d.addr[:strings.LastIndexByte(d.addr, ':')]
			break
		}
		ports = append(ports, path)
	}
	slices.Reverse(ports)
	for i := 1; i < len(ports); i += 2 {
		d.switches = append(d.switches, p.attributes(ports[i]))
	}
	return d
}

func (p *prober) attributes(dir string) device {
	read := func(name string) string { return readIn(dir, name) }
	hex := func(name string) uint32 {
		v, _ := strconv.ParseUint(strings.TrimPrefix(read(name), "0x"), 16, 32)
		return uint32(v)
	}
	d := device{addr: filepath.Base(dir), dir: dir, class: hex("class"), vendor: hex("vendor"), id: hex("device")}
	d.speed, d.width = p.link(dir)
	d.numa, _ = strconv.Atoi(read("numa_node"))
	d.numa = max(d.numa, 0) // -1: a machine with one node
	return d
}

func readIn(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// lanes reads a width, 0 where it is unknown, which 255 and 63 stand for.
func lanes(dir, name string) int {
	w, _ := strconv.Atoi(readIn(dir, name))
	if w > 32 {
		return 0
	}
	return w
}

// slower is the lower of two speeds, or the one that is known.
func slower(a, b string) string {
	if gigatransfers(a) == 0 || gigatransfers(b) > 0 && gigatransfers(b) < gigatransfers(a) {
		return b
	}
	return a
}

// link gives the speed and width that the link above a device can run at: the
// smaller of what the device and the port above it can do at most, as NCCL takes
// it. What it runs at now is not asked: a GPU with nothing to do lets its link
// fall to 2.5 GT/s. A link that runs on fewer lanes than it could is worth a note,
// since lanes do not come back by themselves.
func (p *prober) link(dir string) (speed string, width int) {
	speed, width = readIn(dir, "max_link_speed"), lanes(dir, "max_link_width")
	if above := filepath.Dir(dir); address.MatchString(filepath.Base(above)) {
		speed = slower(speed, readIn(above, "max_link_speed"))
		if w := lanes(above, "max_link_width"); width == 0 || w > 0 && w < width {
			width = w
		}
	}
	now := lanes(dir, "current_link_width")
	if gigatransfers(speed) == 0 {
		speed = readIn(dir, "current_link_speed")
	}
	if width == 0 {
		width = now
	}
	if now > 0 && now < width {
		p.note("%s runs on %d lanes of %d; counted with %d, look at the slot", filepath.Base(dir), now, width, width)
	}
	return speed, width
}

// gigatransfers reads a speed like "32.0 GT/s PCIe"; 0 if it is none.
func gigatransfers(speed string) float64 {
	v, _, _ := strings.Cut(speed, " ")
	rate, _ := strconv.ParseFloat(v, 64)
	return rate
}

// accelerators are vendors of GPUs and the like that call their devices processing accelerators or system peripherals.
var accelerators = []uint32{nvidiaVendor, amdVendor, googleVendor, habanaVendor}

// isGPU takes display and 3D controllers of GPU vendors and processing accelerators.
func (d device) isGPU() bool {
	switch d.class >> 8 {
	case 0x0302:
		return true
	case 0x0300:
		return d.vendor == nvidiaVendor || d.vendor == amdVendor && d.width >= 8
	case 0x1200:
		return d.vendor == intelVendor || slices.Contains(accelerators, d.vendor)
	case 0x0880:
		return slices.Contains(accelerators, d.vendor)
	}
	return false
}

func (d device) isNIC() bool { return d.class>>8 == 0x0200 || d.class>>8 == 0x0207 }

// generation gives the catalogue's key for a speed like "32.0 GT/s PCIe".
func (d device) generation() string {
	rate, _, _ := strings.Cut(d.speed, " ")
	switch strings.TrimSuffix(rate, ".0") {
	case "2.5":
		return "pcie1"
	case "5":
		return "pcie2"
	case "8":
		return "pcie3"
	case "16":
		return "pcie4"
	case "32":
		return "pcie5"
	case "64":
		return "pcie6"
	}
	return ""
}

func (d device) attrs() topo.Attrs {
	a := topo.Attrs{"pci.busid": d.addr, "pci.class": fmt.Sprintf("0x%06x", d.class), "pci.vendor": fmt.Sprintf("0x%04x", d.vendor),
		"pci.device": fmt.Sprintf("0x%04x", d.id)}
	if d.generation() != "" && d.width > 0 {
		a["pci.link_speed"], a["pci.link_width"] = d.speed, strconv.Itoa(d.width)
	}
	return a
}
