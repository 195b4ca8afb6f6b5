//go:build libweft

package main

// #include "nccl.h"
import "C"

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"unsafe"

	"github.com/weft-fabric/weft/predict/tune/table"
)

// goTunerTable reads the table for NCCL's tuner and gives how many of its rows can fit a communicator; below 0 with what is wrong.
//
//export goTunerTable
func goTunerTable(file *C.char, nodes, ranks C.int, to *C.struct_weft_tuner_row, room C.int, said *C.char, most C.int) (n C.int) {
	say := func(format string, args ...any) {
		putText(unsafe.Slice((*byte)(unsafe.Pointer(said)), most), fmt.Sprintf(format, args...))
	}
	defer func() {
		if p := recover(); p != nil {
			say("%v", panicked(p))
			n = -1
		}
	}()
	name := C.GoString(file)
	text, err := os.ReadFile(name)
	if err != nil {
		say("WEFT_NCCL_TABLE: %v; 'weft explain CLUSTER --emit nccl-tuner' writes one", err)
		return -1
	}
	rows, err := table.Read(bytes.NewReader(text))
	if err != nil {
		say("%s: %v", name, err)
		return -1
	}
	fit := table.For(rows, int(nodes), int(ranks))
	if len(fit) > int(room) {
		say("%s has %d rows for %d ranks on %d nodes; %d is the most", name, len(fit), ranks, nodes, room)
		return -1
	}
	for i, r := range fit {
		unsafe.Slice(to, room)[i] = C.struct_weft_tuner_row{kind: C.int32_t(r.Func), algo: C.int32_t(r.Algo), proto: C.int32_t(r.Proto),
			channels: C.int32_t(r.Channels),
			pipe_ops: C.int32_t(r.PipeOps), registered: C.int32_t(r.RegBuff), min: C.int64_t(r.Min), max: C.int64_t(r.Max)}
	}
	if len(fit) == 0 {
		say("%s has no row for %d ranks on %d nodes: NCCL's own choices stay", name, ranks, nodes)
		return 0
	}
	say("%s (sha256 %.8x, must be the same on all ranks): %d rows for a communicator of %d ranks, nodes: %d",
		name, sha256.Sum256(text), len(fit), ranks, nodes)
	return C.int(len(fit))
}
