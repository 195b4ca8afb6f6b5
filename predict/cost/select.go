package cost

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/model/unit"
)

// Ranked is an algorithm with its time.
type Ranked struct {
	Name string    `json:"algo"`
	Cost Work      `json:"cost"`
	Time unit.Time `json:"time_ps"`
}

// Turn is a size from which another algorithm is the cheapest.
type Turn struct {
	From unit.Bytes `json:"from_bytes"`
	Name string     `json:"algo"`
}

// Selection is the cheapest algorithm at a size, why, and what would change it.
type Selection struct {
	Ranked
	Reason string   `json:"reason"`
	Change string   `json:"change"` // what would change the choice
	Turns  []Turn   `json:"turns"`  // the cheapest from each size on, from 1 byte to 1 TiB
	Others []Ranked `json:"others"` // by time, cheapest first
}

// Select picks the cheapest algorithm; of equal ones the first.
func Select(m Model, algos []Algo, bytes unit.Bytes) (*Selection, error) {
	if len(algos) == 0 {
		return nil, errors.New("no algorithm to select from")
	}
	bytes = max(bytes, 0)
	list := rank(m, algos, bytes)
	s := &Selection{Ranked: list[0], Others: list[1:], Turns: turns(m, algos)}
	s.Reason = fmt.Sprintf("%s takes %s for %s", s.Name, s.Time, describe(s.Cost))
	if len(s.Others) > 0 {
		next := s.Others[0]
		s.Reason += fmt.Sprintf("; %s, the next, %s for %s", next.Name, next.Time, describe(next.Cost))
	}
	s.Change = s.change(bytes)
	return s, nil
}

func describe(c Work) string {
	return fmt.Sprintf("%.4g steps, %s sent and %s reduced a rank", c.Steps, unit.Bytes(c.Wire), unit.Bytes(c.Reduced))
}

// rank sorts algorithms by predicted time. Equal ones keep their order, so that the choice does not depend on the sort.
func rank(m Model, algos []Algo, bytes unit.Bytes) []Ranked {
	var list []Ranked
	for _, a := range algos {
		c := a.Cost(bytes)
		list = append(list, Ranked{a.Name, c, m.Time(c)})
	}
	slices.SortStableFunc(list, func(a, b Ranked) int {
		switch {
		case a.Time < b.Time:
			return -1
		case a.Time > b.Time:
			return 1
		}
		return 0
	})
	return list
}

// turns walks the sizes by halves of a power of two and closes in on each change
// to the byte. A winner that lives for less than that is not seen.
func turns(m Model, algos []Algo) []Turn {
	best := func(b unit.Bytes) string { return rank(m, algos, b)[0].Name }
	list := []Turn{{1, best(1)}}
	last := unit.Bytes(1)
	for b := unit.Bytes(2); b <= 1<<40; b = max(b+b/2, b+1) {
		for from := last; ; {
			name := list[len(list)-1].Name
			if best(b) == name {
				break
			}
			lo, hi := from, b // best(lo) is name, best(hi) is not
			for hi-lo > 1 {
				if mid := lo + (hi-lo)/2; best(mid) == name {
					lo = mid
				} else {
					hi = mid
				}
			}
			list = append(list, Turn{hi, best(hi)})
			from = hi
		}
		last = b
	}
	return list
}

// change says at which sizes the choice would be another.
func (s *Selection) change(bytes unit.Bytes) string {
	at := 0
	for i, t := range s.Turns {
		if t.From <= max(bytes, 1) {
			at = i
		}
	}
	text := ""
	if at > 0 {
		text = fmt.Sprintf("below %s %s is cheaper", s.Turns[at].From, s.Turns[at-1].Name)
	}
	if at+1 < len(s.Turns) {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("from %s %s is", s.Turns[at+1].From, s.Turns[at+1].Name)
	}
	if text == "" {
		return "no size changes the choice"
	}
	return text
}
