package design

import (
	"bytes"
	"encoding/csv"
	"math"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
)

const twoPods = `name: pods
hosts: {"n[0-31]": dgx-h100}
fabric: {family: rail, switch: SN5600, link: 400gbe, pod: 16}
`

func analyzed(t *testing.T, text string) *Report {
	t.Helper()
	c, err := cluster.Parse("pods.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Analyze(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestNetworksAreCountedAndPriced: what the file declares is on the bill, what it does not is shown beside it, and both cost the same.
func TestNetworksAreCountedAndPriced(t *testing.T) {
	bare, all := analyzed(t, twoPods), analyzed(t, twoPods+"services: all\n")
	more := 0.0
	for i, n := range all.Networks {
		b := bare.Networks[i]
		if n.Name != b.Name || n.Switches != b.Switches || n.Ports != b.Ports || n.Cables != b.Cables || n.USD != b.USD || !n.Counted ||
			b.Counted != (i == 0) {
			t.Errorf("declared %+v\nnot declared %+v", n, b)
		}
		if i > 0 {
			more += n.USD
		}
		if n.USD <= 0 || n.Switches <= 0 || n.Cables < n.Ports {
			t.Errorf("%s: %+v", n.Name, n)
		}
	}
	if len(all.Networks) != 4 || math.Abs(all.CostUSD-bare.CostUSD-more) > 1 {
		t.Errorf("%d networks; the cost grew by %.0f, the networks cost %.0f", len(all.Networks), all.CostUSD-bare.CostUSD, more)
	}
	sum := 0.0
	for _, it := range all.Bill {
		sum += it.USD
	}
	if math.Abs(sum-all.CostUSD) > 1 {
		t.Errorf("the bill is %.0f, the cost %.0f", sum, all.CostUSD)
	}
	var out bytes.Buffer
	if err := all.BillCSV(&out); err != nil {
		t.Fatal(err)
	}
	if rows, err := csv.NewReader(&out).ReadAll(); err != nil || len(rows) != len(all.Bill)+1 {
		t.Errorf("%d lines of CSV for %d items, %v", len(rows), len(all.Bill), err)
	}
}

// TestFabricsAddUp: the networks of a cluster with several fabrics cost what its switches and cables cost together.
func TestFabricsAddUp(t *testing.T) {
	r := analyzed(t, `hosts: {"n[0-31]": {kind: dgx-h100, rack: 4}}
fabrics:
  red: {family: rail, nics: "nic[0-3]", switch: QM9700}
  blue: {family: rail, nics: "nic[4-7]", switch: QM9700}
  disks: {family: fat-tree, service: true, nics: "stor[0-1]", leaves: 2, switch: QM9700}
`)
	want, got := 0.0, 0.0
	for _, it := range r.Bill {
		if it.Kind != "host" {
			want += it.USD
		}
	}
	for _, n := range r.Networks {
		if n.Counted {
			got += n.USD
		}
		if n.Name == "storage" {
			t.Error("a storage network is proposed although a fabric has its NICs")
		}
	}
	if math.Abs(got-want) > 1 {
		t.Errorf("the networks cost %.0f, switches and cables %.0f", got, want)
	}
}

// TestCablesByLength: with a floor plan each link takes the cheapest cable that reaches, and fibre where the owner wants it.
func TestCablesByLength(t *testing.T) {
	cheap, fibre := analyzed(t, twoPods+"floor: {row: 8}\n"), analyzed(t, twoPods+"floor: {row: 8, cables: fibre}\n")
	links := 0
	for _, x := range cheap.Optics.Choices {
		links += x.Count
		limit := map[string]float64{"dac": 2, "acc": 4, "aoc": 30, "smf": 500}[x.Cable[:3]]
		if x.Metres > limit || x.Metres < 1 {
			t.Errorf("%s over %g m", x.Cable, x.Metres)
		}
	}
	if links != 512 || cheap.Optics.Transceivers != 0 || cheap.Floor == nil || cheap.Floor.Longest < 5 {
		t.Errorf("%d links, %d transceivers, floor %+v", links, cheap.Optics.Transceivers, cheap.Floor)
	}
	if fibre.CostUSD <= cheap.CostUSD || fibre.Optics.Transceivers == 0 {
		t.Errorf("fibre costs %.0f with %d transceivers, the cheapest %.0f", fibre.CostUSD, fibre.Optics.Transceivers, cheap.CostUSD)
	}
	plain := analyzed(t, strings.Replace(twoPods, "dgx-h100", "{kind: dgx-h100, rack: 4}", 1))
	toHosts := func(r *Report) (n int) {
		for _, x := range r.Optics.Choices {
			if strings.HasPrefix(x.Link, "host-leaf") {
				n += x.Optics
			}
		}
		return n
	}
	if toHosts(plain) != toHosts(fibre) {
		t.Errorf("%d transceivers with lengths, %d without: a cage is counted by its ports, not by lengths", toHosts(fibre), toHosts(plain))
	}
	if plain.Floor != nil {
		t.Error("a floor plan that nobody asked for")
	}
}
