package web_test

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/weft-fabric/weft/internal/chrome"
	"github.com/weft-fabric/weft/view/report"
	"github.com/weft-fabric/weft/view/web"
)

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
	chrome.Until(t, ctx, `document.getElementById('f-step').textContent !== '–'`)
	chrome.Drawn(t, ctx)
}

func text(t *testing.T, ctx context.Context, selector string) string {
	t.Helper()
	return chrome.Ask[string](t, ctx, `document.querySelector('`+selector+`').innerText`)
}

func TestPageInABrowser(t *testing.T) {
	ctx := chrome.Start(t)
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
		"#title": "weft up", "#what": "GPT 6 layers", "#f-step": strconv.Itoa(d.step), "#f-ranks": "/ 8",
		"#f-epoch":     strconv.FormatUint(d.epoch, 10),
		"#collectives": "reduce-scatter", "#saves": "complete", "#measures": "83%", "#events": "lease gone", "#topology": "node-1",
		"#spreads": "ms", "#foot": "--tp 2",
	} {
		if got := text(t, ctx, selector); !strings.Contains(got, want) {
			t.Errorf("%s shows %q, not %q", selector, got, want)
		}
	}
	if n := chrome.Ask[int](t, ctx, `document.querySelectorAll('#ranks .card').length`); n != 8 {
		t.Errorf("%d cards", n)
	}
	if n := chrome.Ask[int](t, ctx, `document.querySelectorAll('#loss .epoch-line').length`); n < 2 {
		t.Errorf("%d epochs are marked on the loss", n)
	}
	if n := chrome.Ask[int](t, ctx, `document.querySelectorAll('#loss .cross').length`); n < 1 {
		t.Errorf("%d failures are marked on the loss", n)
	}
	chrome.Ask[bool](t, ctx, `window.__same = true`)
	d.state[3] = web.Suspect
	d.tell(3)
	for range 5 {
		d.next()
	}
	d.Event(web.Event{Kind: "note", ID: -1, Text: "said while you look"})
	chrome.Until(t, ctx, `document.getElementById('f-step').textContent === '`+strconv.Itoa(d.step)+`'`)
	chrome.Until(t, ctx, `document.getElementById('events').textContent.includes('said while you look')`)
	chrome.Until(t, ctx,
		`document.querySelectorAll('#ranks [data-s=suspect]').length === 1 && document.querySelector('#ranks [data-s=suspect]').textContent.includes('?')`)
	for _, c := range []struct {
		event web.Event
		want  string
	}{
		{web.Event{Kind: "resumed", ID: 1, Text: "resumed on 3 ranks"}, "resumed on 3 ranks (slot 1)"},
		{web.Event{Kind: "exit", ID: 2, Text: "slot 2: killed"}, "exit slot 2: killed"},
		{web.Event{Kind: "exit", ID: 2, Text: "of slot 21"}, "exit slot 2 of slot 21"},
		{web.Event{Kind: "kill", ID: 3, Text: "<b>bold</b>"}, "kill slot 3 <b>bold</b>"},
		{web.Event{Kind: "resumed", ID: -1, Detect: 20 * time.Millisecond, Resume: 1500 * time.Millisecond},
			"resumed known to all after 20.0 ms, training again after 1.50 s"},
	} {
		d.Event(c.event)
		chrome.Until(t, ctx, `document.querySelector('#events p').textContent === `+strconv.Quote(c.want))
	}
	// A verdict about a straggler is no failure, and its mark says so.
	crosses := chrome.Ask[int](t, ctx, `document.querySelectorAll('#loss .cross').length`)
	d.Event(web.Event{Kind: "verdict", ID: 3, Text: "rank 3 comes late to every step"})
	d.next()
	chrome.Until(t, ctx, `document.querySelectorAll('#loss .flag').length === 1`)
	if n := chrome.Ask[int](t, ctx, `document.querySelectorAll('#loss .cross').length`); n != crosses {
		t.Errorf("%d failures are marked on the loss after a verdict, %d before", n, crosses)
	}
	// Ticks of the loss are the values that they stand at: equally far apart, as their lines are.
	chrome.Ask[bool](t, ctx, `((async () => {
		const { ticks, decimals } = await import('./chart.js'), bad = [];
		for (const [lo, hi, n] of [[4.4, 5.6, 4], [2.1, 2.9, 3], [0.2, 9, 5], [0.011, 0.019, 4], [3, 1200, 5]]) {
			const list = ticks(lo, hi, n), step = list[1] - list[0];
			for (const v of list) if (Math.abs(+v.toFixed(decimals(step)) - v) > step * 1e-6) bad.push(v + ' is written ' + v.toFixed(decimals(step)));
		}
		window.__ticks = bad;
	})(), true)`)
	chrome.Until(t, ctx, `window.__ticks !== undefined`)
	if bad := chrome.Ask[[]string](t, ctx, `window.__ticks`); len(bad) > 0 {
		t.Errorf("ticks are rounded: %q", bad)
	}
	// A spare rank has no seat in the layout: it stands below the others.
	d.Rank(web.Rank{ID: 7, Rank: 7, Host: "node-1", State: web.Healthy, Replica: -1, Stage: -1, Tensor: -1})
	chrome.Until(t, ctx, `document.getElementById('topology').textContent.includes('spare')`)
	if got := text(t, ctx, "#topology"); strings.Contains(got, "d-1") {
		t.Errorf("the picture has a row for a spare rank: %q", got)
	}
	if list := chrome.Ask[[]string](t, ctx, overlaps); len(list) > 0 {
		t.Errorf("with a spare rank these texts cover one another: %q", list)
	}
	if !chrome.Ask[bool](t, ctx, `window.__same`) {
		t.Error("the page was loaded again")
	}
	if list := chrome.Ask[[]string](t, ctx,
		`performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin))`); len(list) > 0 {
		t.Errorf("the page asked elsewhere: %v", list)
	}
	chrome.Quiet(t, ctx)
}

