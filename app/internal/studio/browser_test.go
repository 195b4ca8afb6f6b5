package studio_test

import (
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/weft-fabric/weft/app/internal/studio"
	"github.com/weft-fabric/weft/app/internal/studio/engine"
	"github.com/weft-fabric/weft/internal/bounded"
)

// browser starts a headless Chromium that can reach this host alone, or skips where there is none.
func browser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium here; 'make test' as root on Debian installs it")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.Flag("no-proxy-server", true),
		chromedp.UserDataDir(bounded.Dir(t)), chromedp.WSURLReadTimeout(2*time.Minute))
	alloc, stop := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	// A busy machine may take its time. Only the test binary's own limit ends a wait, early enough to tell what it was for.
	if at, ok := t.Deadline(); ok {
		var end context.CancelFunc
		ctx, end = context.WithDeadline(ctx, at.Add(-20*time.Second))
		t.Cleanup(end)
	}
	if _, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: complaints}); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// complaints collects what the page says on the console as an error, from the first script on.
const complaints = `window.__errors = [];
addEventListener('error', e => __errors.push(String(e.message || e.target.src || e.target.href)), true);
addEventListener('unhandledrejection', e => __errors.push(String(e.reason)));
addEventListener('securitypolicyviolation', e => __errors.push('policy: ' + e.violatedDirective + ' ' + e.blockedURI));
for (const k of ['error', 'warn']) { const f = console[k]; console[k] = (...a) => { __errors.push(a.join(' ')); f(...a); }; }`

// ask evaluates an expression in the page.
func ask[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for an expression to be true. It looks once a frame and has no limit of its own. What throws is not true yet.
func until(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	wait := `new Promise(done => { const look = async () => { let yes = false; try { yes = await (` + expression + `); } catch { /* not yet */ }
		if (yes) done(true); else requestAnimationFrame(look); }; look(); })`
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool](wait, chromedp.EvalAwaitPromise)); err != nil {
		late, end := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer end()
		said, _ := chromedp.Run(late, chromedp.Evaluate[string](`JSON.stringify({errors: window.__errors, busy: document.getElementById('busy-text')?.textContent,
			asking: typeof app === 'undefined' ? null : [...app.stops.keys()], settled: typeof app === 'undefined' ? null : app.settled, note: document.getElementById('note')?.textContent})`))
		t.Fatalf("waiting for %s: %v; the page: %s", expression, err, said)
	}
}

func scheme(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	p := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, p); err != nil {
		t.Fatal(err)
	}
}

func quiet(t *testing.T, ctx context.Context) {
	t.Helper()
	if list := ask[[]string](t, ctx, `window.__errors`); len(list) > 0 {
		t.Errorf("the page complained: %q", list)
	}
}

func visit(t *testing.T, ctx context.Context, url string, width, height int64) {
	t.Helper()
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, height), chromedp.Navigate("about:blank"), chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
	until(t, ctx, `document.documentElement.dataset.ready === 'yes'`)
}

func click(t *testing.T, ctx context.Context, selector string) {
	t.Helper()
	ask[bool](t, ctx, `(document.querySelector(`+strconv.Quote(selector)+`).click(), true)`)
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

func shoot(t *testing.T, ctx context.Context, file string) {
	t.Helper()
	until(t, ctx, `new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, png, 0o644); err != nil {
		t.Fatal(err)
	}
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
	ctx := browser(t)
	for _, x := range engine.Samples() {
		visit(t, ctx, server(t, sample(t, x.Name)).URL, 1440, 900)
		until(t, ctx, idle)
		shoot(t, ctx, filepath.Join(dir, "sample-"+x.Name+".png"))
	}
	ask[bool](t, ctx, `(app.select(app.stage.lookup('pod 130'), true), true)`)
	until(t, ctx, `app.stage.blockLinks.size > 0`)
	ask[bool](t, ctx, `(app.fault('n8330', 0), true)`)
	shoot(t, ctx, filepath.Join(dir, "opened.png"))
	for _, g := range studio.Gallery() {
		s := server(t, g.Open)
		for _, look := range []string{"light", "dark"} {
			for name, size := range map[string][2]int64{"": {1440, 900}, "-phone": {390, 844}} {
				scheme(t, ctx, look)
				visit(t, ctx, s.URL, size[0], size[1])
				until(t, ctx, idle)
				ask[bool](t, ctx, `(app.pause(), app.total && app.seek(app.total * .37), true)`)
				shoot(t, ctx, filepath.Join(dir, strings.TrimSuffix(g.File, ".html")+"-"+look+name+".png"))
				quiet(t, ctx)
			}
		}
	}
	scheme(t, ctx, "light")
	visit(t, ctx, server(t, studio.Gallery()[1].Open).URL, 1280, 720)
	until(t, ctx, idle)
	ask[bool](t, ctx, `(app.pause(), app.seek(0), app.frames = [], app.play(), true)`)
	until(t, ctx, `app.frames.length > 200 || !app.playing`)
	t.Log(ask[string](t, ctx, `(() => { const f = app.frames.slice(5).sort((a, b) => a - b); return f.length + ' frames, ' + app.stage.dots + ' dots at the end, p50 ' + f[f.length >> 1].toFixed(1) + ' ms, p95 ' + f[Math.floor(f.length * .95)].toFixed(1) + ' ms, ' + (100 * f.filter(x => x > 20).length / f.length).toFixed(0) + '% over 20 ms'; })()`))
}
