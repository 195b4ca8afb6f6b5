package engine

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/predict/sim"
)

func text(t *testing.T, name string) string {
	t.Helper()
	for _, s := range Samples() {
		if s.Name == name {
			return s.Text
		}
	}
	t.Fatalf("there is no sample %s", name)
	return ""
}

// do asks the way a page does: JSON in, JSON out.
func do(t *testing.T, e *Engine, method string, q, into any) error {
	t.Helper()
	body, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Do(context.Background(), method, body, nil)
	if err != nil {
		return err
	}
	b, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(b, into); err != nil {
			t.Fatal(err)
		}
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Every sample can be drawn and judged.
func TestSamples(t *testing.T) {
	e := New(Default())
	for _, s := range Samples() {
		if s.Name == "rail-131k" && !bounded.Long() {
			continue
		}
		var scene struct{ GPUs int }
		must(t, do(t, e, "scene", File{s.Text}, &scene))
		var d struct{ Figures []Figure }
		must(t, do(t, e, "design", File{s.Text}, &d))
		if scene.GPUs < 8 || len(d.Figures) == 0 || d.Figures[0].Value != grouped(int64(scene.GPUs)) {
			t.Errorf("%s: %d GPUs, figures %v", s.Name, scene.GPUs, d.Figures)
		}
		for _, f := range d.Figures {
			if f.Formula == "" || f.Source == "" {
				t.Errorf("%s: %s does not say where it comes from", s.Name, f.Name)
			}
		}
	}
}

// What is wrong with a file is told with its lines, all of it at once.
func TestErrorsHaveLines(t *testing.T) {
	err := do(t, New(Default()), "scene", File{"name: x\n\nhosts:\n  \"n[0-3]\": dgx-h1000\n\nfabric:\n  family: rial\n  switch: QM9700\n"},
		nil)
	p, ok := errors.AsType[*Problem](err)
	if !ok || len(p.Lines) != 2 || p.Lines[0].Line != 4 || p.Lines[1].Line != 7 || !strings.Contains(p.Lines[1].Text, "rial") {
		t.Fatalf("%+v", err)
	}
	if err := do(t, New(Default()), "scene", File{" \n"}, nil); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("an empty file: %v", err)
	}
}

// Growing a file changes one number of its text.
func TestGrow(t *testing.T) {
	for _, c := range []struct {
		text string
		by   int
		want string
	}{
		{"hosts:\n  \"n[0-127]\": {kind: dgx-h100}\n", 32, "hosts:\n  \"n[0-159]\": {kind: dgx-h100}\n"},
		{"name: x # n[0-9]:\nhosts:\n  # all\n  n[8-15]: dgx-h100\n", -1, "name: x # n[0-9]:\nhosts:\n  # all\n  n[8-14]: dgx-h100\n"},
		{"preset: superpod-h100\nparams: {su: 4}\n", 1, "preset: superpod-h100\nparams: {su: 5}\n"},
		{"preset: superpod-h100\nparams: {su: 1}\n", -1, ""},
		{"hosts:\n  n0: dgx-h100\n", 1, ""},
		{"hosts:\n  n[0-1]: dgx-h100\n", -2, ""},
	} {
		if got := grow(c.text, c.by); got != c.want {
			t.Errorf("%q by %d is %q, want %q", c.text, c.by, got, c.want)
		}
	}
}

