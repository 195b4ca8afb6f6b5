package choice

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weft-fabric/weft/predict/cost"
)

// figures are what the ranks found: the median rank's. Links are made of them.
type figures struct {
	When  time.Time   `json:"when"`
	Took  float64     `json:"took_us"` // on the rank that took longest
	Busy  float64     `json:"busy"`    // times longer than necessary that passes over memory took: 1.04 to 1.54 with 2 to 8 ranks on 2 cores that do nothing else, mostly below 1.3 (3 ranks have no even share of 2 cores: 1.3 to 1.6), and 1.44 to 4.6 beside one busy process (2026-11-16)
	Cores int         `json:"cores"`   // of the machine that has fewest
	Hosts int         `json:"hosts"`   // that share them, at most
	Rails int         `json:"rails"`   // over which a large message between hosts went, in as many pieces
	Sync  float64     `json:"sync_us"`
	Paces []cost.Pace `json:"paces"`
	Near  exchange    `json:"near,omitzero"`
	Far   exchange    `json:"far,omitzero"`
}

// combine makes figures of what all ranks found: the median of each over the ranks
// that have it. It is a function of the findings alone. shared is how many hosts share a machine's cores.
func combine(all [][]byte, hosts []int, shared int) (f figures, err error) {
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
		Took:  slices.MaxFunc(found, func(a, b findings) int { return cmp.Compare(a.Took, b.Took) }).Took,
		Cores: slices.MinFunc(found, func(a, b findings) int { return cmp.Compare(a.Cores, b.Cores) }).Cores,
		Hosts: shared,
		Sync:  mid(func(f *findings) float64 { return f.Sync }),
		Near:  between(func(f *findings) *exchange { return &f.Near }),
		Far:   between(func(f *findings) *exchange { return &f.Far }),
	}
	for i := range paces {
		f.Paces = append(f.Paces, cost.Pace{
			Traffic: mid(func(f *findings) float64 { return f.Paces[i].Traffic }),
			Byte:    mid(func(f *findings) float64 { return f.Paces[i].Byte }),
		})
	}
	f.Busy = f.busy(found, hosts)
	return f, nil
}

