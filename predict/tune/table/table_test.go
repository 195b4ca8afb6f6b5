package table

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	rows := []Row{
		{Func: 4, Algo: 0, Proto: 0, Min: 0, Max: 65535, Channels: Any, Nodes: 2, Ranks: 16, PipeOps: Any, RegBuff: Any},
		{Func: 4, Algo: 1, Proto: 2, Min: 65536, Max: math.MaxInt64, Channels: 8, Nodes: 2, Ranks: 16, PipeOps: 1, RegBuff: 0},
		{Func: 0, Algo: 1, Proto: 1, Min: 0, Max: 1, Channels: Any, Nodes: Any, Ranks: Any, PipeOps: Any, RegBuff: Any},
	}
	var b bytes.Buffer
	if err := Write(&b, rows, "a remark"); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&b)
	if err != nil || !reflect.DeepEqual(got, rows) {
		t.Errorf("%v, %v", got, err)
	}
	if n := len(For(rows, 2, 16)); n != 3 {
		t.Errorf("%d rows fit", n)
	}
	if n := len(For(rows, 1, 16)); n != 1 {
		t.Errorf("%d rows fit", n)
	}
}

// What NCCL's example plug-in reads is read, and what it would pass over in silence is refused.
func TestReadOthers(t *testing.T) {
	got, err := Read(strings.NewReader("collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks\nallreduce, 0, 1024, ring, simple, 4, -1, -1\nbroadcast,0,9,tree,ll128,-1\n"))
	if err != nil || len(got) != 2 || got[0].Channels != 4 || got[1].Ranks != Any {
		t.Errorf("%v, %v", got, err)
	}
	for text, want := range map[string]string{
		"allreduce,0,1,ring":                          "4 columns",
		"allsum,0,1,ring,ll,-1":                       `collective "allsum"`,
		"allreduce,0,1,rings,ll,-1":                   `algorithm "rings"`,
		"allreduce,0,1,ring,lll,-1":                   `protocol "lll"`,
		"allreduce,x,1,ring,ll,-1":                    `min_bytes "x"`,
		"allreduce,5,1,ring,ll,-1":                    "max_bytes 1 is below",
		"# a remark\nallreduce,0,1,ring,ll,-7":        "line 2",
		"allreduce,0,1,ring,ll,1,1,99999999999,-1,-1": "too large",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(header + "\nallreduce,0,65536,tree,ll,-1,2,16,-1,-1\n")
	f.Add("x,,,,,,,,,,,\n")
	f.Fuzz(func(t *testing.T, text string) {
		rows, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := Write(&b, rows); err != nil {
			t.Fatal(err)
		}
		again, err := Read(&b)
		if err != nil || !reflect.DeepEqual(rows, again) {
			t.Errorf("%v became %v: %v", rows, again, err)
		}
	})
}
