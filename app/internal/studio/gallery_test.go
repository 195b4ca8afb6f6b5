package studio_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/weft-fabric/weft/app/internal/studio"
	"github.com/weft-fabric/weft/internal/chrome"
)

const (
	galleryPage     = "../../../docs/reference/tables/gallery.md"
	galleryPictures = "../../../docs/images/gallery"
)

// The page of the docs shows what the command writes.
func TestGalleryInDocs(t *testing.T) {
	var want bytes.Buffer
	fmt.Fprint(&want,
		"# Gallery\n\nMade by:\n\n    make gallery\n\nTen pages of [weft studio](../../how-to/studio.md). `go run . studio gallery -o gallery` writes them, each as one file\n"+
			"with the engine in it: open `gallery/index.html`. They compute what they show; these are their pictures.\n")
	for _, p := range studio.Gallery() {
		name := strings.TrimSuffix(p.File, ".html")
		fmt.Fprintf(&want, "\n## %s\n\n%s (`gallery/%s`)\n\n![%s](../../images/gallery/%s.jpg)\n", p.Title, p.Text, p.File, p.Title, name)
		if _, err := os.Stat(filepath.Join(galleryPictures, name+".jpg")); err != nil {
			t.Errorf("%v; 'make gallery' takes it", err)
		}
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(galleryPage, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(galleryPage); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what 'UPDATE=1 go test -run GalleryInDocs' writes: %v", galleryPage, err)
	}
}

// Every page of the gallery, as the file that the command writes, opens from disk without a network or a complaint and computes
// what it shows. Where WEFT_TEST_PICTURES names a folder the pages stay there, and their pictures go into the docs.
func TestGalleryFiles(t *testing.T) {
	dir := os.Getenv("WEFT_TEST_PICTURES")
	if dir == "" {
		t.Skip("WEFT_TEST_PICTURES names no folder")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	c, err := studio.Compile(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(galleryPictures, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx := chrome.Start(t)
	for _, p := range studio.Gallery() {
		var file bytes.Buffer
		if err := studio.File(&file, c, p.Open); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, p.File)
		if err := os.WriteFile(name, file.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		visit(t, ctx, "file://"+name, 1280, 800)
		seen := time.Since(began)
		chrome.Until(t, ctx, idle)
		all := time.Since(began)
		if said := chrome.Ask[string](t, ctx,
			`['text-errors', 'c-errors', 'p-errors'].map(id => document.getElementById(id).innerText).join('')`); said != "" {
			t.Errorf("%s: %s", p.File, said)
		}
		chrome.Quiet(t, ctx)
		t.Logf("file: %-24s %.1f MB, seen after %.1f s, all of it after %.1f s", p.File, float64(file.Len())/1e6, seen.Seconds(), all.Seconds())
		if p.Open.View != "live" {
			chrome.Ask[bool](t, ctx, `(app.pause(), app.total && app.seek(app.total * .37), true)`)
		}
		chrome.Until(t, ctx, idle)
		chrome.Shoot(t, ctx, filepath.Join(galleryPictures, strings.TrimSuffix(p.File, ".html")+".jpg"), chromedp.FullScreenshot(60))
	}
}
