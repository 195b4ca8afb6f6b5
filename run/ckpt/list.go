package ckpt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// State of a folder in a store.
type State string

// The states.
const (
	Complete   State = "complete"   // a manifest and all its files in their sizes; Verify reads the data too
	Damaged    State = "damaged"    // a manifest that is not right, or files missing or of other sizes
	Incomplete State = "incomplete" // no manifest: being written, or left by writers that died
	Foreign    State = "foreign"    // safetensors files of other programs: no checksums
)

// Entry is a line of List.
type Entry struct {
	Step      int64     `json:"step"`
	State     State     `json:"state"`
	Folder    string    `json:"folder"`
	Epoch     int64     `json:"epoch"`
	World     int       `json:"world"`
	Tensors   int       `json:"tensors"`
	Bytes     int64     `json:"bytes"` // of all files
	Created   time.Time `json:"created,omitzero"`
	Emergency bool      `json:"emergency,omitempty"`
	Problems  []Problem `json:"problems,omitempty"`

	manifest *Manifest
}

// shelf is what a listing of the place shows: folders of checkpoints with their
// files, and safetensors files at the top.
type shelf struct {
	folders map[string][]blob.Info
	names   []string // of the folders, by step
	foreign []blob.Info
}

// shelf sorts what lies in the store: folders of checkpoints, finished or not, in the order of their steps, and
// safetensors files that others wrote. What is neither is ignored.
func (s *Store) shelf(ctx context.Context) (*shelf, error) {
	blobs, err := s.place.List(ctx, "")
	if err != nil {
		return nil, err
	}
	unfinished, err := s.place.Unfinished(ctx)
	if err != nil {
		return nil, err
	}
	sh := &shelf{folders: map[string][]blob.Info{}}
	add := func(folder string, files ...blob.Info) {
		if _, ok := sh.folders[folder]; !ok {
			sh.names = append(sh.names, folder)
		}
		sh.folders[folder] = append(sh.folders[folder], files...)
	}
	for _, b := range blobs {
		folder, file, ok := strings.Cut(b.Name, "/")
		switch {
		case s.o.Only != "" && folder != s.o.Only:
		case !ok && strings.HasSuffix(b.Name, ".safetensors"):
			sh.foreign = append(sh.foreign, b)
		case ok && isFolder(folder) && !strings.Contains(file, "/"):
			add(folder, b)
		}
	}
	for _, name := range unfinished {
		if folder, _, _ := strings.Cut(name, "/"); isFolder(folder) && (s.o.Only == "" || s.o.Only == folder) {
			add(folder)
		}
	}
	slices.Sort(sh.names) // steps have leading zeros
	return sh, nil
}

// Within reports whether a place is the folder of one checkpoint, and gives the store
// that it lies in and its name there.
func Within(where string) (parent, folder string, ok bool) {
	scheme, rest, remote := strings.Cut(where, "://")
	if !remote {
		abs, err := filepath.Abs(where)
		if err != nil {
			return "", "", false
		}
		scheme, rest = "", abs
	}
	rest = strings.TrimRight(rest, "/")
	i := strings.LastIndexByte(rest, '/')
	if i < 0 || !isFolder(rest[i+1:]) {
		return "", "", false
	}
	parent, folder = rest[:i], rest[i+1:]
	if remote {
		return scheme + "://" + parent, folder, true
	}
	if _, err := os.Stat(filepath.Join(rest, manifestName)); err != nil {
		return "", "", false
	}
	return max(parent, "/"), folder, true
}

// List gives what is in the store by step, attempts at the same step by epoch and
// time. It reads manifests and no data.
func (s *Store) List(ctx context.Context) ([]Entry, error) {
	sh, err := s.shelf(ctx)
	if err != nil {
		return nil, err
	}
	var list []Entry
	if len(sh.foreign) > 0 {
		list = append(list, s.foreign(ctx, sh.foreign))
	}
	for _, name := range sh.names {
		e, err := s.entry(ctx, name, sh.folders[name])
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	slices.SortStableFunc(list, compareEntries)
	return list, nil
}

func compareEntries(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Epoch, b.Epoch), a.Created.Compare(b.Created),
		strings.Compare(a.Folder, b.Folder))
}

