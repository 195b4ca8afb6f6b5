package tune

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// A calibration file is text that people can read and change:
//
//	weft-calibration 1
//
//	link inside
//	launch  4.1 ± 0.3       us
//	alpha   0.81 ± 0.02     us a step
//	beta    2.7 ± 0.01      us a MB over the wire
//	gamma   0 ± 0           us a MB reduced
//	overlap 0.9 ± 0.05
//	points  63
//	ops     all-reduce, all-gather
//	sizes   512 536870912   bytes
//	gpus    2 8
//	error   0.04 0.12       median and 90th percentile
//	note    all points take 14 steps: ...
//
// Whatever follows the figures of a line is for the reader.
const calHeader = "weft-calibration 1"

// String prints the calibration in the form that ReadCalibration reads.
func (c *Calibration) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, calHeader)
	for i := range c.Links {
		f := &c.Links[i]
		fmt.Fprintf(&b, "\nlink    %s\n", f.Kind)
		line := func(name string, v Value, unit string) {
			text := fmt.Sprintf("%-7s %s ± %s", name, digits(v.Best), digits(v.Error))
			if unit != "" {
				text = fmt.Sprintf("%-30s %s", text, unit)
			}
			fmt.Fprintln(&b, text)
		}
		line("launch", f.Launch, "us")
		line("alpha", f.Alpha, "us a step")
		line("beta", f.Beta, "us a MB over the wire")
		line("gamma", f.Gamma, "us a MB reduced")
		line("overlap", f.Overlap, "")
		fmt.Fprintf(&b, "points  %d\n", f.Points)
		if len(f.Ops) > 0 {
			fmt.Fprintf(&b, "ops     %s\n", opList(f.Ops))
		}
		fmt.Fprintf(&b, "sizes   %d %d\n", int64(f.From), int64(f.To))
		fmt.Fprintf(&b, "gpus    %d %d\n", f.MinGPUs, f.MaxGPUs)
		fmt.Fprintf(&b, "error   %s %s\n", digits(f.MedianError), digits(f.P90Error))
		for _, n := range f.Notes {
			fmt.Fprintf(&b, "note    %s\n", n)
		}
	}
	return b.String()
}

func digits(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// ReadCalibration reads what Calibration.String prints, strictly.
func ReadCalibration(r io.Reader) (*Calibration, error) {
	in := bufio.NewScanner(r)
	var c Calibration
	var f *LinkFit
	number, header := 0, false
	seen := map[string]bool{}
	for in.Scan() {
		number++
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !header {
			if line != calHeader {
				return nil, fmt.Errorf("line %d: %.40q is not %q; is this a calibration file?", number, line, calHeader)
			}
			header = true
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		if name == "link" {
			if err := complete(f, seen); err != nil {
				return nil, err
			}
			if rest != "inside" && rest != "between" {
				return nil, fmt.Errorf("line %d: unknown link %q; known: inside, between", number, rest)
			}
			if len(c.Links) > 0 && (c.Links[0].Kind == rest || len(c.Links) > 1 || c.Links[0].Kind == "between") {
				return nil, fmt.Errorf("line %d: link %q stands twice or out of order; inside comes before between", number, rest)
			}
			c.Links = append(c.Links, LinkFit{Kind: rest})
			f = &c.Links[len(c.Links)-1]
			clear(seen)
			continue
		}
		if f == nil {
			return nil, fmt.Errorf("line %d: %q before any link", number, name)
		}
		if seen[name] && name != "note" {
			return nil, fmt.Errorf("line %d: %q stands twice", number, name)
		}
		seen[name] = true
		if err := f.set(name, rest); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", number+1, err)
	}
	if len(c.Links) == 0 {
		return nil, fmt.Errorf("no link; a calibration file begins with %q and has a section %q or %q", calHeader, "link inside", "link between")
	}
	return &c, complete(f, seen)
}

// complete refuses a section without its constants.
func complete(f *LinkFit, seen map[string]bool) error {
	if f == nil {
		return nil
	}
	for _, name := range []string{"alpha", "beta"} {
		if !seen[name] {
			return fmt.Errorf("link %q has no %s", f.Kind, name)
		}
	}
	if f.Overlap.Best == 0 {
		f.Overlap.Best = 1
	}
	return nil
}

// figures reads the first numbers of a line, none of them negative. ± stands between a value and its spread and is no
// figure.
func figures(name, rest string, n int) ([]float64, error) {
	var list []float64
	for _, s := range strings.Fields(rest) {
		if s == "±" {
			continue
		}
		if len(list) == n {
			break
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= 0) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%s is %q; a number from 0 expected", name, s)
		}
		list = append(list, v)
	}
	if len(list) < n {
		return nil, fmt.Errorf("%s has %d of %d figures", name, len(list), n)
	}
	return list, nil
}

// twoFigures are the lines of two figures.
var twoFigures = map[string]func(f *LinkFit, a, b float64) error{
	"launch":  func(f *LinkFit, a, b float64) error { f.Launch = Value{a, b}; return nil },
	"alpha":   func(f *LinkFit, a, b float64) error { f.Alpha = Value{a, b}; return nil },
	"beta":    func(f *LinkFit, a, b float64) error { f.Beta = Value{a, b}; return nil },
	"gamma":   func(f *LinkFit, a, b float64) error { f.Gamma = Value{a, b}; return nil },
	"overlap": func(f *LinkFit, a, b float64) error { f.Overlap = Value{a, b}; return nil },
	"gpus": func(f *LinkFit, a, b float64) error {
		f.MinGPUs, f.MaxGPUs = int(min(a, 1e9)), int(min(b, 1e9))
		return nil
	},
	"error": func(f *LinkFit, a, b float64) error { f.MedianError, f.P90Error = a, b; return nil },
	"sizes": func(f *LinkFit, a, b float64) error {
		if a > b || b > 1<<60 {
			return errors.New("sizes are not the smallest and the largest number of bytes")
		}
		f.From, f.To = unit.Bytes(a), unit.Bytes(b)
		return nil
	},
}

// set takes one line of a link.
func (f *LinkFit) set(name, rest string) error {
	if pair := twoFigures[name]; pair != nil {
		list, err := figures(name, rest, 2)
		if err != nil {
			return err
		}
		return pair(f, list[0], list[1])
	}
	switch name {
	case "points":
		list, err := figures(name, rest, 1)
		if err == nil {
			f.Points = int(min(list[0], 1e9))
		}
		return err
	case "ops":
		for word := range strings.SplitSeq(rest, ",") {
			op, err := sched.ParseCollective(strings.TrimSpace(word))
			if err != nil {
				return err
			}
			f.Ops = append(f.Ops, op)
		}
	case "note":
		f.Notes = append(f.Notes, rest)
	default:
		return fmt.Errorf("unknown word %q; known: link, launch, alpha, beta, gamma, overlap, points, ops, sizes, gpus, error, note", name)
	}
	return nil
}
