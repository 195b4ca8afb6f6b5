package main

import (
	"archive/tar"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
		parts = append(parts, component{Type: "library", Ref: purl(m.Path, m.Version), Name: m.Path, Version: m.Version, PURL: purl(m.Path, m.Version)})
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
	var files []string
	err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(files)
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(out)
	t := tar.NewWriter(z)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, f)
		if err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{Name: "share/" + filepath.ToSlash(name), Mode: 0o644, Size: int64(len(b)), ModTime: at, Format: tar.FormatPAX}); err != nil {
			return err
		}
		if _, err := t.Write(b); err != nil {
			return err
		}
	}
	for _, c := range []io.Closer{t, z, out} {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// writeWheel builds the Python package for this machine's processor, or says why there is none: its library takes a C compiler.
func writeWheel(dir, version string) (string, error) {
	if _, err := exec.LookPath("cc"); err != nil {
		fmt.Println("no wheel: its library takes a C compiler, and there is no cc")
		return "", nil
	}
	if out, err := exec.Command("make", "lib").CombinedOutput(); err != nil {
		return "", fmt.Errorf("make lib: %w: %s", err, out)
	}
	cmd := exec.Command("python3", "python/wheel.py", "-o", dir, "--version", version)
	cmd.Stderr = os.Stderr
	name, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("python/wheel.py: %w", err)
	}
	return filepath.Base(strings.TrimSpace(string(name))), nil
}
