//go:build linux && (amd64 || arm64) && !static

package probe

import (
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// sampler keeps the management library open between samples: starting it takes a
// second on a machine with eight GPUs. A call that the library does not have, or that
// a GPU does not support, gives -1.
type sampler struct {
	count    func(*uint32) int32
	handle   func(uint32, *unsafe.Pointer) int32
	pciInfo  func(unsafe.Pointer, *nvmlPCI) int32
	name     func(unsafe.Pointer, *byte, uint32) int32
	uuid     func(unsafe.Pointer, *byte, uint32) int32
	util     func(unsafe.Pointer, *[2]uint32) int32
	memory   func(unsafe.Pointer, *[3]uint64) int32
	power    func(unsafe.Pointer, *uint32) int32
	limit    func(unsafe.Pointer, *uint32) int32
	temp     func(unsafe.Pointer, uint32, *uint32) int32
	clock    func(unsafe.Pointer, uint32, *uint32) int32
	throttle func(unsafe.Pointer, *uint64) int32
	replays  func(unsafe.Pointer, *uint32) int32
	ecc      func(unsafe.Pointer, uint32, uint32, *uint64) int32
	link     func(unsafe.Pointer, uint32, *uint32) int32
}

var openSampler = sync.OnceValue(func() *sampler {
	lib, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil
	}
	var initialize func() int32
	s := &sampler{}
	for symbol, fn := range map[string]any{
		"nvmlInit_v2": &initialize, "nvmlDeviceGetCount_v2": &s.count, "nvmlDeviceGetHandleByIndex_v2": &s.handle,
		"nvmlDeviceGetPciInfo_v3": &s.pciInfo, "nvmlDeviceGetName": &s.name,
		"nvmlDeviceGetUUID": &s.uuid, "nvmlDeviceGetUtilizationRates": &s.util, "nvmlDeviceGetMemoryInfo": &s.memory,
		"nvmlDeviceGetPowerUsage":         &s.power,
		"nvmlDeviceGetEnforcedPowerLimit": &s.limit, "nvmlDeviceGetTemperature": &s.temp, "nvmlDeviceGetClockInfo": &s.clock,
		"nvmlDeviceGetCurrentClocksThrottleReasons": &s.throttle,
		"nvmlDeviceGetPcieReplayCounter":            &s.replays, "nvmlDeviceGetTotalEccErrors": &s.ecc, "nvmlDeviceGetNvLinkState": &s.link,
	} {
		if _, err := purego.Dlsym(lib, symbol); err == nil {
			purego.RegisterLibFunc(fn, lib, symbol)
		}
	}
	if initialize == nil || s.count == nil || s.handle == nil || initialize() != nvmlSuccess {
		return nil
	}
	return s
})

// SampleGPUs asks the management library for all GPUs; none without a library.
func SampleGPUs() []Sample {
	s := openSampler()
	if s == nil {
		return []Sample{}
	}
	var n uint32
	if s.count(&n) != nvmlSuccess {
		return []Sample{}
	}
	out := []Sample{}
	for i := range n {
		var dev unsafe.Pointer
		if s.handle(i, &dev) == nvmlSuccess {
			out = append(out, s.sample(int(i), dev))
		}
	}
	return out
}

func (s *sampler) sample(i int, dev unsafe.Pointer) Sample {
	g := Sample{Index: i, Util: -1, Power: -1, Limit: -1, Temp: -1, Clock: -1, MemUsed: -1, MemTotal: -1, Throttle: -1, Replays: -1, ECC: -1,
		NVLinks: -1}
	var at nvmlPCI
	if s.pciInfo != nil && s.pciInfo(dev, &at) == nvmlSuccess {
		g.Bus = at.addr()
	}
	text := func(f func(unsafe.Pointer, *byte, uint32) int32) string {
		b := make([]byte, 96)
		if f == nil || f(dev, &b[0], uint32(len(b))) != nvmlSuccess {
			return ""
		}
		t, _, _ := strings.Cut(string(b), "\x00")
		return t
	}
	g.Name, g.UUID = text(s.name), text(s.uuid)
	var rates [2]uint32
	if s.util != nil && s.util(dev, &rates) == nvmlSuccess {
		g.Util = float64(rates[0])
	}
	var mem [3]uint64 // total, free, used
	if s.memory != nil && s.memory(dev, &mem) == nvmlSuccess {
		g.MemTotal, g.MemUsed = float64(mem[0]), float64(mem[2])
	}
	var v uint32
	if s.power != nil && s.power(dev, &v) == nvmlSuccess {
		g.Power = float64(v) / 1000
	}
	if s.limit != nil && s.limit(dev, &v) == nvmlSuccess {
		g.Limit = float64(v) / 1000
	}
	if s.temp != nil && s.temp(dev, 0, &v) == nvmlSuccess {
		g.Temp = float64(v)
	}
	if s.clock != nil && s.clock(dev, 1, &v) == nvmlSuccess { // 1 is the SM clock
		g.Clock = float64(v)
	}
	var w uint64
	if s.throttle != nil && s.throttle(dev, &w) == nvmlSuccess {
		g.Throttle = int64(w)
	}
	if s.replays != nil && s.replays(dev, &v) == nvmlSuccess {
		g.Replays = int64(v)
	}
	if s.ecc != nil && s.ecc(dev, 1, 0, &w) == nvmlSuccess { // uncorrected, since the driver was loaded
		g.ECC = int64(w)
	}
	for link := range uint32(nvmlMaxLinks) {
		if s.link == nil || s.link(dev, link, &v) != nvmlSuccess {
			break
		}
		if g.NVLinks < 0 {
			g.NVLinks = 0
		}
		if v == nvmlEnabled {
			g.NVLinks++
		}
	}
	return g
}
