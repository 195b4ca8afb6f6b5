package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/msccl"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/predict/tune"
)

// Fault is a part that is dead or slow.
type Fault struct {
	Part   string  `json:"part"`   // "leaf3", "n7:nic2", "n7", "leaf3:p5" or a link by its name
	Factor float64 `json:"factor"` // of its rate; 0: dead
}

// Collective is what is asked about one operation.
type Collective struct {
	File
	Faults  []Fault `json:"faults"`
	Op      string  `json:"op"`
	Bytes   int64   `json:"bytes"`
	Algo    string  `json:"algo"`    // a name, auto, nccl, synth or program
	Program string  `json:"program"` // its text, for algo program
	GPUs    int     `json:"gpus"`    // the first of them; 0 for all
	Routing string  `json:"routing"` // adaptive or ecmp
	Wire    bool    `json:"wire"`    // links at wire rate, no software
}

// mostBytes bounds a collective: a simulated time stays below 2^53 ps.
const mostBytes = 1 << 44

// asked is a question that was understood.
type asked struct {
	*built
	op   sched.Collective
	size unit.Bytes
	gpus []topo.NodeID
	o    sim.Options

	estimate bool // the time was carried on from fewer GPUs
}

// read checks what is asked and finds the GPUs: the first in the order of the graph.
func (j *job) read(q Collective) (*asked, error) {
	b, err := j.cluster(q.File)
	if err != nil {
		return nil, err
	}
	a := &asked{built: b, size: unit.Bytes(q.Bytes)}
	if a.op, err = sched.ParseCollective(q.Op); err != nil {
		return nil, err
	}
	if q.Bytes < 1 || q.Bytes > mostBytes {
		return nil, fmt.Errorf("a size of %d bytes; want 1 byte to %s", q.Bytes, unit.Bytes(mostBytes))
	}
	a.gpus = b.c.Graph.First(topo.GPU, b.c.Graph.Count(topo.GPU))
	if q.GPUs < 0 || q.GPUs > len(a.gpus) {
		return nil, fmt.Errorf("%d GPUs are asked for; the cluster has %d", q.GPUs, len(a.gpus))
	}
	if q.GPUs > 0 {
		a.gpus = a.gpus[:q.GPUs]
	}
	if len(a.gpus) < 2 {
		return nil, fmt.Errorf("a collective needs at least two GPUs, not %d", len(a.gpus))
	}
	a.o, err = j.options(q, b)
	return a, err
}

// options turns the choices of the page into the simulator's. A fault has a factor: 0 is dead, and up to 1 slow.
func (j *job) options(q Collective, b *built) (sim.Options, error) {
	o := sim.Options{Catalog: b.c.Catalog, Measured: !q.Wire, Memory: j.e.limits.Memory, Stop: j.stop}
	switch q.Routing {
	case "", "adaptive":
	case "ecmp":
		o.Routing = sim.ECMP
	default:
		return o, fmt.Errorf("routing %q is unknown; known: adaptive, ecmp", q.Routing)
	}
	if !q.Wire {
		o.Costs = sim.DefaultCosts(b.c.Graph, b.c.Catalog)
	}
	for _, f := range q.Faults {
		switch {
		case f.Factor == 0:
			o.Fail = append(o.Fail, f.Part)
		case f.Factor > 0 && f.Factor <= 1:
			o.Slow = append(o.Slow, sim.Slow{Name: f.Part, Factor: f.Factor})
		default:
			return o, fmt.Errorf("%s at %g of its rate; a factor is 0 (dead) to 1", f.Part, f.Factor)
		}
	}
	return o, nil
}

// answer is a simulated collective.
type answer struct {
	Algo     string         `json:"algo"`
	Op       string         `json:"op"`
	Bytes    int64          `json:"bytes"`
	GPUs     int            `json:"gpus"`
	Time     int64          `json:"time_ps"`
	AlgBW    float64        `json:"algbw_bytes_per_s"`
	BusBW    float64        `json:"busbw_bytes_per_s"`
	Limit    string         `json:"limit"`
	LimitAt  int            `json:"limit_at"` // the limiting link in Busy; -1 for none
	Channels int            `json:"channels,omitempty"`
	Digest   string         `json:"digest,omitempty"`
	Source   string         `json:"source"` // how the time was found
	Notes    []string       `json:"notes,omitempty"`
	Parts    []share        `json:"critical"` // what the longest chain of events was doing
	Tiers    []tier         `json:"tiers"`
	Tried    []tried        `json:"tried,omitempty"`
	Busy     []busy         `json:"busy"`
	Links    int            `json:"links"` // directions of links that carried anything; Busy has the busiest
	Trace    *trace         `json:"trace,omitempty"`
	Proof    *verify.Report `json:"proof,omitempty"`
}

