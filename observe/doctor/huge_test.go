package doctor_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/doctor"
)

var digits = regexp.MustCompile(`\d+`)

// A number in a log that damage made huge is read, and costs no more than another one: nothing is made or counted up to it.
func TestHugeNumbers(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	tries := 4
	if bounded.Long() {
		tries = 200
	}
	for _, s := range slices.Concat(symptoms(), findings()) {
		for _, name := range slices.Sorted(maps.Keys(s.sick)) {
			text := s.sick[name]
			places := digits.FindAllStringIndex(text, -1)
			if len(places) == 0 {
				continue
			}
			for range tries {
				at := places[rng.IntN(len(places))]
				huge := []string{"2000000000", "4294967297", "9223372036854775807", "999999999999999999999999"}[rng.IntN(4)]
				files := maps.Clone(s.sick)
				files[name] = text[:at[0]] + huge + text[at[1]:]
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				diagnose(t, files)
				runtime.ReadMemStats(&after)
				if took := after.TotalAlloc - before.TotalAlloc; took > 256<<20 {
					line := text[max(0, at[0]-60):at[0]] + huge + text[at[1]:min(len(text), at[1]+40)]
					t.Errorf("symptom %s %s: %d MiB were allocated for %q", s.n, s.id, took>>20, line)
				}
			}
		}
	}
}

// Groups of many ranks that have one name are told apart.
func TestLargeGroupsOfOneName(t *testing.T) {
	const n, slow = 160, 117
	half := func(r int) (ranks []int) {
		for i := r / (n / 2) * (n / 2); len(ranks) < n/2; i++ {
			ranks = append(ranks, i)
		}
		return ranks
	}
	c := &doctor.Case{}
	for r := range n {
		d := doctor.Dump{File: fmt.Sprintf("d/rank_%d", r), Rank: r, NameRank: r,
			Groups: []doctor.Group{{ID: -1, Name: "dp", Ranks: half(r), LastEnqueued: 9, HasStatus: true}}}
		if r == slow {
			d.Groups[0].LastEnqueued = 8
		}
		for s := int64(1); s <= d.Groups[0].LastEnqueued; s++ {
			d.Entries = append(d.Entries, doctor.Op{Record: s, Group: "dp", GroupID: -1, Seq: s, Name: "all_reduce", From: -1, To: -1, Done: s < 9 ||
				r < n/2})
		}
		c.Dumps = append(c.Dumps, d)
	}
	h := doctor.Hangs(c)
	if len(h) != 1 || !slices.Equal(h[0].Culprits, []int{slow}) || len(h[0].Waiting) != n/2-1 {
		t.Errorf("%+v", h)
	}
}
