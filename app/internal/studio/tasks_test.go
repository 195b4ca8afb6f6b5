package studio_test

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/weft-fabric/weft/app/internal/studio"
	"github.com/weft-fabric/weft/app/internal/studio/engine"
	"github.com/weft-fabric/weft/internal/chrome"
	"github.com/weft-fabric/weft/view/web"
)

// person does tasks on the page, and counts what they take.
type person struct {
	*testing.T
	ctx   context.Context
	acts  int
	began time.Time
}

func (p *person) task(name string, f func()) {
	p.Helper()
	p.acts, p.began = 0, time.Now()
	f()
	p.Logf("task: %-34s %2d actions, %.1f s", name, p.acts, time.Since(p.began).Seconds())
}

// click presses the mouse in the middle of an element, as a person does.
func (p *person) click(selector string) {
	p.Helper()
	p.acts++
	at := chrome.Ask[[]float64](p.T, p.ctx, `(() => { const e = document.querySelector(`+quoted(selector)+
		`); e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; })()`)
	p.press(at[0], at[1])
}

func (p *person) press(x, y float64) {
	p.Helper()
	if err := chromedp.Do(p.ctx, chromedp.MouseClickXY(x, y)); err != nil {
		p.Fatal(err)
	}
}

// part presses a part of the picture.
func (p *person) part(name string) {
	p.Helper()
	p.acts++
	at := chrome.Ask[[]float64](p.T, p.ctx, `(() => { const s = app.stage, [x, y, w, h] = s.box(s.lookup(`+quoted(name)+
		`)), r = s.base.getBoundingClientRect(); return [r.left + (x + w / 2 - s.view.x) * s.view.s, r.top + (y + h / 2 - s.view.y) * s.view.s]; })()`)
	p.press(at[0], at[1])
	p.until(`app.stage.sel?.name === ` + quoted(name))
}

// choose sets a list, a slider or a field, as the keyboard would.
func (p *person) choose(id, value string) {
	p.Helper()
	p.acts++
	chrome.Ask[bool](p.T, p.ctx, `(() => { const e = document.getElementById(`+quoted(id)+`); e.value = `+quoted(value)+
		`; for (const k of ['input', 'change']) e.dispatchEvent(new Event(k, { bubbles: true })); return e.value === `+quoted(value)+`; })()`)
}

func (p *person) until(expression string) { p.Helper(); chrome.Until(p.T, p.ctx, expression) }
func (p *person) sees(selector, want string) {
	p.Helper()
	if got := chrome.Ask[string](p.T, p.ctx, `document.querySelector(`+quoted(selector)+`)?.innerText ?? ''`); !strings.Contains(got, want) {
		p.Errorf("%s shows %q, not %q", selector, got, want)
	}
}

// explained checks that every figure says how it is computed, and from what.
func explained(t *testing.T, ctx context.Context) {
	t.Helper()
	if n := chrome.Ask[int](t, ctx, `document.querySelectorAll('.fig').length`); n == 0 {
		t.Error("no figures")
	}
	for _, f := range chrome.Ask[[]string](t, ctx, unexplained) {
		t.Errorf("not explained: %q", f)
	}
}

func quoted(s string) string { return fmt.Sprintf("%q", s) }

// One browser for all of them.
func TestInABrowser(t *testing.T) {
	ctx := chrome.Start(t)
	for _, x := range []struct {
		name string
		test func(*testing.T, context.Context)
	}{{"Tasks", testTasks}, {"Looks", testLooks}, {"ServerReturns", testServerReturns}, {"Token", testToken}, {"Live", testLive},
		{"Part", testPart}, {"Same", testSame}, {"Past", testPast}, {"Cancel", testCancel}, {"SwitchLane", testSwitchLane}} {
		t.Run(x.name, func(t *testing.T) { x.test(t, ctx) })
	}
}