func numbers(t *testing.T, packed string, width int) []float64 {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(packed)
	must(t, err)
	var out []float64
	for ; len(b) > 0; b = b[width:] {
		if width == 8 {
			out = append(out, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		} else {
			out = append(out, float64(int32(binary.LittleEndian.Uint32(b))))
		}
	}
	return out
}

// seen is a trace as a page reads it.
type seen struct {
	Time  int64 `json:"time_ps"`
	Limit string
	Notes []string
	Proof *struct{ Method string }
	Trace struct {
		Period, Ranks, All int
		Cut                bool
		Members, Shown     []int
		Gaps               []struct {
			Begin  float64 `json:"begin_ps"`
			End    float64 `json:"end_ps"`
			Rounds int64
		}
		To, Pair, Starts     string
		Routes, Nodes, Bytes string
		Flow                 string   `json:"flow_ps"`
		End                  string   `json:"end_ps"`
		LoadTiers            []string `json:"load_tiers"`
		Load                 [][]float64
	}
}

// The messages that a page draws are all messages there are: a ring of n ranks sends 2(n-1) S bytes in all, by the
// textbook, whether ranks were folded or not. Every route begins at its sender's GPU and ends at its receiver's.
func TestMessagesAreComplete(t *testing.T) {
	e := New(Default())
	for _, c := range []struct {
		name, text string
		gpus       int
	}{
		{"two hosts", text(t, "two-hosts"), 16},
		{"16 hosts", "hosts: {\"n[0-15]\": dgx-h100}\nfabric: {family: rail, switch: QM9700}\n", 128},
	} {
		var r seen
		must(t, do(t, e, "simulate", Collective{File: File{c.text}, Op: "all-reduce", Bytes: 1 << 26, Algo: "ring", GPUs: c.gpus}, &r))
		x := r.Trace
		if x.Cut || len(x.Members) != x.All || x.Ranks != c.gpus || len(x.Shown) != x.Period || len(x.Gaps) > 0 {
			t.Fatalf("%s: cut %v, %d of %d members, %d of %d ranks, gaps %v", c.name, x.Cut, len(x.Members), x.All, len(x.Shown), x.Ranks, x.Gaps)
		}
		sum, to, pair := 0.0, numbers(t, x.To, 4), numbers(t, x.Pair, 4)
		flow, end := numbers(t, x.Flow, 8), numbers(t, x.End, 8)
		for i, b := range numbers(t, x.Bytes, 8) {
			if to[i] >= 0 {
				sum += b * float64(x.All)
			}
			if flow[i] > end[i] || end[i] > float64(r.Time) {
				t.Fatalf("%s: span %d flows from %g to %g of %d", c.name, i, flow[i], end[i], r.Time)
			}
		}
		if want := 2 * float64(c.gpus-1) * (1 << 26); math.Abs(sum/want-1) > 1e-3 {
			t.Errorf("%s: %g bytes are sent, want %g", c.name, sum, want)
		}
		starts, routes, nodes := numbers(t, x.Starts, 4), numbers(t, x.Routes, 4), numbers(t, x.Nodes, 4)
		known := map[float64]bool{}
		for _, n := range nodes {
			known[n] = true
		}
		for p := range len(starts) - 1 {
			way := routes[int(starts[p]):int(starts[p+1])]
			if len(way) < 2 || !known[way[0]] || !known[way[len(way)-1]] {
				t.Fatalf("%s: route %d is %v", c.name, p, way)
			}
		}
		if most := int(starts[len(starts)-1]); most != len(routes) || len(pair) != len(to) {
			t.Errorf("%s: routes end at %d of %d", c.name, most, len(routes))
		}
		if len(x.Load) == 0 || len(x.Load) != len(x.LoadTiers) {
			t.Errorf("%s: no load: %v", c.name, x.LoadTiers)
		}
	}
}

// A gap stands for rounds that were folded. With every rank recorded, the messages before and behind gaps and those that
// gaps repeat are all messages there are, by the same count.
func TestGapsRepeatARound(t *testing.T) {
	j := &job{e: New(Default()), ctx: t.Context(), tell: func(Progress) {}}
	a, err := j.read(Collective{File: File{text(t, "dragonfly")}, Op: "all-reduce", Bytes: 1 << 26, Algo: "ring"})
	must(t, err)
	work, _, err := a.named("ring")
	must(t, err)
	a.o.Trace, a.o.TraceRanks = 1<<22, 1<<22
	res, err := sim.Run(a.c.Graph, []sim.Job{work}, a.o)
	must(t, err)
	x := newTrace(res.Trace, work.Program, 1)
	if x.Cut || x.Period != 288 || len(x.Shown) != 288 || len(x.Gaps) == 0 {
		t.Fatalf("cut %v, period %d, %d ranks, %d gaps; the test wants all ranks and a gap", x.Cut, x.Period, len(x.Shown), len(x.Gaps))
	}
	sum := 0.0
	for i, b := range x.Bytes {
		if x.To[i] >= 0 {
			sum += float64(b) * float64(len(x.shifts(x.End[i])))
		}
	}
	if want := 2 * 287.0 * (1 << 26); math.Abs(sum/want-1) > 1e-3 {
		t.Errorf("%g bytes are sent, want %g", sum, want)
	}
}

// A fault costs time, a bound is below every time, and a broken link is not on any message's route.
func TestFaultAndBound(t *testing.T) {
	e := New(Default())
	q := Collective{File: File{text(t, "two-hosts")}, Op: "all-reduce", Bytes: 1 << 28, Algo: "ring"}
	var healthy, slow seen
	must(t, do(t, e, "simulate", q, &healthy))
	q.Faults = []Fault{{Part: "n0:nic3", Factor: .25}}
	must(t, do(t, e, "simulate", q, &slow))
	var b struct {
		Time  int64 `json:"time_ps"`
		Why   string
		Parts [][]int
		Edges [][2]int
	}
	must(t, do(t, e, "bound", q, &b))
	if !(b.Time > 0 && healthy.Time < slow.Time && b.Time < slow.Time) {
		t.Errorf("healthy %d, slow %d, bound %d", healthy.Time, slow.Time, b.Time)
	}
	if len(b.Parts) == 0 || len(b.Edges) == 0 || b.Why == "" {
		t.Errorf("the bound has no cut: %+v", b)
	}
	q.Faults = []Fault{{Part: "leaf99"}}
	if err := do(t, e, "simulate", q, nil); err == nil || !strings.Contains(err.Error(), "leaf99") {
		t.Errorf("an unknown part: %v", err)
	}
}

// A program is proven before it is simulated, and a wrong one comes back with the steps to its fault.
func TestOwnProgram(t *testing.T) {
	e := New(Default())
	q := Collective{File: File{text(t, "two-hosts")}, Op: "all-reduce", Bytes: 1 << 20, Algo: "ring", GPUs: 8}
	var p struct{ Text string }
	must(t, do(t, e, "program", q, &p))
	q.Algo, q.Program = "program", p.Text
	var r seen
	must(t, do(t, e, "simulate", q, &r))
	if r.Proof == nil || r.Proof.Method == "" {
		t.Errorf("no proof: %+v", r.Proof)
	}
	q.Program = strings.Replace(p.Text, "j < n-2", "j < n-3", 1)
	if q.Program == p.Text {
		t.Fatalf("the program has no loop to shorten:\n%s", p.Text)
	}
	err := do(t, e, "simulate", q, nil)
	if bad, ok := errors.AsType[*Problem](err); !ok || !strings.Contains(bad.Text, "rank") {
		t.Errorf("a wrong program: %v", err)
	}
	if err := do(t, e, "prove", map[string]string{"program": "nonsense"}, nil); err == nil {
		t.Error("nonsense was proven")
	}
}

// NCCL's choice and a synthesised program are answers like the others.
func TestOtherAlgorithms(t *testing.T) {
	e := New(Default())
	for _, algo := range []string{"nccl", "synth", "auto"} {
		q := Collective{File: File{text(t, "dgx-1v")}, Op: "all-reduce", Bytes: 1 << 26, Algo: algo}
		if algo == "nccl" {
			q.Text = text(t, "two-hosts")
		}
		var r seen
		must(t, do(t, e, "simulate", q, &r))
		if r.Time <= 0 || algo != "auto" && len(r.Notes) == 0 {
			t.Errorf("%s: %d ps, notes %q", algo, r.Time, r.Notes)
		}
	}
}

func TestPlan(t *testing.T) {
	var p struct {
		Points []point
		Passes []pass
		Cost   struct {
			Step float64 `json:"step_s"`
			Text string  `json:"layout_text"`
			Fits bool
		}
		Days float64
	}
	e := New(Default())
	q := planQuestion{File: File{text(t, "rail-1k")}, Model: "llama3-8b", Batch: 256, Seq: 8192, GPUs: 64, Tokens: "1T"}
	must(t, do(t, e, "plan", q, &p))
	if len(p.Points) < 2 || !p.Cost.Fits || p.Days <= 0 {
		t.Fatalf("%+v", p)
	}
	best := p.Cost
	q.Layout = p.Points[len(p.Points)-1].Layout
	must(t, do(t, e, "plan", q, &p))
	if p.Cost.Text != q.Layout || p.Cost.Step < best.Step {
		t.Errorf("asked for %s, got %s in %g s; the best takes %g s", q.Layout, p.Cost.Text, p.Cost.Step, best.Step)
	}
}

// Limits end a request with a reason: its size, its GPUs, its time; and a reader who leaves ends it, too.
func TestLimits(t *testing.T) {
	l := Default()
	l.GPUs, l.Body = 64, 4096
	e := New(l)
	if err := do(t, e, "scene", File{text(t, "rail-1k")}, nil); err == nil || !strings.Contains(err.Error(), "the limit here is 64") {
		t.Errorf("too many GPUs: %v", err)
	}
	if err := do(t, e, "scene", File{strings.Repeat("#", 5000)}, nil); err == nil || !strings.Contains(err.Error(), "limit is 4 KiB") {
		t.Errorf("too large: %v", err)
	}
	if err := do(t, e, "scene", map[string]any{"text": "x", "txet": 1}, nil); err == nil || !strings.Contains(err.Error(), "txet") {
		t.Errorf("an unknown field: %v", err)
	}
	l = Default()
	l.Time = time.Nanosecond
	body, _ := json.Marshal(Collective{File: File{text(t, "rail-1k")}, Op: "all-reduce", Bytes: 1 << 26, Algo: "auto"})
	if _, err := New(l).Do(context.Background(), "simulate", body, nil); err == nil || !strings.Contains(err.Error(), "no answer within 1ns") {
		t.Errorf("out of time: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err := New(Default()).Do(ctx, "simulate", body, func(p Progress) {
		if strings.HasPrefix(p.Text, "simulating") { // it is at work: the reader leaves
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("after the reader left: %v", err)
	}
}

// A reader who leaves while a network is analysed ends the analysis: after it left, no further stage begins.
func TestDesignIsCancelled(t *testing.T) {
	body, err := json.Marshal(File{text(t, "rail-1k")})
	must(t, err)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	stages := 0
	_, err = New(Default()).Do(ctx, "design", body, func(p Progress) {
		if strings.HasPrefix(p.Text, "analysing") {
			if stages++; stages == 3 {
				leave()
			}
		}
	})
	if !errors.Is(err, context.Canceled) || stages != 3 {
		t.Errorf("%d stages began, then %v", stages, err)
	}
}
