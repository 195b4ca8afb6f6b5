package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

func sample(t *testing.T) (image, []byte) {
	t.Helper()
	img := image{Version: "v1.2.3", Commit: "abc", Created: time.Date(2026, 11, 16, 0, 0, 0, 0, time.UTC)}
	for i, p := range platforms[:2] { // those of Linux
		img.Binaries = append(img.Binaries, binary{p, bytes.Repeat([]byte{byte(i), 7, 9}, 5000)})
	}
	var out bytes.Buffer
	if err := img.write(&out); err != nil {
		t.Fatal(err)
	}
	return img, out.Bytes()
}

func TestTheImageReadsBack(t *testing.T) {
	img, file := sample(t)
	if err := img.check(file); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := img.write(&again); err != nil || !bytes.Equal(again.Bytes(), file) {
		t.Errorf("the same input gave other bytes (%v)", err)
	}
}

// Every byte of a blob counts: whichever is changed, the check says so.
func TestADamagedImageIsRefused(t *testing.T) {
	img, file := sample(t)
	for _, part := range []string{`"architecture":"arm64"`, `"Entrypoint":["/weft"]`, "schemaVersion", "imageLayoutVersion", "blobs/sha256/"} {
		at := bytes.Index(file, []byte(part))
		if at < 0 {
			t.Fatalf("%q is not in the image", part)
		}
		bad := bytes.Clone(file)
		bad[at+2] ^= 1
		if img.check(bad) == nil {
			t.Errorf("an image with %q damaged passes", part)
		}
	}
	other := img
	other.Binaries = []binary{img.Binaries[0], {platforms[1], []byte("another program")}}
	if err := other.check(file); err == nil || !strings.Contains(err.Error(), "differs") {
		t.Errorf("an image with another binary: %v", err)
	}
	if img.check(file[:len(file)/2]) == nil {
		t.Error("half an image passes")
	}
}

// The image holds a program that runs: the layer is unpacked by tar and started.
func TestTheImagesProgramRuns(t *testing.T) {
	for _, tool := range []string{"tar", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { print(\"static\") }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	build := bounded.Within(t, bounded.Build, "go", "build", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkStatic(b); err != nil {
		t.Error(err)
	}
	if sh, err := os.ReadFile("/bin/sh"); err == nil && runtime.GOOS == "linux" && bytes.Contains(sh, []byte("ld-linux")) &&
		checkStatic(sh) == nil {
		t.Error("a program that is linked dynamically passes")
	}
	img := image{Version: "v0", Commit: "abc", Created: time.Unix(0, 0).UTC(), Binaries: []binary{{platform{runtime.GOOS, runtime.GOARCH}, b}}}
	path := filepath.Join(dir, "image.tar")
	if err := writeImage(path, img); err != nil {
		t.Fatal(err)
	}
	unpack := func(from, to string) {
		t.Helper()
		if err := os.MkdirAll(to, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := bounded.Command(t, "tar", "-xf", from, "-C", to).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	layout := filepath.Join(dir, "layout")
	unpack(path, layout)
	read := func(d string, into any) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(layout, "blobs", strings.Replace(d, ":", "/", 1)))
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var all index
	b, err = os.ReadFile(filepath.Join(layout, "index.json"))
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	read(all.Manifests[0].Digest, &m)
	var c config
	read(m.Config.Digest, &c)
	root := filepath.Join(dir, "root")
	unpack(filepath.Join(layout, "blobs", strings.Replace(m.Layers[0].Digest, ":", "/", 1)), root)
	out, err := bounded.Command(t, filepath.Join(root, c.Config.Entrypoint[0])).CombinedOutput()
	if err != nil || string(out) != "static" {
		t.Errorf("the program of the image printed %q, %v", out, err)
	}
}