// Tasks as a person does them, one after another on one page.
func testTasks(t *testing.T, ctx context.Context) {
	p := &person{T: t, ctx: ctx}
	s := server(t, studio.Open{})
	link := ""

	p.task("open the page, see a cluster", func() {
		visit(t, ctx, s.URL, 1280, 900)
		p.until(idle)
		p.sees("#figures", "1,024")
		p.sees("#figures", "1 : 1")
		p.sees("#figures", "million")
		p.sees("#figures", "MW")
	})
	p.task("start from another cluster", func() {
		p.acts++
		chrome.Ask[bool](t, ctx,
			`(() => { const e = document.getElementById('sample'); e.value = [...e.options].find(o => o.text.startsWith('two-hosts')).value; e.dispatchEvent(new Event('change')); return true; })()`)
		p.until(`document.getElementById('figures').innerText.includes('2 hosts') && ` + idle)
	})
	p.task("a slip of the pen has a line", func() {
		chrome.Ask[bool](t, ctx,
			`(() => { const e = document.getElementById('text'); e.focus(); e.value = e.value.replace('family: rail', 'family: rial'); e.dispatchEvent(new Event('input')); return true; })()`)
		p.acts++
		p.until(`document.getElementById('text-errors').textContent.includes('line 8')`)
		p.sees("#text-errors", "rial")
		if !chrome.Ask[bool](t, ctx, `document.querySelector('.gutter b').textContent.includes('8') && app.stage.scene.gpus === 16`) {
			t.Error("the line is not marked, or the picture is gone")
		}
		p.sees("#stale", "last text without mistakes")
		chrome.Ask[bool](t, ctx,
			`(() => { const e = document.getElementById('text'); e.value = e.value.replace('rial', 'rail'); e.dispatchEvent(new Event('input')); return true; })()`)
		p.until(`document.getElementById('text-errors').textContent === '' && document.getElementById('stale').hidden && ` + idle)
	})
	p.task("add two hosts by a button", func() {
		p.click(`#grow [data-by="1"][data-unit="host"]`)
		p.until(`app.stage.scene.gpus === 24 && document.getElementById('text').value.includes('n[0-2]') && ` + idle)
		p.click(`#grow [data-by="1"][data-unit="host"]`)
		p.until(`app.stage.scene.gpus === 32 && document.getElementById('figures').innerText.includes('4 hosts') && ` + idle)
	})
	p.task("take a rail away, and back", func() {
		p.click(`#grow [data-by="-1"][data-unit="rail"]`)
		p.until(`document.getElementById('text').value.includes('nics: "nic[0-6]"') && document.getElementById('figures').innerText.includes('7 leaf') && ` +
			idle)
		p.click(`#grow [data-by="1"][data-unit="rail"]`)
		p.until(`document.getElementById('figures').innerText.includes('8 leaf') && ` + idle)
	})
	p.task("drag a rack to another row", func() {
		p.click(`[data-layout="floor"]`)
		p.until(`app.stage.scene.grid && ` + idle)
		p.acts++
		at := chrome.Ask[[]float64](t, ctx,
			`(() => { const s = app.stage, g = s.scene.grid, r = s.base.getBoundingClientRect(), v = s.view; s.zoom(.4); return [.5, .5, 2.5, 1.5].map((x, i) => i % 2 ? r.top + (x * g.h - v.y) * v.s : r.left + (x * g.w - v.x) * v.s); })()`)
		if err := chromedp.Do(ctx, chromedp.DragAndDropXY(at[0], at[1], at[2], at[3], 6)); err != nil {
			t.Fatal(err)
		}
		p.until(`document.getElementById('text').value.includes('"B03"') && app.stage.scene.blocks.some(b => b.name === 'B03' && b.hosts + b.switches > 0) && ` +
			idle)
		p.click(`[data-layout="network"]`)
		p.until(`!app.stage.scene.grid && ` + idle)
	})
	p.task("look inside a figure, then inside all", func() {
		p.click(`.fig[data-key="bisection"] summary`)
		p.sees(`.fig[data-key="bisection"] .why`, "max-flow")
		p.click("#explain")
		if n := chrome.Ask[int](t, ctx, `document.querySelectorAll('.fig:not([open]), .explain:not([open])').length`); n > 0 {
			t.Errorf("%d figures stay shut when all are explained", n)
		}
		p.click("#explain")
	})
	p.task("simulate a ring", func() {
		p.click("#tab-collective")
		p.choose("c-algo", "ring")
		p.choose("c-size", "28")
		p.click("#c-run")
		p.until(`document.querySelector('[data-run=a] .big') !== null && ` + idle)
		p.sees("#run-facts", "256 MiB on 32 GPUs")
		p.sees("#run-facts", "Limited by")
		chrome.Ask[bool](t, ctx, `(app.pause(), app.seek(app.total * .4), true)`)
		if n := chrome.Ask[int](t, ctx, `app.stage.dots`); n < 16 {
			t.Errorf("%d messages are drawn while 32 ranks send", n)
		}
		before := chrome.Ask[string](t, ctx, `app.stage.over.toDataURL()`)
		chrome.Ask[bool](t, ctx, `(app.seek(app.total * .41), true)`)
		if before == chrome.Ask[string](t, ctx, `app.stage.over.toDataURL()`) {
			t.Error("messages do not move")
		}
		chrome.Ask[bool](t, ctx, `(app.seek(app.total * .4), true)`)
		if before != chrome.Ask[string](t, ctx, `app.stage.over.toDataURL()`) {
			t.Error("the same time has two pictures")
		}
	})
	p.task("see links fill, find a lane", func() {
		chrome.Ask[bool](t, ctx, `(app.pause(), app.seek(0), true)`)
		p.until(idle)
		const used = `(() => { const s = app.stage, list = s.scene.linkList; let n = 0; for (let i = 0; i < list.length; i += 2) if (s.linkWeight(list[i], list[i + 1]) > .8) n++; return n; })()`
		before, picture := chrome.Ask[int](t, ctx, used), chrome.Ask[string](t, ctx, `app.stage.lines.toDataURL()`)
		chrome.Ask[bool](t, ctx, `(app.seek(app.total * .5), true)`)
		p.until(idle + ` && app.stage.columnNow() === app.stage.column`)
		if after := chrome.Ask[int](t, ctx, used); before >= after || picture == chrome.Ask[string](t, ctx, `app.stage.lines.toDataURL()`) {
			t.Errorf("%d links are busy at the beginning, %d in the middle; or they look alike", before, after)
		}
		p.choose("lane-find", "rank 5")
		p.until(`app.lanes.rows.length === 1 && app.lanes.rows[0].lane.name === 'rank 5'`)
		p.choose("lane-find", "")
		p.until(`app.lanes.rows.length === 32`)
		if !chrome.Ask[bool](t, ctx,
			`app.lanes.groups[0].chain.length > 32 && app.stage.limits.length === 1 && app.stage.limits[0].text.includes('nic')`) {
			t.Error("no critical path, or no limiting link")
		}
	})
	p.task("break a NIC, compare with A", func() {
		p.click(`[data-zoom="fit"]`)
		p.part("n0:nic2")
		p.click(`[data-act="slow"]`)
		p.until(`app.state.faults.length === 1`)
		p.sees("#faults", "n0:nic2")
		p.click(`.ab [data-run="b"]`)
		p.click("#c-run")
		p.until(`app.results.b !== null && ` + idle)
		if !chrome.Ask[bool](t, ctx,
			`app.results.b.time_ps > app.results.a.time_ps && app.stage.runs.length === 2 && app.total === app.results.b.time_ps`) {
			t.Error("B is not slower than A, or not on the same clock")
		}
		p.sees("section[data-run=a]", "times as fast")
	})
	p.task("see the cut of the bound", func() {
		p.click("#c-bound")
		p.until(`app.bound !== null && ` + idle)
		p.sees("#run-facts", "No schedule beats this")
		if chrome.Ask[int](t, ctx, `app.stage.cut.edges.length`) == 0 {
			t.Error("no link of the cut is drawn")
		}
		chrome.Accessible(t, ctx, "a collective with its bound")
		explained(t, ctx)
	})
	p.task("share it, open the link", func() {
		// The address follows the page after a quarter of a second; the link that is copied has all of it at once.
		p.click("#export")
		p.click(`[data-export="link"]`)
		p.until(`!!app.linked`)
		link = chrome.Ask[string](t, ctx, `app.linked`)
		times := chrome.Ask[string](t, ctx, `app.results.a.time_ps + ' ' + app.results.b.time_ps`)
		visit(t, ctx, link, 1280, 900)
		p.until(`app.results.a !== null && app.results.b !== null && ` + idle)
		if got := chrome.Ask[string](t, ctx, `app.results.a.time_ps + ' ' + app.results.b.time_ps`); got != times {
			t.Errorf("the link shows %s, was %s", got, times)
		}
		p.sees("#faults", "n0:nic2")
		if chrome.Ask[string](t, ctx, `app.state.view`) != "collective" {
			t.Error("the link opens another view")
		}
	})
	p.task("save the picture as SVG", func() {
		p.acts += 2
		// Hosts have names where there is room for them: how large they are depends on what came first, the sentences below or the picture.
		chrome.Ask[bool](t, ctx, `(() => { const s = app.stage.scene, h = s.hosts, k = i => s.kinds[h.kind[i]], all = [...h.name.keys()];
			const l = Math.min(...h.x), t = Math.min(...h.y), r = Math.max(...all.map(i => h.x[i] + k(i).w)), b = Math.max(...all.map(i => h.y[i] + k(i).h));
			app.stage.fit([l, t, r - l, b - t]); return true; })()`)
		drawing(t, chrome.Ask[string](t, ctx, `app.exported('svg').then(b => b.text())`))
	})
	p.task("my own program is disproved", func() {
		p.choose("c-algo", "program")
		p.click("#c-sample")
		p.until(`document.getElementById('c-program').value.includes('op all-reduce') && ` + idle)
		p.acts++
		chrome.Ask[bool](t, ctx,
			`(() => { const e = document.getElementById('c-program'); e.value = e.value.replace('recv-reduce-send', 'recv-send').replace('j < n-2', 'j < n-3'); e.dispatchEvent(new Event('input')); return true; })()`)
		p.click("#c-run")
		p.until(`document.getElementById('c-errors').textContent !== '' && ` + idle)
	})
	p.task("plan a model, take another layout", func() {
		p.click("#tab-plan")
		p.choose("p-model", "llama3-8b")
		p.choose("p-batch", "128")
		p.click("#p-run")
		p.until(`app.plan?.points?.length > 1 && document.querySelectorAll('#p-scatter circle').length > 1 && ` + idle)
		p.sees("#p-memory", "activations")
		p.sees("#run-facts", "90%: ")
		p.until(`document.querySelector('#p-scatter .range') !== null`)
		best := chrome.Ask[string](t, ctx, `app.plan.cost.layout_text`)
		p.acts++
		chrome.Ask[bool](t, ctx,
			`(() => { const list = [...document.querySelectorAll('#p-scatter circle[aria-pressed=false]')]; list[list.length - 1].dispatchEvent(new MouseEvent('click', { bubbles: true })); return true; })()`)
		p.until(`app.plan.cost.layout_text !== ` + quoted(best) + ` && ` + idle)
		if !chrome.Ask[bool](t, ctx, `app.stage.paint.size === 32 && !document.getElementById('dock').hidden`) {
			t.Error("the layout is not painted, or its step has no lanes")
		}
		chrome.Accessible(t, ctx, "a plan")
		explained(t, ctx)
	})
	p.task("find a part by its name", func() {
		p.acts += 2
		chrome.Ask[bool](t, ctx, `(document.getElementById('find').focus(), true)`)
		if err := chromedp.Do(ctx, chromedp.KeyEvent("leaf1"), chromedp.KeyEvent(kb.Enter)); err != nil {
			t.Fatal(err)
		}
		p.until(`app.stage.sel?.name === 'leaf1' && document.querySelectorAll('.joints li').length > 3`)
	})
	chrome.Quiet(t, ctx)
	broken(t, p, link)
}

