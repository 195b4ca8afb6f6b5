package design

import (
	"math"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/unit"
)

// trim prints a number with at most three digits behind the point.
func trim(v float64) string {
	return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)
}

// money prints whole numbers with commas: 1,234,567.
func money(v float64) string { return commas(int64(math.Round(v))) }

func commas(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return sign + b.String()
}

func count(n int) string { return commas(int64(n)) }

// percent prints a share to a tenth, or as fine as it takes to tell it from the whole: 99.98%, never 100% of what is not whole.
func percent(share float64) string {
	p := share * 100
	for digits := 1; digits < 6; digits++ {
		s := strconv.FormatFloat(p, 'f', digits, 64)
		if r, _ := strconv.ParseFloat(s, 64); r != 100 && r != 0 || p == r {
			return strings.TrimSuffix(s, ".0") + "%"
		}
	}
	return strconv.FormatFloat(p, 'g', 3, 64) + "%"
}

// ways prints a number of paths.
func ways(n uint64) string {
	if n >= most {
		return "over 10^18"
	}
	return commas(int64(n))
}

// plural counts things: 1 host, 4 hosts, 2 switches.
func plural(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "ch"):
		return count(n) + " " + what + "es"
	}
	return count(n) + " " + what + "s"
}

// a puts the article before a word: a host, an NVLink domain.
func a(word string) string {
	return ternary(strings.HasPrefix(word, "NV"), "an ", "a ") + word
}

// params prints a number of parameters as people say it: 175B, 1.8T.
func params(n float64) string {
	for _, s := range []struct {
		size float64
		name string
	}{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}} {
		if n >= s.size {
			return strconv.FormatFloat(n/s.size, 'g', 4, 64) + s.name
		}
	}
	return trim(n)
}

// span prints a range, or the one number it comes down to.
func span(lo, hi int) string {
	if lo == hi {
		return count(lo)
	}
	return count(lo) + " to " + count(hi)
}

func seconds(s float64) string {
	switch {
	case s >= 0.9995 || s == 0:
		return strconv.FormatFloat(s, 'g', 3, 64) + " s"
	case s >= 1e-3:
		return strconv.FormatFloat(s*1e3, 'g', 3, 64) + " ms"
	}
	return strconv.FormatFloat(s*1e6, 'g', 3, 64) + " us"
}

func size(b float64) string { return unit.Bytes(b).String() }
func rate(b float64) string { return unit.Rate(b).String() }

// bits prints a byte rate as the bit rate that ports are named after.
func bits(b float64) string {
	if v := b * 8; v >= 1e15 {
		return strconv.FormatFloat(v/1e15, 'g', 3, 64) + " Pb/s"
	}
	return unit.Rate(b).Bits().String()
}

func days(d float64) string {
	switch {
	case d == 0:
		return "never"
	case d < 1.0/24:
		return strconv.FormatFloat(d*1440, 'f', 0, 64) + " min"
	case d < 2:
		return strconv.FormatFloat(d*24, 'f', 1, 64) + " h"
	case d >= 3*daysAYear:
		return strconv.FormatFloat(d/daysAYear, 'f', 1, 64) + " years"
	}
	return strconv.FormatFloat(d, 'f', 1, 64) + " days"
}

func watts(w float64) string {
	switch {
	case w >= 1e6:
		return strconv.FormatFloat(w/1e6, 'f', 2, 64) + " MW"
	case w >= 1e3:
		return strconv.FormatFloat(w/1e3, 'f', 1, 64) + " kW"
	}
	return strconv.FormatFloat(w, 'f', 0, 64) + " W"
}
