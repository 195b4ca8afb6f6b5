// Command dist writes a release: static binaries for Linux, binaries for macOS, an image
// that holds nothing but the former, what goes with them, and checksums of all files. The
// binaries do not open NVIDIA's management library: 'weft topo discover' reads /sys alone there.
//
//	dist/weft-VERSION-linux-amd64        -linux-arm64, -darwin-amd64, -darwin-arm64
//	dist/weft-VERSION-image.tar          an OCI image layout for both of Linux's processors
//	dist/weft-VERSION-share.tar.gz       man pages and completions, to be unpacked in /usr
//	dist/weft-VERSION-sbom.json          modules in the binaries, as CycloneDX
//	dist/weft-VERSION-*.whl              the Python package, for this machine's processor
//	dist/SHA256SUMS                      sha256sum -c reads it
//
// The image is read back and checked before dist ends. Run it with 'make dist'.
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/release"
)

var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

func main() {
	version := flag.String("version", "", "version in the names of files and in the image; git describe says it by default")
	out := flag.String("o", "dist", "directory for the files")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "dist: %q is unexpected; flags are -version and -o\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := write(*version, *out); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// git is what git prints.
func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// write writes all files of a release.
func write(version, dir string) error {
	commit, err := git("rev-parse", "HEAD")
	if err != nil {
		return err
	}
	when, err := git("show", "-s", "--format=%cI", "HEAD")
	if err != nil {
		return err
	}
	created, err := time.Parse(time.RFC3339, when)
	if err != nil {
		return fmt.Errorf("the commit's time: %w", err)
	}
	if version == "" {
		if version, err = git("describe", "--tags", "--always", "--dirty"); err != nil {
			return err
		}
	}
	if strings.ContainsAny(version, "/ \t\n") {
		return fmt.Errorf("version %q cannot be part of a file name; use letters, digits, dots and dashes", version)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	stamp := release.Flags(version, commit, when)
	img := image{Version: version, Commit: commit, Created: created.UTC()}
	var files []string
	for _, p := range platforms {
		name := fmt.Sprintf("weft-%s-%s-%s", version, p.OS, p.Arch)
		path := filepath.Join(dir, name)
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=true", "-tags=static", "-ldflags=-s -w "+stamp,
			"-o", path, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Arch)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("building for %s/%s: %w", p.OS, p.Arch, err)
		}
		files = append(files, name)
		if p.OS != "linux" {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := checkStatic(b); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		img.Binaries = append(img.Binaries, binary{p, b})
	}
	first := filepath.Join(dir, files[0])
	for _, part := range []struct {
		suffix string
		write  func(path string) error
	}{
		{"image.tar", func(path string) error { return writeImage(path, img) }},
		{"share.tar.gz", func(path string) error { return writeShare(path, version, created.UTC()) }},
		{"sbom.json", func(path string) error { return writeSBOM(path, first, version, created) }},
	} {
		name := fmt.Sprintf("weft-%s-%s", version, part.suffix)
		if err := part.write(filepath.Join(dir, name)); err != nil {
			return err
		}
		files = append(files, name)
	}
	packages, err := writeWheels(dir, version, stamp)
	if err != nil {
		return err
	}
	files = append(files, packages...)
	var sums strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(b), f)
		fmt.Printf("%7.1f MB  %s\n", float64(len(b))/1e6, filepath.Join(dir, f))
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// checkStatic refuses a program that needs another one to load it: an image from
// scratch has none. Tag static leaves out what opens libraries at run time.
func checkStatic(b []byte) error {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it is linked dynamically and does not run in an image from scratch")
		}
	}
	return nil
}

// writeImage writes the image, then reads and checks the file.
func writeImage(path string, img image) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := img.write(f); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := img.check(b); err != nil {
		return fmt.Errorf("%s, read back: %w", path, err)
	}
	return nil
}