// drawing checks a picture that was saved: well-formed, with the hosts' names, the sentence about the limit and the messages.
func drawing(t *testing.T, svg string) {
	t.Helper()
	d, text, shapes := xml.NewDecoder(strings.NewReader(svg)), "", map[string]int{}
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			shapes[x.Name.Local]++
		case xml.CharData:
			text += string(x) + "\n"
		}
	}
	if !strings.Contains(text, "n3") || !strings.Contains(text, "limited by") || shapes["image"] != 1 || shapes["path"] < 10 ||
		shapes["rect"] < 32 || strings.Contains(svg, "NaN") {
		t.Errorf("the picture has %v and says %q", shapes, text)
	}
}

// unexplained lists figures of the view that do not say how they are computed, or from what.
const unexplained = `[...document.querySelectorAll('.fig')].filter(f => !f.closest('[hidden]')).filter(f => { const t = [...(f.querySelector(':scope > .why, :scope > .explain > .why')?.childNodes ?? [])].map(n => n.textContent.trim()); return t.length !== 4 || [t[1], t[3]].some(x => x.length < 4 || x.includes('undefined')) || f.innerText.includes('[object'); }).map(f => f.dataset.key + ': ' + f.innerText)`

// A broken link, or one of another version, shows the page as it starts and says so.
func broken(t *testing.T, p *person, link string) {
	at, _, _ := strings.Cut(link, "#")
	for _, bad := range []string{"#s=9.abc", "#s=1.%%%", "#s=1.AAAA"} {
		visit(t, p.ctx, at+bad, 1280, 900)
		p.until(idle)
		p.sees("#note", "link could not be read")
		p.sees("#figures", "1,024")
	}
}

