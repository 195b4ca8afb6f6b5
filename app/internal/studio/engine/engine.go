// Package engine answers what the page of weft studio asks: a cluster's picture and figures, a collective on it, the
// bound that no schedule beats, a proof, and a training plan.
//
//	page ──► Do(method, JSON) ──┬─► cluster, scene, design
//	                            ├─► sim, tune, verify, synth
//	                            └─► plan
//
// It computes nothing itself. Every method parses its request, calls one engine and gives the answer the form that the
// page draws. It opens no file and no connection, so the same code runs behind the server and as WebAssembly in a page.
package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/view/scene"
)

// Limits bound one request. A request that would pass one ends with an error that names it.
type Limits struct {
	Body   int64         // bytes of a request
	GPUs   int           // of a cluster
	Time   time.Duration // of a request, by the clock
	Memory unit.Bytes    // that a simulation may allocate beside the graph
}

// Default are the limits of a server on somebody's own machine.
func Default() Limits {
	return Limits{Body: 1 << 20, GPUs: 1 << 18, Time: 2 * time.Minute, Memory: unit.GiB}
}

// Progress is what a long request does, for the page to show.
type Progress struct {
	Text string  `json:"text"`
	Done float64 `json:"done,omitempty"` // share; 0 where nobody knows
}

// Problem is an error with the lines that it is about.
type Problem struct {
	Text  string `json:"text"`
	Lines []Line `json:"lines,omitempty"`
}

// Line is what is wrong with one line of the cluster file.
type Line struct {
	Line int    `json:"line"` // from 1; 0 for the whole file
	Text string `json:"text"`
}

func (p *Problem) Error() string { return p.Text }

// Engine answers requests. It keeps the clusters that it built last, since a page asks about one many times.
type Engine struct {
	limits Limits

	mu    sync.Mutex
	built []built // the latest first
}

type built struct {
	key   [32]byte
	c     *cluster.Cluster
	scene *scene.Scene
}

// keep is how many clusters are kept: the two that a page compares, and one that is being typed.
const keep = 3

// New makes an engine.
func New(l Limits) *Engine { return &Engine{limits: l} }

// job is one request being answered.
type job struct {
	e    *Engine
	ctx  context.Context
	tell func(Progress)
}

// Method is one thing that can be asked.
type Method struct {
	Name  string `json:"name"`
	Text  string `json:"text"`
	Quick bool   `json:"quick"` // answered at once, also while another request of the same page is computed
	do    func(*job, []byte) (any, error)
}

// ask makes a method of a function with a request of its own type. Unknown fields are an error.
func ask[T any](f func(*job, T) (any, error)) func(*job, []byte) (any, error) {
	return func(j *job, body []byte) (any, error) {
		var q T
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(&q); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("the request: %w", err)
		}
		return f(j, q)
	}
}

// Methods lists what can be asked, in the order of the page.
func Methods() []Method {
	return []Method{
		{"start", "what the page offers: samples, collectives, algorithms, models", true, ask((*job).start)},
		{"scene", "a cluster file as coordinates; an error has its line", true, ask((*job).scene)},
		{"links", "the links of one block of a large scene", true, ask((*job).links)},
		{"part", "what one part is and what it is joined to", true, ask((*job).part)},
		{"edit", "a cluster file with more or fewer hosts", true, ask((*job).edit)},
		{"design", "figures of a cluster: counts, oversubscription, bisection, money, power, longest path", false, ask((*job).design)},
		{"picture", "the cluster as an SVG document", true, ask((*job).picture)},
		{"simulate", "a collective on the cluster: time, messages, load of links", false, ask((*job).simulate)},
		{"bound", "the least time that any schedule takes, and the cut that proves it", false, ask((*job).bound)},
		{"prove", "a program's proof, or the steps to its first fault", false, ask((*job).prove)},
		{"program", "the text of an algorithm for this cluster", true, ask((*job).program)},
		{"traffic", "what an operation of a job sends over the cables of its NICs", false, ask((*job).traffic)},
		{"plan", "the fastest layouts of a training run, with time and memory", false, ask((*job).plan)},
	}
}

