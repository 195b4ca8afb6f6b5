package choice

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weft-fabric/weft/tune"
)

// figures are what the ranks found in one measurement, or in several: the median
// rank's. Links are made of them.
type figures struct {
	When  time.Time   `json:"when"`
	Busy  float64     `json:"busy"`  // times longer than necessary that passes over memory took: 1.05 to 1.3 with 2 to 16 ranks on 2 cores that do nothing else, 1.3 to 2.3 beside one busy process (2026-11-16)
	Cores int         `json:"cores"` // of the host that has fewest
	Sync  float64     `json:"sync_us"`
	Paces []tune.Pace `json:"paces"`
	Near  exchange    `json:"near,omitzero"`
	Far   exchange    `json:"far,omitzero"`
}

// combine makes figures of what all ranks found: the median of each over the ranks
// that have it. It is a function of the findings alone.
func combine(all [][]byte, hosts []int) (f figures, err error) {
	if len(all) != len(hosts) {
		return f, fmt.Errorf("links measured by %d ranks of %d", len(all), len(hosts))
	}
	found := make([]findings, len(all))
	for r := range all {
		if err := json.Unmarshal(all[r], &found[r]); err != nil {
			return f, fmt.Errorf("links measured by rank %d: %w", r, err)
		}
	}
	paces := len(slices.MinFunc(found, func(a, b findings) int { return cmp.Compare(len(a.Paces), len(b.Paces)) }).Paces)
	if paces == 0 {
		return f, errors.New("some rank did not measure its memory")
	}
	mid := func(of func(f *findings) float64) float64 { return middle(found, of) }
	between := func(of func(f *findings) *exchange) exchange {
		return exchange{
			Small: mid(func(f *findings) float64 { return of(f).Small }),
			More:  mid(func(f *findings) float64 { return of(f).More }),
			Large: mid(func(f *findings) float64 { return of(f).Large }),
		}
	}
	f = figures{
		When:  found[0].When,
		Cores: slices.MinFunc(found, func(a, b findings) int { return cmp.Compare(a.Cores, b.Cores) }).Cores,
		Sync:  mid(func(f *findings) float64 { return f.Sync }),
		Near:  between(func(f *findings) *exchange { return &f.Near }),
		Far:   between(func(f *findings) *exchange { return &f.Far }),
	}
	for i := range paces {
		f.Paces = append(f.Paces, tune.Pace{
			Traffic: mid(func(f *findings) float64 { return f.Paces[i].Traffic }),
			Byte:    mid(func(f *findings) float64 { return f.Paces[i].Byte }),
		})
	}
	// Ranks pass over memory all the time, so that a host's cores are idle only at the end.
	on, used, wall := map[int]float64{}, map[int]float64{}, map[int]float64{}
	for r, h := range hosts {
		on[h], used[h], wall[h] = on[h]+1, used[h]+found[r].Used, max(wall[h], found[r].Wall)
	}
	for h := range on {
		if used[h] > 0 {
			f.Busy = max(f.Busy, wall[h]*min(on[h], float64(max(f.Cores, 1)))/used[h])
		}
	}
	return f, nil
}

// middle is the median of the figures that are not zero.
func middle[T any](list []T, of func(*T) float64) float64 {
	var some []float64
	for i := range list {
		if x := of(&list[i]); x > 0 {
			some = append(some, x)
		}
	}
	return median(some)
}

// merge makes one of several measurements of the same ranks, the median of each
// figure: one is too high if something else ran, and too low if ranks that share a core
// happened to find their messages there.
func merge(list []figures) figures {
	f := list[0]
	if len(list) == 2 {
		return f // the lower ones of two need not fit together
	}
	between := func(of func(f *figures) *exchange) exchange {
		return exchange{
			Small: middle(list, func(f *figures) float64 { return of(f).Small }),
			More:  middle(list, func(f *figures) float64 { return of(f).More }),
			Large: middle(list, func(f *figures) float64 { return of(f).Large }),
		}
	}
	f.Busy = slices.MaxFunc(list, func(a, b figures) int { return cmp.Compare(a.Busy, b.Busy) }).Busy
	f.Sync = middle(list, func(f *figures) float64 { return f.Sync })
	f.Near, f.Far = between(func(f *figures) *exchange { return &f.Near }), between(func(f *figures) *exchange { return &f.Far })
	f.Paces = slices.Clone(f.Paces)
	for i := range f.Paces {
		f.Paces[i].Byte = middle(list, func(f *figures) float64 { return f.Paces[min(i, len(f.Paces)-1)].Byte })
	}
	return f
}

// links makes links of figures.
func (f *figures) links(hosts []int) (tune.Links, error) {
	l := tune.Links{Ranks: len(hosts), Cores: f.Cores, Sync: f.Sync, Paces: f.Paces}
	if len(f.Paces) == 0 {
		return l, errors.New("no pace of memory")
	}
	narrowest, widest := width(hosts)
	crowd := max(1, float64(widest)/float64(max(l.Cores, 1)))
	link := func(x exchange, far bool) tune.Link {
		// One more message takes a send and a receive of a core that crowd ranks
		// share; a byte of a large message likewise, or the way out of its host.
		// Neither is less than a pass through memory, however noisy the host was.
		more := min(x.More, x.Small)
		byte := max((x.Large-x.Small)/float64(largeFor(widest)-small), perPass*2*l.Paces[0].Byte)
		link := tune.Link{Post: max(more/2/crowd, leastPost), Alpha: x.Small - more, Beta: byte / 2 / crowd}
		if far {
			link.Wire = byte / float64(narrowest)
		}
		return link
	}
	if widest > 1 {
		l.Near = link(f.Near, false)
	}
	if widest < len(hosts) {
		l.Far = link(f.Far, true)
		if widest > 1 { // what the bytes take of cores is known from near ones
			l.Far.Beta = min(l.Far.Beta, l.Near.Beta)
		}
	}
	return l, l.Check()
}

// loopback is what messages take over TCP inside a host of 2023.
var loopback = tune.Link{Alpha: 3, Post: 2.5, Beta: 1e-4}

// believed is how many times more or less than that a busy host may have found: beside
// two busy processes 2 to 8 ranks find 0 to 1500 us on the way and 0.2e-5 to 270e-5 us a
// byte (2026-11-16), where 0 to 10 us and 9e-5 to 14e-5 us are right.
const believed = 3

// believe brings a doubtful link near to what is usual.
func believe(l tune.Link) tune.Link {
	l.Alpha = min(l.Alpha, believed*loopback.Alpha)
	l.Post = min(max(l.Post, loopback.Post/believed), believed*loopback.Post)
	l.Beta = min(max(l.Beta, loopback.Beta/believed), believed*loopback.Beta)
	return l
}
