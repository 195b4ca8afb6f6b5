package lab

import (
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/weft-fabric/weft/internal/chrome"
)

// The page of a lab fits a phone, breaks no rule of accessibility in light and dark, and shows a cable that breaks.
func TestLabPageInABrowser(t *testing.T) {
	ctx := chrome.Start(t)
	var broken atomic.Bool
	s := httptest.NewServer(Page(func() (*State, error) {
		x := &State{Lab: "demo", At: time.Now(), Nodes: []NodeState{
			{Name: "spine0", Router: true, Tier: 2, Ports: 2, Up: 2}, {Name: "leaf0", Router: true, Tier: 1, Ports: 3, Up: 3},
			{Name: "n0", Ports: 1, Up: 1}, {Name: "n1", Ports: 1, Up: 1}}}
		for _, w := range [][2]string{{"leaf0:swp1", "n0:nic0"}, {"leaf0:swp2", "n1:nic0"}, {"spine0:swp1", "leaf0:swp3"}} {
			x.Wires = append(x.Wires, WireState{A: w[0], B: w[1], AUp: true, BUp: true})
		}
		if broken.Load() {
			x.Wires[1].Wrong = "leaf0:swp2 is switched off"
		}
		return x, nil
	}))
	defer s.Close()
	for _, width := range []int64{390, 1280} {
		if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate(s.URL)); err != nil {
			t.Fatal(err)
		}
		chrome.Until(t, ctx, `document.querySelectorAll('#rows tr').length === 3 && document.querySelector('#picture svg') !== null`)
		if n := chrome.Ask[int](t, ctx, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); n > 0 {
			t.Errorf("at %d wide the page is %d too wide", width, n)
		}
	}
	broken.Store(true)
	chrome.Until(t, ctx, `document.getElementById('state').textContent === '1 cable broken'`)
	chrome.Until(t, ctx, `document.querySelector('#rows tr').textContent.includes('switched off')`)
	for _, look := range []string{"light", "dark"} {
		chrome.Scheme(t, ctx, look)
		chrome.Accessible(t, ctx, look)
	}
	chrome.Quiet(t, ctx)
}
