package design

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestPrintedNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{percent(1), "100%"}, {percent(0.99995), "99.995%"}, {percent(7.0 / 8), "87.5%"}, {percent(0), "0%"}, {percent(0.00004), "0.004%"},
		{percent(0.5), "50%"},
		{money(1234567.4), "1,234,567"}, {money(-1234), "-1,234"}, {money(999), "999"},
		{days(0), "never"}, {days(0.01), "14 min"}, {days(1.5), "36.0 h"}, {days(12.34), "12.3 days"},
		{watts(999), "999 W"}, {watts(10200), "10.2 kW"}, {watts(37.04e6), "37.04 MW"},
		{params(175e9), "175B"}, {params(1.8e12), "1.8T"}, {params(12), "12"},
		{plural(1, "switch"), "1 switch"}, {plural(2, "switch"), "2 switches"}, {plural(1024, "host"), "1,024 hosts"},
		{bits(16_000 * 25e9), "3.2 Pb/s"}, {bits(50e9), "400 Gb/s"}, {seconds(0.0547), "54.7 ms"}, {seconds(28), "28 s"},
		{span(8, 8), "8"}, {span(4, 1000), "4 to 1,000"}, {millions(55_590_400), "55.59 M"}, {millions(1_184_894_400), "1.18 B"},
		{trim(16.0 / 15), "1.067"},
	} {
		if c.got != c.want {
			t.Errorf("printed %q, want %q", c.got, c.want)
		}
	}
}

// A share below one never prints as all, one above nothing never as nothing.
func TestPercentNeverRoundsALossAway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share := rapid.Float64Range(1e-6, 1-1e-6).Draw(t, "share")
		if s := percent(share); s == "100%" || s == "0%" {
			t.Fatalf("%g prints as %s", share, s)
		}
	})
}

func TestWaysNeverOverflow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sum, n, cables := rapid.Uint64Range(0, most).Draw(t, "sum"), rapid.Uint64Range(0, most).Draw(t, "ways"),
			rapid.Int32Range(1, 1000).Draw(t, "cables")
		want := min(float64(sum)+float64(n)*float64(cables), most)
		if got := more(sum, n, cables); math.Abs(float64(got)-want) > 1e-9*want {
			t.Fatalf("%d + %d x %d is %d", sum, n, cables, got)
		}
	})
}
