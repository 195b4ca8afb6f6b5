package server

import (
	"fmt"
	"html"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/weft-fabric/weft/internal/chrome"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/load"
)

// staged is a server that has watched a cluster of 128 hosts in which something broke.
func staged(t *testing.T) *Server {
	t.Helper()
	text, err := os.ReadFile("../../../examples/rail-1k.yaml")
	if err != nil {
		t.Fatal(err)
	}
	site, err := cluster.Parse("rail-1k.yaml", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &clock{time.Unix(1_794_844_800, 0)} // 2026-11-16 16:00
	s, err := New(Config{Watch: watch.Config{Title: "rail-1k", Site: doctor.NewSite(site.Graph), Hang: 30,
		Predict: func(_ string, bytes int64, _ int) (float64, bool) { return float64(bytes) / 180e9 * 1.2, true }}, Dir: t.TempDir(),
		Limit: 64 << 20, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	w := load.New(128, 80, 10, 3, float64(c.at.Unix()-4000))
	// Faults come one after another.
	for second := range 330 {
		c.at = c.at.Add(time.Second)
		at := float64(c.at.UnixNano()) / 1e9
		if w.Down = -1; second > 180 && second < 260 {
			w.Down = 33
		}
		if second > 210 {
			w.Slow = 77
		}
		if second > 290 {
			w.Late = 41
		}
		for h := range w.Hosts {
			var r *watch.Report
			switch {
			case second%10 == h%10:
				r = w.Counters(h, at, true)
				if h == 5 && second > 200 {
					r.Counters.Facts["firmware of mlx5_0"] = "28.44.2002"
				}
			case second%5 == h%5 && h < 16: // one job tells all the time, the others are many
				r = &watch.Report{Host: w.Host(h), Boot: "boot", At: at, Every: 5}
			default:
				continue
			}
			r.Every = 10
			if h < 32 {
				w.AddRanks(r, h, at-5, at)
			}
			if h == 120 {
				r.HasRanks, r.Ranks = true, pairs(second)
			}
			if _, err := s.Take(r); err != nil {
				t.Fatal(err)
			}
		}
		if second%2 == 0 {
			if _, err := s.Take(&watch.Report{Host: "n120", Boot: "boot", At: at, Every: 2, HasRanks: true, Ranks: pairs(second)}); err != nil {
				t.Fatal(err)
			}
		}
		s.Tick()
	}
	s.Tick()
	return s
}

// pairs are four ranks of a job over TCP, one of whose links is slow in the end.
func pairs(second int) (list []watch.Rank) {
	for n := range 4 {
		x := watch.Rank{Job: "gloo", Rank: n, Size: 4, PID: 900 + n, GPU: fmt.Sprint(n), State: "R", Memory: 3 << 30}
		x.Groups = []watch.Group{{Name: "world", Done: int64(second * 10)}}
		for p := range 4 {
			if p == n {
				continue
			}
			per := 1.1e-9 * (1 + 0.2*math.Sin(float64(n*4+p)))
			bytes := float64(second) * 4e7
			busy := bytes * per
			if n == 2 && p == 3 && second > 300 {
				busy += float64(second-300) * 4e7 * 40e-9
			}
			x.Links = append(x.Links, watch.Link{Local: fmt.Sprintf("10.1.0.%d:%d", n, 5000+p), Remote: fmt.Sprintf("10.1.0.%d:%d", p, 5000+n),
				Acked: bytes, Busy: busy})
		}
		list = append(list, x)
	}
	return list
}

func rowsOf(s *Server) []watch.Row {
	rows, _ := s.Rows("llama-0", "", 38, 5)
	return rows
}

// terminalPage shows what a terminal would.
func terminalPage(text string) string {
	text = html.EscapeString(text)
	for code, style := range map[string]string{"1": "font-weight:700", "2": "opacity:.65", "32": "color:light-dark(#00752f,#5fd38d)",
		"33": "color:light-dark(#8a6100,#f0b93a)", "1;31": "font-weight:700;color:light-dark(#c00020,#ff6b6b)",
		"36": "color:light-dark(#00707a,#5fd7d7)"} {
		text = strings.ReplaceAll(text, "\x1b["+code+"m", `<span style="`+style+`">`)
	}
	return `<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><body style="margin:14px;background:light-dark(#fdfdfb,#14171a);color:light-dark(#1b2025,#e7e9eb)"><pre style="font:12px/1.35 'DejaVu Sans Mono',monospace;margin:0">` +
		strings.ReplaceAll(text, "\x1b[0m", "</span>") + "</pre>"
}

// goOn sends the last view every second, as a server at work does, until it is told to stop: a page that hears nothing for a while
// says that what it shows is old.
func goOn(s *Server) (stop func()) {
	over := make(chan struct{})
	var sent sync.WaitGroup
	sent.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.publish(s.now())
			case <-over:
				return
			}
		}
	})
	return func() {
		close(over)
		sent.Wait()
	}
}

