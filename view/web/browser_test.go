package web_test

import (
	"context"
	"net"
	"net/http"
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
	"github.com/chromedp/chromedp/kb"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/view/report"
	"github.com/weft-fabric/weft/view/web"
)

// browser starts a headless Chromium that can reach this host alone, or skips
// where there is none.
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
	return ctx
}

// ask evaluates an expression in the page.
func ask[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// until waits for an expression to be true.
func until(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](expression)); err != nil {
		t.Fatalf("waiting for %s: %v", expression, err)
	}
}

func scheme(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	p := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, p); err != nil {
		t.Fatal(err)
	}
}

// complaints collects what the page says on the console as an error, from the
// first script on.
const complaints = `window.__errors = [];
addEventListener('error', e => __errors.push(String(e.message || e.target.src || e.target.href)), true);
addEventListener('unhandledrejection', e => __errors.push(String(e.reason)));
addEventListener('securitypolicyviolation', e => __errors.push('policy: ' + e.violatedDirective + ' ' + e.blockedURI));
for (const k of ['error', 'warn']) { const f = console[k]; console[k] = (...a) => { __errors.push(a.join(' ')); f(...a); }; }`

// overlaps lists pairs of texts that cover one another, and texts that leave the
// page, among those that can be seen.
const overlaps = `(() => {
  const boxes = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode());) {
    if (!n.textContent.trim() || n.parentElement.closest('title, noscript, .skip, script') || !n.parentElement.checkVisibility()) continue;
    const r = document.createRange();
    r.selectNodeContents(n);
    for (const b of r.getClientRects()) {
      let box = { left: b.left, right: b.right, top: b.top, bottom: b.bottom, text: n.textContent.trim(), node: n };
      for (let p = n.parentElement; p; p = p.parentElement) {
        if (p instanceof SVGElement && p.tagName !== 'svg' || getComputedStyle(p).overflow === 'visible') continue;
        const c = p.getBoundingClientRect();
        box = { ...box, left: Math.max(box.left, c.left), right: Math.min(box.right, c.right), top: Math.max(box.top, c.top), bottom: Math.min(box.bottom, c.bottom) };
      }
      if (box.right - box.left > 1 && box.bottom - box.top > 1) boxes.push(box);
    }
  }
  const bad = [];
  for (let i = 0; i < boxes.length; i++) {
    const a = boxes[i];
    if (a.left < -1 || a.right > innerWidth + 1) bad.push('leaves the page: ' + a.text);
    for (let j = i + 1; j < boxes.length; j++) {
      const b = boxes[j];
      const w = Math.min(a.right, b.right) - Math.max(a.left, b.left), h = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (w > 2 && h > 4 && a.node !== b.node) bad.push(a.text + ' / ' + b.text);
    }
  }
  return boxes.length < 40 ? ['only ' + boxes.length + ' texts'] : bad;
})()`

const wide = `document.documentElement.scrollWidth - document.documentElement.clientWidth`

// visit opens the page of a board and waits until it shows a step.
func visit(t *testing.T, ctx context.Context, url string, width, height int64) {
	t.Helper()
	err := chromedp.Do(ctx, chromedp.EmulateViewport(width, height), chromedp.Navigate(url))
	if err != nil {
		t.Fatal(err)
	}
	until(t, ctx, `document.getElementById('f-step').textContent !== '–'`)
	until(t, ctx, `new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`)
}

func text(t *testing.T, ctx context.Context, selector string) string {
	t.Helper()
	return ask[string](t, ctx, `document.querySelector('`+selector+`').innerText`)
}

func quietConsole(t *testing.T, ctx context.Context) {
	t.Helper()
	if list := ask[[]string](t, ctx, `window.__errors`); len(list) > 0 {
		t.Errorf("the page complained: %q", list)
	}
}

func TestPageInABrowser(t *testing.T) {
	ctx := browser(t)
	if _, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: complaints}); err != nil {
		t.Fatal(err)
	}
	t.Run("Live", func(t *testing.T) { testLive(t, ctx) })
	t.Run("Details", func(t *testing.T) { testDetails(t, ctx) })
	t.Run("Looks", func(t *testing.T) { testLooks(t, ctx) })
	t.Run("Sizes", func(t *testing.T) { testSizes(t, ctx) })
	t.Run("ThousandRanks", func(t *testing.T) { testThousandRanks(t, ctx) })
	t.Run("Reconnect", func(t *testing.T) { testReconnect(t, ctx) })
}