type share struct {
	Name string `json:"name"`
	Time int64  `json:"ps"`
}

type tier struct {
	Name  string  `json:"name"`
	Wires int     `json:"wires"`
	Bytes int64   `json:"bytes"`
	Mean  float64 `json:"mean"`
	Most  float64 `json:"most"`
}

type tried struct {
	Algo string `json:"algo"`
	Time int64  `json:"time_ps,omitempty"`
	Why  string `json:"why,omitempty"`
}

// busy is one direction of a link and how busy it was on average.
type busy struct {
	A     int     `json:"a"`
	B     int     `json:"b"`
	Share float64 `json:"busy"`
	Row   int     `json:"row"`            // of the trace's load over time
	Name  string  `json:"name,omitempty"` // of the limiting link

	name string
	tier sim.Tier
}

// mostBusy bounds the links that are told one by one: all of NVLink and the network on 1,024 GPUs.
const mostBusy = 40_000

// simulate runs a collective. A program that the reader typed is proven as well: a fast wrong program is worth nothing.
func (j *job) simulate(q Collective) (any, error) {
	a, err := j.read(q)
	if err != nil {
		return nil, err
	}
	var told time.Time
	a.o.Progress = func(now unit.Time, actions int64) {
		if time.Since(told) > 100*time.Millisecond {
			told = time.Now()
			j.tell(Progress{Text: fmt.Sprintf("simulated %s, %s actions", now, grouped(actions))})
		}
	}
	j.tell(Progress{Text: "simulating " + q.Algo})
	found, notes, err := j.find(q, a)
	if err != nil {
		return nil, reason(err)
	}
	out := a.result(q, found)
	out.Notes = append(out.Notes, notes...)
	if q.Algo == "program" {
		if out.Proof, err = verify.Within(j.ctx, found.Program); err != nil {
			return nil, counterexample(err)
		}
	}
	if found.Program != nil && !a.estimate {
		j.tell(Progress{Text: "tracing its messages"})
		j.messages(a, found, out)
	}
	return out, nil
}

// reason adds what to do to an error of the simulator.
func reason(err error) error {
	if _, much := errors.AsType[*sim.MemoryError](err); much {
		return fmt.Errorf("%w; ask for fewer GPUs or another algorithm", err)
	}
	if errors.Is(err, sim.ErrLate) || errors.Is(err, sim.ErrBudget) {
		return errors.New("the simulation took too long; ask for fewer GPUs or a single algorithm")
	}
	return err
}

// find runs what was asked for.
func (j *job) find(q Collective, a *asked) (*sim.Found, []string, error) {
	g, n := a.c.Graph, len(a.gpus)
	switch q.Algo {
	case "", "auto":
		f, err := sim.Best(g, a.op, n, a.size, a.o, sim.Wish{})
		return f, nil, err
	case "nccl":
		return a.nccl()
	case "synth":
		return j.synthesise(a)
	case "program":
		p, err := msccl.Read([]byte(q.Program))
		if err != nil {
			return nil, nil, fmt.Errorf("the program: %w", err)
		}
		if p.Op != a.op {
			return nil, nil, fmt.Errorf("the program is an %s; %s is asked for", p.Op, a.op)
		}
		if p.Ranks > n {
			return nil, nil, fmt.Errorf("the program is for %d ranks; %d GPUs take part", p.Ranks, n)
		}
		j.tell(Progress{Text: "proving the program"})
		if _, err := verify.Within(j.ctx, p); err != nil {
			return nil, nil, counterexample(err)
		}
		a.gpus = a.gpus[:p.Ranks]
		f, err := a.run(p.Name, sim.Job{Program: p, Size: a.size})
		return f, nil, err
	}
	job, name, err := a.named(q.Algo)
	if err != nil {
		return nil, nil, err
	}
	return j.patiently(a, name, job)
}

