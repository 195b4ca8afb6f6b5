package reduce_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
)

// newLog is an empty log with an address as mapped memory has.
func newLog() []byte {
	room := make([]byte, reduce.LogSize+64)
	return room[-uintptr(unsafe.Pointer(&room[0]))%64:][:reduce.LogSize]
}

// state sets the two words of a log.
func state(log []byte, done, sealed int) {
	binary.NativeEndian.PutUint64(log, uint64(done))
	binary.NativeEndian.PutUint64(log[8:], uint64(sealed))
}

// sealedBytes is the second of them.
func sealedBytes(log []byte) int { return int(binary.NativeEndian.Uint64(log[8:])) }

// finished is what every destination of ApplyAllLogged shall hold.
func finished(t reduce.Type, op reduce.Op, srcs [][]byte) []byte {
	want := bytes.Clone(srcs[0])
	if len(srcs) > 1 {
		reduce.Portable(t, op, [][]byte{want}, srcs)
	}
	reduce.Finish(t, op, want, len(srcs))
	return want
}

// sources are ns buffers of n bytes at odd addresses.
func sources(r *rand.Rand, t reduce.Type, ns, n int) [][]byte {
	srcs := make([][]byte, ns)
	for i := range srcs {
		off := r.IntN(32)
		srcs[i] = make([]byte, n+off)[off:]
		fill(r, t, srcs[i])
	}
	return srcs
}

// Any number of sources, each of them a destination or not, one reduction after
// the other in one log.
func TestLoggedIsTheDefinition(t *testing.T) {
	each(t, 512, func(t *testing.T) {
		r := rand.New(rand.NewPCG(21, 22))
		log := newLog()
		combinations(func(typ reduce.Type, op reduce.Op) {
			reduce.ResetLog(log)
			start := 0
			for ns := 1; ns <= 5; ns++ {
				for range 4 {
					n := r.IntN(700) * typ.Size()
					if r.IntN(8) == 0 {
						n += 3 << 13
					}
					srcs := sources(r, typ, ns, n)
					want := finished(typ, op, srcs)
					var dsts [][]byte
					for _, s := range srcs {
						if r.IntN(3) > 0 {
							dsts = append(dsts, s)
						}
					}
					for len(dsts) == 0 || r.IntN(3) == 0 {
						dsts = append(dsts, make([]byte, n+3)[3:])
					}
					reduce.ApplyAllLogged(typ, op, dsts, srcs, nil, log, start)
					for i, d := range dsts {
						if !bytes.Equal(d, want) {
							t.Fatalf("%v of %d x %d bytes of %v into destination %d: %s", op, ns, n, typ, i, differ(typ, d, want))
						}
					}
					start += n
					if reduce.Logged(log) != start {
						t.Fatalf("%v of %d x %d bytes of %v: log says %d bytes, want %d", op, ns, n, typ, reduce.Logged(log), start)
					}
					// Once more does nothing, though the sources are overwritten.
					reduce.ApplyAllLogged(typ, op, dsts, srcs, nil, log, start-n)
					if i := slices.IndexFunc(dsts, func(d []byte) bool { return !bytes.Equal(d, want) }); i >= 0 {
						t.Fatalf("%v of %d x %d bytes of %v again: destination %d has changed", op, ns, n, typ, i)
					}
				}
			}
		})
	})
}

// Longer than a kernel call, and with stores past the caches allowed.
func TestLoggedLargeBuffers(t *testing.T) {
	each(t, 1<<16, func(t *testing.T) {
		r := rand.New(rand.NewPCG(23, 24))
		for _, typ := range []reduce.Type{reduce.Uint8, reduce.Float32} {
			srcs := sources(r, typ, 2, 2<<20+13*typ.Size())
			want := finished(typ, reduce.Sum, srcs)
			reduce.ApplyAllLogged(typ, reduce.Sum, srcs, srcs, nil, newLog(), 0)
			if !bytes.Equal(srcs[0], want) || !bytes.Equal(srcs[1], want) {
				t.Fatalf("%v: %s", typ, differ(typ, srcs[0], want))
			}
		}
	})
}