// The page shows what is fed, and follows it without being loaded again.
func testLive(t *testing.T, ctx context.Context) {
	d := run(8, 4, 2, 2, 90*time.Second)
	s := httptest.NewServer(d.Handler())
	defer s.Close()
	defer d.Close()
	visit(t, ctx, s.URL, 1280, 900)
	for selector, want := range map[string]string{
		"#title": "weft up", "#what": "GPT 6 layers", "#f-step": strconv.Itoa(d.step), "#f-ranks": "/ 8", "#f-epoch": strconv.FormatUint(d.epoch, 10),
		"#collectives": "reduce-scatter", "#saves": "complete", "#measures": "83%", "#events": "lease gone", "#topology": "node-1", "#spreads": "ms", "#foot": "--tp 2",
	} {
		if got := text(t, ctx, selector); !strings.Contains(got, want) {
			t.Errorf("%s shows %q, not %q", selector, got, want)
		}
	}
	if n := ask[int](t, ctx, `document.querySelectorAll('#ranks .card').length`); n != 8 {
		t.Errorf("%d cards", n)
	}
	if n := ask[int](t, ctx, `document.querySelectorAll('#loss .epoch-line').length`); n < 2 {
		t.Errorf("%d epochs are marked on the loss", n)
	}
	if n := ask[int](t, ctx, `document.querySelectorAll('#loss .cross').length`); n < 1 {
		t.Errorf("%d failures are marked on the loss", n)
	}
	ask[bool](t, ctx, `window.__same = true`)
	d.state[3] = web.Suspect
	d.tell(3)
	for range 5 {
		d.next()
	}
	d.Event(web.Event{Kind: "note", ID: -1, Text: "said while you look"})
	until(t, ctx, `document.getElementById('f-step').textContent === '`+strconv.Itoa(d.step)+`'`)
	until(t, ctx, `document.getElementById('events').textContent.includes('said while you look')`)
	until(t, ctx, `document.querySelectorAll('#ranks [data-s=suspect]').length === 1 && document.querySelector('#ranks [data-s=suspect]').textContent.includes('?')`)
	for _, c := range []struct {
		event web.Event
		want  string
	}{
		{web.Event{Kind: "resumed", ID: 1, Text: "resumed on 3 ranks"}, "resumed on 3 ranks (slot 1)"},
		{web.Event{Kind: "exit", ID: 2, Text: "slot 2: killed"}, "exit slot 2: killed"},
		{web.Event{Kind: "exit", ID: 2, Text: "of slot 21"}, "exit slot 2 of slot 21"},
		{web.Event{Kind: "kill", ID: 3, Text: "<b>bold</b>"}, "kill slot 3 <b>bold</b>"},
		{web.Event{Kind: "resumed", ID: -1, Detect: 20 * time.Millisecond, Resume: 1500 * time.Millisecond}, "resumed known to all after 20.0 ms, training again after 1.50 s"},
	} {
		d.Event(c.event)
		until(t, ctx, `document.querySelector('#events p').textContent === `+strconv.Quote(c.want))
	}
	// A verdict about a straggler is no failure, and its mark says so.
	crosses := ask[int](t, ctx, `document.querySelectorAll('#loss .cross').length`)
	d.Event(web.Event{Kind: "verdict", ID: 3, Text: "rank 3 comes late to every step"})
	d.next()
	until(t, ctx, `document.querySelectorAll('#loss .flag').length === 1`)
	if n := ask[int](t, ctx, `document.querySelectorAll('#loss .cross').length`); n != crosses {
		t.Errorf("%d failures are marked on the loss after a verdict, %d before", n, crosses)
	}
	// Ticks of the loss are the values that they stand at: equally far apart, as their lines are.
	ask[bool](t, ctx, `((async () => {
		const { ticks, decimals } = await import('./chart.js'), bad = [];
		for (const [lo, hi, n] of [[4.4, 5.6, 4], [2.1, 2.9, 3], [0.2, 9, 5], [0.011, 0.019, 4], [3, 1200, 5]]) {
			const list = ticks(lo, hi, n), step = list[1] - list[0];
			for (const v of list) if (Math.abs(+v.toFixed(decimals(step)) - v) > step * 1e-6) bad.push(v + ' is written ' + v.toFixed(decimals(step)));
		}
		window.__ticks = bad;
	})(), true)`)
	until(t, ctx, `window.__ticks !== undefined`)
	if bad := ask[[]string](t, ctx, `window.__ticks`); len(bad) > 0 {
		t.Errorf("ticks are rounded: %q", bad)
	}
	// A spare rank has no seat in the layout: it stands below the others.
	d.Rank(web.Rank{ID: 7, Rank: 7, Host: "node-1", State: web.Healthy, Replica: -1, Stage: -1, Tensor: -1})
	until(t, ctx, `document.getElementById('topology').textContent.includes('spare')`)
	if got := text(t, ctx, "#topology"); strings.Contains(got, "d-1") {
		t.Errorf("the picture has a row for a spare rank: %q", got)
	}
	if list := ask[[]string](t, ctx, overlaps); len(list) > 0 {
		t.Errorf("with a spare rank these texts cover one another: %q", list)
	}
	if !ask[bool](t, ctx, `window.__same`) {
		t.Error("the page was loaded again")
	}
	if list := ask[[]string](t, ctx, `performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin))`); len(list) > 0 {
		t.Errorf("the page asked elsewhere: %v", list)
	}
	quietConsole(t, ctx)
}

