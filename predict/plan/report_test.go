package plan

import (
	"regexp"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/work"
)

// The report fits a phone, and its numbers are written as people write them.
func TestReportIsReadable(t *testing.T) {
	c, err := cluster.Preset("dgx-h100", nil)
	if err != nil {
		t.Fatal(err)
	}
	mc, err := NewMachine(c, 0)
	if err != nil {
		t.Fatal(err)
	}
	m, err := work.Named("llama3-8b")
	if err != nil {
		t.Fatal(err)
	}
	found, err := Search(m, mc, Megatron, Wish{Batch: 128, Seq: 8192, Dtype: "fp8", Top: 2})
	if err != nil {
		t.Fatal(err)
	}
	q := Question{Model: m, Machine: mc, Framework: Megatron, Layout: found.Best.Layout, Why: true}
	cost, err := Price(q)
	if err != nil {
		t.Fatal(err)
	}
	if cost.TokensPerS < 1e4 {
		t.Fatalf("%g tokens/s per GPU; the test wants a number that %%.4g writes with an exponent", cost.TokensPerS)
	}
	var page strings.Builder
	if err := (Page{Title: "t", Cost: cost, Days: 12, USD: 3.2e4}).HTML(&page); err != nil {
		t.Fatal(err)
	}
	if list := regexp.MustCompile(`[^#\w][\d.]+e[+-]\d+`).FindAllString(page.String(), -1); len(list) > 0 {
		t.Errorf("numbers with exponents: %q", list)
	}
	if !strings.Contains(page.String(), `<meta name="viewport" content="width=device-width`) {
		t.Error("the page has no viewport: a phone shows it small")
	}
	if !regexp.MustCompile(`step, 90% within [\d.]+ to [\d.]+ s<`).MatchString(page.String()) {
		t.Error("the interval is not beside the step")
	}
	for v, want := range map[float64]string{10770: "10,770", 1077.4: "1,077", 12.344: "12.34", .0012344: "0.001234", 0: "0",
		1234567: "1,234,567", -4321: "-4,321"} {
		if got := readable(v); got != want {
			t.Errorf("%g is written %s, want %s", v, got, want)
		}
	}
}