// The page fits a phone and a wall, by light and dark; controls have names; the keyboard reaches views, picture and clock.
func testLooks(t *testing.T, ctx context.Context) {
	s := server(t, sample(t, "two-hosts"))
	const wide = `document.documentElement.scrollWidth - document.documentElement.clientWidth`
	for _, size := range [][2]int64{{320, 700}, {390, 844}, {1024, 768}, {2560, 1440}} {
		visit(t, ctx, s.URL, size[0], size[1])
		chrome.Until(t, ctx, idle)
		for _, view := range []string{"design", "collective", "plan"} {
			click(t, ctx, "#tab-"+view)
			if n := chrome.Ask[int](t, ctx, wide); n > 0 {
				t.Errorf("%s at %d wide is %d too wide", view, size[0], n)
			}
		}
		if h := chrome.Ask[float64](t, ctx, `document.getElementById('base').getBoundingClientRect().height`); h < 290 {
			t.Errorf("at %d wide the picture is %.0f high", size[0], h)
		}
	}
	visit(t, ctx, s.URL, 1280, 900)
	chrome.Until(t, ctx, idle)
	if list := chrome.Ask[[]string](t, ctx,
		`[...document.querySelectorAll('button, a, input, select, textarea, canvas:not([aria-hidden]), summary, [role=img], [role=tab]')].filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)`); len(list) > 0 {
		t.Errorf("without a name: %q", list)
	}
	if list := chrome.Ask[[]string](t, ctx,
		`[...document.querySelectorAll('[aria-controls], [aria-labelledby], [aria-describedby]')].flatMap(e => ['aria-controls', 'aria-labelledby', 'aria-describedby'].map(a => e.getAttribute(a)).filter(id => id && !document.getElementById(id)))`); len(list) > 0 {
		t.Errorf("names of nothing: %q", list)
	}
	chrome.Ask[bool](t, ctx, `(document.getElementById('tab-design').focus(), true)`)
	if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.ArrowRight)); err != nil {
		t.Fatal(err)
	}
	chrome.Until(t, ctx, `app.state.view === 'collective' && document.activeElement.id === 'tab-collective'`)
	// Tab goes through the text without changing it; it indents once something was typed, until Escape.
	const where = `document.activeElement.closest('#editor') ? 'text' : document.activeElement.dataset.unit ?? document.activeElement.id`
	click(t, ctx, "#tab-design")
	was := chrome.Ask[string](t, ctx, `(document.getElementById('sample').focus(), document.getElementById('text').value)`)
	press := func(keys ...string) string {
		t.Helper()
		for _, k := range keys {
			if err := chromedp.Do(ctx, chromedp.KeyEvent(k)); err != nil {
				t.Fatal(err)
			}
		}
		return chrome.Ask[string](t, ctx, where)
	}
	if at := press(kb.Tab); at != "text" {
		t.Errorf("the key Tab goes to %s, not into the text", at)
	}
	if at, text := press(kb.Tab), chrome.Ask[string](t, ctx, `document.getElementById('text').value`); at != "pod" || text != was {
		t.Errorf("the key Tab leaves the text for %q, and made %q of it", at, text)
	}
	chrome.Ask[bool](t, ctx, `(document.getElementById('text').focus(), document.getElementById('text').setSelectionRange(0, 0), true)`)
	if at, text := press("#", kb.Tab), chrome.Ask[string](t, ctx, `document.getElementById('text').value`); at != "text" || text != "#  "+was {
		t.Errorf("after typing, the key Tab goes to %q and makes %.20q", at, text)
	}
	if at := press(kb.Backspace, kb.Backspace, kb.Backspace, kb.Escape, kb.Tab); at != "pod" {
		t.Errorf("Escape and Tab go to %q", at)
	}
	chrome.Until(t, ctx, idle)
	before := chrome.Ask[float64](t, ctx, `(document.getElementById('base').focus(), app.stage.view.s)`)
	if err := chromedp.Do(ctx, chromedp.KeyEvent("+"), chromedp.KeyEvent(kb.ArrowLeft)); err != nil {
		t.Fatal(err)
	}
	if after := chrome.Ask[float64](t, ctx, `app.stage.view.s`); after <= before {
		t.Errorf("plus does not zoom: %g, %g", before, after)
	}
	for _, look := range []string{"light", "dark"} {
		chrome.Scheme(t, ctx, look)
		chrome.Until(t, ctx, `matchMedia('(prefers-color-scheme: `+look+`)').matches`)
		for _, c := range chrome.Ask[[]string](t, ctx, contrasts) {
			t.Errorf("%s: %s", look, c)
		}
		for _, view := range []string{"design", "collective", "plan"} {
			click(t, ctx, "#tab-"+view)
			chrome.Accessible(t, ctx, look+" "+view)
		}
	}
	chrome.Quiet(t, ctx)
}

