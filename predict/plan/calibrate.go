package plan

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
)

// Own is a measured step of a user: what ran, and how long a step took.
type Own struct {
	Question Question
	Step     float64
}

// Fitted is a factor that measured steps give.
type Fitted struct {
	Framework Framework
	GPU       string
	Dtype     string
	Factor    float64
	Steps     int
	Error     float64 // median of |predicted / measured - 1| with this factor
}

// Calibrate finds, for each framework, GPU and type, the factor that fits measured steps best: the median of
// the factors that make each exact.
func Calibrate(steps []Own) ([]Fitted, error) {
	by := map[[3]string][]Own{}
	for _, s := range steps {
		if s.Step <= 0 {
			return nil, fmt.Errorf("a step of %g s", s.Step)
		}
		k := [3]string{string(s.Question.Framework), s.Question.Machine.GPU.Name, s.Question.Layout.Dtype}
		by[k] = append(by[k], s)
	}
	var out []Fitted
	for k, list := range by {
		var logs []float64
		for _, s := range list {
			f, err := factorOf(s)
			if err != nil {
				return nil, err
			}
			logs = append(logs, math.Log(f))
		}
		x := Fitted{Framework(k[0]), k[1], k[2], math.Exp(median(logs)), len(list), 0}
		var errs []float64
		for _, s := range list {
			s.Question.Factor = x.Factor
			c, err := Price(s.Question)
			if err != nil {
				return nil, err
			}
			errs = append(errs, math.Abs(c.Step/s.Step-1))
		}
		x.Error = median(errs)
		out = append(out, x)
	}
	sort.Slice(out, func(i, j int) bool { return fmt.Sprint(out[i]) < fmt.Sprint(out[j]) })
	return out, nil
}

// Factors beyond these are of a step that is not what it is said to be: those that were fitted are 1.04 to 1.35.
const (
	LeastFactor = .05
	MostFactor  = 20
)

// factorOf is the factor that makes one step exact.
func factorOf(s Own) (float64, error) {
	lo, hi := LeastFactor, float64(MostFactor)
	for _, end := range []float64{lo, hi} {
		s.Question.Factor = end
		c, err := Price(s.Question)
		if err != nil {
			return 0, err
		}
		if end == lo && s.Step < c.Step || end == hi && s.Step > c.Step {
			return 0, fmt.Errorf("%s takes %.4g s with its kernels at their fitted rates times %g: a step of %g s is not of this layout, "+
				"model and GPU, or not in seconds", s.Question.Layout, c.Step, end, s.Step)
		}
	}
	for range 40 {
		mid := math.Sqrt(lo * hi)
		s.Question.Factor = mid
		c, err := Price(s.Question)
		if err != nil {
			return 0, err
		}
		if c.Step < s.Step {
			lo = mid
		} else {
			hi = mid
		}
	}
	return math.Sqrt(lo * hi), nil
}

// WriteFactors writes factors in the form that ReadFactor reads.
func WriteFactors(f []Fitted) string {
	var b strings.Builder
	b.WriteString("# factors of 'weft plan', fitted to measured steps\nframework,gpu,dtype,factor,steps,median_error\n")
	for _, x := range f {
		fmt.Fprintf(&b, "%s,%s,%s,%.4f,%d,%.4f\n", x.Framework, x.GPU, x.Dtype, x.Factor, x.Steps, x.Error)
	}
	return b.String()
}

// ReadFactor finds the factor for a framework, GPU and type in a file that WriteFactors wrote.
func ReadFactor(data []byte, f Framework, gpu, dtype string) (float64, error) {
	r := csv.NewReader(strings.NewReader(string(data)))
	r.Comment, r.FieldsPerRecord = '#', 6
	rows, err := r.ReadAll()
	if err != nil {
		return 0, fmt.Errorf("not a file of factors: %w", err)
	}
	var have []string
	for i, row := range rows {
		if i == 0 {
			if row[3] != "factor" {
				return 0, fmt.Errorf("not a file of factors: its columns are %s", strings.Join(row, ", "))
			}
			continue
		}
		if row[0] == string(f) && row[1] == gpu && row[2] == dtype {
			v, err := strconv.ParseFloat(row[3], 64)
			if err != nil || !(v >= LeastFactor && v <= MostFactor) {
				return 0, fmt.Errorf("row %d: factor %q; want %g to %d", i, row[3], LeastFactor, MostFactor)
			}
			return v, nil
		}
		have = append(have, strings.Join(row[:3], " "))
	}
	return 0, fmt.Errorf("no factor for %s on %s in %s; it has: %s; 'weft calibrate --steps FILE -o FACTORS' writes more",
		f, gpu, dtype, cmp.Or(strings.Join(have, "; "), "none"))
}
