//go:build linux

package tcp

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/buffer"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
	"github.com/weft-fabric/weft/run/transport/rendezvous"
)

// The benchmarks run between processes. Rank 0 is the benchmark's own; it tells
// the others through the room how often to repeat.

// benchRank is one of the ranks of a benchmark.
type benchRank struct {
	rank, n, size int
	room          *rendezvous.Meeting
	e             *Endpoint
	p             transport.Port
	fd            int // of a plain socket, between two ranks
	seq           uint64
	a, b          []byte
	do            func(r *benchRank)
}

var benchModes = map[string]func(r *benchRank){
	"pingpong": func(r *benchRank) {
		r.begin()
		if r.rank == 0 {
			r.must(r.p.Send(1, 0, r.a))
			r.must(r.p.Recv(1, 0, r.b))
		} else if r.rank == 1 {
			r.must(r.p.Recv(0, 0, r.b))
			r.must(r.p.Send(0, 0, r.a))
		}
	},
	"stream": func(r *benchRank) {
		r.begin()
		if r.rank == 0 {
			r.must(r.p.Send(1, 0, r.a))
		} else if r.rank == 1 {
			r.must(r.p.Recv(0, 0, r.b))
		}
	},
	// Every rank exchanges with one that is 1, 2, 4, ... away, as small
	// all-reductions do.
	"doubling": func(r *benchRank) {
		r.begin()
		for d := 1; d < r.n; d *= 2 {
			o := r.rank ^ d
			r.p.Expect(o, 0, r.b)
			r.must(r.p.Send(o, 0, r.a))
			r.must(r.p.Recv(o, 0, r.b))
		}
	},
	// A ring's all-reduction: the operands of each step are added as they come.
	"ring": func(r *benchRank) {
		r.begin()
		n := r.n
		part := len(r.a) / n &^ 63
		right, left := (r.rank+1)%n, (r.rank+n-1)%n
		for i := range n - 1 {
			out := (r.rank - i + 2*n) % n * part
			in := (r.rank - i - 1 + 2*n) % n * part
			// The operand of this step is wanted while the other is sent.
			add := func(piece []byte) {
				d := r.a[in : in+len(piece)]
				reduce.Apply(reduce.Float32, reduce.Sum, d, d, piece)
				in += len(piece)
			}
			r.must(r.p.Exchange(transport.Outgoing{To: right, Bytes: r.a[out : out+part]}, transport.Incoming{From: left, N: part, Take: add}, nil))
		}
		for i := range n - 1 {
			out := (r.rank - i + 1 + 2*n) % n * part
			in := (r.rank - i + 2*n) % n * part
			r.p.Expect(left, 0, r.a[in:in+part])
			r.must(r.p.Send(right, 0, r.a[out:out+part]))
			r.must(r.p.Recv(left, 0, r.a[in:in+part]))
		}
	},
	// The same with operands that are taken once the other is sent.
	"ring-late": func(r *benchRank) {
		r.begin()
		n := r.n
		part := len(r.a) / n &^ 63
		right, left := (r.rank+1)%n, (r.rank+n-1)%n
		for i := range n - 1 {
			out := (r.rank - i + 2*n) % n * part
			in := (r.rank - i - 1 + 2*n) % n * part
			r.must(r.p.Send(right, 0, r.a[out:out+part]))
			r.must(r.p.Take(left, 0, part, func(piece []byte) {
				d := r.a[in : in+len(piece)]
				reduce.Apply(reduce.Float32, reduce.Sum, d, d, piece)
				in += len(piece)
			}))
		}
		for i := range n - 1 {
			out := (r.rank - i + 1 + 2*n) % n * part
			in := (r.rank - i + 2*n) % n * part
			r.p.Expect(left, 0, r.a[in:in+part])
			r.must(r.p.Send(right, 0, r.a[out:out+part]))
			r.must(r.p.Recv(left, 0, r.a[in:in+part]))
		}
	},
	"plain-pingpong": func(r *benchRank) {
		if r.rank == 0 {
			r.plain(r.a, nil)
			r.plain(nil, r.b)
		} else {
			r.plain(nil, r.b)
			r.plain(r.a, nil)
		}
	},
	"plain-stream": func(r *benchRank) {
		if r.rank == 0 {
			r.plain(r.a, nil)
		} else {
			r.plain(nil, r.b)
		}
	},
	"plain-doubling": func(r *benchRank) { r.plain(r.a, r.b) },
}

// plain writes out and reads in over the plain socket at once, spinning.
func (r *benchRank) plain(out, in []byte) {
	for len(out) > 0 || len(in) > 0 {
		if len(out) > 0 {
			n, err := socket.Send2(r.fd, out[:min(len(out), frame.PieceSize)], nil, &socket.Vector{})
			r.must(err)
			out = out[max(n, 0):]
		}
		if len(in) > 0 {
			n, err := socket.Recv(r.fd, in[:min(len(in), frame.PieceSize)])
			r.must(err)
			in = in[max(n, 0):]
		}
	}
}

func (r *benchRank) begin() {
	r.seq++
	r.p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: r.seq},
		func() error { return nil })
}

func (r *benchRank) must(err error) {
	if err != nil {
		panic(fmt.Sprintf("rank %d: %v", r.rank, err))
	}
}

