//go:build linux && (amd64 || arm64) && !static

package probe

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/weft-fabric/weft/model/topo"
)

// nvmlPCI is nvmlPciInfo_t of the management library; only the address is used.
type nvmlPCI struct {
	_                   [16]byte
	domain, bus, device uint32
	_                   [2]uint32
	_                   [32]byte
}

func (i *nvmlPCI) addr() string {
	return fmt.Sprintf("%04x:%02x:%02x.0", i.domain, i.bus, i.device)
}

const (
	nvmlSuccess  = 0
	nvmlMaxLinks = 18
	nvmlEnabled  = 1
)

// nvlinks asks the management library which NVLinks are up and where they lead.
func (p *prober) nvlinks() {
	if !p.nvidia {
		return
	}
	lib, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		p.note("NVLink not read: %v", err)
		return
	}
	var (
		initialize func() int32
		shutdown   func() int32
		count      func(*uint32) int32
		handle     func(uint32, *unsafe.Pointer) int32
		pciInfo    func(unsafe.Pointer, *nvmlPCI) int32
		state      func(unsafe.Pointer, uint32, *uint32) int32
		version    func(unsafe.Pointer, uint32, *uint32) int32
		remote     func(unsafe.Pointer, uint32, *nvmlPCI) int32
		name       func(unsafe.Pointer, *byte, uint32) int32
	)
	for symbol, fn := range map[string]any{
		"nvmlInit_v2": &initialize, "nvmlShutdown": &shutdown, "nvmlDeviceGetCount_v2": &count,
		"nvmlDeviceGetHandleByIndex_v2": &handle, "nvmlDeviceGetPciInfo_v3": &pciInfo,
		"nvmlDeviceGetNvLinkState": &state, "nvmlDeviceGetNvLinkVersion": &version,
		"nvmlDeviceGetNvLinkRemotePciInfo_v2": &remote, "nvmlDeviceGetName": &name,
	} {
		if _, err := purego.Dlsym(lib, symbol); err != nil {
			p.note("NVLink not read: the management library has no %s", symbol)
			return
		}
		purego.RegisterLibFunc(fn, lib, symbol)
	}
	if r := initialize(); r != nvmlSuccess {
		p.note("NVLink not read: the management library does not start (error %d)", r)
		return
	}
	defer shutdown()
	byAddr := map[string]topo.NodeID{}
	for _, g := range p.gpus {
		byAddr[g.addr] = g.node
	}
	var n uint32
	if r := count(&n); r != nvmlSuccess {
		p.note("NVLink not read: the management library cannot count GPUs (error %d)", r)
		return
	}
	t := nvlinkTable{}
	for i := range n {
		var dev unsafe.Pointer
		var at nvmlPCI
		if handle(i, &dev) != nvmlSuccess || pciInfo(dev, &at) != nvmlSuccess {
			p.note("GPU %d of the management library cannot be read", i)
			continue
		}
		node, ok := byAddr[at.addr()]
		if !ok {
			p.note("GPU %d of the management library is at %s, which /sys does not show", i, at.addr())
			continue
		}
		text := make([]byte, 96)
		if name(dev, &text[0], uint32(len(text))) == nvmlSuccess {
			p.b.Attr(node, topo.Attrs{"gpu.name": strings.TrimRight(string(text), "\x00")})
		}
		for link := range uint32(nvmlMaxLinks) {
			var up, gen uint32
			var far nvmlPCI
			if state(dev, link, &up) != nvmlSuccess || up != nvmlEnabled || version(dev, link, &gen) != nvmlSuccess {
				continue
			}
			peer := "switch"
			if remote(dev, link, &far) == nvmlSuccess {
				peer = far.addr()
			}
			t.add(node, peer, generation(gen))
		}
	}
	p.wire(t, byAddr)
}

// generation maps the library's enumeration (1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0
// as 1 to 7) to the generation a catalogue knows.
func generation(version uint32) uint32 {
	known := []uint32{0, 1, 2, 2, 3, 3, 4, 5}
	if int(version) < len(known) {
		return known[version]
	}
	return version - 2
}
