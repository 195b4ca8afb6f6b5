// Package unit gives sizes, rates and times their own types, so that bits are not
// mistaken for bytes, nor one direction for both.
//
//	Bytes     an amount of data                      25 MiB
//	BitRate   bits per second, one way               400 Gb/s   what ports are named after
//	Rate      bytes per second, one way              50 GB/s    what programs move
//	BothWays  bytes per second, both ways added up   100 GB/s   what NVLink brochures print
//	Time      picoseconds                            3.1 ms
//
// Conversions are methods and never implicit. Every type parses what it prints.
package unit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is an amount of data.
type Bytes int64

// Sizes. Decimal ones are what vendors print, binary ones what programs allocate.
const (
	KB  Bytes = 1e3
	MB  Bytes = 1e6
	GB  Bytes = 1e9
	TB  Bytes = 1e12
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// BitRate is bits per second in one direction.
type BitRate float64

// Rate is bytes per second in one direction.
type Rate float64

// BothWays is bytes per second, the two directions added up.
type BothWays float64

// Rates in common use.
const (
	Gbps BitRate = 1e9
	GBps Rate    = 1e9
)

// Bytes converts a bit rate into the byte rate of the same direction.
func (b BitRate) Bytes() Rate { return Rate(b / 8) }

// Bits converts a byte rate into the bit rate of the same direction.
func (r Rate) Bits() BitRate { return BitRate(r * 8) }

// BothWays adds up the two directions of a full-duplex link.
func (r Rate) BothWays() BothWays { return BothWays(2 * r) }

// OneWay gives one direction's share of a figure that counts both.
func (b BothWays) OneWay() Rate { return Rate(b / 2) }

// Over is the time n bytes take at rate r; it rounds up to the next picosecond.
// A rate of zero never finishes: the result is the longest Time.
func (n Bytes) Over(r Rate) Time {
	if n <= 0 {
		return 0
	}
	ps := float64(n) / float64(r) * 1e12
	if r <= 0 || ps >= math.MaxInt64 {
		return math.MaxInt64
	}
	return Time(math.Ceil(ps))
}

// Per is the rate at which n bytes move in t.
func (n Bytes) Per(t Time) Rate {
	if t <= 0 {
		return 0
	}
	return Rate(float64(n) / t.Seconds())
}

// Time is a span in picoseconds: fine enough for one byte on an 800 Gb/s
// link (10 ps), long enough for 106 days.
type Time int64

// Spans.
const (
	Picosecond  Time = 1
	Nanosecond       = 1000 * Picosecond
	Microsecond      = 1000 * Nanosecond
	Millisecond      = 1000 * Microsecond
	Second           = 1000 * Millisecond
)

// Seconds gives the span as a number of seconds.
func (t Time) Seconds() float64 { return float64(t) / 1e12 }

// Microseconds gives the span as a number of microseconds.
func (t Time) Microseconds() float64 { return float64(t) / 1e6 }

type scale struct {
	name string
	size float64
}

var (
	binarySizes  = []scale{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}
	decimalSizes = []scale{{"PB", 1e15}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1}}
	bitRates     = []scale{{"Pb/s", 1e15}, {"Tb/s", 1e12}, {"Gb/s", 1e9}, {"Mb/s", 1e6}, {"Kb/s", 1e3}, {"b/s", 1}}
	byteRates    = []scale{{"PB/s", 1e15}, {"TB/s", 1e12}, {"GB/s", 1e9}, {"MB/s", 1e6}, {"KB/s", 1e3}, {"B/s", 1}}
	spans        = []scale{{"s", 1e12}, {"ms", 1e9}, {"us", 1e6}, {"ns", 1e3}, {"ps", 1}}
)

// print writes v with the largest scale that leaves at least one whole unit.
func print(v float64, scales []scale) string {
	last := scales[len(scales)-1]
	if v == 0 {
		return "0 " + last.name
	}
	for _, s := range scales {
		if math.Abs(v) >= s.size*0.9999 {
			return significant(v/s.size) + " " + s.name
		}
	}
	return significant(v/last.size) + " " + last.name
}

// significant keeps four significant digits, and every digit left of the point.
func significant(v float64) string {
	if a := math.Abs(v); a >= 1000 {
		return strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	}
	s := strconv.FormatFloat(v, 'g', 4, 64)
	if strings.ContainsRune(s, 'e') {
		s = strconv.FormatFloat(v, 'f', -1, 64)
	}
	return s
}

