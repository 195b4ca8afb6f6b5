package studio_test

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
	"github.com/weft-fabric/weft/app/internal/studio"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/chrome"
)

// Views look as they did when somebody last looked at them: their pictures, made coarse so that fonts do not matter, are those
// in testdata/looks. UPDATE=1 writes them anew; look at the page before you commit them.
func testSame(t *testing.T, ctx context.Context) {
	open := sample(t, "two-hosts")
	open.State = map[string]any{"faults": []map[string]any{{"part": "n0:nic2", "factor": .5}},
		"a":    map[string]any{"op": "all-reduce", "bytes": 1 << 28, "algo": "ring"},
		"plan": map[string]any{"model": "llama3-8b", "batch": 128, "seq": 8192},
		"ran":  map[string]bool{"a": true, "plan": true}}
	chrome.Scheme(t, ctx, "light")
	visit(t, ctx, server(t, open).URL, 1280, 800)
	chrome.Until(t, ctx, idle)
	look := func(name, view, scheme string) {
		t.Helper()
		chrome.Scheme(t, ctx, scheme)
		click(t, ctx, "#tab-"+view)
		if view != "live" {
			chrome.Ask[bool](t, ctx, `(app.pause(), app.total && app.seek(app.total * .37), true)`)
		}
		chrome.Until(t, ctx, idle)
		chrome.Drawn(t, ctx)
		shot, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		compare(t, name, shot)
	}
	look("design", "design", "light")
	look("plan", "plan", "light")
	look("collective", "collective", "light")
	look("collective-dark", "collective", "dark")
	list := studio.Gallery()
	visit(t, ctx, server(t, list[len(list)-1].Open).URL, 1280, 800)
	look("live", "live", "light")
	open.State = nil
	visit(t, ctx, server(t, open).URL, 390, 800)
	chrome.Until(t, ctx, idle)
	look("phone", "design", "light")
}

// A picture is compared by the mean colours of a coarse grid. Cells may differ a little, and a few of them more, where a text
// is wider or breaks elsewhere.
const (
	gridWide, gridHigh = 32, 20
	cellDiffers        = 20 // of 255, in some channel
	cellsMayDiffer     = 51 // of 640
)

func compare(t *testing.T, name string, shot []byte) {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	got := coarse(full)
	file := filepath.Join("testdata", "looks", name+".png")
	if os.Getenv("UPDATE") != "" {
		var out bytes.Buffer
		if err := png.Encode(&out, got); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if n := differing(got, want); n > cellsMayDiffer {
		path := filepath.Join(os.TempDir(), "weft-studio-"+name+".png")
		_ = os.WriteFile(path, shot, 0o644) // only to look at
		t.Errorf("%s: %d of %d cells differ from %s; the page is in %s; if it is right, UPDATE=1 writes it anew",
			name, n, gridWide*gridHigh, file, path)
	}
}

// coarse gives each cell of a grid the mean colour of its pixels.
func coarse(full image.Image) *image.RGBA {
	out := image.NewRGBA(image.Rect(0, 0, gridWide, gridHigh))
	b := full.Bounds()
	for y := range gridHigh {
		for x := range gridWide {
			var sum [3]uint64
			n := uint64(0)
			for py := b.Dy() * y / gridHigh; py < b.Dy()*(y+1)/gridHigh; py++ {
				for px := b.Dx() * x / gridWide; px < b.Dx()*(x+1)/gridWide; px++ {
					r, g, b, _ := full.At(px, py).RGBA()
					sum[0], sum[1], sum[2], n = sum[0]+uint64(r>>8), sum[1]+uint64(g>>8), sum[2]+uint64(b>>8), n+1
				}
			}
			out.Set(x, y, color.RGBA{uint8(sum[0] / n), uint8(sum[1] / n), uint8(sum[2] / n), 255})
		}
	}
	return out
}

func differing(got, want image.Image) (n int) {
	for y := range gridHigh {
		for x := range gridWide {
			a, b := color.RGBAModel.Convert(got.At(x, y)).(color.RGBA), color.RGBAModel.Convert(want.At(x, y)).(color.RGBA)
			far := func(p, q uint8) bool { return max(p, q)-min(p, q) > cellDiffers }
			if far(a.R, b.R) || far(a.G, b.G) || far(a.B, b.B) {
				n++
			}
		}
	}
	return n
}

// A comparison that a blank canvas or the other colours passed would be none.
func TestLooksDiffer(t *testing.T) {
	read := func(name string) image.Image {
		b, err := os.ReadFile(filepath.Join("testdata", "looks", name+".png"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := png.Decode(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	names := []string{"design", "collective", "collective-dark", "plan", "phone", "live"}
	for i, a := range names {
		for _, b := range names[:i] {
			if n := differing(read(a), read(b)); n <= cellsMayDiffer {
				t.Errorf("%s and %s differ in %d cells, which counts as equal", a, b, n)
			}
		}
	}
}

// flat follows a run for an hour of its clock. What the page holds stays the same: memory, elements and listeners.
func flat(t *testing.T, ctx context.Context) {
	held := func() (bytes, nodes float64) {
		t.Helper()
		if _, err := chromedp.Call(ctx, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
			t.Fatal(err)
		}
		m, err := chromedp.Call(ctx, performance.GetMetrics, cdp.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range m.Metrics {
			switch x.Name {
			case "JSHeapUsedSize":
				bytes = x.Value
			case "Nodes":
				nodes = x.Value
			}
		}
		return bytes, nodes
	}
	if _, err := chromedp.Call(ctx, performance.Enable, performance.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	chrome.Ask[bool](t, ctx,
		`app.liveFeed.get('api/all').then(all => { app.liveFeed.stop(); window.__all = all; window.__at = 100; return true; })`)
	seconds := bounded.Times(200, 3600)
	hours := fmt.Sprintf(`(() => { for (let i = 0; i < %d; i++) app.liveFeed.showRun(window.__all, null, window.__at++); return true; })()`,
		seconds)
	chrome.Ask[bool](t, ctx, hours) // until its caches are full
	before, nodesBefore := held()
	chrome.Ask[bool](t, ctx, hours)
	after, nodesAfter := held()
	tell := t.Logf
	if after > 1.1*before+1e6 || nodesAfter > nodesBefore+200 {
		tell = t.Errorf
	}
	tell("memory: a run followed for %d s more: %.2f MB, then %.2f MB; %.0f elements, then %.0f",
		seconds, before/1e6, after/1e6, nodesBefore, nodesAfter)
	chrome.Ask[bool](t, ctx, `(app.liveFeed.start(), true)`)
}
