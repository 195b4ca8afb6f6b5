package serve

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/weft-fabric/weft/model/heap"
	"github.com/weft-fabric/weft/model/topo"
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
	kind kind
	id   int // request or worker
	part int
}

type kind uint8

const (
	arrives kind = iota
	layersDone
	takes // a handed-over prompt may join its decode worker
	stepEnds
)

// Before orders events by time, then by when they were told.
func (e event) Before(f event) bool {
	return cmp.Or(cmp.Compare(e.at, f.at), cmp.Compare(e.seq, f.seq)) < 0
}

// prompt is a request on its way to the decode worker.
type prompt struct {
	start, end, took float64 // when it arrived, when its last layer was done, and how long it then took to be there
	parts            int     // flows and parts that are not through
	lane             int     // the group of all prefill workers' groups that takes it
}

// decoder is a decode worker.
type decoder struct {
	run     []running
	waiting []int // requests whose KV cache is there
	used    float64
	busy    bool
	batch   int // how many of run are in the step under way; the others came since
}

// apart is what prefill and decode workers do on one clock.
type apart struct {
	*Engine
	reqs     []Request
	users    int // that each wait for an answer before they ask again; 0 for requests that come when they come
	capacity float64
	done     func(start, first, end, transfer float64, r Request)
	res      *Result

	now      float64
	events   heap.Heap[event]
	told     int
	next     int // the first request that has not arrived
	prompts  []prompt
	free     []float64 // by prefill worker and group: when it takes the next prompt
	decoders []decoder
	flows    *sim.Flows
	gpus     []topo.NodeID
	of       []int // by transfer: its request
	away     *rand.Rand
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
	a := &apart{Engine: e, reqs: reqs, users: users, capacity: capacity, done: done, res: res, flows: flows, gpus: gpus,
		prompts: make([]prompt, len(reqs)), free: make([]float64, e.Layout.Prefill*e.groups()),
		decoders: make([]decoder, e.Layout.Replicas), away: rand.New(rand.NewPCG(7, 7))}
	a.begin()
	if err := a.run(); err != nil {
		return err
	}
	res.KVLimit = flows.Limit()
	return nil
}

// begin lets the first requests arrive.
func (a *apart) begin() {
	for i, r := range a.reqs {
		a.prompts[i].start = r.At
	}
	first, think := len(a.reqs), a.turn()
	if a.users > 0 {
		first, think = min(first, a.users), 0
	}
	for ; a.next < first; a.next++ {
		a.push(event{at: a.reqs[a.next].At + think, kind: arrives, id: a.next})
	}
}

func (a *apart) push(e event) {
	e.seq = a.told
	a.told++
	a.events.Push(e)
}

// run goes from event to event, transfers among them, until there are none.
func (a *apart) run() error {
	for {
		flow, flowing := a.flows.Next()
		if a.events.Len() == 0 && !flowing {
			return nil
		}
		if flowing && (a.events.Len() == 0 || flow <= picoseconds(a.events.First().at)) {
			a.handedOver(flow)
			continue
		}
		x := a.events.Pop()
		a.now = max(a.now, x.at)
		if err := a.happen(x); err != nil {
			return err
		}
	}
}

func picoseconds(s float64) unit.Time { return unit.Time(math.Round(s * 1e12)) }

func (a *apart) happen(x event) error {
	switch x.kind {
	case arrives:
		a.arrive(x.id)
	case layersDone:
		return a.send(x.id, x.part)
	case takes:
		k := x.id % a.Layout.Replicas
		a.decoders[k].waiting = append(a.decoders[k].waiting, x.id)
		a.step(k)
	case stepEnds:
		a.ended(x.id)
	}
	return nil
}

// arrive gives a request to the prefill worker that is free first.
func (a *apart) arrive(i int) {
	w := 0
	for k := range a.free {
		if a.free[k] < a.free[w] {
			w = k
		}
	}
	tokens := a.fresh(a.reqs[i])
	begin := max(a.free[w], a.now)
	old := a.reqs[i].Input - tokens
	dp := a.groups()
	prompts := 1 // groups of a worker go in step: their prompts at the same time
	for k := w - w%dp; k < w-w%dp+dp; k++ {
		if k != w && a.free[k] > begin {
			prompts++
		}
	}
	took := max(a.Step(Work{Prompts: prompts, Prompt: prompts * tokens, Before: old}), a.load(old))
	p := &a.prompts[i]
	p.lane, p.end, p.parts = w, begin+took, streams+1
	a.res.spent.prefill += took / float64(a.Layout.PP)
	a.free[w] = begin + took/float64(a.Layout.PP) // the first stage is free for the next
	most := 1 - 1/float64(a.Model.Layers)         // of the time: a layer's part is ready when the layer is done
	for part := range streams {
		a.push(event{at: begin + took*most*float64(part+1)/streams, kind: layersDone, id: i, part: part})
	}
	a.push(event{at: p.end, kind: layersDone, id: i, part: streams})
}