// busy is how many times longer than necessary the ranks of the busiest host took for what needs a core.
func (f *figures) busy(found []findings, hosts []int) (busy float64) {
	on := map[int]float64{}
	used, wall, ran, waited := map[int]float64{}, map[int]float64{}, map[int]float64{}, map[int]float64{}
	for r, h := range hosts {
		x := &found[r]
		on[h], used[h], wall[h] = on[h]+1, used[h]+x.Used, max(wall[h], x.Wall)
		ran[h], waited[h] = ran[h]+x.Ran, waited[h]+x.Waited
	}
	cores := float64(max(f.Cores, 1)) / float64(max(f.Hosts, 1))
	for h := range on {
		// Ranks pass over memory all the time, so that a host's cores are idle only at the end.
		if used[h] > 0 {
			busy = max(busy, wall[h]*min(on[h], cores)/used[h])
		}
		// While messages are measured they wait for one another, and for cores as long as there are more of them than cores.
		// A rank's own threads take turns as well: 1.3 to 1.6 times as long is what two ranks take on two quiet cores.
		if ran[h] > 0 {
			late := (ran[h] + waited[h]) / ran[h] / max(1, on[h]/cores)
			if late < 2 {
				late = 1
			}
			busy = max(busy, late)
		}
	}
	return busy
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

// links makes links of figures.
func (f *figures) links(hosts []int) (cost.Links, error) {
	l := cost.Links{Ranks: len(hosts), Cores: f.Cores, Hosts: f.Hosts, Sync: f.Sync, Paces: f.Paces}
	if len(f.Paces) == 0 {
		return l, errors.New("no pace of memory")
	}
	narrowest, widest := width(hosts)
	crowd := max(1, 1/l.Own(widest))
	link := func(x exchange, far bool) cost.Link {
		// One more message takes a send and a receive of a core that crowd ranks
		// share; a byte of a large message likewise, or the way out of its host.
		// Neither is less than a pass through memory, however noisy the host was.
		more := min(x.More, x.Small)
		large := largeFor(widest)
		if far {
			large *= max(f.Rails, 1)
		}
		byte := max((x.Large-x.Small)/float64(large-small), perPass*2*l.Paces[0].Byte)
		link := cost.Link{Post: max(more/2/crowd, leastPost), Alpha: x.Small - more, Beta: byte / 2 / crowd}
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

// usual is what a host of 2023 takes for a pass over memory of 16 KiB, 256 KiB and 4 MiB
// a rank and for messages over TCP, and what these take on 25 Gb/s between hosts: in
// steps from there, networks of 1, 10, 25, 40, 100 and 400 Gb/s lie within a step.
var usual = cost.Links{
	Paces: []cost.Pace{{Byte: 2.5e-6}, {Byte: 7.5e-6}, {Byte: 28e-6}},
	Near:  cost.Link{Alpha: 0.5, Post: 3, Beta: 1e-4},
	Far:   cost.Link{Alpha: 25, Post: 3, Beta: 1.5e-4, Wire: 3.2e-4},
}

// sameMachine is the way between hosts that are namespaces or pods of one machine: no wire takes time, and the cores that all of them share
// do the work of both ends. So fewer messages are worth another round.
var sameMachine = cost.Link{Alpha: 2, Post: 5, Beta: 1.5e-4, Wire: 3.2e-4}

// The steps to which figures are rounded. With links that cost anything up to three
// times more or less than usual, and a way out of 1 to 400 Gb/s, programs that are
// chosen so take 1% longer than the best, the mean over ranks, operations and sizes.
const (
	nearStep = 8
	farStep  = 4
)

// rough rounds links to steps from what is usual, so that programs of messages are chosen
// alike whenever links are measured. On two cores that do nothing else measurements
// differ by a factor of up to two, as it matters which ranks share a core; beside two busy
// processes 2 to 8 ranks find 0 to 1500 us on the way and 0.2e-5 to 270e-5 us a byte
// (2026-11-16). So doubtful figures do not count, but for the way between hosts, of which
// none is usual unless they are one machine. most is the number of ranks of the host that has most.
func rough(l cost.Links, most int) cost.Links {
	paces, usual := l.Paces, usual
	if l.Hosts > 1 {
		usual.Far = sameMachine
	}
	l.Paces = slices.Clone(usual.Paces)
	for i := range l.Paces {
		l.Paces[i].Traffic = float64(perPass * pass << (4 * i) * most)
		if k := min(i, len(paces)-1); k >= 0 && !l.Doubtful {
			l.Paces[i].Byte = rounded(paces[k].Byte, l.Paces[i].Byte, nearStep)
		}
	}
	crowd := max(1, 1/l.Own(most))
	if l.Doubtful {
		l.Near, l.Far.Post, l.Far.Beta = usual.Near, usual.Far.Post, usual.Far.Beta
	}
	if l.Hosts > 1 && (l.Doubtful || crowd > 1) { // no cable: what was measured is how long ranks waited for a core
		l.Far.Alpha = usual.Far.Alpha
		if l.Doubtful {
			l.Far.Wire = usual.Far.Wire
		}
	}
	l.Near, l.Far = coarse(l.Near, usual.Near, nearStep, crowd), coarse(l.Far, usual.Far, farStep, crowd)
	return l
}

// coarse rounds what a link costs where crowd ranks share a core. What a message takes
// on the way is what is left of its whole time, and may be lost in it.
func coarse(l, usual cost.Link, by, crowd float64) cost.Link {
	whole := func(l cost.Link) float64 { return l.Alpha + 2*crowd*l.Post }
	time, post := rounded(whole(l), whole(usual), by), rounded(l.Post, usual.Post, by)
	return cost.Link{Alpha: max(time-2*crowd*post, 0), Post: post, Beta: rounded(l.Beta, usual.Beta, by),
		Wire: rounded(l.Wire, usual.Wire, by)}
}

// rounded is the nearest to a number of those that are by times apart, of which
// the usual one is one, and which stands for none.
func rounded(x, usual, by float64) float64 {
	if x <= 0 || usual == 0 {
		return usual
	}
	return usual * math.Pow(by, math.Round(math.Log(x/usual)/math.Log(by)))
}
