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

// value calls a query of the library, and returns -1 where this driver has no such query or the device does not answer.
func value[T uint32 | uint64](known bool, query func(*T) int32) int64 {
	var v T
	if !known || query(&v) != nvmlSuccess {
		return -1
	}
	return int64(v)
}

// sample asks for one GPU. What is not known stays -1.
func (s *sampler) sample(i int, dev unsafe.Pointer) Sample {
	g := Sample{Index: i, Util: -1, MemUsed: -1, MemTotal: -1}
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
	watts := func(milli int64) float64 {
		if milli < 0 {
			return -1
		}
		return float64(milli) / 1000
	}
	g.Power = watts(value(s.power != nil, func(v *uint32) int32 { return s.power(dev, v) }))
	g.Limit = watts(value(s.limit != nil, func(v *uint32) int32 { return s.limit(dev, v) }))
	g.Temp = float64(value(s.temp != nil, func(v *uint32) int32 { return s.temp(dev, 0, v) }))
	g.Clock = float64(value(s.clock != nil, func(v *uint32) int32 { return s.clock(dev, 1, v) })) // 1 is the SM clock
	g.Throttle = value(s.throttle != nil, func(v *uint64) int32 { return s.throttle(dev, v) })
	g.Replays = value(s.replays != nil, func(v *uint32) int32 { return s.replays(dev, v) })
	g.ECC = value(s.ecc != nil, func(v *uint64) int32 { return s.ecc(dev, 1, 0, v) }) // uncorrected, since the driver was loaded
	g.NVLinks = s.links(dev)
	return g
}

// links counts the NVLinks that are up; -1 where the device has none.
func (s *sampler) links(dev unsafe.Pointer) int64 {
	up := int64(-1)
	for link := range uint32(nvmlMaxLinks) {
		var v uint32
		if s.link == nil || s.link(dev, link, &v) != nvmlSuccess {
			break
		}
		up = max(up, 0)
		if v == nvmlEnabled {
			up++
		}
	}
	return up
}
