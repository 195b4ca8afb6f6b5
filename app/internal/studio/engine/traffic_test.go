package engine

import (
	"fmt"
	"strings"
	"testing"
)

// A ring over one GPU of each host sends each byte of an all-reduce twice over every cable, but for the part that stays: 2(n-1)/n
// of the size, out of every NIC and into it. Other cables carry nothing.
func TestTraffic(t *testing.T) {
	e := New(Default())
	file := File{text(t, "four-hosts")}
	const size = 1 << 28
	var got struct {
		Algo   string
		Cables []struct {
			Name  string
			Bytes int64
			A, B  int
		}
	}
	must(t, do(t, e, "traffic", trafficQuestion{file, "all-gather", size, []string{"n0:gpu2", "n1:gpu2", "n2:gpu2", "n3:gpu2"}}, &got))
	sent := map[string]int64{}
	for _, c := range got.Cables {
		sent[c.Name] += c.Bytes
	}
	if got.Algo != "ring" || len(got.Cables) != 8 {
		t.Fatalf("%+v", got)
	}
	for h := range 4 {
		name := fmt.Sprintf("n%d:nic2 - leaf2:p%d", h, h+1)
		if want := int64(2 * size * 3 / 4); sent[name] < want*99/100 || sent[name] > want*101/100 { // both directions
			t.Errorf("%s passes %d bytes, want %d", name, sent[name], want)
		}
	}
	for _, ranks := range [][]string{{"n0:gpu0", "n0:gpu0"}, {"n0:gpu0", "leaf0"}, {"n0:gpu0"}} {
		if err := do(t, e, "traffic", trafficQuestion{file, "all-gather", size, ranks}, nil); err == nil ||
			!strings.Contains(err.Error(), "ranks") {
			t.Errorf("%v: %v", ranks, err)
		}
	}
}