// Other curves, a range of steps alone, one rank with its steps and output, and the
// figures of a run that has ended.
func testDetails(t *testing.T, ctx context.Context) {
	d := run(4, 4, 1, 1, 20*time.Second)
	s := httptest.NewServer(d.Handler())
	defer s.Close()
	defer d.Close()
	for i := range 3 {
		d.Step(report.Step{ID: 0, Step: d.step + 1 + i, Epoch: d.epoch, Loss: 2, Tokens: 10, Norm: 4, Rate: 0.25, Began: time.Now(), Ended: time.Now()})
	}
	d.Log(2, time.Now(), "the last words of rank 2")
	visit(t, ctx, s.URL, 1280, 900)
	for _, c := range [][2]string{{"grad_norm", "Gradient norm"}, {"learning_rate", "Learning rate"}, {"loss", "Loss"}} { // loss last: it has a point for every step
		curve, name := c[0], c[1]
		ask[bool](t, ctx, `(document.querySelector('[data-curve=`+curve+`]').click(), true)`)
		until(t, ctx, `document.getElementById('h-loss').textContent === '`+name+`' && document.querySelector('#loss .smooth') !== null`)
	}
	const steps = `document.querySelector('#loss .smooth')?.getAttribute('d').split('L').length`
	all := ask[int](t, ctx, steps)
	ask[bool](t, ctx, `(() => { const p = document.querySelector('#loss svg'), b = p.getBoundingClientRect();
		for (const [type, at] of [['pointerdown', 0.4], ['pointermove', 0.6], ['pointerup', 0.6]])
			p.dispatchEvent(new PointerEvent(type, { bubbles: true, button: 0, pointerId: 1, clientX: b.left + at * b.width, clientY: b.top + 40 }));
		return true; })()`)
	until(t, ctx, steps+` < `+strconv.Itoa(all))
	ask[bool](t, ctx, `(document.querySelector('#loss svg').dispatchEvent(new MouseEvent('dblclick', { bubbles: true })), true)`)
	until(t, ctx, steps+` >= `+strconv.Itoa(all))
	ask[bool](t, ctx, `(document.querySelector('#ranks [data-id="2"]').click(), true)`)
	until(t, ctx, `document.querySelector('#rank .log')?.textContent.includes('the last words of rank 2') && document.querySelector('#rank .spark path') !== null`)
	for i := range 4 {
		d.Rank(web.Rank{ID: i, Rank: -1, State: web.Left})
	}
	d.Job(web.Job{Title: "weft up", Ranks: 4, Ended: true})
	until(t, ctx, `document.getElementById('f-ranks').textContent === '4 / 4' && document.getElementById('d-ranks').textContent === 'Ranks ended well'`)
	if bad := ask[[]string](t, ctx, overlaps); len(bad) > 0 {
		t.Errorf("texts overlap: %q", bad)
	}
	quietConsole(t, ctx)
}

