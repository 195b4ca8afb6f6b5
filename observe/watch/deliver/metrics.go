package deliver

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"
	"google.golang.org/protobuf/encoding/protowire"
)

// Sample is a value of a series.
type Sample struct {
	Name    string
	Labels  [][2]string // sorted by name
	Value   float64
	Counter bool
	Help    string
}

// Parse reads the text that /metrics serves.
func Parse(text string) (list []Sample, err error) {
	kinds, helps := map[string]string{}, map[string]string{}
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		if f := strings.SplitN(l, " ", 4); len(f) == 4 && f[0] == "#" {
			switch f[1] {
			case "TYPE":
				kinds[f[2]] = f[3]
			case "HELP":
				helps[f[2]] = f[3]
			}
		}
		if l == "" || l[0] == '#' {
			continue
		}
		s, err := parseSample(l)
		if err != nil {
			return nil, err
		}
		s.Counter, s.Help = kinds[s.Name] == "counter", helps[s.Name]
		list = append(list, s)
	}
	return list, nil
}

// parseSample reads a line of the Prometheus text format. Labels are sorted, so that equal series compare equal.
func parseSample(l string) (s Sample, err error) {
	wrong := func() (Sample, error) { return s, fmt.Errorf("no sample: %.120q", l) }
	end := strings.IndexAny(l, "{ ")
	if end <= 0 {
		return wrong()
	}
	s.Name = l[:end]
	rest := l[end:]
	if rest[0] == '{' {
		for rest = rest[1:]; rest != "" && rest[0] != '}'; {
			name, after, ok := strings.Cut(rest, "=")
			quoted, err := strconv.QuotedPrefix(after)
			if !ok || err != nil {
				return wrong()
			}
			value, err := strconv.Unquote(quoted)
			if err != nil {
				return wrong()
			}
			s.Labels = append(s.Labels, [2]string{strings.TrimPrefix(name, ","), value})
			rest = after[len(quoted):]
		}
		rest = strings.TrimPrefix(rest, "}")
	}
	if s.Value, err = strconv.ParseFloat(strings.TrimSpace(rest), 64); err != nil {
		return wrong()
	}
	slices.SortFunc(s.Labels, func(a, b [2]string) int { return cmp.Compare(a[0], b[0]) })
	return s, nil
}

// remoteWrite codes samples for Prometheus remote write 1.0, which every version since 2.25 takes: a snappy block of
// WriteRequest{timeseries: [{labels: [{name, value}], samples: [{value, timestamp}]}]}.
func remoteWrite(list []Sample, at time.Time) []byte {
	var out, series, part []byte
	label := func(name, value string) {
		part = protowire.AppendString(protowire.AppendTag(part[:0], 1, protowire.BytesType), name)
		part = protowire.AppendString(protowire.AppendTag(part, 2, protowire.BytesType), value)
		series = protowire.AppendBytes(protowire.AppendTag(series, 1, protowire.BytesType), part)
	}
	for _, s := range list {
		series = series[:0]
		label("__name__", s.Name) // before all others, as names are sorted
		for _, l := range s.Labels {
			if l[1] != "" { // an empty label is none
				label(l[0], l[1])
			}
		}
		part = protowire.AppendFixed64(protowire.AppendTag(part[:0], 1, protowire.Fixed64Type), math.Float64bits(s.Value))
		part = protowire.AppendVarint(protowire.AppendTag(part, 2, protowire.VarintType), uint64(at.UnixMilli()))
		series = protowire.AppendBytes(protowire.AppendTag(series, 2, protowire.BytesType), part)
		out = protowire.AppendBytes(protowire.AppendTag(out, 1, protowire.BytesType), series)
	}
	return s2.EncodeSnappy(nil, out)
}

// otlp codes samples as OTLP JSON: gauges, and sums since the server started.
func otlp(list []Sample, began, at time.Time) []byte {
	type point = map[string]any
	var order []string
	points := map[string][]point{}
	first := map[string]Sample{}
	text := func(v string) map[string]any { return map[string]any{"stringValue": v} }
	for _, s := range list {
		if _, ok := first[s.Name]; !ok {
			first[s.Name] = s
			order = append(order, s.Name)
		}
		p := point{"timeUnixNano": strconv.FormatInt(at.UnixNano(), 10), "asDouble": s.Value}
		if s.Counter {
			p["startTimeUnixNano"] = strconv.FormatInt(began.UnixNano(), 10)
		}
		attributes := []any{}
		for _, l := range s.Labels {
			attributes = append(attributes, map[string]any{"key": l[0], "value": text(l[1])})
		}
		p["attributes"] = attributes
		points[s.Name] = append(points[s.Name], p)
	}
	metrics := []any{}
	for _, name := range order {
		m := map[string]any{"name": name, "description": first[name].Help}
		if first[name].Counter {
			m["sum"] = map[string]any{"dataPoints": points[name], "aggregationTemporality": 2, "isMonotonic": true} // cumulative
		} else {
			m["gauge"] = map[string]any{"dataPoints": points[name]}
		}
		metrics = append(metrics, m)
	}
	return body(map[string]any{"resourceMetrics": []any{map[string]any{
		"resource":     map[string]any{"attributes": []any{map[string]any{"key": "service.name", "value": text("weft-watch")}}},
		"scopeMetrics": []any{map[string]any{"scope": map[string]any{"name": "github.com/weft-fabric/weft"}, "metrics": metrics}}}}})
}

// Target is where metrics go.
type Target struct {
	Kind string // otlp or remote-write
	url  string
}

// ParseTarget reads otlp=URL of a collector and remote-write=URL of Prometheus' /api/v1/write.
func ParseTarget(text string) (Target, error) {
	kind, at, _ := strings.Cut(text, "=")
	t := Target{kind, at}
	u, err := url.Parse(at)
	switch {
	case kind != "otlp" && kind != "remote-write":
		return t, fmt.Errorf("%q is no target; give otlp=URL or remote-write=URL", text)
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return t, fmt.Errorf("%q has no address that begins with http:// or https://", text)
	}
	if kind == "otlp" && strings.Trim(u.Path, "/") == "" { // the address of a collector, as OTEL_EXPORTER_OTLP_ENDPOINT has it
		t.url = strings.TrimSuffix(at, "/") + "/v1/metrics"
	}
	return t, nil
}

func (t Target) message(list []Sample, began, at time.Time) message {
	if t.Kind == "otlp" {
		return message{url: t.url, header: map[string]string{"Content-Type": "application/json"}, body: otlp(list, began, at)}
	}
	return message{url: t.url, body: remoteWrite(list, at),
		header: map[string]string{"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy",
			"X-Prometheus-Remote-Write-Version": "0.1.0"}}
}

// Push sends what write writes, as /metrics does, to targets every so often until the context ends. A moment that a target
// does not take is not sent again: the next one has newer figures.
func Push(ctx context.Context, every time.Duration, write func(io.Writer), targets []Target, log *slog.Logger) {
	began := time.Now()
	failing := map[string]bool{}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var text bytes.Buffer
		write(&text)
		list, err := Parse(text.String())
		if err != nil {
			log.Error("the metrics are not readable", "error", err)
			return
		}
		at := time.Now()
		for _, t := range targets {
			err := post(ctx, http.DefaultClient, t.message(list, began, at))
			if err != nil && !failing[t.url] && ctx.Err() == nil {
				log.Warn("metrics are not taken; they are sent on", "to", t.Kind, "error", err)
			}
			failing[t.url] = err != nil
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
