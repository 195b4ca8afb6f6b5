package web_test

import (
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
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
		chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(2*time.Minute))
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

// shoot keeps a picture where WEFT_WEB_PICTURES names a folder.
func shoot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	dir := os.Getenv("WEFT_WEB_PICTURES")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

func scheme(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	p := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, p); err != nil {
		t.Fatal(err)
	}
}

func TestPictures(t *testing.T) {
	if os.Getenv("WEFT_WEB_PICTURES") == "" {
		t.Skip("WEFT_WEB_PICTURES names no folder")
	}
	ctx := browser(t)
	for _, c := range []struct {
		name                string
		ranks, host, tp, pp int
		age                 time.Duration
	}{{"8", 8, 8, 2, 2, 4 * time.Minute}, {"4", 4, 4, 1, 1, 15 * time.Second}, {"1000", 1000, 8, 2, 4, 123 * time.Second}, {"64", 64, 8, 1, 1, 25 * time.Second}} {
		d := run(c.ranks, c.host, c.tp, c.pp, c.age)
		s := httptest.NewServer(d.Handler())
		for _, size := range [][2]int64{{1280, 900}, {390, 844}} {
			for _, look := range []string{"light", "dark"} {
				scheme(t, ctx, look)
				if err := chromedp.Do(ctx, chromedp.EmulateViewport(size[0], size[1]), chromedp.Navigate(s.URL)); err != nil {
					t.Fatal(err)
				}
				until(t, ctx, `document.getElementById('f-step').textContent !== '–'`)
				for d.now.Before(time.Now()) {
					d.next()
				}
				time.Sleep(600 * time.Millisecond)
				name := c.name + "-" + look
				if size[0] < 1000 {
					name += "-phone"
				}
				shoot(t, ctx, name)
			}
		}
		d.Close()
		s.Close()
	}
}
