package design

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
)

const planned = `name: mine
hosts:
  "n[0-%s]": dgx-h100
fabric: {family: rail, switch: QM9700}
needs: {%s}
`

func planOf(t *testing.T, last, needs string) (*Report, error) {
	t.Helper()
	c, err := cluster.Parse("mine", []byte(strings.Replace(strings.Replace(planned, "%s", last, 1), "%s", needs, 1)), nil)
	if err != nil {
		return nil, err
	}
	return Analyze(c)
}

// A model that the cluster file names is planned for; without one nothing is judged.
func TestDesignPlansTheModel(t *testing.T) {
	r, err := planOf(t, "7", "model: llama3-8b, batch: 128, seq: 8192, tokens: 1T")
	if err != nil {
		t.Fatal(err)
	}
	p := r.Plan
	if p == nil || p.Best == nil || !p.Best.Fits || p.GPUs != 64 || p.Best.Layout.Batch != 128 || p.Second.Step < p.Best.Step ||
		len(p.Changes) == 0 {
		t.Fatalf("plan %+v", p)
	}
	if days := 1e12 / (128 * 8192) * p.Best.Step / 86400; p.Days != days {
		t.Errorf("%g days, want %g", p.Days, days)
	}
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{"What the model needs", "llama3-8b trains at", "second best", "twice the NICs"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	if r, err = planOf(t, "7", "years: 3"); err != nil || r.Plan != nil || r.Need != nil {
		t.Errorf("without a model: %v, plan %v", err, r.Plan)
	}
}

func TestDesignSaysWhatDoesNotFit(t *testing.T) {
	r, err := planOf(t, "0", "model: llama3.1-405b, batch: 64")
	if err != nil {
		t.Fatal(err)
	}
	if r.Plan.Best != nil || !strings.Contains(r.Plan.Verdict, "does not fit") || r.Plan.Short <= 0 {
		t.Errorf("plan %+v", r.Plan)
	}
	for needs, want := range map[string]string{"model: gpt-99": "nearest", "batch: 64": "no model is named"} {
		if _, err := planOf(t, "0", needs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", needs, err, want)
		}
	}
}
