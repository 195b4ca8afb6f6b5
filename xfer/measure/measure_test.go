package measure

import (
	"testing"

	"github.com/weft-fabric/weft/xfer"
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