// entry judges a folder by its manifest and the sizes of its files.
func (s *Store) entry(ctx context.Context, folder string, files []blob.Info) (Entry, error) {
	step, _ := parseFolder(folder)
	e := Entry{Step: step, State: Incomplete, Folder: folder}
	size := map[string]int64{}
	for _, f := range files {
		size[strings.TrimPrefix(f.Name, folder+"/")] = f.Size
		e.Bytes += f.Size
	}
	if _, ok := size[manifestName]; !ok {
		return e, nil
	}
	m, err := s.manifest(ctx, folder)
	damage := new(Damage)
	switch {
	case errors.As(err, &damage):
		e.State, e.Problems = Damaged, damage.Problems
		return e, nil
	case errors.Is(err, fs.ErrNotExist):
		return e, nil // pruned meanwhile
	case err != nil:
		return e, err
	}
	e.manifest, e.State = m, Complete
	e.Epoch, e.World, e.Tensors, e.Created, e.Emergency = m.Epoch, m.World, len(m.Tensors), m.Created, m.Emergency
	for _, f := range m.Files {
		path := s.place.Path(folder + "/" + f.Name)
		if n, ok := size[f.Name]; !ok {
			e.Problems = append(e.Problems, Problem{path, "is missing"})
		} else if n != f.Size {
			e.Problems = append(e.Problems, Problem{path, fmt.Sprintf("has %d bytes; the manifest says %d", n, f.Size)})
		}
	}
	if len(e.Problems) > 0 {
		e.State = Damaged
	}
	return e, nil
}

// maxManifest bounds what is read as a manifest: 10,000 ranks with 1,000 shards
// each take about 1 GB.
const maxManifest = 4 << 30

// manifest reads a folder's manifest. One that is not there gives fs.ErrNotExist,
// one that is not right a *Damage.
func (s *Store) manifest(ctx context.Context, folder string) (*Manifest, error) {
	name := folder + "/" + manifestName
	list, err := s.place.List(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || list[0].Name != name {
		return nil, &fs.PathError{Op: "read", Path: s.place.Path(name), Err: fs.ErrNotExist}
	}
	step, _ := parseFolder(folder)
	damaged := func(what string) error {
		return &Damage{step, []Problem{{s.place.Path(name), what}}}
	}
	if list[0].Size > maxManifest {
		return nil, damaged(fmt.Sprintf("has %d bytes; no manifest is larger than %d", list[0].Size, int64(maxManifest)))
	}
	p := make([]byte, list[0].Size)
	if err := s.place.Read(ctx, name, p, 0); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, damaged(err.Error())
		}
		return nil, err
	}
	m, err := parseManifest(p)
	if err != nil {
		return nil, damaged(err.Error())
	}
	if m.Step != step {
		return nil, damaged(fmt.Sprintf("is of step %d", m.Step))
	}
	m.folder = folder
	return m, nil
}

// find gives the newest complete checkpoint whose step test accepts, and what was
// wrong with newer ones. It reads manifests from the newest backwards.
func (s *Store) find(ctx context.Context, test func(step int64) bool) (*Manifest, []*Damage, error) {
	sh, err := s.shelf(ctx)
	if err != nil {
		return nil, nil, err
	}
	var bad []*Damage
	pick := func(list []Entry) *Manifest {
		slices.SortStableFunc(list, compareEntries)
		for _, e := range slices.Backward(list) {
			switch {
			case e.State == Damaged:
				bad = append(bad, &Damage{e.Step, e.Problems})
			case e.manifest != nil:
				return e.manifest
			}
		}
		return nil
	}
	for end := len(sh.names); end > 0; {
		step, _ := parseFolder(sh.names[end-1])
		start := end
		var attempts []Entry
		for ; start > 0; start-- {
			name := sh.names[start-1]
			if of, _ := parseFolder(name); of != step {
				break
			}
			if !test(step) {
				continue
			}
			e, err := s.entry(ctx, name, sh.folders[name])
			if err != nil {
				return nil, bad, err
			}
			attempts = append(attempts, e)
		}
		if m := pick(attempts); m != nil {
			return m, bad, nil
		}
		end = start
	}
	if len(sh.foreign) > 0 && test(0) {
		if m := pick([]Entry{s.foreign(ctx, sh.foreign)}); m != nil {
			return m, bad, nil
		}
	}
	return nil, bad, nil
}

