//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// library is UCX and the calls that are made of it.
type library struct {
	at      map[string]uintptr
	version string

	// Those of the data path.
	progress, send, recv, release, put, get, atomic, fence, flush, arm, free uintptr
	sent, received, many                                                     uintptr // stubs

	fclose, openMemstream, cfree uintptr // of the C library
}

var needed = []string{
	"ucp_get_version", "ucp_config_read", "ucp_config_modify", "ucp_config_release", "ucp_init_version", "ucp_cleanup",
	"ucp_context_print_info",
	"ucp_worker_create", "ucp_worker_destroy", "ucp_worker_get_address", "ucp_worker_release_address", "ucp_worker_get_efd", "ucp_worker_arm",
	"ucp_worker_progress", "ucp_worker_fence", "ucp_worker_flush_nbx", "ucp_worker_set_am_recv_handler",
	"ucp_ep_create", "ucp_ep_close_nbx", "ucp_ep_flush_nbx", "ucp_ep_print_info",
	"ucp_am_send_nbx", "ucp_am_recv_data_nbx", "ucp_am_data_release", "ucp_put_nbx", "ucp_get_nbx", "ucp_atomic_op_nbx",
	"ucp_mem_map", "ucp_mem_unmap", "ucp_mem_query", "ucp_rkey_pack", "ucp_rkey_buffer_release", "ucp_ep_rkey_unpack", "ucp_rkey_destroy",
	"ucp_request_free", "ucs_status_string",
}

// settings are variables of UCX that it reads when it is loaded. Those that the user set stay.
var settings = map[string]string{
	"UCX_HANDLE_ERRORS":        "none", // its signal handlers would take Go's
	"UCX_MEM_EVENTS":           "n",    // its hooks see what libc maps, not what Go does
	"UCX_MEM_MMAP_HOOK_MODE":   "none",
	"UCX_LOG_LEVEL":            "fatal", // it writes to standard output; what goes wrong comes as a status
	"UCX_WARN_UNUSED_ENV_VARS": "n",
}

// least is the first minor version of UCX 1 whose calls and structures are those below.
const least = 11

// set puts our settings into the environment that UCX reads, but for those that the user made.
func set(setenv uintptr) {
	for k, v := range settings {
		if _, made := os.LookupEnv(k); !made {
			key, value := cstring(k), cstring(v)
			purego.SyscallN(setenv, key.at(), value.at(), 1)
			key.free()
			value.free()
		}
	}
}

// find looks the calls up that are needed, and gives those that are not there.
func (l *library) find(lib uintptr) (missing []string) {
	for _, symbol := range needed {
		var err error
		if l.at[symbol], err = purego.Dlsym(lib, symbol); err != nil {
			missing = append(missing, symbol)
		}
	}
	return missing
}

// load opens UCX once for the process.
var load = sync.OnceValues(func() (*library, error) { return open("libucp.so.0") })

// open loads UCX, checks its version and finds the functions. It sets environment variables through the C library
// first: UCX reads them as it is loaded, and Go keeps its own copy.
func open(name string) (*library, error) {
	libc, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("the C library: %w", err)
	}
	l := &library{at: map[string]uintptr{}}
	setenv, err := purego.Dlsym(libc, "setenv")
	if err != nil {
		return nil, err
	}
	set(setenv)
	lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	if missing := l.find(lib); len(missing) > 0 {
		return nil, fmt.Errorf("%w: %s has no %s; want UCX 1.%d or newer", ErrNoLibrary, name, strings.Join(missing, ", "), least)
	}
	for _, x := range []struct {
		to   *uintptr
		name string
	}{{&l.fclose, "fclose"}, {&l.openMemstream, "open_memstream"}, {&l.cfree, "free"}} {
		if *x.to, err = purego.Dlsym(libc, x.name); err != nil {
			return nil, err
		}
	}
	m := page()
	defer m.free()
	l.call("ucp_get_version", m.at(), m.at()+4, m.at()+8)
	major, minor, patch := m.u32(0), m.u32(4), m.u32(8)
	l.version = fmt.Sprintf("%d.%d.%d", major, minor, patch)
	if major != 1 || minor < least {
		return nil, fmt.Errorf("UCX %s is not supported: want 1.%d or newer", l.version, least)
	}
	l.progress, l.send, l.recv, l.release = l.at["ucp_worker_progress"], l.at["ucp_am_send_nbx"], l.at["ucp_am_recv_data_nbx"],
		l.at["ucp_am_data_release"]
	l.put, l.get, l.atomic = l.at["ucp_put_nbx"], l.at["ucp_get_nbx"], l.at["ucp_atomic_op_nbx"]
	l.fence, l.flush, l.arm, l.free = l.at["ucp_worker_fence"], l.at["ucp_ep_flush_nbx"], l.at["ucp_worker_arm"], l.at["ucp_request_free"]
	l.sent, l.received, l.many = stubs()
	return l, nil
}