// contrasts lists pairs of tokens that are read as text on a ground and differ by less than WCAG's 4.5, as the browser
// resolves them.
const contrasts = `(() => {
  forgetColours();
  const lum = name => { const [r, g, b] = rgb(name).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
  const bad = [];
  for (const ground of ['panel', 'ground', 'sunk', 'block']) for (const text of ['ink', 'soft', 'faint', 'accent', 'code-key', 'code-num', 'code-rem', 'code-str', 'badge-healthy', 'failed']) {
    const a = lum(text), b = lum(ground), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const least = text === 'failed' || text === 'faint' && ground !== 'panel' ? 3 : 4.5; // failed stands beside a sign, faint beside larger text
    if (ratio < least) bad.push(text + ' on ' + ground + ': ' + ratio.toFixed(2));
  }
  const a = lum('on-state'), b = lum('accent'), button = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (button < 4.5) bad.push('button: ' + button.toFixed(2));
  return bad;
})()`

// A server that goes away is told of, and the page goes on when it is back; what was typed meanwhile is kept.
func testServerReturns(t *testing.T, ctx context.Context) {
	l := engine.Default()
	s := httptest.NewUnstartedServer((&studio.Server{Engine: engine.New(l), Limits: l, Open: sample(t, "two-hosts")}).Handler())
	door := &chrome.Door{Listener: s.Listener}
	s.Listener = door
	s.Start()
	defer s.Close()
	visit(t, ctx, s.URL, 1280, 900)
	chrome.Until(t, ctx, idle)
	door.Shut(true)
	s.CloseClientConnections()
	click(t, ctx, "#tab-collective")
	click(t, ctx, "#c-run")
	chrome.Until(t, ctx, `document.getElementById('c-errors').textContent.includes('does not answer')`)
	door.Shut(false)
	click(t, ctx, "#c-run")
	chrome.Until(t, ctx, `app.results.a !== null && document.getElementById('c-errors').textContent === ''`)
}