// Do answers one request. It ends early, with an error, when the context does or a limit is reached.
func (e *Engine) Do(ctx context.Context, method string, body []byte, tell func(Progress)) (any, error) {
	if int64(len(body)) > e.limits.Body {
		return nil, fmt.Errorf("a request of %s; the limit is %s", unit.Bytes(len(body)), unit.Bytes(e.limits.Body))
	}
	ctx, cancel := context.WithTimeout(ctx, e.limits.Time)
	defer cancel()
	if tell == nil {
		tell = func(Progress) {}
	}
	for _, m := range Methods() {
		if m.Name != method {
			continue
		}
		answer, err := m.do(&job{e: e, ctx: ctx, tell: tell}, body)
		if err != nil && ctx.Err() != nil {
			return nil, e.ended(ctx)
		}
		return answer, err
	}
	return nil, fmt.Errorf("there is no method %q", method)
}

// ended says why a request was not answered.
func (e *Engine) ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s; ask for fewer GPUs or a single algorithm", e.limits.Time)
	}
	return ctx.Err()
}

// stop is for engines that ask now and then whether to go on.
func (j *job) stop() bool { return j.ctx.Err() != nil }

// File is a cluster file as the page holds it.
type File struct {
	Text string `json:"text"`
}

// cluster parses a file, or finds it among those kept.
func (j *job) cluster(f File) (*built, error) {
	key := sha256.Sum256([]byte(f.Text))
	j.e.mu.Lock()
	for i, b := range j.e.built {
		if b.key == key {
			copy(j.e.built[1:i+1], j.e.built[:i])
			j.e.built[0] = b
			j.e.mu.Unlock()
			return &b, nil
		}
	}
	j.e.mu.Unlock()
	if strings.TrimSpace(f.Text) == "" {
		return nil, &Problem{Text: "the cluster file is empty; start with a sample, or write hosts: {\"n[0-3]\": dgx-h100}"}
	}
	j.tell(Progress{Text: "reading the cluster file"})
	c, err := cluster.Parse("cluster.yaml", []byte(f.Text), nil)
	if err != nil {
		return nil, lines(err)
	}
	if n := c.Graph.Count(topo.GPU); n > j.e.limits.GPUs {
		return nil, fmt.Errorf("the cluster has %d GPUs; the limit here is %d", n, j.e.limits.GPUs)
	}
	if n := c.Graph.Unstated(); n > 0 {
		return nil, fmt.Errorf("the cluster file does not state the rate of %d links", n)
	}
	if err := j.ctx.Err(); err != nil {
		return nil, err
	}
	j.tell(Progress{Text: "placing its parts"})
	b := built{key: key, c: c, scene: scene.New(c.Graph)}
	j.e.mu.Lock()
	j.e.built = append([]built{b}, j.e.built[:min(len(j.e.built), keep-1)]...)
	j.e.mu.Unlock()
	return &b, nil
}

// lines gives a parser's errors with their lines.
func lines(err error) error {
	p := &Problem{}
	var walk func(error)
	walk = func(err error) {
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range many.Unwrap() {
				walk(e)
			}
			return
		}
		if e, ok := errors.AsType[*cluster.Error](err); ok {
			text := e.Msg
			if e.Field != "" {
				text = e.Field + ": " + text
			}
			p.Lines = append(p.Lines, Line{e.Line, text})
			return
		}
		p.Lines = append(p.Lines, Line{0, err.Error()})
	}
	walk(err)
	first := p.Lines[0]
	p.Text = first.Text
	if first.Line > 0 {
		p.Text = fmt.Sprintf("line %d: %s", first.Line, first.Text)
	}
	if n := len(p.Lines) - 1; n > 0 {
		p.Text += fmt.Sprintf(" (and %d more)", n)
	}
	return p
}
