package serve

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// With prefill and decode apart, everything happens on one clock: prompts wait for a worker, their KV cache crosses the
// cluster's links while they run, and decode workers take what has come whole.
//
//	arrival ─► first free prefill worker ─┬─ layers, as they are done ─► flows over the links ─┐
//	                                      └─ the last layer ──────────────────────────────────┴─► decode worker's batch
//
// Every GPU of a prefill worker sends to the GPU of the same rank of the decode worker. Transfers of all workers share NICs,
// leaf and spine links as messages of programs do in package sim.

// kvShare is what a transfer reaches of what a collective does on the same link: 150 against 192 GB/s on a line of
// 200 were measured.
const kvShare = .78

// kvStart is the seconds to set a transfer up.
const kvStart = .42e-3

// streams is in how many parts the layers of a prompt but the last are handed over while it runs.
const streams = 8

// event of serving: a request arrives, a part of a prompt's layers is done, a decode worker's step ends.
type event struct {
	at   float64
	seq  int
	kind int
	id   int // request or worker
	part int
}

const (
	arrives = iota
	layersDone
	takes // a handed-over prompt may join its decode worker
	stepEnds
)

// clock orders events by time, then by when they were told.
type clock struct {
	heap []event
	seq  int
}

func (c *clock) push(e event) {
	e.seq = c.seq
	c.seq++
	at, _ := slices.BinarySearchFunc(c.heap, e, func(a, b event) int { return -cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
	c.heap = slices.Insert(c.heap, at, e)
}

func (c *clock) pop() event {
	e := c.heap[len(c.heap)-1]
	c.heap = c.heap[:len(c.heap)-1]
	return e
}

// decoder is a decode worker.
type decoder struct {
	run     []running
	waiting []int // requests whose KV cache is there
	used    float64
	busy    bool
	batch   int // how many of run are in the step under way; the others came since
}

// serveApart runs all workers on one clock.
func (e *Engine) serveApart(reqs []Request, users int, capacity float64, done func(start, first, end, transfer float64, r Request),
	res *Result) error {
	graph, gpus := e.Machine.Places()
	o := e.Fabric
	o.Catalog, o.Measured, o.Costs = e.Machine.Catalog(), true, sim.DefaultCosts(graph, e.Machine.Catalog())
	flows, err := sim.NewFlows(graph, o)
	if err != nil {
		return err
	}
	size := e.Layout.Ranks() * e.Layout.PP
	dp := e.groups()
	var c clock
	next := 0
	for ; next < len(reqs); next++ {
		if users > 0 && next >= users {
			break
		}
		at := reqs[next].At
		if users == 0 {
			at += e.turn()
		}
		c.push(event{at: at, kind: arrives, id: next})
	}
	starts, ends, took := make([]float64, len(reqs)), make([]float64, len(reqs)), make([]float64, len(reqs))
	for i := range reqs {
		starts[i] = reqs[i].At
	}
	parts := make([]int, len(reqs))              // flows and parts of a request that are not through
	lane := make([]int, len(reqs))               // the group of all prefill workers' groups that takes a request's prompt
	free := make([]float64, e.Layout.Prefill*dp) // when a group of a prefill worker takes the next prompt
	decoders := make([]decoder, e.Layout.Replicas)
	var of []int // by transfer: its request
	away := rand.New(rand.NewPCG(7, 7))
	ps := func(s float64) unit.Time { return unit.Time(math.Round(s * 1e12)) }
	now := 0.0

	finish := func(i int, first float64) {
		done(starts[i], first, now, took[i], reqs[i])
		if users > 0 && next < len(reqs) { // the user asks again
			starts[next] = now
			c.push(event{at: now + e.turn()*(.5+away.Float64()), kind: arrives, id: next})
			next++
		}
	}
	step := func(k int) {
		d := &decoders[k]
		for len(d.waiting) > 0 && (e.Most == 0 || len(d.run) < e.Most) {
			i := d.waiting[0]
			need := e.Holds(reqs[i].Input + reqs[i].Output)
			if d.used+need > capacity {
				res.Limit = "KV cache: requests wait for space"
				break
			}
			d.waiting = d.waiting[1:]
			if reqs[i].Output == 1 { // the prompt's own token was all
				finish(i, now)
				continue
			}
			d.used += need
			d.run = append(d.run, running{r: i, ctx: reqs[i].Input, left: reqs[i].Output - 1, first: now})
		}
		if d.busy || len(d.run) == 0 {
			return
		}
		w := Work{Decode: len(d.run)}
		for _, x := range d.run {
			w.Context += x.ctx
		}
		w.Context /= w.Decode
		w = w.inStages(e.Layout.PP, e.Chunk)
		d.busy, d.batch = true, len(d.run)
		step := e.Step(w)
		res.spent.add(e, w, step)
		c.push(event{at: now + step, kind: stepEnds, id: k})
	}
	send := func(i, part int) error {
		share := 1 / float64(e.Model.Layers) // the last layer
		if part < streams {
			share = (1 - share) / streams
		}
		from := (e.Layout.Replicas+lane[i]/dp)*size + lane[i]%dp*e.Layout.TP
		to := i%e.Layout.Replicas*size + i/e.Layout.Replicas%dp*e.Layout.TP
		for stage := range e.Layout.PP {
			for t := range e.Layout.TP {
				at := stage*e.Layout.Ranks() + t
				if _, err := flows.Start(ps(now), gpus[from+at], gpus[to+at], e.Holds(reqs[i].Input)*share/kvShare); err != nil {
					return err
				}
				of = append(of, i)
				parts[i]++
			}
		}
		parts[i]-- // this part
		return nil
	}
	for {
		flow, flowing := flows.Next()
		if len(c.heap) == 0 && !flowing {
			break
		}
		if flowing && (len(c.heap) == 0 || flow <= ps(c.heap[len(c.heap)-1].at)) {
			now = max(now, flow.Seconds())
			for _, id := range flows.Advance(flow) {
				i := of[id]
				if parts[i]--; parts[i] == 0 {
					at := max(now+flows.Latency(id).Seconds(), ends[i]) + kvStart
					took[i] = at - ends[i]
					c.push(event{at: at, kind: takes, id: i})
				}
			}
			continue
		}
		x := c.pop()
		now = max(now, x.at)
		switch x.kind {
		case arrives:
			i, w := x.id, 0
			for k := range free {
				if free[k] < free[w] {
					w = k
				}
			}
			tokens := e.fresh(reqs[i])
			begin := max(free[w], now)
			old := reqs[i].Input - tokens
			prompts := 1 // groups of a worker go in step: their prompts at the same time
			for k := w - w%dp; k < w-w%dp+dp; k++ {
				if k != w && free[k] > begin {
					prompts++
				}
			}
			took := max(e.Step(Work{Prompts: prompts, Prompt: prompts * tokens, Before: old}), e.load(old))
			lane[i], ends[i], parts[i] = w, begin+took, streams+1
			res.spent.prefill += took / float64(e.Layout.PP)
			free[w] = begin + took/float64(e.Layout.PP) // the first stage is free for the next
			most := 1 - 1/float64(e.Model.Layers)       // of the time: a layer's part is ready when the layer is done
			for p := range streams {
				c.push(event{at: begin + took*most*float64(p+1)/streams, kind: layersDone, id: i, part: p})
			}
			c.push(event{at: ends[i], kind: layersDone, id: i, part: streams})
		case layersDone:
			if err := send(x.id, x.part); err != nil {
				return err
			}
		case takes:
			k := x.id % e.Layout.Replicas
			decoders[k].waiting = append(decoders[k].waiting, x.id)
			step(k)
		case stepEnds:
			d := &decoders[x.id]
			d.busy = false
			for k, left := 0, d.batch; left > 0; left-- {
				r := &d.run[k]
				r.advance(1, e.gain())
				if r.left > 0 {
					k++
					continue
				}
				d.used -= e.Holds(reqs[r.r].Input + reqs[r.r].Output)
				finish(r.r, r.first)
				d.run = slices.Delete(d.run, k, k+1)
			}
			step(x.id)
		}
	}
	res.KVLimit = flows.Limit()
	return nil
}
