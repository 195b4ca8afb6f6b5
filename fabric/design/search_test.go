package design

import (
	"math"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
)

func TestParseWish(t *testing.T) {
	for text, want := range map[string]Wish{
		"2048 h100, 1:1, under $90M":                  {GPUs: 2048, GPU: "h100", Ratio: 1, USD: 90e6},
		"512 B200, 2:1, $40.5m, under 1.5 MW, ib":     {GPUs: 512, GPU: "b200", Ratio: 2, USD: 40.5e6, Watts: 1.5e6, Kind: "infiniband"},
		"16x h200,non-blocking,ethernet,rail":         {GPUs: 16, GPU: "h200", Ratio: 1, Kind: "ethernet", Family: "rail"},
		"  128   a100 ,  fat-tree , at most $9000k  ": {GPUs: 128, GPU: "a100", USD: 9e6, Family: "fat-tree"},
	} {
		got, err := ParseWish(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "names no GPUs", "1:1": "names no GPUs", "0 h100": "want 1 to", "64 h100, cheap": `"cheap" is none of`,
		"64 h100, 0.5:1": "want 1:1 or more", "9999999 h100": "want 1 to",
	} {
		if _, err := ParseWish(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestSearch: what is proposed fits, is ranked by price, and is what Analyze says of the cluster file that comes with it.
func TestSearch(t *testing.T) {
	quiet := func(int, int) {}
	w, err := ParseWish("64 h100, 1:1, under $5M")
	if err != nil {
		t.Fatal(err)
	}
	f, err := Search(w, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Proposals) < 4 || !f.Proposals[0].Fits {
		t.Fatalf("%s", f.Text(9))
	}
	for i, p := range f.Proposals {
		if i > 0 && p.Fits && f.Proposals[i-1].Fits && len(p.Unpriced) == len(f.Proposals[i-1].Unpriced) && p.USD < f.Proposals[i-1].USD {
			t.Errorf("%d is cheaper than %d", i, i-1)
		}
		if p.Fits && (p.Ratio > 1.001 || p.USD > 5e6 || p.GPUs < 64) {
			t.Errorf("%+v does not fit", p)
		}
		if p.Fits == (len(p.Misses) > 0) || p.Why == "" {
			t.Errorf("%+v", p)
		}
	}
	best := f.Proposals[0]
	c, err := cluster.Parse("best.yaml", []byte(best.Cluster), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Analyze(c)
	if err != nil {
		t.Fatal(err)
	}
	if r.CostUSD != best.USD || r.PowerWatts != best.Watts || r.Oversubscription != best.Ratio || r.GPUs != best.GPUs {
		t.Errorf("the report says $%.0f, %.0f W, %g:1, %d GPUs; the proposal %+v", r.CostUSD, r.PowerWatts, r.Oversubscription, r.GPUs, best)
	}
	w.USD = 1000
	if f, err = Search(w, nil, quiet); err != nil || f.Proposals[0].Fits || !strings.Contains(f.Text(3), "nothing fits") ||
		!strings.Contains(f.Text(3), "over the price") {
		t.Errorf("for $1000: %v\n%s", err, f.Text(3))
	}
	w.GPU = "z9"
	if _, err := Search(w, nil, quiet); err == nil || !strings.Contains(err.Error(), "known GPUs: ") {
		t.Errorf("a GPU z9: %v", err)
	}
}

func TestCompare(t *testing.T) {
	var list []*Report
	for _, text := range []string{
		"name: wide\nhosts: {\"n[0-7]\": hgx-h100}\nfabric: {family: rail, switch: SN5600, link: 400gbe}\n",
		"name: narrow\nhosts: {\"n[0-7]\": hgx-h100}\nfabric: {family: fat-tree, switch: SN5600, link: 400gbe}\n",
	} {
		c, err := cluster.Parse("c.yaml", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Analyze(c)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	list[1].CostUSD--
	c := Compare(list)
	text := c.Text()
	for _, l := range c.Lines {
		if len(l.Values) != 2 {
			t.Errorf("%s has %d values", l.What, len(l.Values))
		}
		if l.What == "cost" && (len(l.Better) != 1 || l.Better[0] != 1) {
			t.Errorf("the cheaper one is not marked: %+v", l)
		}
		if l.What == "GPUs" && len(l.Better) != 0 {
			t.Errorf("equal figures have no better one: %+v", l)
		}
	}
	if !strings.Contains(text, "wide") || !strings.Contains(text, " *") {
		t.Error(text)
	}
}

// FuzzParseWish: what is read can be computed with.
func FuzzParseWish(f *testing.F) {
	for _, s := range []string{"2048 h100, 1:1, under $90M", "1_024 a100, at most 2.5:1, 3mw, rail, ib",
		"8 h100, 0:1", "8 h100, $" + strings.Repeat("9", 400), "-1 h100", "h100", ",,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		w, err := ParseWish(text)
		if err != nil {
			return
		}
		for name, v := range map[string]float64{"ratio": w.Ratio, "cost": w.USD, "power": w.Watts} {
			if math.IsInf(v, 0) || math.IsNaN(v) || v < 0 {
				t.Errorf("%q: %s is %g", text, name, v)
			}
		}
		if w.GPUs < 1 || w.GPU == "" {
			t.Errorf("%q: %d of %q", text, w.GPUs, w.GPU)
		}
	})
}