func (a *asked) named(name string) (sim.Job, string, error) {
	al, outer, err := sim.Named(name)
	if err != nil {
		return sim.Job{}, "", err
	}
	job, err := sim.Wish{Outer: outer}.Job(al, a.c.Graph, a.op, len(a.gpus), a.size, a.o.Catalog)
	return job, name, err
}

func (a *asked) run(name string, job sim.Job) (*sim.Found, error) {
	res, err := sim.Run(a.c.Graph, []sim.Job{job}, a.o)
	if err != nil {
		return nil, err
	}
	return &sim.Found{Algo: name, Program: job.Program, Result: res}, nil
}

// ncclShape names weft's program that moves bytes as an algorithm of NCCL's does, for the picture.
var ncclShape = map[string]string{"Ring": "ring", "Tree": "double-binary-tree", "NVLS": "nvls", "NVLSTree": "nvls-tree"}

// nccl answers with NCCL's choice and its measured time. The messages are those of weft's own program of the same shape.
func (a *asked) nccl() (*sim.Found, []string, error) {
	if len(a.o.Fail)+len(a.o.Slow) > 0 {
		return nil, nil, errors.New("NCCL's model answers for a healthy cluster; clear the faults, or simulate an algorithm")
	}
	m, err := tune.NewNCCL(a.c.Graph, a.gpus, a.c.Catalog, tune.NCCLOptions{})
	if err != nil {
		return nil, nil, err
	}
	p := m.Predict(a.op, a.size)
	if p.Excluded {
		return nil, nil, fmt.Errorf("NCCL's model has no answer for %s of %s: %s", a.op, a.size, p.Reason)
	}
	res := &sim.Result{Time: p.Time, AlgBW: p.AlgBW, BusBW: p.BusBW, Limit: p.Limit}
	f := &sim.Found{Algo: fmt.Sprintf("nccl %s/%s", p.Algo, p.Proto), Result: res}
	notes := []string{fmt.Sprintf("NCCL would choose %s with %s on %d channels. The time comes from measurements; typical error there %.0f%% (%s).",
		p.Algo, p.Proto, p.Channels, 100*p.Error, p.Nearest)}
	if what := m.Blind(); what != "" {
		notes = append(notes, what)
	}
	if shape, ok := ncclShape[p.Algo]; ok {
		if job, _, err := a.named(shape); err == nil {
			f.Program = job.Program
			notes = append(notes, "The messages are those of weft's "+shape+", stretched to this time.")
		}
	}
	return f, notes, nil
}

// mostSynthesised bounds synthesis: above it takes longer than a person waits.
const mostSynthesised = 128

// synthesise makes a program for just these links. Large clusters are refused: the reader waits for it.
func (j *job) synthesise(a *asked) (*sim.Found, []string, error) {
	if len(a.gpus) > mostSynthesised {
		return nil, nil,
			fmt.Errorf("%d GPUs are too many to synthesise a program for while you wait; the limit here is %d, or use 'weft algo synth'",
				len(a.gpus), mostSynthesised)
	}
	s, err := sim.Synthesise(a.c.Graph, a.gpus, a.op, a.size, a.o, sim.SynthWish{Loss: sim.DefaultLoss, Stop: j.stop,
		Tell: func(form string) { j.tell(Progress{Text: "synthesising: " + form}) }})
	if err != nil {
		return nil, nil, err
	}
	if s.Result == nil {
		return nil, nil, errors.New("a program was made, but it takes too long to simulate; ask for fewer GPUs")
	}
	notes := []string{fmt.Sprintf("%s; its trees reach %.1f%% of the bound.", s.Form, 100*s.Plan.Share())}
	return &sim.Found{Algo: "synthesised", Program: s.Program, Result: s.Result, Tried: s.Tried}, notes, nil
}

