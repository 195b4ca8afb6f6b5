// Package metrics writes numbers for Prometheus, with Prometheus' own encoder.
package metrics

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Kind is what may happen to a number.
type Kind = dto.MetricType

// The kinds.
const (
	Counter = dto.MetricType_COUNTER // it only grows
	Gauge   = dto.MetricType_GAUGE
	Untyped = dto.MetricType_UNTYPED // nobody says
)

// Page is what one look at /metrics shows: names in the order in which they were first added, and their series. A name without series is
// left out.
type Page struct {
	list   []*dto.MetricFamily
	byName map[string]*dto.MetricFamily
	series map[string]bool
}

// Add adds a number under a name, with labels in pairs of a name and a value. Of two numbers for one series the first counts.
func (p *Page) Add(name string, kind Kind, help string, value float64, labels ...string) {
	series := fmt.Sprintf("%s%q", name, labels)
	if p.series[series] {
		return
	}
	f := p.byName[name]
	if f == nil {
		if p.byName == nil {
			p.byName, p.series = map[string]*dto.MetricFamily{}, map[string]bool{}
		}
		f = &dto.MetricFamily{Name: &name, Help: &help, Type: &kind}
		p.list, p.byName[name] = append(p.list, f), f
	}
	p.series[series] = true
	m := &dto.Metric{}
	for i := 0; i+1 < len(labels); i += 2 {
		text := strings.ToValidUTF8(labels[i+1], "?")
		m.Label = append(m.Label, &dto.LabelPair{Name: &labels[i], Value: &text})
	}
	switch kind {
	case Counter:
		m.Counter = &dto.Counter{Value: &value}
	case Gauge:
		m.Gauge = &dto.Gauge{Value: &value}
	default:
		m.Untyped = &dto.Untyped{Value: &value}
	}
	f.Metric = append(f.Metric, m)
}

// Series are the numbers by their names with labels, as they are written.
func (p *Page) Series(each func(name, series string, value float64)) {
	for _, f := range p.list {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+strconv.Quote(l.GetValue()))
			}
			series := f.GetName()
			if len(labels) > 0 {
				series += "{" + strings.Join(labels, ",") + "}"
			}
			each(f.GetName(), series, m.GetCounter().GetValue()+m.GetGauge().GetValue()+m.GetUntyped().GetValue())
		}
	}
}

// Write writes the page in the text format.
func (p *Page) Write(w io.Writer) error {
	for _, f := range p.list {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return err
		}
	}
	return nil
}

// ServeHTTP answers a scrape.
func (p *Page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_ = p.Write(w)
}
