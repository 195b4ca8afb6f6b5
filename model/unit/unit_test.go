package unit

import (
	"math"
	"strings"
	"testing"
)

func TestPrintAndParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Bytes
		out  string
	}{
		{"8", 8, "8 B"}, {"25MiB", 25 * MiB, "25 MiB"}, {"64M", 64 * MiB, "64 MiB"},
		{"1.5 GB", 1_500_000_000, "1.5 GB"}, {"0", 0, "0 B"}, {"80 GB", 80 * GB, "80 GB"}, {"1_000", 1000, "1 KB"},
		{"7998222960KiB", 7998222960 * KiB, "8.19 TB"},
	} {
		got, err := ParseBytes(c.in)
		if err != nil || got != c.want || got.String() != c.out {
			t.Errorf("ParseBytes(%q) = %d (%s), %v; want %d (%s)", c.in, got, got, err, c.want, c.out)
		}
	}
	if got, err := ParseBitRate("400Gb/s"); err != nil || got.Bytes() != 50*GBps || got.String() != "400 Gb/s" {
		t.Errorf("400Gb/s = %v, %v", got, err)
	}
	if got, err := ParseRate("400 Gbps"); err != nil || got != 50*GBps || got.String() != "50 GB/s" {
		t.Errorf("400 Gbps as bytes = %v, %v", got, err)
	}
	for in, want := range map[string]Time{"3.1ms": 3100 * Microsecond, "700 ns": 700 * Nanosecond, "1.5µs": 1500 * Nanosecond} {
		if got, err := ParseTime(in); err != nil || got != want {
			t.Errorf("ParseTime(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
}

// A source that calls 10 GbE "10 GB/s" is off by eight; the types refuse to follow it.
func TestBitsAreNotBytes(t *testing.T) {
	if r := (10 * Gbps).Bytes(); r != 1.25e9 {
		t.Errorf("10 GbE moves %v, want 1.25 GB/s", r)
	}
	_, err := ParseBitRate("50GB/s")
	if err == nil || !strings.Contains(err.Error(), "counts bytes") || !strings.Contains(err.Error(), "400 Gb/s") {
		t.Errorf("a byte rate for a port must be refused with the fix, got %v", err)
	}
}

// NVLink 1: 20 GB/s each way and link, so 40 both ways, times four is 160.
func TestOneWayIsNotBothWays(t *testing.T) {
	if b := (4 * 20 * GBps).BothWays(); b != 160e9 || b.OneWay() != 80*GBps {
		t.Errorf("four NVLink 1 links: %v", b)
	}
	if s := (450 * GBps).BothWays().String(); s != "900 GB/s both ways" {
		t.Error(s)
	}
}

func TestTransferTime(t *testing.T) {
	if got := GB.Over(50 * GBps); got != 20*Millisecond {
		t.Errorf("1 GB at 50 GB/s takes %v", got)
	}
	if got := GB.Over(0); got != math.MaxInt64 {
		t.Errorf("a dead link must never finish, got %v", got)
	}
	if got := GB.Per(20 * Millisecond); math.Abs(float64(got)-50e9) > 1 {
		t.Errorf("1 GB in 20 ms is %v", got)
	}
}

func TestBadInputNamesTheValue(t *testing.T) {
	for _, in := range []string{"", "MiB", "3 parsecs", "-1", "1e400", "NaN", "99999999T"} {
		if _, err := ParseBytes(in); err == nil || !strings.Contains(err.Error(), `"`+in+`"`) {
			t.Errorf("ParseBytes(%q): %v", in, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"8", "25MiB", "400Gb/s", "50 GB/s", "3.1ms", "1e9", "1e", "µs"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseBytes(s); err == nil {
			if n < 0 {
				t.Fatalf("%q is negative: %d", s, n)
			}
			if back, err := ParseBytes(n.String()); err != nil || math.Abs(float64(back-n)) > 1e-3*float64(n)+1 {
				t.Fatalf("%q printed as %q came back as %d, %v", s, n.String(), back, err)
			}
		}
		if r, err := ParseRate(s); err == nil {
			if _, err := ParseRate(r.String()); err != nil {
				t.Fatalf("%q printed as %q: %v", s, r.String(), err)
			}
		}
		if d, err := ParseTime(s); err == nil {
			if _, err := ParseTime(d.String()); err != nil {
				t.Fatalf("%q printed as %q: %v", s, d.String(), err)
			}
		}
	})
}
