//go:build libweft

package main

// #include "weft.h"
// void weft_fold(weft_combine f, void *acc, void *x, int64_t count, void *arg);
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/weft-fabric/weft/run/comm"
)

// checkElements refuses elements whose bytes cannot be counted, and a buffer that is not there.
func checkElements(buf unsafe.Pointer, count, size C.int64_t) error {
	switch {
	case count < 0 || size <= 0 || count > 1<<62/size:
		return fmt.Errorf("%d elements of %d bytes: want 0 or more of 1 or more", count, size)
	case buf == nil && count > 0:
		return fmt.Errorf("the buffer is NULL, %d elements are needed", count)
	}
	return nil
}

// goFold makes a reduction by a function of C.
//
//export goFold
func goFold(n C.weft_comm, buf unsafe.Pointer, count, size C.int64_t, f C.weft_combine, arg unsafe.Pointer, scan C.int,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	if f == nil {
		return fill(e, errors.New("no function was given"))
	}
	if err := checkElements(buf, count, size); err != nil {
		return fill(e, err)
	}
	fold := func(acc, x []byte) {
		if len(acc) > 0 {
			C.weft_fold(f, unsafe.Pointer(&acc[0]), unsafe.Pointer(&x[0]), C.int64_t(len(acc))/size, arg)
		}
	}
	do := comm.AllReduceBytes
	if scan != 0 {
		do = comm.ScanBytes
	}
	p := patient(0)
	err = do(p, c, unsafe.Slice((*byte)(buf), count*size), int(size), fold)
	if err != nil && p.gaveUp.Load() {
		err = fmt.Errorf("%w: %w", errInterrupted, err)
	}
	return fill(e, err)
}
