package cli_test

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/weft-fabric/weft/app/cli"
	"github.com/weft-fabric/weft/internal/chrome"
)

// overlaps counts pairs of texts of a picture that cover one another, and texts that leave it.
const overlaps = `(() => {
  const svg = document.querySelector('svg');
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect()).filter(b => b.width > 0);
  let bad = 0;
  for (let i = 0; i < boxes.length; i++) {
    const a = boxes[i];
    if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1) bad++;
    for (let j = i + 1; j < boxes.length; j++) {
      const b = boxes[j];
      const w = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const h = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (w > 2 && h > 3) bad++;
    }
  }
  return bad;
})()`

func open(t *testing.T, ctx context.Context, file string) {
	t.Helper()
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1500, 1000), chromedp.Navigate("file://"+file)); err != nil {
		t.Fatal(err)
	}
}

func weft(t *testing.T, args ...string) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := cli.Main(args, nil, &out, &errs); code != 0 {
		t.Fatal(errs.String())
	}
}

// The report of the 1,024-GPU fabric opens in a browser: the picture is there
// and its texts are apart, every entry of the contents leads somewhere, no
// table is wider than the page, it has a light and a dark scheme, and nothing
// is fetched from anywhere.
func TestReportOpensInABrowser(t *testing.T) {
	ctx := chrome.Start(t)
	dir := t.TempDir()
	weft(t, "design", "../../examples/rail-1k.yaml", "-o", dir)
	open(t, ctx, filepath.Join(dir, "report.html"))
	const links = `[...document.querySelectorAll('a[href^="#"]')]`
	if n := chrome.Ask[int](t, ctx, links+`.length`); n < 10 {
		t.Errorf("%d entries in the contents", n)
	}
	if n := chrome.Ask[int](t, ctx, links+`.filter(a => !document.getElementById(a.getAttribute('href').slice(1))).length`); n > 0 {
		t.Errorf("%d entries of the contents lead nowhere", n)
	}
	if n := chrome.Ask[int](t, ctx,
		`[...document.querySelectorAll('table')].filter(t => t.getBoundingClientRect().right > innerWidth + 1).length`); n > 0 {
		t.Errorf("%d tables leave the page", n)
	}
	if n := chrome.Ask[int](t, ctx, `performance.getEntriesByType('resource').length`); n > 0 {
		t.Errorf("the page fetched %d resources", n)
	}
	if w := chrome.Ask[float64](t, ctx, `document.querySelector('svg').getBoundingClientRect().width`); w < 800 {
		t.Errorf("the picture is %.0f wide", w)
	}
	if n := chrome.Ask[int](t, ctx, overlaps); n > 0 {
		t.Errorf("%d texts of the picture overlap or leave it", n)
	}
	const background = `getComputedStyle(document.body).backgroundColor`
	light := chrome.Ask[string](t, ctx, background)
	chrome.Scheme(t, ctx, "dark")
	if chrome.Ask[string](t, ctx, background) == light {
		t.Errorf("light and dark look the same: %s", light)
	}
}

// Reports of a design and of a plan break no rule of accessibility, in light and dark, on a desk and on a phone, and are not
// wider than their window.
func TestReportsAreAccessible(t *testing.T) {
	ctx := chrome.Start(t)
	dir := t.TempDir()
	weft(t, "design", "../../examples/dragonfly.yaml", "-o", filepath.Join(dir, "design"))
	weft(t, "plan", "llama3-70b", "--cluster", "../../examples/rail-1k.yaml", "--batch", "1024", "--seq", "8192",
		"-o", filepath.Join(dir, "plan"))
	for _, name := range []string{"design/report.html", "plan/plan.html"} {
		open(t, ctx, filepath.Join(dir, name))
		for _, look := range []string{"light", "dark"} {
			chrome.Scheme(t, ctx, look)
			for _, width := range []int64{1500, 390} {
				if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900)); err != nil {
					t.Fatal(err)
				}
				if n := chrome.Ask[int](t, ctx, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); n > 0 {
					t.Errorf("%s at %d wide is %d too wide", name, width, n)
				}
				if look == "light" || width > 1000 { // colours do not depend on the width
					chrome.Accessible(t, ctx, name+" "+look)
				}
			}
		}
		chrome.Quiet(t, ctx)
	}
}

// The pictures of hosts and fabrics open by themselves, their texts apart.
func TestPicturesOpenInABrowser(t *testing.T) {
	ctx := chrome.Start(t)
	for _, name := range []string{"../../examples/rail-1k.yaml", "../../examples/hpn.yaml", "../../examples/tpu-v4.yaml",
		"../../examples/dragonfly.yaml", "dgx-1v", "dgx-h100", "gb200-nvl72"} {
		file := filepath.Join(t.TempDir(), "f.svg")
		weft(t, "topo", "show", name, "-o", file)
		open(t, ctx, file)
		if n := chrome.Ask[int](t, ctx, `document.querySelectorAll('text').length`); n < 10 {
			t.Errorf("%s: %d texts", name, n)
		}
		if n := chrome.Ask[int](t, ctx, overlaps); n > 0 {
			t.Errorf("%s: %d texts overlap or leave the picture", name, n)
		}
	}
}
