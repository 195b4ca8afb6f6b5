package differential

import (
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

// maxShrinks bounds how many smaller programs Shrink looks at.
const maxShrinks = 4000

// Shrink makes a program smaller, line by line, for as long as the smaller one is
// proven and fails still says true. It takes away a line with what stands below it,
// a block's head alone, or two lines at once: a message takes a line to send it and
// one to receive it.
func Shrink(p *sched.Program, fails func(*sched.Program) bool) *sched.Program {
	tries := 0
	good := func(lines []string) *sched.Program {
		if tries++; tries > maxShrinks {
			return nil
		}
		q, err := sched.Parse(strings.Join(lines, "\n") + "\n")
		if err != nil || q.Check() != nil {
			return nil
		}
		q.Orders = p.Orders
		if _, err := verify.Program(q); err != nil || !fails(q) {
			return nil
		}
		return q
	}
	best := p
	for again := true; again && tries <= maxShrinks; {
		again = false
		lines := strings.Split(strings.TrimRight(best.String(), "\n"), "\n")
	search:
		for i := range lines {
			if depth(lines[i]) == 0 {
				continue // the head of the program or of a channel
			}
			end := block(lines, i)
			cuts := [][]string{without(lines, i, end)}
			if end > i+1 {
				cuts = append(cuts, lifted(lines, i, end))
			}
			for j := end; j < len(lines); j++ {
				if depth(lines[j]) > 0 && block(lines, j) == j+1 {
					cuts = append(cuts, without(without(lines, j, j+1), i, end))
				}
			}
			for _, c := range cuts {
				if q := good(c); q != nil {
					best, again = q, true
					break search
				}
			}
		}
	}
	return best
}

// depth is how far a line is indented.
func depth(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// block is the line after a line and all that stands below it.
func block(lines []string, i int) int {
	end := i + 1
	for end < len(lines) && depth(lines[end]) > depth(lines[i]) {
		end++
	}
	return end
}

// without leaves lines from to end out.
func without(lines []string, from, end int) []string {
	return append(append([]string(nil), lines[:from]...), lines[end:]...)
}

// lifted leaves a block's head out and keeps what stands below it.
func lifted(lines []string, from, end int) []string {
	out := append([]string(nil), lines[:from]...)
	for _, l := range lines[from+1 : end] {
		out = append(out, strings.TrimPrefix(l, "  "))
	}
	return append(out, lines[end:]...)
}