// Other curves, a range of steps alone, one rank with its steps and output, and the
// figures of a run that has ended.
func testDetails(t *testing.T, ctx context.Context) {
	d := run(4, 4, 1, 1, 20*time.Second)
	s := httptest.NewServer(d.Handler())
	defer s.Close()
	defer d.Close()
	for i := range 3 {
		d.Step(report.Step{ID: 0, Step: d.step + 1 + i, Epoch: d.epoch, Loss: 2, Tokens: 10, Norm: 4, Rate: 0.25, Began: time.Now(),
			Ended: time.Now()})
	}
	d.Log(2, time.Now(), "the last words of rank 2")
	visit(t, ctx, s.URL, 1280, 900)
	for _, c := range [][2]string{{"grad_norm", "Gradient norm"}, {"learning_rate", "Learning rate"},
		{"loss", "Loss"}} { // loss last: it has a point for every step
		curve, name := c[0], c[1]
		chrome.Ask[bool](t, ctx, `(document.querySelector('[data-curve=`+curve+`]').click(), true)`)
		chrome.Until(t, ctx, `document.getElementById('h-loss').textContent === '`+name+`' && document.querySelector('#loss .smooth') !== null`)
	}
	const steps = `document.querySelector('#loss .smooth')?.getAttribute('d').split('L').length`
	all := chrome.Ask[int](t, ctx, steps)
	chrome.Ask[bool](t, ctx, `(() => { const p = document.querySelector('#loss svg'), b = p.getBoundingClientRect();
		for (const [type, at] of [['pointerdown', 0.4], ['pointermove', 0.6], ['pointerup', 0.6]])
			p.dispatchEvent(new PointerEvent(type, { bubbles: true, button: 0, pointerId: 1, clientX: b.left + at * b.width, clientY: b.top + 40 }));
		return true; })()`)
	chrome.Until(t, ctx, steps+` < `+strconv.Itoa(all))
	chrome.Ask[bool](t, ctx, `(document.querySelector('#loss svg').dispatchEvent(new MouseEvent('dblclick', { bubbles: true })), true)`)
	chrome.Until(t, ctx, steps+` >= `+strconv.Itoa(all))
	chrome.Ask[bool](t, ctx, `(document.querySelector('#ranks [data-id="2"]').click(), true)`)
	chrome.Until(t, ctx,
		`document.querySelector('#rank .log')?.textContent.includes('the last words of rank 2') && document.querySelector('#rank .spark path') !== null`)
	for i := range 4 {
		d.Rank(web.Rank{ID: i, Rank: -1, State: web.Left})
	}
	d.Job(web.Job{Title: "weft up", Ranks: 4, Ended: true})
	chrome.Until(t, ctx,
		`document.getElementById('f-ranks').textContent === '4 / 4' && document.getElementById('d-ranks').textContent === 'Ranks ended well'`)
	if bad := chrome.Ask[[]string](t, ctx, overlaps); len(bad) > 0 {
		t.Errorf("texts overlap: %q", bad)
	}
	chrome.Quiet(t, ctx)
}

