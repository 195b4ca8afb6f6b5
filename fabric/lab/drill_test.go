package lab

import (
	"slices"
	"testing"
	"time"
)

func TestSuspects(t *testing.T) {
	for _, c := range []struct {
		lost, works [][]int
		want        []int
		most        int
	}{
		{[][]int{{1, 2, 3}, {4, 2, 5}}, [][]int{{1, 3}, {4, 5}}, []int{2}, 2},
		{[][]int{{1, 2, 3}, {4, 2, 3}}, [][]int{{1, 4}}, []int{2, 3}, 2},   // two cables in a row
		{[][]int{{1, 2, 2}, {4, 3}, {5, 3}}, [][]int{{1, 4}}, []int{3}, 2}, // a way that crosses a cable twice counts once
		{[][]int{{1, 2}}, [][]int{{2, 1}}, nil, 0},                         // everything works: nothing explains it
		{nil, [][]int{{1}}, nil, 0},
	} {
		got, most := suspects(c.lost, c.works)
		if !slices.Equal(got, c.want) || most != c.most {
			t.Errorf("lost %v, working %v: suspects %v with %d, want %v with %d", c.lost, c.works, got, most, c.want, c.most)
		}
	}
}

func TestOutage(t *testing.T) {
	ms := int64(time.Millisecond)
	sent := []int64{0, 2 * ms, 4 * ms, 6 * ms, 8 * ms, 10 * ms, 12 * ms}
	for _, c := range []struct {
		got       string
		lost, row int
		lasted    time.Duration
	}{
		{"1111111", 0, 0, 0},
		{"1001101", 3, 2, 4 * time.Millisecond},
		{"1011000", 4, 3, 4 * time.Millisecond}, // the end is not known
		{"0000001", 6, 6, 12 * time.Millisecond},
	} {
		var got []bool
		for _, b := range c.got {
			got = append(got, b == '1')
		}
		lost, row, lasted := outage(sent, got)
		if lost != c.lost || row != c.row || lasted != c.lasted {
			t.Errorf("%s: %d lost, %d in a row for %v; want %d, %d, %v", c.got, lost, row, lasted, c.lost, c.row, c.lasted)
		}
	}
}
