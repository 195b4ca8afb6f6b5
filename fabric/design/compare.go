package design

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Line is one figure of several designs, beside one another.
type Line struct {
	What   string   `json:"what"`
	Values []string `json:"values"` // in the order of the designs
	Better []int    `json:"better"` // the designs with the best value; empty where none is better
}

// Comparison is several designs side by side.
type Comparison struct {
	Names []string `json:"names"`
	Lines []Line   `json:"lines"`
}

// better lists who has the best value, nobody where all have it.
func better(values []float64, less int) []int {
	list := []int{}
	if less == 0 || len(values) == 0 {
		return list
	}
	best := slices.MinFunc(values, func(a, b float64) int { return less * cmp.Compare(a, b) })
	for i, v := range values {
		if v == best {
			list = append(list, i)
		}
	}
	if len(list) == len(values) {
		return []int{}
	}
	return list
}

// Compare puts designs side by side.
func Compare(list []*Report) *Comparison {
	c := &Comparison{}
	for _, r := range list {
		c.Names = append(c.Names, r.Name)
	}
	// less is 1 if less is better, -1 if more is, 0 if neither.
	figure := func(what string, less int, value func(*Report) (float64, string)) {
		l := Line{What: what}
		var values []float64
		for _, r := range list {
			v, text := value(r)
			values, l.Values = append(values, v), append(l.Values, text)
		}
		l.Better = better(values, less)
		c.Lines = append(c.Lines, l)
	}
	number := func(what string, less int, value func(*Report) int) {
		figure(what, less, func(r *Report) (float64, string) { n := value(r); return float64(n), count(n) })
	}
	words := func(what string, value func(*Report) string) {
		figure(what, 0, func(r *Report) (float64, string) { return 0, value(r) })
	}
	words("fabric", func(r *Report) string { return r.Family })
	number("GPUs", -1, func(r *Report) int { return r.GPUs })
	number("hosts", 0, func(r *Report) int { return r.Hosts })
	number("leaf switches", 1, func(r *Report) int { return r.Switches.Leaf })
	number("spine switches", 1, func(r *Report) int { return r.Switches.Spine })
	number("core switches", 1, func(r *Report) int { return r.Switches.Core })
	number("transceivers", 1, func(r *Report) int { return r.Optics.Transceivers })
	figure("oversubscription", 1, func(r *Report) (float64, string) {
		return r.Oversubscription, fmt.Sprintf("%.3g:1", r.Oversubscription)
	})
	figure("bisection, one way", -1, func(r *Report) (float64, string) {
		return r.BisectionRate, fmt.Sprintf("%.2f TB/s", r.BisectionRate/1e12)
	})
	figure("bisection a GPU", -1, func(r *Report) (float64, string) {
		v := r.BisectionRate / float64(max(r.GPUs, 1))
		return v, fmt.Sprintf("%.1f GB/s", v/1e9)
	})
	figure("a part fails every", -1, func(r *Report) (float64, string) {
		if len(r.Failures) == 0 {
			return 0, "-"
		}
		h := 24 * r.Failures[len(r.Failures)-1].Days
		return h, fmt.Sprintf("%.1f h", h)
	})
	figure("power", 1, func(r *Report) (float64, string) { return r.PowerWatts, fmt.Sprintf("%.2f MW", r.PowerWatts/1e6) })
	figure("cost", 1, func(r *Report) (float64, string) { return r.CostUSD, "$" + money(r.CostUSD) })
	figure("cost a GPU", 1, func(r *Report) (float64, string) {
		v := r.CostUSD / float64(max(r.GPUs, 1))
		return v, "$" + money(v)
	})
	figure("network's share", 1, func(r *Report) (float64, string) {
		return r.Economics.NetworkShare, fmt.Sprintf("%.1f%%", 100*r.Economics.NetworkShare)
	})
	figure("own, a GPU hour", 1, func(r *Report) (float64, string) {
		return r.Economics.OwnPerGPUHour, fmt.Sprintf("$%.2f", r.Economics.OwnPerGPUHour)
	})
	figure("checklist: no", 1, func(r *Report) (float64, string) {
		n := 0
		for _, x := range r.Checklist {
			if x.Answer == "no" {
				n++
			}
		}
		return float64(n), fmt.Sprint(n)
	})
	return c
}

// Text prints the comparison; a star marks what is better.
func (c *Comparison) Text() string {
	widths := make([]int, len(c.Names)+1)
	row := func(first string, cells []string) []string {
		out := append([]string{first}, cells...)
		for i, s := range out {
			widths[i] = max(widths[i], len(s))
		}
		return out
	}
	rows := [][]string{row("", c.Names)}
	for _, l := range c.Lines {
		cells := append([]string{}, l.Values...)
		for _, i := range l.Better {
			cells[i] += " *"
		}
		rows = append(rows, row(l.What, cells))
	}
	var b strings.Builder
	for _, r := range rows {
		line := ""
		for i, s := range r {
			line += fmt.Sprintf("%-*s  ", widths[i], s)
		}
		fmt.Fprintln(&b, strings.TrimRight(line, " "))
	}
	return b.String()
}