// send begins the flows of a part of a prompt's layers, from each GPU of the prefill worker to its counterpart.
func (a *apart) send(i, part int) error {
	share := 1 / float64(a.Model.Layers) // the last layer
	if part < streams {
		share = (1 - share) / streams
	}
	p, dp := &a.prompts[i], a.groups()
	size := a.Layout.Ranks() * a.Layout.PP
	from := (a.Layout.Replicas+p.lane/dp)*size + p.lane%dp*a.Layout.TP
	to := i%a.Layout.Replicas*size + i/a.Layout.Replicas%dp*a.Layout.TP
	for stage := range a.Layout.PP {
		for t := range a.Layout.TP {
			at := stage*a.Layout.Ranks() + t
			if _, err := a.flows.Start(picoseconds(a.now), a.gpus[from+at], a.gpus[to+at], a.Holds(a.reqs[i].Input)*share/kvShare); err != nil {
				return err
			}
			a.of = append(a.of, i)
			p.parts++
		}
	}
	p.parts-- // this part
	return nil
}

// handedOver ends transfers; a prompt whose last one this is joins its decode worker.
func (a *apart) handedOver(flow unit.Time) {
	a.now = max(a.now, flow.Seconds())
	for _, id := range a.flows.Advance(flow) {
		i := a.of[id]
		p := &a.prompts[i]
		if p.parts--; p.parts > 0 {
			continue
		}
		at := max(a.now+a.flows.Latency(id).Seconds(), p.end) + kvStart
		p.took = at - p.end
		a.push(event{at: at, kind: takes, id: i})
	}
}

// step begins the next step of a decode worker, with the requests for which there is space.
func (a *apart) step(k int) {
	d := &a.decoders[k]
	a.admit(d)
	if d.busy || len(d.run) == 0 {
		return
	}
	w := Work{Decode: len(d.run)}
	for _, x := range d.run {
		w.Context += x.ctx
	}
	w.Context /= w.Decode
	w = w.inStages(a.Layout.PP, a.Chunk)
	d.busy, d.batch = true, len(d.run)
	step := a.Step(w)
	a.res.spent.add(a.Engine, w, step)
	a.push(event{at: a.now + step, kind: stepEnds, id: k})
}

// admit takes waiting requests in.
func (a *apart) admit(d *decoder) {
	for len(d.waiting) > 0 {
		if a.full(len(d.run), a.res) {
			return
		}
		i := d.waiting[0]
		r := a.reqs[i]
		need := a.Holds(r.Input + r.Output)
		if d.used+need > a.capacity {
			a.res.Limit = waitsForSpace
			return
		}
		d.waiting = d.waiting[1:]
		if r.Output == 1 { // the prompt's own token was all
			a.finish(i, a.now)
			continue
		}
		d.used += need
		d.run = append(d.run, running{r: i, ctx: r.Input, left: r.Output - 1, first: a.now})
	}
}

// ended gives each request of a step its tokens.
func (a *apart) ended(k int) {
	d := &a.decoders[k]
	d.busy = false
	at := 0
	for range d.batch {
		r := &d.run[at]
		r.advance(1, a.gain())
		if r.left > 0 {
			at++
			continue
		}
		d.used -= a.Holds(a.reqs[r.r].Input + a.reqs[r.r].Output)
		a.finish(r.r, r.first)
		d.run = slices.Delete(d.run, at, at+1)
	}
	a.step(k)
}

// finish tells of a request that has all its tokens; its user asks again.
func (a *apart) finish(i int, first float64) {
	a.done(a.prompts[i].start, first, a.now, a.prompts[i].took, a.reqs[i])
	if a.users > 0 && a.next < len(a.reqs) {
		a.prompts[a.next].start = a.now
		a.push(event{at: a.now + a.turn()*(.5+a.away.Float64()), kind: arrives, id: a.next})
		a.next++
	}
}
