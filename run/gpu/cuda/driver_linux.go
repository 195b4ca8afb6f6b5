//go:build linux && (amd64 || arm64) && !static

package cuda

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/weft-fabric/weft/run/gpu"
)

// driver is the driver's library.
type driver struct {
	at map[string]uintptr
}

// needed are the calls without which nothing works, by the names that the library has for them.
var needed = []string{
	"cuInit", "cuDriverGetVersion", "cuDeviceGet", "cuDeviceGetCount", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceGetUuid",
	"cuDeviceTotalMem_v2",
	"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
	"cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemHostGetDevicePointer_v2",
	"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuPointerGetAttributes",
	"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle",
	"cuStreamCreate", "cuStreamDestroy_v2", "cuStreamQuery", "cuStreamSynchronize", "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord",
	"cuStreamWaitEvent",
	"cuModuleLoadDataEx", "cuModuleGetFunction", "cuModuleUnload", "cuLaunchKernel", "cuGetErrorName", "cuGetErrorString",
}

// wanted are calls that newer drivers have.
var wanted = []string{"cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2"}

// library opens the driver once for the process.
var library = sync.OnceValues(func() (*driver, error) { return load("libcuda.so.1") })

// load opens a driver's library, finds what is needed and starts it.
func load(name string) (*driver, error) {
	lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", gpu.ErrNoLibrary, err)
	}
	d := &driver{at: map[string]uintptr{}}
	var missing []string
	for _, symbol := range append(needed, wanted...) {
		p, err := purego.Dlsym(lib, symbol)
		if err == nil {
			d.at[symbol] = p
		}
	}
	version := 0
	if d.at["cuDriverGetVersion"] != 0 {
		var v int32
		if d.call("cuDriverGetVersion", uintptr(unsafe.Pointer(&v))) == nil {
			version = int(v)
		}
	}
	for _, symbol := range needed {
		if d.at[symbol] == 0 {
			missing = append(missing, symbol)
		}
	}
	switch {
	case version == 0 && len(missing) > 0:
		return nil, fmt.Errorf("%w: %s has no %s: it is not NVIDIA's driver", gpu.ErrNoLibrary, name, strings.Join(missing, ", "))
	case version < least || len(missing) > 0:
		what := ""
		if len(missing) > 0 {
			what = ", without " + strings.Join(missing, ", ")
		}
		return nil, fmt.Errorf("%w: it is for CUDA %s%s; want %s or newer", gpu.ErrVersion, dotted(version), what, dotted(least))
	}
	if err := d.call("cuInit", 0); err != nil {
		return nil, err
	}
	return d, nil
}

// dotted is a version of CUDA as people write it.
func dotted(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// version is the driver's.
func (d *driver) version() string {
	var v int32
	if err := d.call("cuDriverGetVersion", uintptr(unsafe.Pointer(&v))); err != nil {
		return "unknown"
	}
	return "CUDA " + dotted(int(v))
}

// has reports whether the driver knows a call that not all do.
func (d *driver) has(name string) bool { return d.at[name] != 0 }

// code calls the driver and gives what it says. Pointers in args are kept where they are until it returns.
//
//go:uintptrescapes
func (d *driver) code(name string, args ...uintptr) int {
	code, _, _ := purego.SyscallN(d.at[name], args...)
	return int(int32(code))
}

// call is code as an error.
//
//go:uintptrescapes
func (d *driver) call(name string, args ...uintptr) error {
	if code := d.code(name, args...); code != 0 {
		return d.failure(name, code, "")
	}
	return nil
}

// failure puts a code into words.
func (d *driver) failure(name string, code int, text string) *Error {
	e := &Error{Call: strings.TrimSuffix(strings.TrimSuffix(name, "_v2"), "_v3"), Code: code, Text: text}
	words := func(call string) string {
		var p *byte
		if d.at[call] == 0 {
			return ""
		}
		if r, _, _ := purego.SyscallN(d.at[call], uintptr(code), uintptr(unsafe.Pointer(&p))); int32(r) != 0 || p == nil {
			return ""
		}
		n := 0
		for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
			n++
		}
		return string(unsafe.Slice(p, n))
	}
	e.Name = words("cuGetErrorName")
	if e.Text == "" {
		e.Text = words("cuGetErrorString")
	}
	return e
}

// openHandle calls cuIpcOpenMemHandle, which takes a struct of 64 bytes by value: on amd64 it lies on the stack, behind the six
// arguments that registers hold; on arm64 its address is passed.
func (d *driver) openHandle(h *gpu.Handle) (p gpu.Ptr, err error) {
	const lazyPeerAccess = 1
	if runtime.GOARCH == "arm64" {
		err = d.call("cuIpcOpenMemHandle_v2", uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(h)), lazyPeerAccess)
		return p, err
	}
	w := (*[8]uintptr)(unsafe.Pointer(h))
	err = d.call("cuIpcOpenMemHandle_v2", uintptr(unsafe.Pointer(&p)), lazyPeerAccess, 0, 0, 0, 0, w[0], w[1], w[2], w[3], w[4], w[5],
		w[6], w[7])
	return p, err
}
