package up

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseDrill(t *testing.T) {
	for text, want := range map[string]Drill{
		"":                    nil,
		"kill":                {{"kill", 1}},
		"kill:5":              {{"kill", 5}},
		"kill:2,coord:1,stop": {{"kill", 2}, {"coord", 1}, {"stop", 1}},
		" kill:2 , coord:3":   {{"kill", 2}, {"coord", 3}},
	} {
		got, err := ParseDrill(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"maim":         "kill, stop, coord",
		"kill:0":       `"0" is not a number`,
		"kill:-1":      `"-1" is not a number`,
		"kill:many":    `"many" is not a number`,
		"kill:1e3":     `"1e3" is not a number`,
		"kill:9999999": `"9999999" is not a number`,
		"kill:":        `"" is not a number`,
		"kill:1,,stop": `"" is none of`,
		",":            `"" is none of`,
		"KILL:1":       `"KILL" is none of`,
	} {
		if got, err := ParseDrill(text); !isUse(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v; want it to say %s", text, got, err, says)
		}
	}
}

func FuzzParseDrill(f *testing.F) {
	for _, s := range []string{"", "kill:5", "kill:2,coord:1,stop:1", "stop", "kill:0", ",", "kill:9999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDrill(s)
		if err != nil {
			if d != nil || !isUse(err) {
				t.Fatalf("%q: %v, %v", s, d, err)
			}
			return
		}
		again, err := ParseDrill(d.String())
		if err != nil || !reflect.DeepEqual(again, d) {
			t.Fatalf("%q is %v, which reads as %v, %v", s, d, again, err)
		}
		for _, x := range d {
			if x.Count < 1 || !slices.ContainsFunc(Exercises, func(e struct{ Name, Summary string }) bool { return e.Name == x.Kind }) {
				t.Fatalf("%q has %+v", s, x)
			}
		}
	})
}

// What happens when follows from the seed: all exercises, in order, between the
// first and the last tenth of the time.
func TestThePlan(t *testing.T) {
	d := Drill{{"kill", 50}, {"coord", 3}, {"stop", 4}}
	make := func(seed uint64, whole time.Duration) []act { return d.plan(whole, rand.New(rand.NewPCG(seed, 1))) }
	a, b, c := make(1, time.Minute), make(1, time.Minute), make(2, time.Minute)
	if !reflect.DeepEqual(a, b) {
		t.Error("the same seed gives other plans")
	}
	if reflect.DeepEqual(a, c) {
		t.Error("another seed gives the same plan")
	}
	for _, whole := range []time.Duration{time.Minute, 0} {
		list := make(3, whole)
		count := map[string]int{}
		for i, x := range list {
			count[x.kind]++
			if i > 0 && x.at < list[i-1].at {
				t.Errorf("%v after %v", x, list[i-1])
			}
			w := whole
			if w == 0 {
				w = 58 * gap
			}
			if x.at < w/10 || x.at > w*9/10 {
				t.Errorf("%v of %v", x, w)
			}
		}
		if count["kill"] != 50 || count["coord"] != 3 || count["stop"] != 4 {
			t.Error(count)
		}
	}
	if list := Drill(nil).plan(time.Minute, rand.New(rand.NewPCG(1, 1))); len(list) != 0 {
		t.Error(list)
	}
}
