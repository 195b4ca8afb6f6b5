// Package chrome lets tests look at pages as a person does: in a headless Chromium that reaches this host alone.
//
// Waiting is for a state of the page, never for a time. What does not come within minutes, on however busy a machine, will not
// come: the wait ends, and tells what the page was doing.
package chrome

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/weft-fabric/weft/internal/bounded"
)

// Start starts a browser for the time of a test, or skips the test where there is none.
func Start(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium here; 'make test' as root on Debian installs it")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.Flag("no-proxy-server", true),
		chromedp.UserDataDir(bounded.Dir(t)), chromedp.WSURLReadTimeout(10*time.Minute))
	alloc, stop := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	if at, ok := t.Deadline(); ok { // early enough to tell what was waited for
		var end context.CancelFunc
		ctx, end = context.WithDeadline(ctx, at.Add(-20*time.Second))
		t.Cleanup(end)
	}
	if _, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument,
		page.AddScriptToEvaluateOnNewDocumentParams{Source: complaints}); err != nil {
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

// Ask evaluates an expression in the page.
func Ask[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// patience is how long a page may take for one thing. The longest waits of tests take seconds.
const patience = 5 * time.Minute

// Until waits for an expression to be true. It looks once per frame. An expression that throws is not true yet.
func Until(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	wait := `new Promise(done => { const look = async () => { let yes = false; try { yes = await (` + expression +
		`); } catch { /* not yet */ }
		if (yes) done(true); else requestAnimationFrame(look); }; look(); })`
	within, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if _, err := chromedp.Run(within, chromedp.Evaluate[bool](wait, chromedp.EvalAwaitPromise)); err != nil {
		late, end := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer end()
		said, _ := chromedp.Run(late,
			chromedp.Evaluate[string](`JSON.stringify({errors: window.__errors, text: document.body?.innerText.slice(0, 2000)})`))
		t.Fatalf("waiting for %s: %v; the page: %s", expression, err, said)
	}
}

// Drawn waits until what changed is on the screen.
func Drawn(t *testing.T, ctx context.Context) {
	t.Helper()
	Until(t, ctx, `new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
}

// Scheme chooses light or dark, and whether things may move.
func Scheme(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	p := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, p); err != nil {
		t.Fatal(err)
	}
	Until(t, ctx, `matchMedia('(prefers-color-scheme: `+name+`)').matches`)
}

// Quiet fails if the page complained on the console.
func Quiet(t *testing.T, ctx context.Context) {
	t.Helper()
	if list := Ask[[]string](t, ctx, `window.__errors`); len(list) > 0 {
		t.Errorf("the page complained: %q", list)
	}
}

// Shoot writes a picture of the page.
func Shoot(t *testing.T, ctx context.Context, file string, how chromedp.Action[[]byte]) {
	t.Helper()
	Drawn(t, ctx)
	png, err := chromedp.Run(ctx, how)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// axe is axe-core 4.14.0 of Deque Systems, under the Mozilla Public License 2.0 (axe/LICENSE): no part of weft's binary.
//
//go:embed axe/axe.min.js.gz
var axe []byte

// Accessible fails for every rule of axe-core that the page breaks as it stands. It takes up to a second.
func Accessible(t *testing.T, ctx context.Context, what string) {
	t.Helper()
	if !Ask[bool](t, ctx, `!!window.axe`) {
		z, err := gzip.NewReader(bytes.NewReader(axe))
		if err != nil {
			t.Fatal(err)
		}
		script, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		Ask[bool](t, ctx, string(script)+"; true")
	}
	Until(t, ctx, `document.getAnimations().every(a => !(a instanceof CSSTransition))`) // colours that change are not yet what is read
	list := Ask[[]string](t, ctx,
		`axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => v.id + ' (' + v.help + '): ' +
		v.nodes.slice(0, 4).map(n => n.html.slice(0, 160) + ' ' + (n.any[0]?.message ?? '').slice(0, 200)).join('; ')))`)
	for _, v := range list {
		t.Errorf("%s: %s", what, strings.Join(strings.Fields(v), " "))
	}
}

// Door is a listener that can turn everybody away. It keeps its port, which another process could take from one that is closed.
type Door struct {
	net.Listener
	shut atomic.Bool
}

// Shut closes the door, or opens it again.
func (d *Door) Shut(shut bool) { d.shut.Store(shut) }

// Accept waits for somebody who may come in.
func (d *Door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil || !d.shut.Load() {
			return c, err
		}
		c.Close()
	}
}