// The page shows what the server knows, in light and dark, without a complaint of the
// browser. With WEFT_TEST_SHOTS=DIR it is written as pictures.
func TestPage(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	began := time.Now()
	s := staged(t)
	t.Logf("after %v the server is there", time.Since(began).Round(time.Millisecond))
	site := httptest.NewServer(s.Pages())
	defer site.CloseClientConnections()
	defer goOn(s)()
	ctx := chrome.Start(t)
	t.Logf("after %v the browser is there", time.Since(began).Round(time.Millisecond))
	var grounds []string
	for _, scheme := range []string{"light", "dark"} {
		chrome.Scheme(t, ctx, scheme)
		if scheme == "light" || os.Getenv("WEFT_TEST_SHOTS") != "" { // colours change without loading the page again
			if err := chromedp.Do(ctx, chromedp.EmulateViewport(1320, 1560), chromedp.Navigate(site.URL)); err != nil {
				t.Fatal(err)
			}
		}
		chrome.Until(t, ctx,
			`!!window.weftView && document.querySelectorAll('#table tbody tr').length > 3 && document.querySelector('#history svg, #history p') != null`)
		says := map[string]string{"#incidents": "rank 41", "#state": "bad", "#links": "■", "#changes": "28.44.2002", "#collectives": "all-reduce",
			"#jobs": "llama-0", "#late": "n5", "#title": "rail-1k", "#table": "leaf"}
		// A page that has received nothing for a while says that the state is unknown, until the next view arrives.
		for _, selector := range slices.Sorted(maps.Keys(says)) {
			chrome.Until(t, ctx, fmt.Sprintf("document.querySelector(%q).innerText.includes(%q)", selector, says[selector]))
		}
		if grounds = append(grounds, chrome.Ask[string](t, ctx, `getComputedStyle(document.body).backgroundColor`)); len(grounds) == 2 &&
			grounds[0] == grounds[1] {
			t.Errorf("light and dark have the same ground, %s", grounds[0])
		}
		for _, width := range []int64{1320, 390, 320} {
			if scheme == "dark" && width < 1320 {
				continue
			}
			if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 1560)); err != nil {
				t.Fatal(err)
			}
			wide, err := chromedp.Run(ctx, chromedp.Evaluate[float64](`document.documentElement.scrollWidth - document.documentElement.clientWidth`))
			if err != nil || wide > 0 {
				t.Errorf("at %d the page is %g wider than the window, %v", width, wide, err)
			}
			// A phone lays out what is wider than its screen, too: nothing may reach beyond it.
			out, err := chromedp.Run(ctx,
				chromedp.Evaluate[[]string](`[...document.querySelectorAll('body *')].filter(e => { const r = e.getBoundingClientRect(); return r.width && r.right > innerWidth + 1 && !e.closest('.scroll, .heat, .matrix, svg, .skip'); }).map(e => e.tagName + ' ' + e.id + ' ' + e.className)`))
			if err != nil || len(out) > 0 {
				t.Errorf("at %d these leave the page: %q %v", width, out, err)
			}
		}
		if err := chromedp.Do(ctx, chromedp.EmulateViewport(1320, 1560)); err != nil {
			t.Fatal(err)
		}
		chrome.Quiet(t, ctx)
		chrome.Accessible(t, ctx, scheme)
		if dir := os.Getenv("WEFT_TEST_SHOTS"); dir != "" {
			shoot := func(name string, a chromedp.Action[[]byte]) {
				b, err := chromedp.Run(ctx, a)
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, name+"-"+scheme+".png"), b, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			shoot("page", chromedp.FullScreenshot(100))
			if err := chromedp.Do(ctx, chromedp.EmulateViewport(1180, 960)); err != nil {
				t.Fatal(err)
			}
			shoot("watch", chromedp.CaptureScreenshot())
			terminal := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, terminalPage(watch.Screen(s.View(), rowsOf(s), watch.Style{Width: 118, Height: 44, Color: true})))
			}))
			if err := chromedp.Do(ctx, chromedp.EmulateViewport(900, 720), chromedp.Navigate(terminal.URL)); err != nil {
				t.Fatal(err)
			}
			shoot("watch-terminal", chromedp.CaptureScreenshot())
			terminal.CloseClientConnections()
			terminal.Close()
		}
	}
}