// Light and dark, by the system and by choice; every control has a name and can
// be reached by keyboard.
func testLooks(t *testing.T, ctx context.Context) {
	d := run(4, 4, 1, 1, 20*time.Second)
	s := httptest.NewServer(d.Handler())
	defer s.Close()
	defer d.Close()
	const ground = `getComputedStyle(document.body).backgroundColor`
	scheme(t, ctx, "light")
	visit(t, ctx, s.URL, 1280, 900)
	light := ask[string](t, ctx, ground)
	scheme(t, ctx, "dark")
	dark := ask[string](t, ctx, ground)
	if light == dark {
		t.Errorf("light and dark look the same: %s", light)
	}
	for _, want := range []string{light, dark, dark} { // light, dark, as the system has it
		ask[bool](t, ctx, `document.getElementById('theme').click(), true`)
		if got := ask[string](t, ctx, ground); got != want {
			t.Errorf("%s is %s, want %s", text(t, ctx, "#theme"), got, want)
		}
	}
	scheme(t, ctx, "light")
	if list := ask[[]string](t, ctx, `[...document.querySelectorAll('button, a, [role=img], [role=region], canvas[tabindex]')].filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)`); len(list) > 0 {
		t.Errorf("without a name: %q", list)
	}
	// Arrow keys on a chart, the heat map and the ranks read single values.
	for target, reads := range map[string]string{"#loss svg": "#loss-read", "#rate svg": "#rate-read", "#late": "#late-read", "#ranks .rank": "#ranks-read"} {
		ask[bool](t, ctx, `document.querySelector('`+target+`').focus(), true`)
		if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.ArrowLeft), chromedp.KeyEvent(kb.ArrowRight)); err != nil {
			t.Fatal(err)
		}
		if got := text(t, ctx, reads); !strings.ContainsAny(got, "0123456789") {
			t.Errorf("%s reads %q", target, got)
		}
	}
	quietConsole(t, ctx)
}

// Texts stay apart and the page within its window, whatever the window and the
// number of ranks.
func testSizes(t *testing.T, ctx context.Context) {
	for _, ranks := range []int{1, 8, 48} {
		d := run(ranks, 4, min(2, ranks), 1, 150*time.Second)
		d.state[0] = web.Recovering
		d.tell(0)
		s := httptest.NewServer(d.Handler())
		for _, width := range []int64{320, 768, 1024, 1920} {
			visit(t, ctx, s.URL, width, 900)
			if n := ask[int](t, ctx, wide); n > 0 {
				t.Errorf("%d ranks at %d wide: the page is %d too wide", ranks, width, n)
			}
			if got := ask[[]string](t, ctx, overlaps); len(got) > 0 {
				t.Errorf("%d ranks at %d wide: texts overlap: %q", ranks, width, got)
			}
		}
		quietConsole(t, ctx)
		d.Close()
		s.Close()
	}
}

// A thousand ranks can be read on a small screen and on a telephone.
func testThousandRanks(t *testing.T, ctx context.Context) {
	d := run(1000, 8, 2, 4, 30*time.Second)
	d.state[317] = web.Failed
	d.tell(317)
	s := httptest.NewServer(d.Handler())
	defer s.Close()
	defer d.Close()
	for _, size := range [][2]int64{{1280, 900}, {390, 844}} {
		visit(t, ctx, s.URL, size[0], size[1])
		if n := ask[int](t, ctx, `document.querySelectorAll('#ranks .cell').length`); n != 1000 {
			t.Errorf("%d cells", n)
		}
		if n := ask[int](t, ctx, wide); n > 0 {
			t.Errorf("at %d wide the page is %d too wide", size[0], n)
		}
		if got := ask[[]string](t, ctx, overlaps); len(got) > 0 {
			t.Errorf("at %d wide texts overlap: %q", size[0], got)
		}
		if w := ask[float64](t, ctx, `document.querySelector('#ranks .cell').getBoundingClientRect().width`); w < 9 {
			t.Errorf("at %d wide a cell is %.1f wide", size[0], w)
		}
		if h := ask[float64](t, ctx, `document.getElementById('late').getBoundingClientRect().height`); h < 150 || h > 600 {
			t.Errorf("the heat map is %.0f high", h)
		}
	}
	ask[bool](t, ctx, `document.querySelector('#ranks [data-id="317"]').click(), true`)
	until(t, ctx, `document.getElementById('rank').textContent.includes('node-39')`)
	if got := text(t, ctx, "#rank"); !strings.Contains(got, "failed") || !strings.Contains(got, "Slot 317") {
		t.Errorf("the detail of slot 317 is %q", got)
	}
	if got := ask[string](t, ctx, `document.querySelector('#ranks [data-id="317"]').textContent`); got != "×" {
		t.Errorf("a failed rank has the sign %q", got)
	}
	ask[bool](t, ctx, `document.querySelector('#rank button').click(), true`)
	quietConsole(t, ctx)
}

