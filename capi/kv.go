//go:build libweft

package main

// #include "weft.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
)

var caches = handles[kvcache.Client]{what: "cache service"}

// most hashes and tokens of a call.
const mostOfCall = 1 << 28

//export goKVOpen
func goKVOpen(address, token, chain *C.char, out *C.weft_kv, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = 0
	if text(address) == "" {
		return fill(e, errors.New("a cache service without an address: want HOST:PORT, as weft kv serve prints it"))
	}
	*out = caches.add(kvcache.Dial(text(address), setting(token, "WEFT_TOKEN"), text(chain)))
	return fill(e, nil)
}

//export goKVClose
func goKVClose(n C.weft_kv, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	k, err := caches.take(n)
	if err == nil {
		k.Close()
	}
	return fill(e, err)
}

//export goKVHashes
func goKVHashes(convention, seed *C.char, block C.int, tokens *C.uint32_t, n C.int64_t, salt *C.char, to *C.uint8_t, count *C.int64_t,
	print *C.char, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*count = 0
	if n < 0 || n > mostOfCall || n > 0 && (tokens == nil || to == nil) {
		return fill(e, fmt.Errorf("hashes of %d tokens: want 0 to %d, and room for them", n, mostOfCall))
	}
	c, err := kv.NewChain(kv.Convention(text(convention)), text(seed), int(block))
	if err != nil {
		return fill(e, err)
	}
	list := make([]uint32, n)
	for i, t := range unsafe.Slice(tokens, n) {
		list[i] = uint32(t)
	}
	hashes, err := c.Hashes(list, kv.Extra{Salt: text(salt)})
	if err != nil {
		return fill(e, err)
	}
	for i, h := range hashes {
		copy(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(to), i*C.WEFT_KV_HASH)), C.WEFT_KV_HASH), h[:])
	}
	*count = C.int64_t(len(hashes))
	if print != nil {
		putText(unsafe.Slice((*byte)(unsafe.Pointer(print)), 64), c.Print())
	}
	return fill(e, nil)
}

// pathOf finds a cache service and reads the hashes of a path.
func pathOf(n C.weft_kv, hashes *C.uint8_t, count, from C.int64_t) (*kvcache.Client, []kv.Hash, error) {
	k, err := caches.get(n)
	if err != nil {
		return nil, nil, err
	}
	if hashes == nil || count < 1 || count > mostOfCall || from < 0 || from >= count {
		return nil, nil, fmt.Errorf("a path of %d hashes, from %d on: want at least one", count, from)
	}
	out := make([]kv.Hash, count)
	for i := range out {
		copy(out[i][:], unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(hashes), i*C.WEFT_KV_HASH)), C.WEFT_KV_HASH))
	}
	return k, out, nil
}

//export goKVMatch
func goKVMatch(n C.weft_kv, hashes *C.uint8_t, count C.int64_t, blocks *C.int64_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*blocks = 0
	k, path, err := pathOf(n, hashes, count, 0)
	if err != nil {
		return fill(e, err)
	}
	w, err := during(0, func(ctx context.Context) ([]kvcache.Where, error) { return k.Match(ctx, path) })
	*blocks = C.int64_t(len(w))
	return fill(e, err)
}

//export goKVGet
func goKVGet(n C.weft_kv, hashes *C.uint8_t, count, from C.int64_t, dst unsafe.Pointer, stride C.int64_t, sizes, got *C.int64_t,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*got = 0
	k, path, err := pathOf(n, hashes, count, from)
	if err != nil {
		return fill(e, err)
	}
	if dst == nil || stride < 1 {
		return fill(e, fmt.Errorf("blocks to %p, %d bytes apart: want memory", dst, stride))
	}
	have, err := during(0, func(ctx context.Context) (int, error) {
		return k.Get(ctx, path, int(from), func(i int, data []byte) error {
			at := int64(i) - int64(from)
			if int64(len(data)) > int64(stride) || sizes == nil && int64(len(data)) != int64(stride) {
				return fmt.Errorf("block %d has %d bytes, more than %d; give the sizes where they differ", i, len(data), stride)
			}
			copy(unsafe.Slice((*byte)(unsafe.Add(dst, at*int64(stride))), len(data)), data)
			if sizes != nil {
				*(*C.int64_t)(unsafe.Add(unsafe.Pointer(sizes), at*8)) = C.int64_t(len(data))
			}
			return nil
		})
	})
	*got = C.int64_t(have)
	return fill(e, err)
}

//export goKVPut
func goKVPut(n C.weft_kv, hashes *C.uint8_t, count, from C.int64_t, src unsafe.Pointer, stride C.int64_t, sizes, stored *C.int64_t,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*stored = 0
	k, path, err := pathOf(n, hashes, count, from)
	if err != nil {
		return fill(e, err)
	}
	if src == nil || stride < 1 {
		return fill(e, fmt.Errorf("blocks from %p, %d bytes apart: want memory", src, stride))
	}
	blocks := make([][]byte, count-from)
	for i := range blocks {
		size := int64(stride)
		if sizes != nil {
			size = int64(*(*C.int64_t)(unsafe.Add(unsafe.Pointer(sizes), i*8)))
		}
		if size < 1 || size > int64(stride) {
			return fill(e, fmt.Errorf("block %d has %d bytes: want 1 to %d", int(from)+i, size, stride))
		}
		blocks[i] = unsafe.Slice((*byte)(unsafe.Add(src, int64(i)*int64(stride))), size)
	}
	have, err := during(0, func(ctx context.Context) (int, error) { return k.Put(ctx, path, int(from), blocks) })
	*stored = C.int64_t(have)
	return fill(e, err)
}
