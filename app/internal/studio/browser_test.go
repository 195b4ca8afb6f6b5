package studio_test

import (
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
	ctx, end := context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(end)
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

// until waits for an expression to be true.
func until(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](expression)); err != nil {
		list, _ := chromedp.Run(ctx, chromedp.Evaluate[[]string](`window.__errors`))
		t.Fatalf("waiting for %s: %v; the page said %q", expression, err, list)
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

const idle = `document.getElementById('busy').hidden && app.stops.size === 0`

// Pictures of the page for a person to look at, where WEFT_TEST_PICTURES names a folder for them.
func TestPictures(t *testing.T) {
	dir := os.Getenv("WEFT_TEST_PICTURES")
	if dir == "" {
		t.Skip("WEFT_TEST_PICTURES names no folder")
	}
	ctx := browser(t)
	for _, name := range []string{"rail-1k", "two-hosts", "nvl72", "dragonfly", "dgx-1v", "tpu", "rail-131k"} {
		s := server(t, sample(t, name))
		visit(t, ctx, s.URL, 1440, 900)
		until(t, ctx, idle)
		shoot(t, ctx, filepath.Join(dir, name+".png"))
	}
	for name, algo := range map[string]string{"rail-1k": "hierarchical", "two-hosts": "ring", "dgx-1v": "synth"} {
		s := server(t, sample(t, name))
		for _, look := range []string{"light", "dark"} {
			scheme(t, ctx, look)
			visit(t, ctx, s.URL, 1440, 900)
			until(t, ctx, idle)
			click(t, ctx, "#tab-collective")
			ask[bool](t, ctx, `(() => { const a = document.getElementById('c-algo'); a.value = '`+algo+`'; a.dispatchEvent(new Event('input')); return true; })()`)
			click(t, ctx, "#c-run")
			until(t, ctx, `app.results.a !== null && `+idle)
			ask[bool](t, ctx, `(app.pause(), app.seek(app.total * .3), true)`)
			shoot(t, ctx, filepath.Join(dir, "run-"+name+"-"+look+".png"))
			click(t, ctx, "#c-bound")
			until(t, ctx, `app.bound !== null && `+idle)
			shoot(t, ctx, filepath.Join(dir, "bound-"+name+"-"+look+".png"))
		}
	}
	scheme(t, ctx, "light")
	s := server(t, sample(t, "rail-1k"))
	for _, size := range [][2]int64{{1440, 900}, {390, 844}} {
		visit(t, ctx, s.URL, size[0], size[1])
		until(t, ctx, idle)
		click(t, ctx, "#tab-plan")
		click(t, ctx, "#p-run")
		until(t, ctx, `app.plan !== null && `+idle)
		shoot(t, ctx, filepath.Join(dir, "plan-"+strconv.FormatInt(size[0], 10)+".png"))
	}
	t.Log(ask[[]string](t, ctx, `window.__errors`))
}
