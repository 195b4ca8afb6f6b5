package cli

import (
	"strings"
	"testing"
)

// FuzzFlags: values of flags that have a form of their own are read or refused, and what they ask for is bounded.
func FuzzFlags(f *testing.F) {
	for _, s := range []string{
		"2..64,128", "1,2,1..9223372036854775807", "0", "8B..1GiB", "1GiB..8B", "1..", "n7:nic2=0.5", "=1", "x=NaN",
		"op=all-to-all size=64MiB algo=pairwise place=n[0-3]:gpu[0-7] start=1ms", "op=x op=y", "program=a algo=b", "2x4", "2x1,4x2", "2,4,8",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if list, err := parseRanks(text); err == nil && (len(list) == 0 || len(list) > maxCounts) {
			t.Errorf("--ranks %q: %d counts", text, len(list))
		}
		if sizes, err := parseSizes(text); err == nil && (len(sizes) == 0 || len(sizes) > maxSizes || sizes[0] < 1) {
			t.Errorf("--size %q: %d sizes", text, len(sizes))
		}
		if slow, err := parseSlow([]string{text}); err == nil && !(slow[0].Factor > 0 && slow[0].Factor <= 1) {
			t.Errorf("--slow %q: %+v", text, slow)
		}
		if all, err := counts(text); err == nil && len(all) != strings.Count(text, ",")+1 {
			t.Errorf("-n %q: %d counts", text, len(all))
		}
		_, _ = parseJob(text)
	})
}
