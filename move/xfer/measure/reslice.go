package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/comm"
)

// resliced is a KV cache whose heads four prefill ranks share, on its way to two decode ranks: each of those takes the
// heads of two. Both sides have pools of blocks, layer first, heads before tokens.
type resliced struct {
	from, to kv.Layout
	table    []int
}

const prefills, decodes = 4, 2

// reslice is a cache of about the given number of bytes: eight heads of 128 half-precision numbers in 16 layers.
func reslice(bytes int64) resliced {
	l := kv.Layout{Layers: 16, Heads: 8, Dim: 128, Elem: 2, Planes: 2, Block: 16, HeadsFirst: true, Ranks: prefills}
	l.Blocks = max(1, int(bytes)/(l.TokenBytes()*l.Block))
	r := resliced{from: l, to: l, table: make([]int, l.Blocks)}
	r.to.Ranks = decodes
	for i := range r.table {
		r.table[i] = i
	}
	return r
}

func (r *resliced) moves() ([]kv.Copy, error) {
	return kv.Moves(r.from, r.to, r.table, r.table, kv.Part{Tokens: r.from.Blocks * r.from.Block})
}

func (r *resliced) bytes() int64 { return int64(prefills * r.from.Bytes()) }

// sendRecv is the work of a rank: the first four send what they have, the others put it where it belongs.
func (r *resliced) sendRecv(ctx context.Context, c *comm.Comm) error {
	if c.Rank() < prefills {
		if err := comm.Send(ctx, c, make([]int32, r.from.Bytes()/4), prefills+c.Rank()*decodes/prefills); err != nil {
			return err
		}
		return comm.Barrier(ctx, c)
	}
	me := c.Rank() - prefills
	pool := make([]byte, r.to.Bytes())
	copies, err := r.moves()
	if err != nil {
		return err
	}
	for k := range prefills / decodes {
		source := me*prefills/decodes + k
		came := make([]int32, r.from.Bytes()/4)
		if err := comm.Recv(ctx, c, came, source); err != nil {
			return err
		}
		b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(came))), len(came)*4)
		for _, x := range copies {
			if x.From == source && x.To == me {
				copy(pool[x.Dst:][:x.Len], b[x.Src:][:x.Len])
			}
		}
	}
	return comm.Barrier(ctx, c)
}

// reslice moves such a cache in both ways.
func (c *Config) reslice(ctx context.Context, size int64) (Line, error) {
	r := reslice(size)
	line := Line{What: fmt.Sprintf("%v, heads of four ranks to two", unit.Bytes(r.bytes()))}
	s, err := c.ranks(ctx, prefills+decodes, "reslice", size)
	if err != nil {
		return line, fmt.Errorf("%s by send and receive: %w", line.What, err)
	}
	copies, err := r.moves()
	if err != nil {
		return line, err
	}
	var kids []*Child
	var agents []*xfer.Agent
	defer func() {
		for _, a := range agents {
			a.Close()
		}
		for _, k := range kids {
			k.Stop()
		}
	}()
	for d := range decodes {
		k, err := Start(ctx, append(slices.Clone(c.Command), "--name", fmt.Sprintf("decode%d", d), "--region",
			fmt.Sprintf("pool=host:%d", r.to.Bytes()), "--quiet"), "WEFT_TOKEN="+c.Token)
		if err != nil {
			return line, err
		}
		kids = append(kids, k)
	}
	var posts []func() (*xfer.Request, error)
	for p := range prefills {
		a, err := xfer.New(xfer.Config{Name: fmt.Sprintf("prefill%d", p), Token: c.Token, Timeout: 20 * time.Second})
		if err != nil {
			return line, err
		}
		agents = append(agents, a)
		b, err := a.Alloc(r.from.Bytes())
		if err != nil {
			return line, err
		}
		mine, err := a.Register("pool", xfer.Memory(b), 0)
		if err != nil {
			return line, err
		}
		for d := range decodes {
			peer, err := a.Open(kids[d].Hello.Description)
			if err != nil {
				return line, err
			}
			theirs, err := peer.Region("pool")
			if err != nil {
				return line, err
			}
			var here, there []xfer.Desc
			for _, x := range copies {
				if x.From == p && x.To == d {
					here, there = append(here, mine.At(int64(x.Src), int64(x.Len))), append(there, theirs.At(int64(x.Dst), int64(x.Len)))
				}
			}
			if len(here) == 0 {
				continue
			}
			local, err := a.Prepare(nil, here)
			if err != nil {
				return line, err
			}
			remote, err := a.Prepare(peer, there)
			if err != nil {
				return line, err
			}
			posts = append(posts, func() (*xfer.Request, error) {
				return a.Post(xfer.Transfer{Op: xfer.Write, Local: local, Remote: remote, Notice: []byte{1}})
			})
		}
	}
	var times []float64
	for n := range moves + 1 {
		began := time.Now()
		var all []*xfer.Request
		for _, post := range posts {
			q, err := post()
			if err != nil {
				return line, err
			}
			all = append(all, q)
		}
		var errs []error
		for _, q := range all {
			errs = append(errs, q.Wait(ctx))
		}
		if err := errors.Join(errs...); err != nil {
			return line, fmt.Errorf("%s by transfers: %w", line.What, err)
		}
		if n > 0 {
			times = append(times, time.Since(began).Seconds())
		}
	}
	rate := func(s float64) string {
		return fmt.Sprintf("%.2f ms, %v", s*1e3, unit.Rate(float64(r.bytes())/s))
	}
	line.SendRecv = rate(s.Each) + "; the receiver puts heads in their places"
	line.Transfer = fmt.Sprintf("%s; %d descriptors do it", rate(median(times)), len(copies))
	return line, nil
}
