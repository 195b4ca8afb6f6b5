package cluster

import (
	"slices"
	"strings"
)

// failureParts are the parts whose failure rates may be given.
var failureParts = []string{"gpu", "host", "nic", "cable", "switch"}

// refuseModelless refuses what says something only of a model, where none is named.
func (f *fields) refuseModelless() {
	for _, name := range []string{"batch", "seq", "tokens", "dtype"} {
		if f.has(name) {
			f.fail(name, "%s is of a model, and no model is named; add model: llama3-70b", f.text(name))
		}
	}
}

// needs reads what the owner asks for.
func (p *parse) needs(n *node) Needs {
	out := DefaultNeeds()
	if n == nil {
		return out
	}
	f := p.fields("needs", n)
	out.Params = f.number("params", out.Params, 1)
	out.Model, out.Dtype = f.text("model"), f.text("dtype")
	out.Batch, out.Seq = 1024, 8192
	if f.has("batch") {
		out.Batch = f.integer("batch", 1, 1<<20)
	}
	if f.has("seq") {
		out.Seq = f.integer("seq", 1, 1<<22)
	}
	out.Tokens = f.number("tokens", 0, 1)
	if out.Model == "" {
		f.refuseModelless()
	}
	out.BytesPer = f.number("bytes-per-param", out.BytesPer, 0.1)
	out.StepSeconds = f.seconds("step", out.StepSeconds)
	out.PowerPrice = f.number("power-price", out.PowerPrice, 0)
	out.CloudPrice = f.number("cloud-price", out.CloudPrice, 0)
	out.Years = f.number("years", out.Years, 0.01)
	if f.has("oversubscription") {
		if r := f.ratio("oversubscription"); r.Up > 0 {
			out.Oversub = float64(r.Down) / float64(r.Up)
		}
	}
	if rates := f.get("failure-rates"); rates != nil {
		q := p.fields("needs.failure-rates", rates)
		for _, part := range failureParts {
			out.FailureRates[part] = q.number(part, out.FailureRates[part], 0)
		}
		q.done()
	}
	if given := f.get("provided"); given != nil {
		p.provided(given, out.Provided)
	}
	f.done()
	return out
}

// provided reads which items of the design's checklist the owner sees to, and how.
func (p *parse) provided(n *node, into map[string]string) {
	f := p.fields("needs.provided", n)
	for _, e := range f.n.keys {
		if !strings.Contains(e.key, ".") || slices.Contains(strings.Split(e.key, "."), "") {
			p.fail(e.line, f.at(clip(e.key)), "not the key of a checklist item; they look like monitoring.health")
			continue
		}
		into[e.key] = f.text(e.key)
	}
}
