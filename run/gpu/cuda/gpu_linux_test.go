//go:build linux && (amd64 || arm64) && !static

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/reduce"
)

// real opens GPU 0 of this machine.
func real(t *testing.T) gpu.Device {
	t.Helper()
	d, err := Open(0)
	if err != nil {
		t.Skipf("no GPU here: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// finish waits for a queue.
func finish(t *testing.T, q gpu.Queue) {
	t.Helper()
	mark, err := q.Mark()
	if err != nil {
		t.Fatal(err)
	}
	until(t, "a mark", func() (bool, error) { return q.Reached(mark) })
}

// until waits half a minute at most.
func until(t *testing.T, what string, done func() (bool, error)) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		ok, err := done()
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited 30 s for %s", what)
		}
	}
}

// The GPU copies pieces of any length and alignment, inside it and from and to memory of the host, and writes nothing beside them.
func TestPiecesOnGPU(t *testing.T) {
	d := real(t)
	q, err := d.Queue()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	const room, longest = 8 << 20, 64 << 10
	host := func(n int) []byte {
		b := make([]byte, n+8192)
		b = b[-uintptr(unsafe.Pointer(&b[0]))&4095:][:n:n]
		if err := d.Register(b); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Unregister(b) })
		return b
	}
	to, from, table := host(room), host(room), host(1<<20)
	list := unsafe.Slice((*gpu.Piece)(unsafe.Pointer(&table[0])), len(table)/int(unsafe.Sizeof(gpu.Piece{})))
	a, b := alloc(t, d, room), alloc(t, d, room)
	seenTo, err := d.Seen(to)
	if err != nil {
		t.Fatal(err)
	}
	seenFrom, err := d.Seen(from)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(7, 8))
	for round := range 30 {
		for i := 0; i < room; i += 8 {
			binary.LittleEndian.PutUint64(to[i:], rnd.Uint64())
			binary.LittleEndian.PutUint64(from[i:], rnd.Uint64())
		}
		want, way := bytes.Clone(to), round%3 // inside, out, in
		dst, src := [3]gpu.Ptr{a, seenTo, a}[way], [3]gpu.Ptr{b, b, seenFrom}[way]
		for _, err := range []error{q.In(a, to), q.In(b, from)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		finish(t, q)
		count := 0
		for at := 0; ; count++ {
			n, gap, off := rnd.IntN(longest), rnd.IntN(40), rnd.IntN(room-longest)
			if round%2 == 0 { // whole vectors
				at, n, off = at&^15, n&^15, off&^15
			}
			if at+n > room {
				break
			}
			copy(want[at:][:n], from[off:])
			list[count] = gpu.Piece{Dst: dst + gpu.Ptr(at), Src: src + gpu.Ptr(off), Bytes: uint64(n)}
			at += n + gap
		}
		if err := q.Pieces(list[:count]); err != nil {
			t.Fatal(err)
		}
		if dst == a {
			if err := q.Out(to, a); err != nil {
				t.Fatal(err)
			}
		}
		finish(t, q)
		if !bytes.Equal(to, want) {
			t.Fatalf("round %d: %d pieces came out wrong", round, count)
		}
	}
}

// alloc gets memory of a GPU for a test.
func alloc(t *testing.T, d gpu.Device, bytes int) gpu.Ptr {
	t.Helper()
	p, err := d.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Free(p) })
	return p
}

// Every kernel gives the bits of package reduce on a GPU: every type and operation, with 2 to 8 sources, any alignment, in place
// and not, on random bits with many NaNs, infinities, zeros and subnormal numbers; 16-bit types on all their patterns. Nothing
// beside the destinations is written.
func TestKernelsOnGPU(t *testing.T) {
	d := real(t)
	q, err := d.Queue()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	const room, most = 1 << 19, 8
	var at [most + 2]gpu.Ptr
	for i := range at {
		if at[i], err = d.Alloc(room + 64); err != nil {
			t.Fatal(err)
		}
		defer d.Free(at[i])
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	checked, began := 0, time.Now()
	for _, typ := range reduce.Types() {
		for _, op := range reduce.Ops() {
			if reduce.Check(typ, op) != nil {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", typ, op), func(t *testing.T) {
				for _, elements := range []int{1, 31, 4099, room / typ.Size() / 2, room/typ.Size() - 16} {
					for _, n := range []int{2, 3, most} {
						onGPU(t, q, rnd, at[:], typ, op, elements, n)
						checked += elements
					}
				}
			})
		}
	}
	t.Logf("%s: %d elements compared in %v", d.Info().Name, checked, time.Since(began).Round(time.Millisecond))
}

