package studio_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/app/internal/studio"
	"github.com/weft-fabric/weft/internal/chrome"
)

// crowd puts 100,000 messages onto the picture: on 128 lanes one after another, all of them under way until the end.
const crowd = `(() => {
  const r = app.results.a, t = r.trace, n = 100000, lanes = 128, pairs = t.starts.length - 1, total = r.time_ps;
  const each = (kind, f) => kind.from({ length: n }, (_, i) => f(i));
  Object.assign(t, { members: [0], shown: [...Array(lanes).keys()], ranks: lanes, period: lanes, gaps: [], chain: new Int32Array(), cut: false,
    rank: each(Int32Array, i => i % lanes), channel: each(Int32Array, () => 0), from: each(Int32Array, () => -1), to: each(Int32Array, i => (i + 1) % lanes), op: each(Int32Array, () => 0),
    pair: each(Int32Array, i => i * 7 % pairs), bytes: each(Float64Array, () => 4096), begin_ps: each(Float64Array, i => i / n * total * .2), flow_ps: each(Float64Array, i => i / n * total * .2), end_ps: each(Float64Array, () => total) });
  t.latency_ps = new Float64Array(pairs);
  app.refresh();
  return true;
})()`

// frames collects the times between frames of the browser while something is done at each of them.
const frames = `(each => new Promise(done => {
  const f = []; let last = 0;
  const step = now => { if (last) f.push(now - last); last = now; each(f.length); if (f.length < 180) requestAnimationFrame(step); else { f.sort((a, b) => a - b); done('p50 ' + f[90].toFixed(1) + ' ms, p95 ' + f[171].toFixed(1) + ' ms, ' + (100 * f.filter(x => x > 20).length / f.length).toFixed(0) + '% over 20 ms'); } };
  requestAnimationFrame(step);
}))`

// How smoothly the page draws 100,000 events, for a person to read: times between frames, next to those of a page that stands
// still on the same machine at the same time.
func TestFrames(t *testing.T) {
	if os.Getenv("WEFT_TEST_PICTURES") == "" {
		t.Skip("WEFT_TEST_PICTURES names no folder")
	}
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	t.Logf("frames: load average %s before them", first)
	ctx := chrome.Start(t)
	tell := func(what, each string) {
		t.Helper()
		t.Logf("frames: %-44s %s", what, chrome.Ask[string](t, ctx, frames+`(`+each+`)`))
	}
	play := `(() => { app.pause(); app.seek(app.total * .3); app.stage.move(true); return i => app.seek(app.total * (.3 + i / 300)); })()`
	visit(t, ctx, server(t, studio.Gallery()[1].Open).URL, 1280, 720)
	chrome.Until(t, ctx, `app.results.b !== null && `+idle)
	chrome.Ask[bool](t, ctx, `(app.pause(), true)`)
	tell("nothing moves", `() => {}`)
	tell("1,024 GPUs, two runs, 2,048 links", play)
	crowded(t, ctx)
	tell("100,000 messages under way", play)
	t.Logf("frames: %-44s %s", "of that, drawing messages",
		chrome.Ask[string](t, ctx,
			`(() => { const f = []; for (let i = 0; i < 40; i++) { const a = performance.now(); app.stage.drawTop(); f.push(performance.now() - a); } f.sort((a, b) => a - b); return f[0].toFixed(1) + ' ms at least, ' + f[20].toFixed(1) + ' ms in the middle'; })()`))
	chrome.Ask[bool](t, ctx, `(app.stage.move(false), true)`)
	tell("100,000 events in 128 lanes, zoomed", `i => app.lanes.zoom(i % 60 < 30 ? .93 : 1 / .93, 500)`)
	tell("nothing moves", `() => {}`)
	t.Log("frames: " + chrome.Ask[string](t, ctx,
		`'picture ' + app.stage.over.width + ' × ' + app.stage.over.height + ', ' + navigator.hardwareConcurrency + ' processors, no GPU'`))
}

// crowded checks that all of them are there.
func crowded(t *testing.T, ctx context.Context) {
	t.Helper()
	chrome.Ask[bool](t, ctx, `(app.results.b = null, true)`)
	chrome.Ask[bool](t, ctx, crowd)
	chrome.Until(t, ctx, idle)
	chrome.Ask[bool](t, ctx, `(app.seek(app.total * .5), true)`)
	if n := chrome.Ask[int](t, ctx, `app.stage.dots`); n < 95_000 {
		t.Fatalf("%d messages are drawn", n)
	}
	if n := chrome.Ask[int](t, ctx, `app.lanes.groups[0].lanes.reduce((n, l) => n + l.spans.length, 0)`); n != 100_000 {
		t.Fatalf("%d events are in the lanes", n)
	}
}