// The page says that the server is gone, goes on when it is back, and knows the
// end of a run from a lost connection.
func testReconnect(t *testing.T, ctx context.Context) {
	d := run(4, 4, 1, 1, 10*time.Second)
	first := httptest.NewServer(d.Handler())
	visit(t, ctx, first.URL, 1280, 900)
	ask[bool](t, ctx, `window.__same = true`)
	address := first.Listener.Addr().String()
	first.CloseClientConnections()
	first.Listener.Close()
	until(t, ctx, `document.getElementById('lost').textContent.startsWith('Connection lost')`)
	d.next()
	first.Close()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	second := &httptest.Server{Listener: listener, Config: &http.Server{Handler: d.Handler()}}
	second.Start()
	until(t, ctx, `document.getElementById('lost').hidden && document.getElementById('f-step').textContent === '`+strconv.Itoa(d.step)+`'`)
	d.Job(web.Job{Title: "weft up", Started: d.now.Add(-time.Minute), Ended: true})
	until(t, ctx, `document.getElementById('state').textContent === 'ended'`)
	d.Close()
	until(t, ctx, `document.getElementById('lost').textContent.startsWith('The run has ended')`)
	second.Close()
	if !ask[bool](t, ctx, `window.__same`) {
		t.Error("the page was loaded again")
	}
}

// Pictures of the page for a person to look at, where WEFT_TEST_PICTURES names a
// folder for them.
func TestPictures(t *testing.T) {
	dir := os.Getenv("WEFT_TEST_PICTURES")
	if dir == "" {
		t.Skip("WEFT_TEST_PICTURES names no folder")
	}
	ctx := browser(t)
	for _, c := range []struct {
		name                string
		ranks, host, tp, pp int
		age                 time.Duration
		trouble             bool
	}{
		{"8", 8, 8, 2, 2, 4 * time.Minute, false}, {"4", 4, 4, 1, 1, 15 * time.Second, false}, {"1000", 1000, 8, 2, 4, 123 * time.Second, true},
		{"64", 64, 8, 1, 1, 25 * time.Second, true}, {"16", 16, 4, 2, 2, 70 * time.Second, true},
	} {
		d := run(c.ranks, c.host, c.tp, c.pp, c.age)
		for i, s := range []string{web.Failed, web.Suspect, web.Recovering, web.Starting, web.Left} {
			if c.trouble {
				id := (i*191 + 3) % c.ranks
				d.state[id] = s
				d.tell(id)
			}
		}
		s := httptest.NewServer(d.Handler())
		for _, look := range []string{"light", "dark"} {
			for place, size := range map[string][2]int64{"": {1280, 900}, "-phone": {390, 844}} {
				scheme(t, ctx, look)
				for d.now.Before(time.Now()) {
					d.next()
				}
				visit(t, ctx, s.URL, size[0], size[1])
				shoot(t, ctx, filepath.Join(dir, c.name+"-"+look+place+".png"), chromedp.FullScreenshot(100))
				shoot(t, ctx, filepath.Join(dir, c.name+"-"+look+place+"-top.png"), chromedp.CaptureScreenshot())
			}
		}
		d.Close()
		s.Close()
	}
	b := web.NewBoard()
	s := httptest.NewServer(b.Handler())
	defer s.Close()
	defer b.Close()
	visit(t, ctx, s.URL, 1280, 900)
	shoot(t, ctx, filepath.Join(dir, "empty.png"), chromedp.FullScreenshot(100))
}

func shoot(t *testing.T, ctx context.Context, file string, how chromedp.Action[[]byte]) {
	t.Helper()
	png, err := chromedp.Run(ctx, how)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, png, 0o644); err != nil {
		t.Fatal(err)
	}
}