// result gives the answer its form.
func (a *asked) result(q Collective, f *sim.Found) *answer {
	r := f.Result
	out := &answer{Algo: f.Algo, Op: a.op.String(), Bytes: int64(a.size), GPUs: len(a.gpus), Time: int64(r.Time), AlgBW: float64(r.AlgBW),
		BusBW: float64(r.BusBW),
		Limit: r.Limit, Source: "simulated flow by flow on the links of every message's route", Busy: []busy{}, Parts: []share{}, Tiers: []tier{}}
	out.LimitAt = -1
	if q.Algo == "nccl" {
		out.Source = "NCCL's choice, with a time fitted to measurements"
		return out
	}
	if r.Shortened {
		out.Notes = append(out.Notes, "Simulated with fewer ranks around the bad part, and carried on to all of them.")
	}
	if r.Every > 0 {
		out.Notes = append(out.Notes, "An estimate: the bad part was simulated in many hosts, so that ranks fold.")
	}
	out.Channels, out.Digest = f.Program.Channels(), f.Program.Digest()
	for t, d := range r.Critical {
		if d > 0 {
			out.Parts = append(out.Parts, share{sim.Tier(t).String(), int64(d)})
		}
	}
	for _, t := range r.Tiers() {
		out.Tiers = append(out.Tiers, tier{t.Tier.String(), t.Wires, int64(t.Bytes), t.Mean, t.Most})
	}
	for _, t := range f.Tried {
		out.Tried = append(out.Tried, tried{t.Algo, int64(t.Time), t.Why})
	}
	if a.estimate {
		out.Source, out.Tiers = "carried on from two shorter rings, simulated flow by flow on the links of every message's route", []tier{}
		return out
	}
	a.links(r, out)
	return out
}

// links puts the busiest links into an answer.
func (a *asked) links(r *sim.Result, out *answer) {
	links := r.Links()
	out.Links = len(links)
	for _, l := range links[:min(len(links), mostBusy)] {
		if l.Link == topo.None {
			continue
		}
		from, to := a.c.Graph.Links[l.Link].Ends(l.Forward)
		out.Busy = append(out.Busy, busy{int(from), int(to), math.Round(l.Busy*1e4) / 1e4, 0, "", l.Name, l.Tier})
	}
	if out.LimitAt = limiting(r.Limit, out.Busy); out.LimitAt >= 0 {
		out.Busy[out.LimitAt].Name = out.Busy[out.LimitAt].name
	}
}

// counterexample gives a disproof with the steps that lead to it.
func counterexample(err error) error {
	p := &Problem{Text: err.Error()}
	if v, ok := errors.AsType[*verify.Violation](err); ok {
		for _, t := range v.Trace {
			p.Lines = append(p.Lines, Line{0, t})
		}
		return p
	}
	for l := range strings.Lines(fmt.Sprintf("%+v", err)) {
		if text := strings.TrimSpace(l); text != "" && text != p.Text {
			p.Lines = append(p.Lines, Line{0, text})
		}
	}
	return p
}

type proveQuestion struct {
	Program string `json:"program"`
}

func (j *job) prove(q proveQuestion) (any, error) {
	p, err := msccl.Read([]byte(q.Program))
	if err != nil {
		return nil, err
	}
	j.tell(Progress{Text: "proving the program"})
	r, err := verify.Within(j.ctx, p)
	if err != nil {
		return nil, counterexample(err)
	}
	return r, nil
}

// mostText bounds the text of a program that the page shows.
const mostText = 200_000

// program returns the text of an algorithm for these GPUs, as a beginning to write one's own from.
func (j *job) program(q Collective) (any, error) {
	a, err := j.read(q)
	if err != nil {
		return nil, err
	}
	name := q.Algo
	if name == "" || slices.Contains([]string{"auto", "nccl", "synth", "program"}, name) {
		name = "ring"
	}
	job, _, err := a.named(name)
	if err != nil {
		return nil, err
	}
	text := job.Program.String()
	if len(text) > mostText {
		return nil, fmt.Errorf("the text of %s for %d GPUs is %s long; ask for fewer GPUs", name, len(a.gpus), unit.Bytes(len(text)))
	}
	return map[string]string{"text": text, "name": name}, nil
}

// algorithms lists the names that fit an operation, for the page's list.
func algorithms() map[string][]string {
	out := map[string][]string{}
	for _, op := range sched.Collectives() {
		for _, a := range algo.All() {
			if a.Serves(op) {
				out[op.String()] = append(out[op.String()], a.Name)
			}
		}
	}
	return out
}