// Light and dark, by the system and by choice; every control has a name and can
// be reached by keyboard.
func testLooks(t *testing.T, ctx context.Context) {
	d := run(8, 4, 1, 1, 20*time.Second)
	for i, state := range []string{web.Failed, web.Suspect, web.Recovering, web.Starting, web.Left} {
		d.state[i] = state
		d.tell(i)
	}
	s := httptest.NewServer(d.Handler())
	defer s.Close()
	defer d.Close()
	const ground = `getComputedStyle(document.body).backgroundColor`
	chrome.Scheme(t, ctx, "light")
	visit(t, ctx, s.URL, 1280, 900)
	light := chrome.Ask[string](t, ctx, ground)
	chrome.Accessible(t, ctx, "light")
	chrome.Scheme(t, ctx, "dark")
	chrome.Accessible(t, ctx, "dark")
	dark := chrome.Ask[string](t, ctx, ground)
	if light == dark {
		t.Errorf("light and dark look the same: %s", light)
	}
	for _, want := range []string{light, dark, dark} { // light, dark, as the system has it
		chrome.Ask[bool](t, ctx, `document.getElementById('theme').click(), true`)
		if got := chrome.Ask[string](t, ctx, ground); got != want {
			t.Errorf("%s is %s, want %s", text(t, ctx, "#theme"), got, want)
		}
	}
	chrome.Scheme(t, ctx, "light")
	if list := chrome.Ask[[]string](t, ctx,
		`[...document.querySelectorAll('button, a, [role=img], [role=region], canvas[tabindex]')].filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)`); len(list) > 0 {
		t.Errorf("without a name: %q", list)
	}
	// Arrow keys on a chart, the heat map and the ranks read single values.
	for target, reads := range map[string]string{"#loss svg": "#loss-read", "#rate svg": "#rate-read", "#late": "#late-read",
		"#ranks .rank": "#ranks-read"} {
		chrome.Ask[bool](t, ctx, `document.querySelector('`+target+`').focus(), true`)
		if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.ArrowLeft), chromedp.KeyEvent(kb.ArrowRight)); err != nil {
			t.Fatal(err)
		}
		if got := text(t, ctx, reads); !strings.ContainsAny(got, "0123456789") {
			t.Errorf("%s reads %q", target, got)
		}
	}
	chrome.Quiet(t, ctx)
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
			if n := chrome.Ask[int](t, ctx, wide); n > 0 {
				t.Errorf("%d ranks at %d wide: the page is %d too wide", ranks, width, n)
			}
			if got := chrome.Ask[[]string](t, ctx, overlaps); len(got) > 0 {
				t.Errorf("%d ranks at %d wide: texts overlap: %q", ranks, width, got)
			}
		}
		chrome.Quiet(t, ctx)
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
		if n := chrome.Ask[int](t, ctx, `document.querySelectorAll('#ranks .cell').length`); n != 1000 {
			t.Errorf("%d cells", n)
		}
		if n := chrome.Ask[int](t, ctx, wide); n > 0 {
			t.Errorf("at %d wide the page is %d too wide", size[0], n)
		}
		if got := chrome.Ask[[]string](t, ctx, overlaps); len(got) > 0 {
			t.Errorf("at %d wide texts overlap: %q", size[0], got)
		}
		if w := chrome.Ask[float64](t, ctx, `document.querySelector('#ranks .cell').getBoundingClientRect().width`); w < 9 {
			t.Errorf("at %d wide a cell is %.1f wide", size[0], w)
		}
		if h := chrome.Ask[float64](t, ctx, `document.getElementById('late').getBoundingClientRect().height`); h < 150 || h > 600 {
			t.Errorf("the heat map is %.0f high", h)
		}
	}
	chrome.Ask[bool](t, ctx, `document.querySelector('#ranks [data-id="317"]').click(), true`)
	chrome.Until(t, ctx, `document.getElementById('rank').textContent.includes('node-39')`)
	if got := text(t, ctx, "#rank"); !strings.Contains(got, "failed") || !strings.Contains(got, "Slot 317") {
		t.Errorf("the detail of slot 317 is %q", got)
	}
	if got := chrome.Ask[string](t, ctx, `document.querySelector('#ranks [data-id="317"]').textContent`); got != "×" {
		t.Errorf("a failed rank has the sign %q", got)
	}
	chrome.Ask[bool](t, ctx, `document.querySelector('#rank button').click(), true`)
	chrome.Quiet(t, ctx)
}

// The page says that the server is gone, goes on when it is back, and knows the
// end of a run from a lost connection.
func testReconnect(t *testing.T, ctx context.Context) {
	d := run(4, 4, 1, 1, 10*time.Second)
	s := httptest.NewUnstartedServer(d.Handler())
	door := &chrome.Door{Listener: s.Listener}
	s.Listener = door
	s.Start()
	visit(t, ctx, s.URL, 1280, 900)
	chrome.Ask[bool](t, ctx, `window.__same = true`)
	door.Shut(true)
	s.CloseClientConnections()
	chrome.Until(t, ctx, `document.getElementById('lost').textContent.startsWith('Connection lost')`)
	d.next()
	door.Shut(false)
	chrome.Until(t, ctx, `document.getElementById('lost').hidden && document.getElementById('f-step').textContent === '`+
		strconv.Itoa(d.step)+`'`)
	d.Job(web.Job{Title: "weft up", Started: d.now.Add(-time.Minute), Ended: true})
	chrome.Until(t, ctx, `document.getElementById('state').textContent === 'ended'`)
	d.Close()
	chrome.Until(t, ctx, `document.getElementById('lost').textContent.startsWith('The run has ended')`)
	s.Close()
	if !chrome.Ask[bool](t, ctx, `window.__same`) {
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
	ctx := chrome.Start(t)
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
				chrome.Scheme(t, ctx, look)
				for d.now.Before(time.Now()) {
					d.next()
				}
				visit(t, ctx, s.URL, size[0], size[1])
				chrome.Shoot(t, ctx, filepath.Join(dir, c.name+"-"+look+place+".png"), chromedp.FullScreenshot(100))
				chrome.Shoot(t, ctx, filepath.Join(dir, c.name+"-"+look+place+"-top.png"), chromedp.CaptureScreenshot())
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
	chrome.Shoot(t, ctx, filepath.Join(dir, "empty.png"), chromedp.FullScreenshot(100))
}