// Latest gives the newest checkpoint that is complete, and what was found wrong
// with newer ones. ErrNone if there is none.
func (s *Store) Latest(ctx context.Context) (*Manifest, []*Damage, error) {
	m, bad, err := s.find(ctx, func(int64) bool { return true })
	if err == nil && m == nil {
		err = s.none(bad)
	}
	return m, bad, err
}

// none says that nothing can be loaded, and why.
func (s *Store) none(bad []*Damage) error {
	where := strings.TrimSuffix(s.place.Path(""), "/")
	if len(bad) == 0 {
		return fmt.Errorf("%w in %s", ErrNone, where)
	}
	errs := []error{fmt.Errorf("%w in %s that is whole", ErrNone, where)}
	for _, d := range bad {
		errs = append(errs, d)
	}
	return errors.Join(errs...)
}

// At gives the checkpoint of a step, the newest attempt if there are several. An
// error names the steps there are.
func (s *Store) At(ctx context.Context, step int64) (*Manifest, error) {
	m, bad, err := s.find(ctx, func(v int64) bool { return v == step })
	switch {
	case err != nil:
		return nil, err
	case m != nil:
		return m, nil
	case len(bad) > 0:
		return nil, bad[0]
	}
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	var steps []string
	for _, e := range list {
		if e.manifest != nil && e.State != Damaged {
			steps = append(steps, fmt.Sprint(e.Step))
		}
	}
	if len(steps) == 0 {
		return nil, s.none(nil)
	}
	return nil, fmt.Errorf("%w of step %d in %s; there are: %s", ErrNone, step, strings.TrimSuffix(s.place.Path(""), "/"),
		strings.Join(steps, ", "))
}

// Resume fills want from the newest checkpoint that is whole in what this rank
// reads of it and, with Options.Min, in what every rank reads. The second result
// says what was wrong with newer ones, which were left out. What want holds after an
// error is undefined. ErrNone if there is no checkpoint; a *Mismatch is not passed
// over, since older checkpoints are of the same model.
func (s *Store) Resume(ctx context.Context, want []Tensor) (*Manifest, []*Damage, error) {
	agree := s.o.Min
	if agree == nil {
		agree = func(_ context.Context, v int64) (int64, error) { return v, nil }
	}
	var bad []*Damage
	for below := int64(math.MaxInt64); ; {
		m, newer, err := s.find(ctx, func(step int64) bool { return step < below })
		bad = append(bad, newer...)
		mine := int64(voteNone)
		if err != nil {
			mine = voteStop
		} else if m != nil {
			mine = m.Step
		}
		step, aerr := agree(ctx, mine)
		switch err = errors.Join(err, aerr); {
		case err != nil:
			return nil, bad, err
		case step == voteStop:
			return nil, bad, ErrElsewhere
		case step == voteNone:
			return nil, bad, s.none(bad)
		}
		if m.Step != step {
			m, err = s.At(ctx, step)
		}
		if err == nil {
			err = s.LoadFrom(ctx, m, want)
		}
		vote := step
		if damage := new(Damage); errors.As(err, &damage) {
			bad = append(bad, damage)
			vote, err = voteNone, nil
		} else if err != nil {
			vote = voteStop
		}
		all, aerr := agree(ctx, vote)
		switch err = errors.Join(err, aerr); {
		case err != nil:
			return nil, bad, err
		case all == voteStop:
			return nil, bad, ErrElsewhere
		case all == step:
			return m, bad, nil
		}
		below = step
	}
}

// What a rank says instead of a step: it has none that is whole, or it cannot go on.
const (
	voteNone = -1
	voteStop = -2
)

// ErrElsewhere is what Resume gives the ranks whose own part went well.
var ErrElsewhere = errors.New("another rank could not load its part of the checkpoint; its own error says why")
