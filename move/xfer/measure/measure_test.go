package measure

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/move/xfer"
)

func TestParseRegion(t *testing.T) {
	for text, want := range map[string]Region{
		"kv=host:64MiB":                 {Name: "kv", Kind: xfer.Host, Size: 64 << 20, Create: true},
		"f=file:/mnt/a:b/slab:1MiB":     {Name: "f", Kind: xfer.File, Path: "/mnt/a:b/slab", Size: 1 << 20, Create: true},
		"f=file:/mnt/slab":              {Name: "f", Kind: xfer.File, Path: "/mnt/slab", Create: true},
		"o=object:s3://bucket/k/x:4096": {Name: "o", Kind: xfer.Object, Path: "s3://bucket/k/x", Size: 4096, Create: true},
		"g=gpu:cuda:1MiB":               {Name: "g", Kind: xfer.GPU, Path: "cuda", Size: 1 << 20, Create: true},
	} {
		if got, err := ParseRegion(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "kv", "kv=host", "=host:1", "kv=host:", "kv=host:much", "kv=tape:1", "o=object:s3://b/k"} {
		if got, err := ParseRegion(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

func FuzzParseRegion(f *testing.F) {
	f.Add("kv=host:64MiB")
	f.Add("f=file:/a:b:1K")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRegion(s)
		if err != nil || r.Kind == xfer.File && r.Size == 0 {
			return
		}
		if again, err := ParseRegion(r.text()); err != nil || again != r {
			t.Errorf("%q is %+v, and as text %q: %+v, %v", s, r, r.text(), again, err)
		}
	})
}

// What ucx_perftest prints, after warnings of its own.
func TestUCXTime(t *testing.T) {
	out := "[1794859098.829181] [vm:12779:0] parser.c:1 UCX WARN unused environment variable\niterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n 200,65.125,1060.520,1060.520,942.93,1000.00,943,943\n"
	d, err := ucxTime([]byte(out), 1<<20, 2000)
	if err != nil || d != 2*time.Second {
		t.Errorf("%v, %v; want 2 s", d, err)
	}
	if d, err := ucxTime([]byte("nothing\n"), 1, 1); err == nil {
		t.Errorf("%v out of nothing", d)
	}
}

// Every byte of both decode ranks comes from one place of one prefill rank.
func TestReslice(t *testing.T) {
	r := reslice(1 << 20)
	copies, err := r.moves()
	if err != nil {
		t.Fatal(err)
	}
	var there [decodes]int
	for _, x := range copies {
		if x.To != x.From*decodes/prefills {
			t.Errorf("rank %d sends to rank %d", x.From, x.To)
		}
		there[x.To] += x.Len
	}
	for d, n := range there {
		if n != r.to.Bytes() {
			t.Errorf("decode rank %d gets %d bytes of %d", d, n, r.to.Bytes())
		}
	}
	if r.bytes() != int64(decodes*r.to.Bytes()) {
		t.Errorf("%d bytes leave, %d come", r.bytes(), decodes*r.to.Bytes())
	}
}
