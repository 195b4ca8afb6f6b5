// Command capi is libweft.so: package comm behind the C header weft.h, for programs in C, Python and every language that calls C,
// and for NCCL, which loads it as a plug-in. It is the only cgo of the project and not part of the default build:
//
//	make lib      builds python/weft/libweft.so (go build -buildmode=c-shared -tags libweft ./capi)
//
//	weft.c        what C calls: refuses children of fork, then goes over to Go
//	call.go       a call as C describes it, made on a communicator
//	request.go    calls under way
//	fold.go       reductions by a function of C
//	nccl.c        plug-ins for NCCL: tuner and profiler
//	patience.go   the context of a blocking call: asks every 100 ms whether to give up
//
// Small calls run on the thread that makes them. A panic never crosses the border: it becomes WEFT_INTERNAL.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "capi is a library: 'make lib' builds python/weft/libweft.so, and capi/weft.h is its header")
	os.Exit(2)
}
