package studio_test

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/weft-fabric/weft/app/internal/studio"
	"github.com/weft-fabric/weft/app/internal/studio/engine"
	"github.com/weft-fabric/weft/internal/chrome"
)

func visit(t *testing.T, ctx context.Context, url string, width, height int64) {
	t.Helper()
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, height), chromedp.Navigate("about:blank"), chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
	chrome.Until(t, ctx, `document.documentElement.dataset.ready === 'yes'`)
}

func click(t *testing.T, ctx context.Context, selector string) {
	t.Helper()
	chrome.Ask[bool](t, ctx, `(document.querySelector(`+strconv.Quote(selector)+`).click(), true)`)
}

func server(t *testing.T, open studio.Open) *httptest.Server {
	t.Helper()
	l := engine.Default()
	s := httptest.NewServer((&studio.Server{Engine: engine.New(l), Limits: l, Open: open}).Handler())
	t.Cleanup(s.Close)
	return s
}

func sample(t *testing.T, name string) studio.Open {
	t.Helper()
	for _, s := range engine.Samples() {
		if s.Name == name {
			return studio.Open{Name: name, Text: s.Text}
		}
	}
	t.Fatalf("there is no sample %s", name)
	return studio.Open{}
}

// idle is a page that waits for nothing: what its state says was run is there, and the figures, and all of it is drawn in the
// size that the page has now.
const idle = `app.idle()`

// Pictures of the page for a person to look at, where WEFT_TEST_PICTURES names a folder for them: every sample, every page
// of the gallery by light, dark and on a phone, a part of a large cluster opened, and how smoothly messages move.
func TestPictures(t *testing.T) {
	dir := os.Getenv("WEFT_TEST_PICTURES")
	if dir == "" {
		t.Skip("WEFT_TEST_PICTURES names no folder")
	}
	ctx := chrome.Start(t)
	for _, x := range engine.Samples() {
		visit(t, ctx, server(t, sample(t, x.Name)).URL, 1440, 900)
		chrome.Until(t, ctx, idle)
		chrome.Shoot(t, ctx, filepath.Join(dir, "sample-"+x.Name+".png"), chromedp.CaptureScreenshot())
	}
	chrome.Ask[bool](t, ctx, `(app.select(app.stage.lookup('pod 130'), true), true)`)
	chrome.Until(t, ctx, `app.stage.blockLinks.size > 0`)
	chrome.Ask[bool](t, ctx, `(app.fault('n8330', 0), true)`)
	chrome.Shoot(t, ctx, filepath.Join(dir, "opened.png"), chromedp.CaptureScreenshot())
	for _, g := range studio.Gallery() {
		s := server(t, g.Open)
		for _, look := range []string{"light", "dark"} {
			for name, size := range map[string][2]int64{"": {1440, 900}, "-phone": {390, 844}} {
				chrome.Scheme(t, ctx, look)
				visit(t, ctx, s.URL, size[0], size[1])
				chrome.Until(t, ctx, idle)
				chrome.Ask[bool](t, ctx, `(app.pause(), app.total && app.seek(app.total * .37), true)`)
				chrome.Shoot(t, ctx, filepath.Join(dir, strings.TrimSuffix(g.File, ".html")+"-"+look+name+".png"), chromedp.CaptureScreenshot())
				chrome.Quiet(t, ctx)
			}
		}
	}
	chrome.Scheme(t, ctx, "light")
	visit(t, ctx, server(t, studio.Gallery()[1].Open).URL, 1280, 720)
	chrome.Until(t, ctx, idle)
	chrome.Ask[bool](t, ctx, `(app.pause(), app.seek(0), app.frames = [], app.play(), true)`)
	chrome.Until(t, ctx, `app.frames.length > 200 || !app.playing`)
	t.Log(chrome.Ask[string](t, ctx,
		`(() => { const f = app.frames.slice(5).sort((a, b) => a - b); return f.length + ' frames, ' + app.stage.dots + ' dots at the end, p50 ' + f[f.length >> 1].toFixed(1) + ' ms, p95 ' + f[Math.floor(f.length * .95)].toFixed(1) + ' ms, ' + (100 * f.filter(x => x > 20).length / f.length).toFixed(0) + '% over 20 ms'; })()`))
}