// The token in the address opens the page, and a later load of the tab as well; the address no longer shows it then.
func testToken(t *testing.T, ctx context.Context) {
	l := engine.Default()
	s := httptest.NewServer((&studio.Server{Engine: engine.New(l), Limits: l, Open: sample(t, "two-hosts"), Token: "secret"}).Handler())
	defer s.Close()
	if err := chromedp.Do(ctx, chromedp.Navigate(s.URL)); err != nil {
		t.Fatal(err)
	}
	chrome.Until(t, ctx, `document.getElementById('blank').innerText.includes('needs the token')`)
	visit(t, ctx, s.URL+"#t=secret", 1280, 900)
	chrome.Until(t, ctx, idle+` && location.hash.startsWith('#s=')`)
	if err := chromedp.Do(ctx, chromedp.Reload()); err != nil {
		t.Fatal(err)
	}
	chrome.Until(t, ctx, `document.documentElement.dataset.ready === 'yes' && `+idle+` && app.stage.scene.gpus === 16`)
}

// A run is drawn on the picture as it is, and as it was; a run that goes away is told of and taken up again.
func testLive(t *testing.T, ctx context.Context) {
	board := web.NewBoard()
	defer board.Close()
	board.Job(web.Job{Title: "a run", Ranks: 4, Transport: "shm"})
	state := func(id int, s string) {
		board.Rank(web.Rank{ID: id, Rank: id, Host: "host-a", Pid: 100 + id, State: s, Step: 7})
	}
	for id := range 4 {
		state(id, web.Healthy)
	}
	var gone, slow atomic.Bool
	asked, answer := make(chan bool), make(chan bool)
	l := engine.Default()
	pages := board.Handler()
	s := httptest.NewServer((&studio.Server{Engine: engine.New(l), Limits: l,
		Live: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if gone.Load() {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			if slow.CompareAndSwap(true, false) {
				asked <- true
				<-answer
			}
			pages.ServeHTTP(w, r)
		})}).Handler())
	defer s.Close()
	visit(t, ctx, s.URL, 1280, 900)
	chrome.Ask[bool](t, ctx, `(app.liveFeed.every = 50, true)`)
	const slot = `app.stage.states?.get('n2')`
	chrome.Until(t, ctx, `app.state.view === 'live' && `+slot+` === 'healthy' && document.getElementById('title').textContent === 'a run'`)
	chrome.Accessible(t, ctx, "a run")
	explained(t, ctx)
	state(2, web.Failed)
	chrome.Until(t, ctx, slot+` === 'failed' && document.getElementById('run-facts').innerText.includes('3 of 4')`)
	chrome.Until(t, ctx, `app.liveFeed.history.length > 4`) // it has been so for a while
	chrome.Ask[bool](t, ctx, `(app.seek(0), true)`)
	if got := chrome.Ask[string](t, ctx, slot); got != "healthy" {
		t.Errorf("at the beginning it was %s", got)
	}
	chrome.Ask[bool](t, ctx, `(app.seek(app.total), true)`)
	chrome.Until(t, ctx, slot+` === 'failed'`)
	flat(t, ctx)
	gone.Store(true)
	chrome.Until(t, ctx, `document.getElementById('l-state').textContent.startsWith('Connection lost')`)
	gone.Store(false)
	state(2, web.Recovering)
	chrome.Until(t, ctx, slot+` === 'recovering'`)
	// An answer that comes when its reader has gone to another view does not change the picture there.
	slow.Store(true)
	<-asked
	click(t, ctx, "#tab-design")
	chrome.Until(t, ctx, `app.stage.scene.gpus === 1024 && `+idle)
	close(answer)
	chrome.Until(t, ctx, `app.liveFeed.going.then(() => true)`)
	if n := chrome.Ask[int](t, ctx, `app.stage.scene.gpus`); n != 1024 {
		t.Errorf("the picture of the design has %d GPUs after a late answer of the run", n)
	}
}

