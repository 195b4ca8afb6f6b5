// Package cuda drives NVIDIA GPUs through the driver's library, which it loads on first use. Building it needs no CUDA, and
// nothing of it runs unless a GPU is requested.
//
//	Open       a GPU by number, in the context that PyTorch and the CUDA runtime use
//	Error      the driver's answer: the call, its code and its text
//
// Errors match those of package gpu: gpu.ErrNoLibrary, ErrVersion, ErrNoDevice, ErrNoJIT, ErrMemory, ErrNotShown, ErrLost.
package cuda

import (
	"fmt"

	"github.com/weft-fabric/weft/run/gpu"
)

// Error is an answer of the driver that is not success.
type Error struct {
	Call string // cuMemAlloc
	Code int    // 2
	Name string // CUDA_ERROR_OUT_OF_MEMORY
	Text string // in the driver's words, or the compiler's for a kernel
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: error %d", e.Call, e.Code)
	if e.Name != "" {
		s += " " + e.Name
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	if why := advice[e.Code]; why != "" {
		s += "; " + why
	}
	return s
}

// Unwrap is the error of package gpu that a code stands for.
func (e *Error) Unwrap() error {
	switch c := e.Code; {
	case c == 34:
		return gpu.ErrNoLibrary
	case c == 35 || c == 222 || c == 803 || c == 804:
		return gpu.ErrVersion
	case c == 46 || c == 100 || c == 101:
		return gpu.ErrNoDevice
	case c == 221 || c == 223:
		return gpu.ErrNoJIT
	case c == 712:
		return gpu.ErrPinned
	case c == 214 || c == 220 || c == 700 || c == 702 || c >= 714 && c <= 719 || c >= 806 && c <= 809:
		return gpu.ErrLost
	}
	return nil
}

// What people can do about the codes that they meet.
var advice = map[int]string{
	34:  "a stub of libcuda.so.1 comes first on the library path: take it off LD_LIBRARY_PATH",
	35:  "install a newer driver",
	46:  "another process has the GPU for itself (compute mode), or it is being reset",
	100: "no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES",
	201: "the GPU's context is gone",
	218: "please report this text as a bug of weft",
	221: "libnvidia-ptxjitcompiler.so.1 is missing: containers need the driver capability compute",
	222: "the driver is too old for the kernel: install a newer one",
	223: "CUDA_DISABLE_PTX_JIT is set: unset it",
	304: "the kernel refused the driver: are /dev/nvidia* there, and may this user open them?",
	801: "the GPU, the driver or the container does not support it",
	802: "the GPU is not ready: its fabric manager may not run",
	803: "the driver of the kernel and its library are of different versions: reboot or reinstall",
	805: "the MPS server gave an error: see its log",
	807: "the MPS server is gone",
	808: "too many processes use the MPS server",
}

// least is the driver version that is needed: 11.4, of which the pointer attributes are.
const least = 11040
