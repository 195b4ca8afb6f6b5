package studio

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/weft-fabric/weft/view/kit"
)

// Compiled is the engine as WebAssembly, with the script of Go's that starts it. Both come from one Go release.
type Compiled struct {
	Wasm   []byte
	Script []byte
}

// Names of a compiled engine's files in a folder.
const (
	wasmName   = "studio.wasm"
	scriptName = "wasm_exec.js"
)

const module = "github.com/weft-fabric/weft"

// ReadCompiled reads an engine that Compile wrote to a folder.
func ReadCompiled(dir string) (*Compiled, error) {
	wasm, err := os.ReadFile(filepath.Join(dir, wasmName))
	if err != nil {
		return nil, err
	}
	script, err := os.ReadFile(filepath.Join(dir, scriptName))
	return &Compiled{wasm, script}, err
}

// Compile builds the engine with the go tool, from the checkout that dir lies in or, if it lies in none, from the one that
// this program was built in. Once Go's build cache is warm it takes a few seconds.
func Compile(ctx context.Context, dir string) (*Compiled, error) {
	source, err := checkout(dir)
	if err != nil {
		return nil, err
	}
	out, err := os.MkdirTemp("", "weft-studio-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(out)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(out, wasmName),
		"./app/internal/studio/wasm")
	build.Dir = source
	build.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the engine cannot be compiled: %w\n%s", err, bytes.TrimSpace(text))
	}
	wasm, err := os.ReadFile(filepath.Join(out, wasmName))
	if err != nil {
		return nil, err
	}
	env := exec.CommandContext(ctx, "go", "env", "GOROOT")
	env.Dir = source
	root, err := env.Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	script, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "lib", "wasm", scriptName))
	return &Compiled{wasm, script}, err
}

// Write stores a compiled engine in a folder, for ReadCompiled.
func (c *Compiled) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, wasmName), c.Wasm, 0o644),
		os.WriteFile(filepath.Join(dir, scriptName), c.Script, 0o644))
}

// checkout finds the folder with weft's source: above dir, or where this program's own source was when it was built.
func checkout(dir string) (string, error) {
	if _, err := exec.LookPath("go"); err != nil {
		return "",
			errors.New("a page with its engine needs the go tool, which is not in PATH; install Go, or give a compiled engine by --engine DIR")
	}
	for at := dir; ; at = filepath.Dir(at) {
		if b, err := os.ReadFile(filepath.Join(at, "go.mod")); err == nil && bytes.HasPrefix(b, []byte("module "+module+"\n")) {
			return at, nil
		}
		if filepath.Dir(at) == at {
			break
		}
	}
	version := "the checkout"
	if info, ok := debug.ReadBuildInfo(); ok && strings.HasPrefix(info.Main.Version, "v") {
		version = module + "@" + info.Main.Version
	}
	return "",
		fmt.Errorf("a page with its engine is compiled from weft's source, and %s is not inside a checkout; run this in one (%s), or give a compiled engine by --engine DIR",
			dir, version)
}

var (
	style  = regexp.MustCompile(`<link rel="stylesheet" href="([^"]+)">`)
	script = regexp.MustCompile(`<script src="([^"]+)"></script>`)
	icon   = regexp.MustCompile(`(src|href)="icon\.svg"`)
)

// policy is what a page from a file may do: run its own scripts and its own engine, and load nothing.
const policy = `default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:; worker-src blob:; style-src 'unsafe-inline'; img-src data: blob:`

// File writes the page as one file: styles, scripts, engine and what it shows first. It needs no server and no network.
func File(w io.Writer, c *Compiled, open Open) error {
	var failed error
	read := func(name string) string {
		if b, ok := kit.File(name); ok {
			return string(b)
		}
		b, err := files.ReadFile("page/" + name)
		failed = errors.Join(failed, err)
		return string(b)
	}
	page := read("index.html")
	page = style.ReplaceAllStringFunc(page, func(tag string) string {
		return "<style>\n" + read(style.FindStringSubmatch(tag)[1]) + "</style>"
	})
	page = icon.ReplaceAllString(page, `$1="data:image/svg+xml;base64,`+base64.StdEncoding.EncodeToString([]byte(read("icon.svg")))+`"`)
	page = strings.Replace(page, `<meta name="color-scheme"`,
		`<meta http-equiv="Content-Security-Policy" content="`+policy+`">`+"\n"+`<meta name="color-scheme"`, 1)
	state, err := json.Marshal(open)
	if err != nil {
		return err
	}
	engine, err := packed(c.Wasm)
	if err != nil {
		return err
	}
	data := `<script type="application/json" id="open">` + string(state) + "</script>\n" + // json.Marshal writes < as \u003c
		`<script type="text/plain" id="worker">` + inert(string(c.Script)+"\n"+read("worker.js")) + "</script>\n" +
		`<script type="text/plain" id="wasm">` + engine + "</script>\n"
	at := script.FindStringIndex(page)
	if failed != nil || at == nil {
		return errors.Join(failed, errors.New("the page has no scripts"))
	}
	page = page[:at[0]] + data + script.ReplaceAllStringFunc(page[at[0]:], func(tag string) string {
		return "<script>\n" + inert(read(script.FindStringSubmatch(tag)[1])) + "</script>"
	})
	if failed != nil {
		return failed
	}
	_, err = io.WriteString(w, page)
	return err
}

// inert keeps a script's text from ending the element that it is in.
func inert(text string) string { return strings.ReplaceAll(text, "</script", `<\/script`) }

func packed(b []byte) (string, error) {
	var out strings.Builder
	enc := base64.NewEncoder(base64.StdEncoding, &out)
	z, err := gzip.NewWriterLevel(enc, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	_, err = z.Write(b)
	err = errors.Join(err, z.Close(), enc.Close())
	return out.String(), err
}
