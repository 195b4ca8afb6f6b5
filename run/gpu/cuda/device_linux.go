//go:build linux && (amd64 || arm64) && !static

package cuda

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/ptx"
	"github.com/weft-fabric/weft/run/reduce"
)

// Device is a GPU in its primary context.
type Device struct {
	lib     *driver
	ordinal int
	device  uintptr
	context uintptr
	info    gpu.Info
	mu      sync.Mutex
	kernels map[program]*kernel
	opened  map[gpu.Handle]*imported
	closed  bool
}

// program is what a kernel is for.
type program struct {
	t    reduce.Type
	op   reduce.Op
	form ptx.Form
}

// kernel is a compiled kernel.
type kernel struct{ module, function uintptr }

// imported is memory of another process, which can be mapped once.
type imported struct {
	at   gpu.Ptr
	refs int
}

// Attributes of devices and pointers, as the driver numbers them.
const (
	attrUnits           = 16
	attrCapabilityMajor = 75
	attrCapabilityMinor = 76

	pointerMemoryType = 2
	pointerBufferID   = 7
	pointerManaged    = 8
	pointerOrdinal    = 9
	pointerIPC        = 10
	pointerStart      = 11
	pointerBytes      = 12
	pointerPool       = 17

	memoryOfHost   = 1 // registered, or got from the driver
	memoryOfDevice = 2
)

// Count is the number of GPUs that this process sees.
func Count() (int, error) {
	lib, err := library()
	if err != nil {
		return 0, err
	}
	return count(lib)
}

func count(lib *driver) (int, error) {
	var n int32
	err := lib.call("cuDeviceGetCount", uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// Open opens a GPU by its number, counted as CUDA_VISIBLE_DEVICES has it.
func Open(ordinal int) (gpu.Device, error) {
	lib, err := library()
	if err != nil {
		return nil, err
	}
	d, err := open(lib, ordinal)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// open retains the primary context of a GPU, which it shares with PyTorch and NCCL in this process. A context of its
// own would see none of their memory.
func open(lib *driver, ordinal int) (*Device, error) {
	n, err := count(lib)
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("%w: GPU %d of %d; see nvidia-smi and CUDA_VISIBLE_DEVICES", gpu.ErrNoDevice, ordinal, n)
	}
	d := &Device{lib: lib, ordinal: ordinal, kernels: map[program]*kernel{}, opened: map[gpu.Handle]*imported{}}
	var device int32
	if err := lib.call("cuDeviceGet", uintptr(unsafe.Pointer(&device)), uintptr(ordinal)); err != nil {
		return nil, err
	}
	d.device = uintptr(device)
	if err := d.describe(); err != nil {
		return nil, err
	}
	if d.info.Capability < 70 {
		return nil, fmt.Errorf("%w: %s has compute capability %d.%d; want 7.0 or above",
			gpu.ErrNoDevice, d.info.Name, d.info.Capability/10, d.info.Capability%10)
	}
	if err := lib.call("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(&d.context)), d.device); err != nil {
		return nil, err
	}
	return d, nil
}

// describe asks what the GPU is.
func (d *Device) describe() error {
	attribute := func(n int) (int, error) {
		var v int32
		err := d.lib.call("cuDeviceGetAttribute", uintptr(unsafe.Pointer(&v)), uintptr(n), d.device)
		return int(v), err
	}
	name, id, total := make([]byte, 128), make([]byte, 16), uint64(0)
	major, e1 := attribute(attrCapabilityMajor)
	minor, e2 := attribute(attrCapabilityMinor)
	units, e3 := attribute(attrUnits)
	err := errors.Join(e1, e2, e3,
		d.lib.call("cuDeviceGetName", uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), d.device),
		d.lib.call("cuDeviceGetUuid", uintptr(unsafe.Pointer(&id[0])), d.device),
		d.lib.call("cuDeviceTotalMem_v2", uintptr(unsafe.Pointer(&total)), d.device))
	text, _, _ := strings.Cut(string(name), "\x00")
	d.info = gpu.Info{Name: text, ID: "GPU-" + hex.EncodeToString(id), Capability: 10*major + minor, Units: units, Bytes: int64(total),
		Driver: d.lib.version(), Sharing: sharing()}
	return err
}

// sharing says how processes share a GPU. The driver joins an MPS server without a word if one is there.
func sharing() string {
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = "/tmp/nvidia-mps"
	}
	if _, err := os.Stat(filepath.Join(dir, "control")); err == nil {
		return "MPS"
	}
	return "time slices"
}

// Info says what it is.
func (d *Device) Info() gpu.Info { return d.info }

// enter makes the GPU's context the thread's, for calls until leave.
func (d *Device) enter() error {
	runtime.LockOSThread()
	err := d.lib.call("cuCtxPushCurrent_v2", d.context)
	if err != nil {
		runtime.UnlockOSThread()
	}
	return err
}

