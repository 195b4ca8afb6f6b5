package metrics

import (
	"bytes"
	"math"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Prometheus' own parser reads what was added, also where labels hold what its format has to escape.
func TestParserReadsThePage(t *testing.T) {
	var p Page
	odd := "a \"job\"\\ of\ntwo lines \xff"
	p.Add("weft_jobs_total", Counter, "Jobs \\ of\nall.", 3, "job", odd)
	p.Add("weft_jobs_total", Counter, "again", 4, "job", odd) // the same series
	p.Add("weft_jobs_total", Counter, "again", 5, "job", "b", "host", "n1")
	p.Add("weft_loss", Gauge, "Loss.", math.NaN())
	w := httptest.NewRecorder()
	p.ServeHTTP(w, nil)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	got, err := parser.TextToMetricFamilies(bytes.NewReader(w.Body.Bytes()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, w.Body)
	}
	jobs, loss := got["weft_jobs_total"], got["weft_loss"]
	if len(got) != 2 || len(jobs.Metric) != 2 || jobs.GetHelp() != "Jobs \\ of\nall." || jobs.GetType() != Counter || loss.GetType() != Gauge {
		t.Fatalf("%v", got)
	}
	if m := jobs.Metric[0]; m.Counter.GetValue() != 3 || m.Label[0].GetValue() != "a \"job\"\\ of\ntwo lines ?" {
		t.Errorf("%v", m)
	}
	if m := jobs.Metric[1]; m.Counter.GetValue() != 5 || len(m.Label) != 2 {
		t.Errorf("%v", m)
	}
	if !math.IsNaN(loss.Metric[0].Gauge.GetValue()) {
		t.Errorf("%v", loss)
	}
}
