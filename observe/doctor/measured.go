package doctor

import (
	_ "embed"
	"strconv"
	"strings"
)

// How sure a finding is comes from labelled cases that no rule was fitted to: data/measured.csv has how often each finding
// was the headline, how often it named cause and culprit, and the share that follows, drawn towards that of all headlines
// (the row *) as far as its cases are few. TestMeasured writes and checks it. The confidence in the catalogue is what public
// reports suggest: it can lower a finding that was not measured, never raise one.

//go:embed data/measured.csv
var measuredCSV string

// Measured is how a finding did on labelled cases.
type Measured struct {
	Cases int     `json:"cases"` // in which it was the headline
	Right int     `json:"right"` // of them: cause and culprit were right
	Sure  float64 `json:"-"`
}

var measured = func() map[string]Measured {
	m := map[string]Measured{}
	for i, l := range strings.Split(strings.TrimSpace(measuredCSV), "\n") {
		f := strings.Split(l, ",")
		if i == 0 || len(f) != 4 {
			continue
		}
		row := Measured{Cases: num(f[1]), Right: num(f[2])}
		row.Sure, _ = strconv.ParseFloat(f[3], 64)
		m[f[0]] = row
	}
	return m
}()

// sure is how sure the catalogue's entry may be.
func (e *Entry) sure() float64 {
	if row, ok := measured[e.ID]; ok {
		return row.Sure
	}
	return min(e.Confidence, measured["*"].Sure)
}
