package choice

import "testing"

// A program is dropped when it is slow in three looks in a row and the choice beside it is
// faster; one slow look is none, and where everything is slow it stays.
func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		heard []float64
		want  []State
	}{
		"as it was":          {[]float64{1, 0.9, 1.4, 1.49}, []State{Serves, Serves, Serves, Serves}},
		"a busy moment":      {[]float64{9, 9, 1, 9, 9, 1}, []State{Serves, Serves, Serves, Serves, Serves, Serves}},
		"a slow link":        {[]float64{4, 4, 4, 2, 1}, []State{Serves, Serves, Doubted, Dropped, Dropped}},
		"everything is slow": {[]float64{4, 4, 4, 5, 4, 4, 4}, []State{Serves, Serves, Doubted, Serves, Serves, Serves, Serves}},
		"and then slower":    {[]float64{4, 4, 4, 5, 9, 9, 9, 7}, []State{Serves, Serves, Doubted, Serves, Serves, Serves, Doubted, Dropped}},
	} {
		j := NewJudge(&Made{From: 1000, Took: 10})
		for i, ratio := range c.heard {
			before := j.State()
			if changed := j.Heard(ratio); changed != (j.State() != before) || j.State() != c.want[i] {
				t.Errorf("%s: after look %d it is %d, changed %t; want %d", name, i, j.State(), changed, c.want[i])
			}
		}
	}
	j := NewJudge(&Made{From: 1000, Took: 10})
	for i := range callsPerLook {
		if due := j.Add(2000, float64(20*(1+i))); due != (i == callsPerLook-1) {
			t.Errorf("call %d: a look is due: %t", i, due)
		}
	}
	if m := j.Median(); m != 4 { // twice the bytes, the fourth of eight
		t.Errorf("median %g, want 4", m)
	}
}