// Who opens the page late sees what happened before: of a run by its epochs and events, and the clock begins with the run. Another run
// at the same address begins anew.
func testPast(t *testing.T, ctx context.Context) {
	board := func(title string, begun time.Time) *web.Board {
		b := web.NewBoard()
		t.Cleanup(b.Close)
		b.Job(web.Job{Title: title, Ranks: 4, Transport: "shm", Started: begun})
		for id := range 4 {
			b.Rank(web.Rank{ID: id, Rank: id, Host: "host-a", Pid: 100 + id, State: web.Healthy, Step: 40})
		}
		return b
	}
	begun := time.Now().Add(-100 * time.Second)
	first := board("a run", begun)
	first.Epoch(web.Epoch{Number: 1, At: begun.Add(2 * time.Second), Members: []int{0, 1, 2, 3}, Reason: "formed of 4"})
	first.Event(web.Event{At: begun.Add(40 * time.Second), Kind: "exit", ID: 2, Text: "pid 102 was ended by SIGKILL"})
	first.Epoch(web.Epoch{Number: 2, At: begun.Add(41 * time.Second), Members: []int{0, 1, 3}, Reason: "worker 2 died", Step: 20})
	first.Epoch(web.Epoch{Number: 3, At: begun.Add(60 * time.Second), Members: []int{0, 1, 3}, Recovering: []int{2},
		Reason: "worker 2 joined", Step: 25})
	first.Epoch(web.Epoch{Number: 4, At: begun.Add(70 * time.Second), Members: []int{0, 1, 2, 3}, Reason: "worker 2 has caught up", Step: 30})
	var pages atomic.Pointer[http.Handler]
	h := first.Handler()
	pages.Store(&h)
	l := engine.Default()
	s := httptest.NewServer((&studio.Server{Engine: engine.New(l), Limits: l,
		Live: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*pages.Load()).ServeHTTP(w, r) })}).Handler())
	defer s.Close()
	visit(t, ctx, s.URL, 1280, 900)
	chrome.Ask[bool](t, ctx, `(app.liveFeed.every = 50, true)`)
	chrome.Until(t, ctx, `app.total >= 100 && app.total < 1000 && app.stage.states?.get('n2') === 'healthy'`)
	for at, want := range map[int]string{1: "starting", 20: "healthy", 50: "failed", 65: "recovering", 80: "healthy"} {
		chrome.Ask[bool](t, ctx, fmt.Sprintf(`(app.seek(%d), true)`, at))
		if got := chrome.Ask[string](t, ctx, `app.stage.states.get('n2')`); got != want {
			t.Errorf("after %d s the rank was %s, want %s", at, got, want)
		}
		if at == 50 {
			p := &person{T: t, ctx: ctx}
			p.sees("#run-facts", "3 of 4")
			p.sees("#l-state", "worker 2 died")
		}
	}
	h = board("another run", time.Now()).Handler()
	pages.Store(&h)
	chrome.Until(t, ctx, `document.getElementById('title').textContent === 'another run' && app.total < 60`)

	// Of a cluster that is watched, incidents say what was. A rank that is gone and that no incident is about has ended.
	got := chrome.Ask[[]string](t, ctx, `(() => {
		const rows = [0, 1, 2].map(rank => ({ job: 'j', host: 'h', rank, state: rank === 1 ? '' : 'gone' })), job = { began: 5 };
		const over = { kind: 'rank-dead', severity: 'critical', job: 'j', subject: { ranks: [1] }, began: 10, ended: 20,
			verdict: 'rank 1 is dead' };
		const goes = { ...over, subject: { ranks: [2] }, began: 15, ended: undefined, verdict: 'rank 2 is dead' };
		const view = { now: 30, title: 'w', health: { hosts: 1, jobs: 1, ranks: 3, state: 'bad' },
			incidents: [goes, over], collectives: [], links: [], jobs: [job] };
		const live = app.liveFeed;
		live.stop();
		live.begin('watch', 5, 30, watchPast(view, rows));
		live.showWatch(view, rows, 25);
		const now = ['n0', 'n1', 'n2'].map(n => app.stage.states.get(n)).join();
		const then = t => { live.replay(t); return t + ' ' + ['n0', 'n1', 'n2'].map(n => app.stage.states.get(n)).join(); };
		return [0, 6, 12, 18].map(then).concat('now ' + now);
	})()`)
	want := []string{"0 healthy,healthy,healthy", "6 healthy,failed,healthy", "12 healthy,failed,failed", "18 healthy,healthy,failed",
		"now left,healthy,failed"}
	if !slices.Equal(got, want) {
		t.Errorf("a watched cluster was %q, want %q", got, want)
	}
	chrome.Quiet(t, ctx)
}

