package main

import (
	"archive/tar"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/weft-fabric/weft/app/cli"
)

// component is a module in a bill of materials.
type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

// writeSBOM writes what a binary was built of, as the binary itself says, in the form of CycloneDX 1.5.
func writeSBOM(path, binary, version string, at time.Time) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("%s: %w", binary, err)
	}
	purl := func(module, version string) string { return "pkg:golang/" + module + "@" + version }
	subject := component{Type: "application", Name: info.Main.Path, Version: version, PURL: purl(info.Main.Path, version)}
	subject.Ref = subject.PURL
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	parts := []component{{Type: "library", Ref: purl("std", goVersion), Name: "std", Version: goVersion, PURL: purl("std", goVersion)}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		parts = append(parts, component{Type: "library", Ref: purl(m.Path, m.Version), Name: m.Path, Version: m.Version,
			PURL: purl(m.Path, m.Version)})
	}
	text, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata":   map[string]any{"timestamp": at.UTC().Format(time.RFC3339), "component": subject},
		"components": parts,
	}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// shells are those that there are completions for, with the names of their files.
var shells = []struct {
	file  string
	write func(*cobra.Command, io.Writer) error
}{
	{"bash-completion/completions/weft", func(c *cobra.Command, w io.Writer) error { return c.GenBashCompletionV2(w, true) }},
	{"zsh/site-functions/_weft", (*cobra.Command).GenZshCompletion},
	{"fish/vendor_completions.d/weft.fish", func(c *cobra.Command, w io.Writer) error { return c.GenFishCompletion(w, true) }},
}

// writeShare writes man pages and completions, as they lie under /usr/share.
func writeShare(path, version string, at time.Time) error {
	dir, err := os.MkdirTemp("", "weft-share")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root := cli.Command()
	root.DisableAutoGenTag = true
	man := filepath.Join(dir, "man/man1")
	if err := os.MkdirAll(man, 0o755); err != nil {
		return err
	}
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "weft " + version, Manual: "weft", Date: &at}, man); err != nil {
		return fmt.Errorf("man pages: %w", err)
	}
	for _, s := range shells {
		file := filepath.Join(dir, s.file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		f, err := os.Create(file)
		if err != nil {
			return err
		}
		if err := s.write(root, f); err != nil {
			return fmt.Errorf("%s: %w", s.file, err)
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return archive(path, dir, at)
}

// archive packs a folder's files. The same files give the same bytes.
func archive(path, dir string, at time.Time) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(out)
	t := tar.NewWriter(z)
	err = filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error { // in the order of names
		if err != nil || e.IsDir() {
			return err
		}
		return pack(t, dir, p, at)
	})
	return errors.Join(err, t.Close(), z.Close(), out.Close())
}

// pack adds a file to an archive, under share/.
func pack(t *tar.Writer, dir, file string, at time.Time) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(dir, file)
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: "share/" + filepath.ToSlash(name), Mode: 0o644, Size: int64(len(b)), ModTime: at,
		Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = t.Write(b)
	return err
}

// wheels are the processors that a Python package is built for, with the C compilers that can: the machine's own, or Debian's cross
// compilers.
var wheels = []struct{ arch, machine, cross string }{
	{"amd64", "x86_64", "x86_64-linux-gnu-gcc"},
	{"arm64", "aarch64", "aarch64-linux-gnu-gcc"},
}

// writeWheels builds the Python packages and names those that it cannot: their library takes a C compiler.
func writeWheels(dir, version, stamp string) (files []string, err error) {
	for _, w := range wheels {
		cc := w.cross
		if w.arch == runtime.GOARCH && runtime.GOOS == "linux" {
			cc = "cc"
		}
		if _, err := exec.LookPath(cc); err != nil {
			fmt.Printf("no wheel for %s: its library takes a C compiler, and there is no %s\n", w.machine, cc)
			continue
		}
		name, err := writeWheel(dir, version, stamp, w.arch, w.machine, cc)
		if err != nil {
			return nil, err
		}
		files = append(files, name)
	}
	return files, nil
}

// makeLibrary is what make is told to build the library of a release. It has the stamp of the binaries: ranks of different builds refuse
// to work together.
func makeLibrary(path, stamp string) []string {
	return []string{"lib", "LIB=" + path, "STAMP=" + stamp}
}

// writeWheel builds the Python package for one processor.
func writeWheel(dir, version, stamp, arch, machine, cc string) (string, error) {
	temp, err := os.MkdirTemp("", "weft-wheel-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	library := filepath.Join(temp, "libweft.so")
	build := exec.Command("make", makeLibrary(library, stamp)...)
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CC="+cc)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make lib for %s: %w: %s", machine, err, out)
	}
	cmd := exec.Command("python3", "python/wheel.py", "-o", dir, "--version", version, "--library", library, "--machine", machine)
	cmd.Stderr = os.Stderr
	name, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("python/wheel.py: %w", err)
	}
	return filepath.Base(strings.TrimSpace(string(name))), nil
}
