package measure

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/shm"
	"github.com/weft-fabric/weft/run/transport/tcp"
	"github.com/weft-fabric/weft/run/transport/ucx"
)

const envTask = "WEFT_BENCH_WAY"

// Main is what a rank does that Run started.
func Main(ctx context.Context, in io.Reader, out io.Writer) error {
	var t task
	if err := json.Unmarshal([]byte(os.Getenv(envTask)), &t); err != nil {
		return fmt.Errorf("%s: %w; it is set by 'weft explain transports'", envTask, err)
	}
	i := slices.IndexFunc(Ways, func(w Way) bool { return w.Name == t.Way })
	if i < 0 {
		return fmt.Errorf("%s: unknown way %q", envTask, t.Way)
	}
	f, err := t.do(ctx, Ways[i], in, out)
	if err != nil {
		f.Error = err.Error()
	}
	return json.NewEncoder(out).Encode(line{Done: &f})
}

// do opens the way and measures it.
func (t task) do(ctx context.Context, w Way, in io.Reader, out io.Writer) (f figures, err error) {
	answers := bufio.NewScanner(in)
	answers.Buffer(nil, 1<<20)
	gather := func(_ context.Context, mine []byte) ([][]byte, error) {
		if mine == nil {
			mine = []byte{}
		}
		if err := json.NewEncoder(out).Encode(line{Gather: mine}); err != nil {
			return nil, err
		}
		if !answers.Scan() {
			return nil, errors.New("the other process is gone")
		}
		var l line
		err := json.Unmarshal(answers.Bytes(), &l)
		return l.All, err
	}
	var e transport.Endpoint
	switch w.Transport {
	case "tcp":
		e, err = tcp.Open(ctx, tcp.Config{Rank: t.Rank, Size: 2, Gather: gather})
	case "shm":
		e, err = shm.Open(ctx, shm.Config{Rank: t.Rank, Size: 2, Gather: gather})
	case "ucx":
		e, err = ucx.Open(ctx, ucx.Config{Rank: t.Rank, Size: 2, Gather: gather, Transports: strings.Split(w.UCX, ",")})
	}
	if err != nil {
		return f, err
	}
	defer func() {
		if c := e.Close(); err == nil {
			err = c
		}
	}()
	f.Over = e.Can().Name
	p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
	if err != nil {
		return f, err
	}
	p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, ctx.Err)
	b := make([]byte, t.Message)
	if !w.Plain {
		if b, err = e.Verbs().Alloc(t.Message); err != nil {
			return f, err
		}
	}
	for i := range b {
		b[i] = byte(i)
	}
	x := exchange{p: p, me: t.Rank, peer: 1 - t.Rank, b: b}
	if t.Messages > 0 {
		if _, err := x.stream(4); err != nil {
			return f, err
		}
		mark(begin)
		_, err := x.stream(t.Messages)
		mark(end)
		return f, err
	}
	if f.Latency, f.Best, err = x.latency(t.For); err != nil {
		return f, err
	}
	f.Bandwidth, f.CPU, err = x.bandwidth(t.For)
	return f, err
}

// exchange is two processes that talk.
type exchange struct {
	p        transport.Port
	me, peer int
	b        []byte
}

// latency sends 8 bytes to and fro for a while: half the median round, and half the quickest, in us.
func (x *exchange) latency(d time.Duration) (median, best float64, err error) {
	b := make([]byte, 8)
	var rounds []float64
	const warm = 200
	for k, began := 0, time.Now(); ; k++ {
		if x.me == 1 {
			if err := x.p.Recv(0, 0, b); err != nil {
				return 0, 0, err
			}
			if err := x.p.Send(0, 0, b); err != nil {
				return 0, 0, err
			}
			if binary.LittleEndian.Uint64(b) == 1 { // the last
				return 0, 0, nil
			}
			continue
		}
		last := time.Since(began) > d && k > 2*warm
		binary.LittleEndian.PutUint64(b, 0)
		if last {
			b[0] = 1
		}
		from := time.Now()
		if err := x.p.Send(1, 0, b); err != nil {
			return 0, 0, err
		}
		if err := x.p.Recv(1, 0, b); err != nil {
			return 0, 0, err
		}
		if k >= warm {
			rounds = append(rounds, time.Since(from).Seconds()*1e6/2)
		}
		if last {
			slices.Sort(rounds)
			return rounds[len(rounds)/2], rounds[0], nil
		}
	}
}

// stream sends long messages from rank 0 to rank 1, and a word back.
func (x *exchange) stream(messages int) (took time.Duration, err error) {
	began := time.Now()
	for range messages {
		if x.me == 0 {
			err = x.p.Send(1, 1, x.b)
		} else {
			err = x.p.Recv(0, 1, x.b)
		}
		if err != nil {
			return 0, err
		}
	}
	if x.me == 0 {
		err = x.p.Recv(1, 2, nil)
	} else {
		err = x.p.Send(0, 2, nil)
	}
	return time.Since(began), err
}

// bandwidth is GB/s of long messages, and the processor time of this process, seconds a GB.
func (x *exchange) bandwidth(d time.Duration) (rate, cpu float64, err error) {
	took, err := x.stream(8)
	if err != nil {
		return 0, 0, err
	}
	// Rank 0 says how many fit in the time.
	n := make([]byte, 8)
	if x.me == 0 {
		binary.LittleEndian.PutUint64(n, uint64(min(max(8*d.Seconds()/took.Seconds(), 8), 1e6)))
		err = x.p.Send(1, 3, n)
	} else {
		err = x.p.Recv(0, 3, n)
	}
	if err != nil {
		return 0, 0, err
	}
	messages := int(binary.LittleEndian.Uint64(n))
	before := Used()
	if took, err = x.stream(messages); err != nil {
		return 0, 0, err
	}
	gb := float64(messages) * float64(len(x.b)) / 1e9
	return gb / took.Seconds(), (Used() - before).Seconds() / gb, nil
}