func (d *Device) leave() {
	var old uintptr
	_ = d.lib.call("cuCtxPopCurrent_v2", uintptr(unsafe.Pointer(&old))) // it was pushed on this thread
	runtime.UnlockOSThread()
}

// do makes one call in the context.
//
//go:uintptrescapes
func (d *Device) do(name string, args ...uintptr) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.lib.call(name, args...)
}

// Alloc gets memory that other processes can map.
func (d *Device) Alloc(n int) (gpu.Ptr, error) {
	if n <= 0 {
		return 0, fmt.Errorf("%d bytes of %s: want more than 0", n, d.info.Name)
	}
	var p gpu.Ptr
	if err := d.do("cuMemAlloc_v2", uintptr(unsafe.Pointer(&p)), uintptr(n)); err != nil {
		return 0, fmt.Errorf("%d bytes of %s: %w", n, d.info.Name, err)
	}
	return p, nil
}

// Free gives it back.
func (d *Device) Free(p gpu.Ptr) error { return d.do("cuMemFree_v2", uintptr(p)) }

// Segment asks what an address lies in.
func (d *Device) Segment(at gpu.Ptr, n int) (gpu.Segment, error) {
	var a struct {
		memory, managed, ordinal, ipc uint32
		id                            uint64
		start, pool                   uint64
		bytes                         uint64
	}
	a.ordinal = ^uint32(0)
	ask := [...]struct {
		attribute uint32
		to        unsafe.Pointer
	}{{pointerMemoryType, unsafe.Pointer(&a.memory)}, {pointerManaged, unsafe.Pointer(&a.managed)},
		{pointerOrdinal, unsafe.Pointer(&a.ordinal)},
		{pointerIPC, unsafe.Pointer(&a.ipc)}, {pointerBufferID, unsafe.Pointer(&a.id)}, {pointerStart, unsafe.Pointer(&a.start)},
		{pointerBytes, unsafe.Pointer(&a.bytes)}, {pointerPool, unsafe.Pointer(&a.pool)}}
	var attributes [len(ask)]uint32
	var data [len(ask)]unsafe.Pointer
	for i, x := range ask {
		attributes[i], data[i] = x.attribute, x.to
	}
	err := d.do("cuPointerGetAttributes", uintptr(len(ask)), uintptr(unsafe.Pointer(&attributes)), uintptr(unsafe.Pointer(&data)), uintptr(at))
	runtime.KeepAlive(&a)
	s := gpu.Segment{Base: gpu.Ptr(a.start), Bytes: int(a.bytes), ID: a.id}
	switch {
	case err != nil:
		return s, fmt.Errorf("%w: address %#x: %w", gpu.ErrMemory, at, err)
	case a.memory != memoryOfDevice && a.managed == 0:
		return s, fmt.Errorf("%w: address %#x is on no GPU, or was freed", gpu.ErrMemory, at)
	case a.managed != 0:
		s.Kind = gpu.Managed
	case int(int32(a.ordinal)) != d.ordinal:
		return s, fmt.Errorf("%w: address %#x lies on GPU %d, this rank uses GPU %d", gpu.ErrMemory, at, int32(a.ordinal), d.ordinal)
	case a.pool != 0:
		s.Kind = gpu.Pooled
	case d.isImported(s.Base):
		s.Kind = gpu.Foreign
	case a.ipc == 0:
		s.Kind = gpu.Mapped // it may go on in the next piece
		return s, nil
	default:
		s.Kind = gpu.Plain
	}
	if s.Bytes > 0 && at+gpu.Ptr(n) > s.Base+gpu.Ptr(s.Bytes) {
		return s, fmt.Errorf("%w: %d bytes at %#x, whose allocation ends after %d", gpu.ErrMemory, n, at, s.Base+gpu.Ptr(s.Bytes)-at)
	}
	return s, nil
}

func (d *Device) isImported(p gpu.Ptr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.opened {
		if m.at == p {
			return true
		}
	}
	return false
}

// Export names memory to other processes.
func (d *Device) Export(s gpu.Segment) (h gpu.Handle, err error) {
	if s.Kind != gpu.Plain {
		return h, fmt.Errorf("%w: %s", gpu.ErrNotShown, s.Kind)
	}
	if err := d.do("cuIpcGetMemHandle", uintptr(unsafe.Pointer(&h)), uintptr(s.Base)); err != nil {
		return h, fmt.Errorf("%w: %s: %w", gpu.ErrNotShown, s.Kind, err)
	}
	return h, nil
}

// Import maps memory that another process named. The driver maps it once for each process; those that ask again share it.
func (d *Device) Import(h gpu.Handle) (gpu.Ptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.opened[h]; m != nil {
		m.refs++
		return m.at, nil
	}
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	p, err := d.lib.openHandle(&h)
	if err != nil {
		return 0, fmt.Errorf("memory of another process: %w", err)
	}
	d.opened[h] = &imported{p, 1}
	return p, nil
}