//lint:ignore U1000 UCX calls it; its address is taken in assembly
func sent()

//lint:ignore U1000 UCX calls it; its address is taken in assembly
func received()

//lint:ignore U1000 its address is taken in assembly
func many()

// stubs are the addresses of the three.
func stubs() (sent, received, many uintptr)

// Version is UCX's on this machine, or why there is none.
func Version() (string, error) {
	l, err := load()
	if err != nil {
		return "", err
	}
	return l.version, nil
}

// Available are the transports that UCX has on this machine, or why there is no UCX.
func Available() ([]string, error) {
	l, err := load()
	if err != nil {
		return nil, err
	}
	return l.transports()
}

// transports asks UCX what it has here: a context of all of them prints it.
func (l *library) transports() ([]string, error) {
	m := page()
	defer m.free()
	if err := l.status("ucp_config_read", 0, 0, m.at()); err != nil {
		return nil, fmt.Errorf("ucx: %w", err)
	}
	config := m.pointer(0)
	defer l.call("ucp_config_release", config)
	name, value := cstring("TLS"), cstring("all")
	defer name.free()
	defer value.free()
	if err := l.status("ucp_config_modify", config, name.at(), value.at()); err != nil {
		return nil, fmt.Errorf("ucx: %w", err)
	}
	const messages = 64
	m.set(0, 1)
	m.set(8, messages)
	if err := l.status("ucp_init_version", 1, least, m.at(), config, m.at()+512); err != nil {
		return nil, fmt.Errorf("ucx: %w", err)
	}
	context := m.pointer(512)
	defer l.call("ucp_cleanup", context)
	return parseResources(l.printed("ucp_context_print_info", context)), nil
}

// printed is what a call prints of something to a stream of C.
func (l *library) printed(call string, what uintptr) string {
	m := page()
	defer m.free()
	stream, _, _ := purego.SyscallN(l.openMemstream, m.at(), m.at()+8)
	if stream == 0 {
		return ""
	}
	l.call(call, what, stream)
	purego.SyscallN(l.fclose, stream)
	text := gostring(m.pointer(0))
	purego.SyscallN(l.cfree, m.pointer(0))
	return text
}

// call calls UCX by name, for what is not on the data path.
func (l *library) call(name string, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(l.at[name], args...)
	return r
}

// status is a call that returns one.
func (l *library) status(name string, args ...uintptr) error {
	return l.failure(name, int32(l.call(name, args...)))
}

// failure puts a status into words; nil if it is none.
func (l *library) failure(what string, status int32) error {
	if status >= 0 {
		return nil
	}
	return fmt.Errorf("%s: %s", what, l.words(status))
}

func (l *library) words(status int32) string {
	return gostring(l.call("ucs_status_string", uintptr(status)))
}

// Statuses of UCX.
const (
	inProgress = 1
	busy       = -15
	lastError  = -100
)

// result is what a call gives that starts something: done, an error, or a request under way.
func result(r uintptr) (status int32) {
	switch v := int64(r); {
	case v == 0:
		return 0
	case v < 0 && v >= lastError:
		return int32(v)
	}
	return inProgress
}

// memory is of the system, not of the collector: UCX may keep its address.
type memory struct{ b []byte }

// page is some memory, zeroed.
func page() memory { return mapped(4096) }

func mapped(n int) memory {
	b, err := unix.Mmap(-1, 0, (n+4095)&^4095, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		panic("ucx: no memory: " + err.Error())
	}
	return memory{b}
}

func (m memory) free()                  { _ = unix.Munmap(m.b) }
func (m memory) at() uintptr            { return uintptr(unsafe.Pointer(&m.b[0])) }
func (m memory) u32(i int) uint32       { return *(*uint32)(unsafe.Pointer(&m.b[i])) }
func (m memory) u64(i int) uint64       { return *(*uint64)(unsafe.Pointer(&m.b[i])) }
func (m memory) setU32(i int, v uint32) { *(*uint32)(unsafe.Pointer(&m.b[i])) = v }
func (m memory) set(i int, v uintptr)   { *(*uintptr)(unsafe.Pointer(&m.b[i])) = v }
func (m memory) pointer(i int) uintptr  { return uintptr(m.u64(i)) }

// cstring is a text as C has it.
func cstring(s string) memory {
	m := mapped(len(s) + 1)
	copy(m.b, s)
	return m
}

// bytesAt is C's memory.
func bytesAt(p uintptr, n int) []byte {
	if p == 0 || n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// gostring is C's text.
func gostring(p uintptr) string {
	if p == 0 {
		return ""
	}
	n := 0
	for bytesAt(p+uintptr(n), 1)[0] != 0 {
		n++
	}
	return string(bytesAt(p, n))
}

// address is where a slice begins; that of an empty one is of no meaning.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// ptr is C's address as a pointer.
func ptr(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func ptrOf(h *[headerSize]byte) uintptr { return uintptr(unsafe.Pointer(h)) }
