package web

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// metrics writes gauges and counters in Prometheus's text form.
func (b *Board) metrics(w http.ResponseWriter, _ *http.Request) {
	b.mu.Lock()
	s, collectives, saves, epochs := b.summary(time.Now()), b.collectives(), b.counts.saves, b.counts.epochs
	lastSave := math.NaN()
	for _, c := range b.saves {
		if c.State == "complete" || c.State == "emergency" {
			lastSave = float64(c.Step)
		}
	}
	b.mu.Unlock()

	var m exposition
	m.one("weft_step", "gauge", "last step finished by any rank", float64(s.Step))
	if s.Loss != nil || s.Diverged {
		loss := math.NaN()
		if s.Loss != nil {
			loss = *s.Loss
		}
		m.one("weft_loss", "gauge", "mean loss of the last step", loss)
	}
	m.one("weft_tokens_per_second", "gauge", "throughput over the last steps", s.TokensRate)
	m.one("weft_tokens_total", "counter", "tokens trained on", float64(s.Tokens))
	m.head("weft_ranks", "gauge", "ranks by state")
	states := []string{Starting, Healthy, Suspect, Failed, Recovering, Left}
	for state := range s.States {
		if !slices.Contains(states, state) {
			states = append(states, state)
		}
	}
	slices.Sort(states)
	for _, state := range states {
		m.row("weft_ranks", "state", state, float64(s.States[state]))
	}
	m.one("weft_epoch", "gauge", "epoch number", float64(s.Epoch))
	m.one("weft_epochs_total", "counter", "epochs seen", float64(epochs))
	m.one("weft_failures_total", "counter", "failures of ranks", float64(s.Failures))
	m.one("weft_restarts_total", "counter", "restarted ranks", float64(s.Restarts))
	m.one("weft_step_seconds", "gauge", "mean recent step time", float64(s.Time.Wall)/1e9)
	m.one("weft_checkpoints_total", "counter", "checkpoints begun", float64(saves))
	if !math.IsNaN(lastSave) {
		m.one("weft_checkpoint_step", "gauge", "step of the last complete checkpoint", lastSave)
	}
	calls, seconds, moved := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, c := range collectives {
		calls[c.Op] += float64(c.Count)
		seconds[c.Op] += float64(c.Total) / 1e9
		moved[c.Op] += float64(c.Bytes) * float64(c.Count)
	}
	m.byOp("weft_collective_calls_total", "calls of collectives, of all ranks together", calls)
	m.byOp("weft_collective_seconds_total", "time in collectives, of all ranks together", seconds)
	m.byOp("weft_collective_bytes_total", "bytes handed to collectives, of all ranks together", moved)
	m.one("weft_web_readers", "gauge", "readers of the stream", float64(b.clients.Load()))
	m.one("weft_web_dropped_total", "counter", "readers dropped as they took too long", float64(b.dropped.Load()))
	m.one("weft_web_skipped_total", "counter", "messages folded into later ones for slow readers", float64(b.skipped.Load()))
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(m.Bytes())
}

// exposition is a text in Prometheus's form.
type exposition struct{ bytes.Buffer }

func (m *exposition) head(name, kind, help string) {
	fmt.Fprintf(m, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (m *exposition) one(name, kind, help string, value float64) {
	m.head(name, kind, help)
	fmt.Fprintf(m, "%s %s\n", name, decimal(value))
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func (m *exposition) row(name, label, of string, value float64) {
	fmt.Fprintf(m, "%s{%s=\"%s\"} %s\n", name, label, escape.Replace(of), decimal(value))
}

func (m *exposition) byOp(name, help string, values map[string]float64) {
	if len(values) == 0 {
		return
	}
	m.head(name, "counter", help)
	for _, op := range slices.Sorted(maps.Keys(values)) {
		m.row(name, "op", op, values[op])
	}
}

func decimal(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