// Drop takes it back once nobody uses it.
func (d *Device) Drop(p gpu.Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for h, m := range d.opened {
		if m.at != p {
			continue
		}
		if m.refs--; m.refs > 0 {
			return nil
		}
		delete(d.opened, h)
		return d.do("cuIpcCloseMemHandle", uintptr(p))
	}
	return fmt.Errorf("%w: %#x was not mapped here", gpu.ErrMemory, p)
}

// Register pins memory of the host.
func (d *Device) Register(b []byte) error {
	const portable, mapped = 1, 2
	if err := d.do("cuMemHostRegister_v2", uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), portable|mapped); err != nil {
		return fmt.Errorf("pin %d bytes: %w", len(b), err)
	}
	return nil
}

// Unregister lets go of it.
func (d *Device) Unregister(b []byte) error {
	return d.do("cuMemHostUnregister", uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// Pinned asks the driver, which also knows of memory that others registered, such as PyTorch's pinned tensors. Only memory that lies
// in one registration counts: a copy across two of them is refused.
func (d *Device) Pinned(b []byte) bool {
	var a struct {
		start, bytes uint64
		memory       uint32
	}
	attributes := [...]uint32{pointerMemoryType, pointerStart, pointerBytes}
	data := [len(attributes)]unsafe.Pointer{unsafe.Pointer(&a.memory), unsafe.Pointer(&a.start), unsafe.Pointer(&a.bytes)}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	err := d.do("cuPointerGetAttributes", uintptr(len(data)), uintptr(unsafe.Pointer(&attributes)), uintptr(unsafe.Pointer(&data)), at)
	runtime.KeepAlive(&a)
	return err == nil && a.memory == memoryOfHost && uint64(at) >= a.start && uint64(at)+uint64(len(b)) <= a.start+a.bytes
}

// Seen asks where kernels see registered memory.
func (d *Device) Seen(b []byte) (gpu.Ptr, error) {
	var p gpu.Ptr
	err := d.do("cuMemHostGetDevicePointer_v2", uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(unsafe.SliceData(b))), 0)
	return p, err
}

// Prepare compiles a kernel, if it is not there yet.
func (d *Device) Prepare(t reduce.Type, op reduce.Op, order *reduce.Order) error {
	_, err := d.kernel(t, op, ptx.FormOf(t, op, order))
	return err
}

// kernel gives the kernel of a reduction; the driver compiles it when it is first asked for.
func (d *Device) kernel(t reduce.Type, op reduce.Op, form ptx.Form) (*kernel, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := d.kernels[program{t, op, form}]; k != nil {
		return k, nil
	}
	text, err := ptx.Kernel(t, op, form, d.info.Capability)
	if err != nil {
		return nil, err
	}
	k, err := d.compile(text)
	if err != nil && form == ptx.Pieces {
		return nil, fmt.Errorf("kernel for copies of pieces: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("kernel for %s of %s: %w", op, t, err)
	}
	d.kernels[program{t, op, form}] = k
	return k, nil
}

// compile hands a text to the driver's compiler. The caller has locked the device.
func (d *Device) compile(text string) (*kernel, error) {
	const errorLog, errorLogBytes = 5, 6
	var (
		log     = make([]byte, 4096)
		source  = append([]byte(text), 0)
		name    = append([]byte(ptx.Name), 0)
		options = [2]uint32{errorLog, errorLogBytes}
		values  = [2]uintptr{uintptr(unsafe.Pointer(&log[0])), uintptr(len(log))}
		k       kernel
	)
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	err := d.lib.call("cuModuleLoadDataEx", uintptr(unsafe.Pointer(&k.module)), uintptr(unsafe.Pointer(&source[0])), uintptr(len(options)),
		uintptr(unsafe.Pointer(&options)), uintptr(unsafe.Pointer(&values)))
	runtime.KeepAlive(log)
	if err != nil {
		var e *Error
		if said, _, _ := strings.Cut(string(log), "\x00"); said != "" && errors.As(err, &e) {
			e.Text = strings.TrimSpace(said)
		}
		return nil, err
	}
	if err := d.lib.call("cuModuleGetFunction", uintptr(unsafe.Pointer(&k.function)), k.module,
		uintptr(unsafe.Pointer(&name[0]))); err != nil {
		return nil, err
	}
	return &k, nil
}

// Close gives back the kernels, what was mapped, and the hold on the context.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	if err := d.enter(); err != nil {
		return err
	}
	var errs []error
	for _, k := range d.kernels {
		errs = append(errs, d.lib.call("cuModuleUnload", k.module))
	}
	for _, m := range d.opened {
		errs = append(errs, d.lib.call("cuIpcCloseMemHandle", uintptr(m.at)))
	}
	clear(d.kernels)
	clear(d.opened)
	d.leave()
	return errors.Join(append(errs, d.lib.call("cuDevicePrimaryCtxRelease_v2", d.device))...)
}