// A cancelled simulation ends, and the page takes the next one.
func testCancel(t *testing.T, ctx context.Context) {
	s := server(t, sample(t, "rail-1k"))
	visit(t, ctx, s.URL, 1280, 900)
	chrome.Until(t, ctx, idle)
	click(t, ctx, "#tab-collective")
	// With a dead NIC no two ranks are alike: this takes half a minute.
	chrome.Ask[bool](t, ctx,
		`(() => { app.fault('n0:nic1', 0); const e = document.getElementById('c-op'); e.value = 'all-to-all'; e.dispatchEvent(new Event('input')); return true; })()`)
	click(t, ctx, "#c-run")
	chrome.Until(t, ctx, `!document.getElementById('busy').hidden`)
	click(t, ctx, "#cancel")
	chrome.Until(t, ctx, idle+` && !document.getElementById('c-run').disabled`)
	if chrome.Ask[bool](t, ctx, `app.results.a !== null`) {
		t.Fatal("it was done before it could be cancelled")
	}
	chrome.Ask[bool](t, ctx,
		`(() => { for (const [id, v] of [['c-op', 'all-reduce'], ['c-algo', 'ring'], ['c-gpus', '16']]) { const e = document.getElementById(id); e.value = v; e.dispatchEvent(new Event('input')); } return true; })()`)
	click(t, ctx, "#c-run")
	chrome.Until(t, ctx, `app.results.a?.algo === 'ring'`)
	chrome.Quiet(t, ctx)
}

// The page as one file opens from disk without a network, computes with its own engine, and can be cancelled.
func TestMailedFile(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the engine to WebAssembly")
	}
	ctx := chrome.Start(t)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	c, err := studio.Compile(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	// A served page exports itself, with what it shows.
	open := sample(t, "two-hosts")
	open.View, open.State = "collective", map[string]any{"a": map[string]any{"op": "all-reduce", "bytes": 1 << 26, "algo": "ring"},
		"ran": map[string]bool{"a": true}}
	l := engine.Default()
	s := httptest.NewServer((&studio.Server{Engine: engine.New(l), Limits: l, Open: open,
		Compiled: func(context.Context) (*studio.Compiled, error) { return c, nil }}).Handler())
	defer s.Close()
	visit(t, ctx, s.URL, 1280, 900)
	chrome.Until(t, ctx, `app.results.a !== null && `+idle)
	page := chrome.Ask[string](t, ctx, `app.exported('html').then(b => b.text())`)
	for what, begins := range map[string]string{"png": "\x89PNG", "svg": "<svg", "plain.svg": "<svg", "yaml": "# Two DGX"} {
		got := chrome.Ask[string](t, ctx, `app.exported('`+what+
			`').then(b => b.arrayBuffer()).then(b => String.fromCharCode(...new Uint8Array(b).slice(0, 200)))`)
		if !strings.Contains(strings.Map(func(r rune) rune { return r & 0xff }, got), begins) && !strings.Contains(got, begins) {
			t.Errorf("%s begins with %q", what, got)
		}
	}
	chrome.Quiet(t, ctx)
	s.Close()
	name := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(name, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	visit(t, ctx, "file://"+name, 1280, 900)
	chrome.Until(t, ctx, `app.results.a !== null && app.report?.name === 'two-hosts' && `+idle)
	st, _ := os.Stat(name)
	t.Logf("file: two-hosts, a mailed file without a network: %.1f MB, first answers after %.1f s",
		float64(st.Size())/1e6, time.Since(began).Seconds())
	if got := chrome.Ask[string](t, ctx, `app.results.a.algo + ' ' + app.results.a.trace.ranks`); got != "ring 16" {
		t.Errorf("it simulated %s", got)
	}
	if list := chrome.Ask[[]string](t, ctx,
		`performance.getEntriesByType('resource').map(e => e.name).filter(n => /^https?:/.test(n))`); len(list) > 0 {
		t.Errorf("the file asked for %v", list)
	}
	// Cancelling ends the worker; the next question starts another.
	chrome.Ask[bool](t, ctx, `(app.findBound(), app.cancel(), app.bound = null, app.findBound(), true)`)
	chrome.Until(t, ctx, `app.bound !== null && `+idle)
	// The file saves itself with what it shows now.
	if !chrome.Ask[bool](t, ctx,
		`(() => { app.fault('n0:nic1', 0); const page = new DOMParser().parseFromString(app.ownFile(), 'text/html'); return JSON.parse(page.getElementById('open').textContent).state.faults[0].part === 'n0:nic1' && page.getElementById('wasm').textContent.length > 1e6; })()`) {
		t.Error("the copy does not hold the fault, or no engine")
	}
	chrome.Quiet(t, ctx)
}
