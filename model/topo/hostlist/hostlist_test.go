package hostlist

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"n0", "n0"},
		{"n[0-3]", "n0 n1 n2 n3"},
		{"n[08-11]", "n08 n09 n10 n11"},
		{"n[8-11]", "n8 n9 n10 n11"},
		{"srv[1101-1102,1201],gw", "srv1101 srv1102 srv1201 gw"},
		{"r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"},
		{"n[0-1]-ib", "n0-ib n1-ib"},
		{" a , b[ 1 , 2-3 ]", "a b1 b2 b3"},
		{"[7-8]", "7 8"},
		{"n[00000000000000000000000042]", "n00000000000000000000000042"},
		{"n[1,1]", "n1 n1"},
	} {
		got, err := Expand(c.list)
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("Expand(%q) = %q, %v; want %q", c.list, got, err, c.want)
		}
	}
}

func TestExpandRefuses(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"", "empty name"},
		{"a,,b", "empty name"},
		{"n[0-", "does not close"},
		{"n]0[", "stray brackets"},
		{"n[3-1]", "write 1-3"},
		{"n[x]", "numbers and ranges"},
		{"n[]", "numbers and ranges"},
		{"n[1-2-3]", "numbers and ranges"},
		{"n[-1]", "numbers and ranges"},
		{"a b", "no spaces"},
		{"n[0-99999999]", "more than 1048576 names"},
		{"n[0-9999999999999999999999]", "too long"},
		{"n[0-999][0-999][0-999][0-999][0-999][0-999][0-999]", "more than 1048576 names"},
		{"n[0-1048575],m", "more than 1048576 names"},
		{strings.Repeat("x", 1000) + "[0-999999]", "bytes"},
	} {
		if got, err := Expand(c.list); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Expand(%q) = %d names, %v; want an error with %q", clip(c.list), len(got), err, c.want)
		}
	}
}

func TestCompress(t *testing.T) {
	for _, c := range []struct{ names, want string }{
		{"", ""},
		{"n0", "n0"},
		{"n0 n1 n2 n3", "n[0-3]"},
		{"n0 n2 n3 n9", "n[0,2-3,9]"},
		{"n08 n09 n10", "n[08-10]"},
		{"n8 n9 n10 n11", "n[8-11]"},
		{"n0-ib0 n1-ib0", "n[0-1]-ib0"},
		{"r1n1 r1n2 r2n1 r2n2", "r1n[1-2],r2n[1-2]"},
		{"gw n1 n2", "gw,n[1-2]"},
		{"n1 n1", "n1,n1"},
		{"n2 n1", "n[2,1]"},
	} {
		if got := Compress(strings.Fields(c.names)); got != c.want {
			t.Errorf("Compress(%s) = %q; want %q", c.names, got, c.want)
		}
	}
}

func TestLargeList(t *testing.T) {
	names, err := Expand("n[0-131071]")
	if err != nil || len(names) != 131072 {
		t.Fatal(len(names), err)
	}
	if got := Compress(names); got != "n[0-131071]" {
		t.Error(got)
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"n[0-7]", "a[1-2]b[03-05]-x,c", "srv[1101-1108,1201]", "n[9-10],n[09-10]", "[1][2]", "n[", "n0,n1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		names, err := Expand(s)
		if err != nil || len(names) > 10000 {
			return
		}
		if len(names) == 0 {
			t.Fatalf("Expand(%q) gave nothing and no error", s)
		}
		short := Compress(names)
		again, err := Expand(short)
		if err != nil || !slices.Equal(names, again) {
			t.Fatalf("%q gives %q, which is written %q and gives %q, %v", s, names, short, again, err)
		}
	})
}

func ExampleCompress() {
	names, _ := Expand("n[0-3],n[8-9]")
	fmt.Println(names)
	fmt.Println(Compress(names))
	// Output:
	// [n0 n1 n2 n3 n8 n9]
	// n[0-3,8-9]
}
