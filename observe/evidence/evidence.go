// Package evidence gathers what doctor judges: it opens files, folders, NCCL's RAS
// servers and the live host, and gives them as a doctor.Case. Nothing that it cannot
// read stops it: what is missing is noted beside the source.
package evidence

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
)

// maxFiles is how many files of a folder are read. A folder of a job of 16,384 ranks
// has two or three a rank.
const maxFiles = 200_000

// Options of Gather.
type Options struct {
	Stdin    io.Reader
	ForceRAS bool               // ask RAS of any version, also of those that may crash
	Progress func(n, all int)   // after each file; may be nil
	Bytes    func(n, all int64) // of what is above 256 MiB, every 64 MiB and at its end; all is -1 for a stream; may be nil
}

// stdin tells how much was read if somebody wants to know.
func (o *Options) stdin() io.Reader {
	if o.Bytes == nil {
		return o.Stdin
	}
	return &counted{r: o.Stdin, all: -1, tell: o.Bytes}
}

func ras(ctx context.Context, c *doctor.Case, source string, force bool) error {
	b, err := AskRAS(ctx, strings.TrimPrefix(source, "ras://"), force)
	if err != nil {
		return err
	}
	return read.File(c, source, "", strings.NewReader(string(b)))
}

// Gather reads sources: files, folders, "-", and ras://HOST:PORT.
func Gather(ctx context.Context, sources []string, o Options) (*doctor.Case, error) {
	c := &doctor.Case{}
	var files []string
	for _, s := range sources {
		switch {
		case s == "-":
			if err := read.File(c, "stdin", "", o.stdin()); err != nil {
				return nil, fmt.Errorf("standard input: %w", err)
			}
		case strings.HasPrefix(s, "ras://"):
			if err := ras(ctx, c, s, o.ForceRAS); err != nil {
				return nil, err
			}
		default:
			list, err := walk(s)
			if err != nil {
				return nil, err
			}
			files = append(files, list...)
		}
	}
	for i, f := range files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		one(c, f, o.Bytes)
		if o.Progress != nil {
			o.Progress(i+1, len(files))
		}
	}
	read.Finish(c)
	return c, nil
}

// largeFile is from where on a file's progress is told.
const largeFile = 256 << 20

// counted tells how much of a file was read.
type counted struct {
	r      io.Reader
	n, all int64
	tell   func(n, all int64)
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	before := c.n
	c.n += int64(n)
	switch over := err == io.EOF && n == 0; {
	case over && c.all < 0 && c.n > largeFile: // now it is known how much there was
		c.tell(c.n, c.n)
	case over && c.all >= 0, c.n>>26 != before>>26 && (c.all >= 0 || c.n > largeFile):
		c.tell(c.n, c.all)
	}
	return n, err
}

// one reads a file. tell hears of progress in large ones. What cannot be opened is in the case all the same, with the
// reason.
func one(c *doctor.Case, name string, tell func(n, all int64)) {
	at := len(c.Files)
	r, err := os.Open(name)
	if err == nil {
		var from io.Reader = r
		if st, bad := r.Stat(); bad == nil && st.Size() > largeFile && tell != nil {
			from = &counted{r: r, all: st.Size(), tell: tell}
		}
		err = read.File(c, name, "", from)
		r.Close()
	} else {
		c.Files = append(c.Files, doctor.File{Path: name, Kind: "unread"})
	}
	if err != nil {
		f := &c.Files[at] // an archive has those of its members behind it
		f.Notes = append(f.Notes, doctor.Note{Kind: doctor.Unread, Text: err.Error()})
	}
}

// walk lists the files of a path. Links to folders are followed once each, as /sys
// is made of them.
func walk(root string) ([]string, error) {
	st, err := os.Stat(root)
	if err != nil {
		if os.IsNotExist(err) {
			return nil, fmt.Errorf("no file or folder %q", root)
		}
		return nil, err
	}
	if !st.IsDir() {
		if !st.Mode().IsRegular() && st.Mode()&fs.ModeNamedPipe == 0 {
			return nil, fmt.Errorf("%s is a device or socket; give a file or a folder", root)
		}
		return []string{root}, nil
	}
	var files []string
	seen := map[string]bool{}
	var visit func(dir string, depth int) error
	visit = func(dir string, depth int) error {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil || seen[real] || depth > 24 {
			return nil
		}
		seen[real] = true
		entries, err := os.ReadDir(dir)
		if err != nil {
			files = append(files, dir) // reading it says why
			return nil
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if e.Name() == ".git" {
				continue
			}
			st, err := os.Stat(path)
			if err != nil {
				continue
			}
			switch {
			case st.IsDir():
				if err := visit(path, depth+1); err != nil {
					return err
				}
			case st.Mode().IsRegular():
				if len(files) >= maxFiles {
					return fmt.Errorf("%s holds more than %d files; give the folders that matter", root, maxFiles)
				}
				files = append(files, path)
			}
		}
		return nil
	}
	if err := visit(root, 0); err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s holds no file", root)
	}
	slices.Sort(files)
	return files, nil
}