// Every state that a killed caller can leave, built for every block of every
// length: resumed by every path from blocks of every size.
func TestLoggedResumesFromEveryState(t *testing.T) {
	each(t, never, func(t *testing.T) {
		r := rand.New(rand.NewPCG(25, 26))
		const start = 77
		for _, typ := range []reduce.Type{reduce.Uint8, reduce.Float16, reduce.BFloat16, reduce.Float32, reduce.Int64} {
			for _, op := range []reduce.Op{reduce.Sum, reduce.Avg, reduce.Max} {
				for i, block := range []int{8, 16, 32, 64, 128, 256, 512} {
					if !bounded.Long() && (i+int(op)+int(typ))%3 != 0 {
						continue
					}
					n := (1 + r.IntN(1100/typ.Size())) * typ.Size()
					srcs := sources(r, typ, 2+r.IntN(3), n)
					want := finished(typ, op, srcs)
					for from := 0; from < n; from += block {
						to := min(n, from+block)
						// before is a state in which all bytes up to from are done.
						before := func() (dsts [][]byte, log []byte) {
							for _, s := range srcs {
								d := make([]byte, n+5)[5:]
								copy(d, want[:from])
								copy(d[from:], s[from:])
								dsts = append(dsts, d)
							}
							log = newLog()
							state(log, start+from, start+from)
							return dsts, log
						}
						resume := func(what string, dsts [][]byte, log []byte) {
							t.Helper()
							reduce.ApplyAllLogged(typ, op, dsts, dsts, nil, log, start)
							for i, d := range dsts {
								if !bytes.Equal(d, want) {
									t.Fatalf("%v of %d x %d bytes of %v, bytes %d to %d %s: destination %d: %s",
										op, len(srcs), n, typ, from, to, what, i, differ(typ, d, want))
								}
							}
							if reduce.Logged(log) != start+n {
								t.Fatalf("log ends at %d, want %d", reduce.Logged(log), start+n)
							}
						}
						// The block is being filled.
						dsts, log := before()
						fill(r, reduce.Uint8, log[64:])
						copy(log[64:][:r.IntN(to-from+1)], want[from:])
						resume("being logged", dsts, log)
						// Sealed, and stored to none, to some with a part of the next, to all.
						for whole := range len(srcs) + 1 {
							dsts, log = before()
							fill(r, reduce.Uint8, log[64:])
							copy(log[64:], want[from:to])
							state(log, start+from, start+to)
							for i, d := range dsts {
								switch {
								case i < whole:
									copy(d[from:], want[from:to])
								case i == whole:
									copy(d[from:], want[from:to][:r.IntN(to-from+1)])
								}
							}
							resume(fmt.Sprint("sealed and stored to ", whole), dsts, log)
						}
					}
				}
			}
		}
	})
}

func TestLoggedAllocatesNothing(t *testing.T) {
	each(t, never, func(t *testing.T) {
		bufs, log := [][]byte{make([]byte, 4099), make([]byte, 4099), make([]byte, 4099)}, newLog()
		for _, op := range []reduce.Op{reduce.Sum, reduce.Avg} {
			if n := testing.AllocsPerRun(3, func() {
				reduce.ResetLog(log)
				reduce.ApplyAllLogged(reduce.Uint8, op, bufs, bufs, nil, log, 0)
			}); n != 0 {
				t.Errorf("%v allocates %v times", op, n)
			}
		}
	})
}

func TestLogsOfOthersPanic(t *testing.T) {
	b := [][]byte{make([]byte, 64), make([]byte, 64)}
	for name, f := range map[string]func(log []byte){
		"short":        func(log []byte) { reduce.ApplyAllLogged(reduce.Int8, reduce.Sum, b, b, nil, log[:100], 0) },
		"odd address":  func(log []byte) { reduce.ApplyAllLogged(reduce.Int8, reduce.Sum, b, b, nil, log[1:], 0) },
		"before start": func(log []byte) { reduce.ApplyAllLogged(reduce.Int8, reduce.Sum, b, b, nil, log, 8) },
		"sealed past end": func(log []byte) {
			state(log, 32, 65)
			reduce.ApplyAllLogged(reduce.Int8, reduce.Sum, b, b, nil, log, 0)
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f(append(newLog(), 0))
		}()
	}
}