// String prints whole binary multiples as such ("25 MiB") unless they are whole
// thousands as well or have more than four digits, and all else decimal ("1.5 GB").
func (n Bytes) String() string {
	for _, s := range binarySizes {
		if n%1000 != 0 && math.Mod(float64(n), s.size) == 0 {
			if whole := int64(n) / int64(s.size); whole < 10000 {
				return strconv.FormatInt(whole, 10) + " " + s.name
			}
			break
		}
	}
	return print(float64(n), decimalSizes)
}

// Decimal prints decimal multiples only, for columns in which rows are compared.
func (n Bytes) Decimal() string { return print(float64(n), decimalSizes) }

func (b BitRate) String() string  { return print(float64(b), bitRates) }
func (r Rate) String() string     { return print(float64(r), byteRates) }
func (b BothWays) String() string { return print(float64(b), byteRates) + " both ways" }
func (t Time) String() string     { return print(float64(t), spans) }

// number splits "25 MiB" into 25 and "MiB".
func number(what, s string) (float64, string, error) {
	t := strings.TrimSpace(s)
	i := 0
	for i < len(t) && (t[i] >= '0' && t[i] <= '9' || strings.IndexByte("+-._", t[i]) >= 0 ||
		(t[i] == 'e' || t[i] == 'E') && i > 0 && i+1 < len(t) && (t[i+1] >= '0' && t[i+1] <= '9' || t[i+1] == '-' || t[i+1] == '+')) {
		i++
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(t[:i], "_", ""), 64)
	if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, "", fmt.Errorf("%s %q does not start with a number", what, s)
	}
	if v < 0 {
		return 0, "", fmt.Errorf("%s %q is negative", what, s)
	}
	return v, strings.TrimSpace(t[i:]), nil
}

func known(what, s, unit string, scales ...[]scale) (float64, error) {
	var names []string
	for _, list := range scales {
		for _, c := range list {
			if c.name == unit {
				return c.size, nil
			}
			names = append(names, c.name)
		}
	}
	return 0, fmt.Errorf("%s %q has unit %q; known units: %s", what, s, unit, strings.Join(names, ", "))
}

// ParseBytes reads "8", "25MiB", "25 MB" and, in the manner of nccl-tests, "64M" for 64 MiB.
func ParseBytes(s string) (Bytes, error) {
	v, u, err := number("size", s)
	if err != nil {
		return 0, err
	}
	switch strings.ToUpper(u) {
	case "":
		u = "B"
	case "K", "M", "G", "T":
		u = strings.ToUpper(u) + "iB"
	}
	f, err := known("size", s, u, binarySizes, decimalSizes)
	if err != nil {
		return 0, err
	}
	if v*f >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q is too large", s)
	}
	return Bytes(math.Round(v * f)), nil
}

// ParseBitRate reads "400Gb/s", "400 Gbps" and "400G". A byte rate is refused, not converted.
func ParseBitRate(s string) (BitRate, error) {
	v, u, err := number("rate", s)
	if err != nil {
		return 0, err
	}
	u = strings.Replace(u, "bps", "b/s", 1)
	switch u {
	case "K", "M", "G", "T":
		u += "b/s"
	}
	if strings.HasSuffix(u, "B/s") || strings.HasSuffix(u, "B") {
		return 0, fmt.Errorf("rate %q counts bytes; a port rate counts bits: write %q", s, BitRate(v*8e9).String())
	}
	f, err := known("rate", s, u, bitRates)
	return BitRate(v * f), err
}

// ParseRate reads "50GB/s" as it is and "400Gb/s" as an eighth of the number in bytes.
func ParseRate(s string) (Rate, error) {
	v, u, err := number("rate", s)
	if err != nil {
		return 0, err
	}
	u = strings.Replace(strings.Replace(u, "bps", "b/s", 1), "Bps", "B/s", 1)
	for _, c := range bitRates {
		if c.name == u {
			return BitRate(v * c.size).Bytes(), nil
		}
	}
	f, err := known("rate", s, u, byteRates, bitRates)
	return Rate(v * f), err
}

// ParseTime reads "3.1ms", "700 ns", "1.5us" and "1.5µs".
func ParseTime(s string) (Time, error) {
	v, u, err := number("time", s)
	if err != nil {
		return 0, err
	}
	u = strings.Replace(strings.Replace(u, "µ", "u", 1), "μ", "u", 1)
	f, err := known("time", s, u, spans)
	if err != nil {
		return 0, err
	}
	if v*f >= math.MaxInt64 {
		return 0, fmt.Errorf("time %q is too long", s)
	}
	return Time(math.Round(v * f)), nil
}
