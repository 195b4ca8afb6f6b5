package web

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/weft-fabric/weft/model/metrics"
)

// lastSave is the step of the last checkpoint that can be loaded, NaN if there is none.
func (b *Board) lastSave() float64 {
	step := math.NaN()
	for _, c := range b.saves {
		if c.State == "complete" || c.State == "emergency" {
			step = float64(c.Step)
		}
	}
	return step
}

// metrics writes gauges and counters in Prometheus's text form.
func (b *Board) metrics(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	s, collectives, saves, epochs := b.summary(time.Now()), b.collectives(), b.counts.saves, b.counts.epochs
	lastSave := b.lastSave()
	b.mu.Unlock()

	var m metrics.Page
	m.Add("weft_step", metrics.Gauge, "last step finished by any rank", float64(s.Step))
	if s.Loss != nil || s.Diverged {
		loss := math.NaN()
		if s.Loss != nil {
			loss = *s.Loss
		}
		m.Add("weft_loss", metrics.Gauge, "mean loss of the last step", loss)
	}
	m.Add("weft_tokens_per_second", metrics.Gauge, "throughput over the last steps", s.TokensRate)
	m.Add("weft_tokens_total", metrics.Counter, "tokens trained on", float64(s.Tokens))
	states := []string{Starting, Healthy, Suspect, Failed, Recovering, Left}
	for state := range s.States {
		if !slices.Contains(states, state) {
			states = append(states, state)
		}
	}
	slices.Sort(states)
	for _, state := range states {
		m.Add("weft_ranks", metrics.Gauge, "ranks by state", float64(s.States[state]), "state", state)
	}
	m.Add("weft_epoch", metrics.Gauge, "epoch number", float64(s.Epoch))
	m.Add("weft_epochs_total", metrics.Counter, "epochs seen", float64(epochs))
	m.Add("weft_failures_total", metrics.Counter, "failures of ranks", float64(s.Failures))
	m.Add("weft_restarts_total", metrics.Counter, "restarted ranks", float64(s.Restarts))
	m.Add("weft_step_seconds", metrics.Gauge, "mean recent step time", float64(s.Time.Wall)/1e9)
	m.Add("weft_checkpoints_total", metrics.Counter, "checkpoints begun", float64(saves))
	if !math.IsNaN(lastSave) {
		m.Add("weft_checkpoint_step", metrics.Gauge, "step of the last complete checkpoint", lastSave)
	}
	calls, seconds, moved := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, c := range collectives {
		calls[c.Op] += float64(c.Count)
		seconds[c.Op] += float64(c.Total) / 1e9
		moved[c.Op] += float64(c.Bytes) * float64(c.Count)
	}
	byOp(&m, "weft_collective_calls_total", "calls of collectives, of all ranks together", calls)
	byOp(&m, "weft_collective_seconds_total", "time in collectives, of all ranks together", seconds)
	byOp(&m, "weft_collective_bytes_total", "bytes handed to collectives, of all ranks together", moved)
	m.Add("weft_web_readers", metrics.Gauge, "readers of the stream", float64(b.clients.Load()))
	m.Add("weft_web_dropped_total", metrics.Counter, "readers dropped as they took too long", float64(b.dropped.Load()))
	m.Add("weft_web_skipped_total", metrics.Counter, "messages folded into later ones for slow readers", float64(b.skipped.Load()))
	m.ServeHTTP(w, r)
}

func byOp(m *metrics.Page, name, help string, values map[string]float64) {
	for _, op := range slices.Sorted(maps.Keys(values)) {
		m.Add(name, metrics.Counter, help, values[op], "op", op)
	}
}
