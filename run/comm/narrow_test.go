package comm

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/nslab"
)

// Large packets that vanish from the start are found by Join, in either direction and on every rank, long before a time limit. The
// error names the ranks at both ends.
func TestJoinFindsNarrowPaths(t *testing.T) {
	filter := func(lab *nslab.Lab, from, to int) error {
		return loadRules(lab, to, fmt.Sprintf("table inet narrow {\n chain i { type filter hook input priority 0; "+
			"ip saddr %s meta length > 600 drop; }\n}\n", nslab.Addr(from, 0)))
	}
	type fault struct {
		name  string
		begin func(lab *nslab.Lab) error
		host  int // at one end of every bad path
	}
	for _, x := range bounded.First(2, []fault{
		{"port of the last host", func(lab *nslab.Lab) error { return lab.Narrow(2, 0, 600) }, 2},
		{"between others", func(lab *nslab.Lab) error { return filter(lab, 1, 2) }, 2},
		{"port of rank 0's host", func(lab *nslab.Lab) error { return lab.Narrow(0, 0, 600) }, 0},
		{"from rank 0's host", func(lab *nslab.Lab) error { return filter(lab, 0, 2) }, 2},
		{"to rank 0's host", func(lab *nslab.Lab) error { return filter(lab, 2, 0) }, 2},
	}...) {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			lab := nslab.New(t, 3, 1)
			must(t, x.begin(lab))
			places := []int{0, 0, 1, 2, 2}
			for r, p := range startOnPlaces(t, lab, places, "flow", "WEFT_TIMEOUT=40s") {
				if text, ok := p.refusesNarrow(places, x.host); !ok {
					t.Errorf("rank %d: %s", r, text)
				}
			}
		})
	}
}

var narrowPair = regexp.MustCompile(`from rank (\d) \(.*MTU 1500\) to rank (\d) \(.*MTU 1500\).*compare the MTU`)

// refusesNarrow waits until a rank could not join, and reports whether its error names a path with exactly one end on a host.
func (p *proc) refusesNarrow(places []int, host int) (text string, ok bool) {
	p.t.Helper()
	p.await("started")
	e := p.await("broken")
	p.wait()
	m := narrowPair.FindStringSubmatch(e.Err)
	if m == nil {
		return e.Err, false
	}
	a, _ := strconv.Atoi(m[1])
	b, _ := strconv.Atoi(m[2])
	return e.Err, (places[a] == host) != (places[b] == host)
}