// onGPU runs one reduction and compares.
func onGPU(t *testing.T, q gpu.Queue, rnd *rand.Rand, at []gpu.Ptr, typ reduce.Type, op reduce.Op, elements, n int) {
	size := typ.Size()
	if op == reduce.PreMulSum {
		n = 1
	}
	r := &gpu.Reduction{Type: typ, Op: op, Bytes: elements * size, Factor: 3}
	if op == reduce.Avg {
		r.Factor = float64(n)
	}
	shift := rnd.IntN(16) / size * size
	alike := rnd.IntN(4) > 0
	offset := func() gpu.Ptr {
		if !alike {
			shift = rnd.IntN(16) / size * size
		}
		return gpu.Ptr(16 + shift)
	}
	var srcs [][]byte
	for i := range n {
		srcs = append(srcs, numbers(rnd, typ, r.Bytes, i))
		r.Srcs = append(r.Srcs, at[i]+offset())
	}
	r.Dsts = []gpu.Ptr{at[n] + offset(), at[n+1] + offset()}
	if rnd.IntN(2) == 0 {
		r.Dsts[1] = r.Srcs[n-1]
	}
	guard := bytes.Repeat([]byte{0xa5}, r.Bytes+64)
	for i := range n + 2 {
		if err := q.In(at[i], guard); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		if err := q.In(r.Srcs[i], srcs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Reduce(r); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, r.Bytes)
	if op == reduce.PreMulSum {
		reduce.ScaleTo(typ, want, srcs[0], 3)
	} else {
		reduce.ApplyN(typ, op, want, srcs...)
		reduce.Finish(typ, op, want, n)
	}
	for _, p := range r.Dsts {
		base := p &^ 15
		for _, a := range at {
			if p >= a && p < a+gpu.Ptr(r.Bytes+64) {
				base = a
			}
		}
		got := make([]byte, r.Bytes+64)
		if err := q.Out(got, base); err != nil {
			t.Fatal(err)
		}
		finish(t, q)
		lead := int(p - base)
		for i := 0; i < r.Bytes; i += size {
			if !bytes.Equal(got[lead+i:lead+i+size], want[i:i+size]) {
				var from [][]byte
				for _, s := range srcs {
					from = append(from, s[i:i+size])
				}
				t.Fatalf("%d elements of %d sources, element %d: %x, want %x, from %x",
					elements, n, i/size, got[lead+i:lead+i+size], want[i:i+size], from)
			}
		}
		if !bytes.Equal(got[:lead], guard[:lead]) || !bytes.Equal(got[lead+r.Bytes:], guard[:64-lead]) {
			t.Fatalf("%d elements of %d sources: bytes beside the destination were written", elements, n)
		}
	}
}

// numbers are bits of elements: of the first source all patterns in order where there are 16 bits, else any, with many that
// are hard.
func numbers(rnd *rand.Rand, typ reduce.Type, n, source int) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rnd.Uint64())
	}
	size := typ.Size()
	hard := []uint64{0, 1 << 63, 0x7ff0000000000000, 0xfff0000000000000, 0x7f80000000000000, 0xff80000000000000, 0x7fc0000000000000,
		0x0000000100000000, 0x7c00000000000000,
		0x0010000000000000, 0x7fefffffffffffff, 0x7f7fffff00000000, 0x8000000100000000, 0x3ff0000000000000, 0x3f80000000000000,
		0x7e00000000000000, 0x7b00000000000000}
	for e := 0; e < n/size; e++ {
		v := uint64(e)
		switch {
		case size == 2 && source == 0:
			v <<= 48
		case rnd.IntN(3) == 0:
			v = hard[rnd.IntN(len(hard))]
		default:
			continue
		}
		v >>= 64 - 8*size
		for i := range size {
			b[e*size+i] = byte(v >> (8 * i))
		}
	}
	return b[:n]
}

// Copies, marks, notes and holds work on a GPU, and what is freed is known to be.
func TestQueuesOnGPU(t *testing.T) {
	d := real(t)
	q, err := d.Queue()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	user, err := d.Queue() // stands for a user's stream
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	s := gpu.Stream(user.(*queue).stream)
	p, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	seg, err := d.Segment(p+100, 1000)
	if err != nil || seg.Base != p || seg.Kind != gpu.Plain || seg.Bytes < 1<<20 {
		t.Errorf("segment %+v at %#x, %v", seg, p, err)
	}
	if _, err := d.Export(seg); err != nil {
		t.Errorf("memory of this GPU cannot be shown to other processes: %v", err)
	}
	in, out := bytes.Repeat([]byte("weft"), 1000), make([]byte, 4000)
	if err := d.Register(out); err != nil { // a copy to other memory waits for its stream
		t.Fatal(err)
	}
	defer d.Unregister(out)
	if err := user.In(p, in); err != nil {
		t.Fatal(err)
	}
	note, err := q.Note(s)
	if err := errors.Join(err, q.After(note)); err != nil {
		t.Fatal(err)
	}
	finish(t, q)
	if !q.Posts() {
		t.Log("this driver writes no numbers: hosts wait for GPUs")
	} else {
		words := make([]byte, 4096)
		if err := d.Register(words); err != nil {
			t.Fatal(err)
		}
		defer d.Unregister(words)
		word := (*uint32)(unsafe.Pointer(&words[64]))
		if err := q.Await(word, 3); err != nil {
			t.Fatal(err)
		}
		stamp, err := q.Stamp()
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Follow(s, stamp); err != nil {
			t.Fatal(err)
		}
		if err := user.Out(out, p); err != nil {
			t.Fatal(err)
		}
		mark, err := user.Mark()
		if err != nil {
			t.Fatal(err)
		}
		atomic.StoreUint32(word, 2)
		for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
			if ok, _ := user.Reached(mark); ok {
				t.Fatal("a stream that waits for 3 went on after 2")
			}
		}
		atomic.StoreUint32(word, 3)
		until(t, "a stream that was held", func() (bool, error) { return user.Reached(mark) })
		if err := user.Post(word, 9); err != nil {
			t.Fatal(err)
		}
		until(t, "a word", func() (bool, error) { return atomic.LoadUint32(word) == 9, nil })
		if !bytes.Equal(in, out) {
			t.Error("copies are wrong")
		}
	}
	if err := d.Free(p); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Segment(p, 8); !errors.Is(err, gpu.ErrMemory) {
		t.Errorf("a freed address: %v", err)
	}
	if _, err := Open(99); !errors.Is(err, gpu.ErrNoDevice) {
		t.Errorf("GPU 99: %v", err)
	}
}