// open connects the rank.
func (r *benchRank) open(addr string, ln net.Listener, mode string, streams int) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var err error
	r.room, err = rendezvous.Join(ctx, rendezvous.Config{Addr: addr, Listener: ln, Rank: r.rank, Size: r.n, Token: "t"})
	r.must(err)
	r.a, r.b, r.do = buffer.Aligned(r.size), buffer.Aligned(r.size), benchModes[mode]
	if strings.HasPrefix(mode, "plain") {
		r.plainOpen(ctx)
		return
	}
	r.e, err = Open(ctx, Config{Rank: r.rank, Size: r.n, Gather: r.room.Gather, Token: "t", Streams: streams})
	r.must(err)
	members := make([]int, r.n)
	for i := range members {
		members[i] = i
	}
	r.p, err = r.e.Port(transport.Group{ID: 1, Epoch: 1, Members: members})
	r.must(err)
}

func (r *benchRank) plainOpen(ctx context.Context) {
	var conn net.Conn
	if r.rank == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		r.must(err)
		defer l.Close()
		_, err = r.room.Gather(ctx, []byte(l.Addr().String()))
		r.must(err)
		conn, err = l.Accept()
		r.must(err)
	} else {
		all, err := r.room.Gather(ctx, nil)
		r.must(err)
		conn, err = net.Dial("tcp", string(all[0]))
		r.must(err)
	}
	f, err := conn.(*net.TCPConn).File()
	r.must(err)
	conn.Close()
	r.fd = int(f.Fd())
	r.must(unix.SetsockoptInt(r.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	benchFiles = append(benchFiles, f)
}

var benchFiles []*os.File // kept open

// times learns how often to repeat.
func (r *benchRank) times(n int) int {
	all, err := r.room.Gather(context.Background(), binary.LittleEndian.AppendUint64(nil, uint64(n)))
	r.must(err)
	return int(binary.LittleEndian.Uint64(all[0]))
}

// benchChild is a rank in its own process.
func benchChild() {
	atoi := func(s string) int { n, _ := strconv.Atoi(os.Getenv(s)); return n }
	r := &benchRank{rank: atoi("RANK"), n: atoi("WORLD_SIZE"), size: atoi("BENCH_SIZE")}
	r.open(os.Getenv("WEFT_TCP_BENCH"), nil, os.Getenv("BENCH_MODE"), atoi("BENCH_STREAMS"))
	for {
		n := r.times(0)
		if n == 0 {
			break
		}
		for range n {
			r.do(r)
		}
	}
	if r.e != nil {
		r.e.Close()
	}
}

func cpuSeconds() float64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// bench runs a mode between n processes.
func bench(b *testing.B, mode string, n, size, streams int) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	for i := 1; i < n; i++ {
		cmd := bounded.Server(b, os.Args[0])
		cmd.Env = append(os.Environ(), "WEFT_TCP_BENCH="+ln.Addr().String(), fmt.Sprint("RANK=", i), fmt.Sprint("WORLD_SIZE=", n),
			fmt.Sprint("BENCH_SIZE=", size), "BENCH_MODE="+mode, fmt.Sprint("BENCH_STREAMS=", streams))
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		defer func() { _ = cmd.Wait() }()
	}
	r := &benchRank{rank: 0, n: n, size: size}
	r.open(ln.Addr().String(), ln, mode, streams)
	defer func() {
		r.times(0)
		if r.e != nil {
			r.e.Close()
		}
		r.room.Close()
	}()
	r.times(20)
	for range 20 {
		r.do(r)
	}
	// Other work on the machine lengthens some batches, never shortens one: the
	// least is what the code needs, the median what it took.
	const batches = 20
	per := max(1, b.N/batches)
	times, used := make([]float64, batches), cpuSeconds()
	for k := range batches {
		r.times(per)
		start := time.Now()
		for range per {
			r.do(r)
		}
		times[k] = time.Since(start).Seconds() / float64(per)
	}
	used = cpuSeconds() - used
	slices.Sort(times)
	b.ReportMetric(times[0]*1e6, "us-least")
	b.ReportMetric(times[batches/2]*1e6, "us-median")
	if size >= 1<<16 {
		b.ReportMetric(float64(size)/times[0]/1e9, "GB/s")
		b.ReportMetric(used/(float64(size)*float64(per*batches)/1e9), "cpu-s/GB")
	}
	b.ReportMetric(0, "ns/op")
}

func name(mode string, n, size int) string { return fmt.Sprintf("%s/ranks=%d/bytes=%d", mode, n, size) }

// BenchmarkPair measures two ranks, beside plain sockets that spin.
func BenchmarkPair(b *testing.B) {
	for _, size := range []int{8, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20} {
		for _, mode := range []string{"pingpong", "plain-pingpong", "doubling", "plain-doubling", "stream", "plain-stream", "ring", "ring-late"} {
			if strings.HasPrefix(mode, "ring") && size < 1024 {
				continue
			}
			b.Run(name(mode, 2, size), func(b *testing.B) { bench(b, mode, 2, size, 1) })
		}
	}
}

// BenchmarkCrowd measures more ranks than cores.
func BenchmarkCrowd(b *testing.B) {
	for _, n := range []int{4, 8} {
		for _, size := range []int{8, 32 << 10, 256 << 10, 2 << 20, 16 << 20} {
			mode := "doubling"
			if size >= 256<<10 {
				mode = "ring"
			}
			b.Run(name(mode, n, size), func(b *testing.B) { bench(b, mode, n, size, 1) })
		}
	}
}
