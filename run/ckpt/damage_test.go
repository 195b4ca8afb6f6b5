package ckpt_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/run/ckpt"
)

// folderOf gives the folder of a directory's only checkpoint of a step.
func folderOf(t *testing.T, dir string, step int64) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("step-%012d-*", step)))
	if err != nil || len(found) != 1 {
		t.Fatalf("folders of step %d: %v, %v", step, found, err)
	}
	return found[0]
}

// change rewrites a file in place.
func change(t *testing.T, path string, f func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, f(b), 0o644); err != nil {
		t.Fatal(err)
	}
}

// judge gives what Verify finds in the checkpoint of a step.
func judge(t *testing.T, s *ckpt.Store, step int64) []ckpt.Problem {
	t.Helper()
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Step == step {
			p, err := s.Verify(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
	}
	t.Fatalf("no step %d", step)
	return nil
}

// One flipped bit, at a few hundred places all over the manifest, the shards' lengths
// of headers, headers, padding and data. Verify names the file, and what is loaded
// is the checkpoint before, whole.
func TestFlippedBitIsFound(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, ckpt.Options{})
	before, m := newModel(1), newModel(2)
	save(t, s, before, ckpt.Meta{Step: 1, World: 2})
	save(t, s, m, ckpt.Meta{Step: 2, World: 2})
	folder := folderOf(t, dir, 2)
	r := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"} {
		path := filepath.Join(folder, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var places []int
		for i := 0; i < len(good); i += 1 + r.IntN(80) {
			places = append(places, i)
		}
		places = append(places, 0, 7, 8, len(good)-1)
		for _, i := range places {
			bad := append([]byte{}, good...)
			bad[i] ^= 1 << r.IntN(8)
			if err := os.WriteFile(path, bad, 0o644); err != nil {
				t.Fatal(err)
			}
			found := judge(t, s, 2)
			if len(found) != 1 || found[0].File != path {
				t.Fatalf("%s, byte %d of %d: verify finds %v", name, i, len(good), found)
			}
			got := m.blank()
			man, notices, err := s.Resume(t.Context(), got)
			if err != nil || man.Step != 1 || len(notices) != 1 || notices[0].Problems[0].File != path {
				t.Fatalf("%s, byte %d: resumed from %+v, %v, %v", name, i, man, notices, err)
			}
			before.equal(t, got)
		}
		if err := os.WriteFile(path, good, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if found := judge(t, s, 2); len(found) > 0 {
		t.Errorf("the whole checkpoint: %v", found)
	}
}

// Files cut short, grown, missing, exchanged and emptied.
func TestTornFilesAreNeverLoaded(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, ckpt.Options{})
	m := newModel(2)
	save(t, s, newModel(1), ckpt.Meta{Step: 1, World: 2})
	save(t, s, m, ckpt.Meta{Step: 2, World: 2})
	folder := folderOf(t, dir, 2)
	other := folderOf(t, dir, 1)
	for _, name := range []string{"manifest.json", "rank-00001.safetensors"} {
		path := filepath.Join(folder, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		old, err := os.ReadFile(filepath.Join(other, name))
		if err != nil {
			t.Fatal(err)
		}
		for what, bad := range map[string][]byte{
			"cut": good[:len(good)-1], "half": good[:len(good)/2], "empty": {}, "grown": append(append([]byte{}, good...), 0),
			"of another step": old, "zeros": make([]byte, len(good)), "5 bytes": good[:5],
		} {
			if err := os.WriteFile(path, bad, 0o644); err != nil {
				t.Fatal(err)
			}
			if found := judge(t, s, 2); len(found) == 0 || found[0].File != path {
				t.Errorf("%s %s: verify finds %v", name, what, found)
			}
			if man, _, err := s.Resume(t.Context(), m.blank()); err != nil || man.Step != 1 {
				t.Errorf("%s %s: resumed from %+v, %v", name, what, man, err)
			}
			damage := new(ckpt.Damage)
			if _, err := s.Load(t.Context(), 2, m.blank()); !errors.As(err, &damage) {
				t.Errorf("%s %s: load: %v", name, what, err)
			}
		}
		os.Remove(path)
		if man, _, err := s.Resume(t.Context(), m.blank()); err != nil || man.Step != 1 {
			t.Errorf("without %s: resumed from %+v, %v", name, man, err)
		}
		if err := os.WriteFile(path, good, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []int64{1, 2} {
		change(t, filepath.Join(folderOf(t, dir, step), "manifest.json"), func(b []byte) []byte { return b[:10] })
	}
	_, bad, err := s.Resume(t.Context(), m.blank())
	if !errors.Is(err, ckpt.ErrNone) || len(bad) != 2 || !strings.Contains(err.Error(), "manifest.json") {
		t.Errorf("with both damaged: %v, %v", bad, err)
	}
}

func TestAnotherModelsCheckpoint(t *testing.T) {
	s := open(t, t.TempDir(), ckpt.Options{})
	save(t, s, newModel(1), ckpt.Meta{Step: 1, World: 2})
	data := make([]byte, 4096)
	want := []ckpt.Tensor{
		{Name: "embed", Type: "F32", Shape: []int{40, 24}, Data: data[:40*24*4]},
		{Name: "bias", Type: "F32", Shape: []int{13}, Data: data[:52]},
		{Name: "layer.1.up", Type: "F32", Shape: []int{2}, Data: data[:8]},
		{Name: "scale", Type: "F32", Shape: []int{}, Data: data[:4]},
	}
	for name, load := range map[string]func() error{
		"load":   func() error { _, err := s.Load(t.Context(), 1, want); return err },
		"resume": func() error { _, _, err := s.Resume(t.Context(), want); return err },
	} {
		err := load()
		if m := new(ckpt.Mismatch); !errors.As(err, &m) || len(m.Lines) != 3 {
			t.Fatalf("%s: %v", name, err)
		}
		for _, line := range []string{
			`tensor "embed" has shape [50 24] in it, [40 24] here`,
			`tensor "bias" is F64 in it, F32 here`,
			`tensor "layer.1.up" is not in it`,
		} {
			if !strings.Contains(err.Error(), line) {
				t.Errorf("%s: %v does not say %s", name, err, line)
			}
		}
	}
	if _, err := s.Load(t.Context(), 1, want[2:3]); err == nil || !strings.Contains(err.Error(), "it holds: bias F64[13], conv") {
		t.Errorf("nothing in common: %v", err)
	}
}

func TestBadTensorsAndMeta(t *testing.T) {
	s := open(t, t.TempDir(), ckpt.Options{})
	good := ckpt.Of("w", []float32{1, 2, 3, 4}, 2, 2)
	for want, c := range map[string]struct {
		meta ckpt.Meta
		list []ckpt.Tensor
	}{
		"step -1: want":              {ckpt.Meta{Step: -1, World: 1}, nil},
		"world of 0 ranks":           {ckpt.Meta{}, nil},
		"rank 2 of 2: want 0 to 1":   {ckpt.Meta{Rank: 2, World: 2}, nil},
		"a tensor has no name":       {ckpt.Meta{World: 1}, []ckpt.Tensor{{Type: "F32"}}},
		`unknown element type "F33"`: {ckpt.Meta{World: 1}, []ckpt.Tensor{{Name: "w", Type: "F33"}}},
		"12 bytes of data; shape [2 2]": {ckpt.Meta{World: 1},
			[]ckpt.Tensor{{Name: "w", Type: "F32", Shape: []int{2, 2}, Data: good.Data[:12]}}},
		"reaches out of": {ckpt.Meta{World: 1},
			[]ckpt.Tensor{{Name: "w", Type: "F32", Global: []int{2, 2}, Offset: []int{1, 0}, Shape: []int{2, 2}, Data: good.Data}}},
		`tensor "w" at [0 0] is given tw`: {ckpt.Meta{World: 1}, []ckpt.Tensor{good, good}},
		"no rank holds elements [2, 4)": {ckpt.Meta{World: 1},
			[]ckpt.Tensor{{Name: "w", Type: "F32", Global: []int{2, 2}, Offset: []int{0, 0}, Shape: []int{1, 2}, Data: good.Data[:8]}}},
	} {
		for name, f := range map[string]func() error{
			"save":      func() error { return s.Save(t.Context(), c.meta, c.list) },
			"emergency": func() error { return s.Emergency(t.Context(), c.meta, c.list) },
			"async":     func() error { return errors.Join(s.Async(t.Context(), c.meta, c.list), s.Wait(t.Context())) },
		} {
			if err := f(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
	if got := steps(t, s); strings.Contains(got, "complete ") && !strings.Contains(got, "incomplete ") {
		t.Errorf("something was completed: %s", got)
	}
}

// Ranks that do not mean the same checkpoint never make one.
func TestRanksThatDisagree(t *testing.T) {
	m := newModel(1)
	base := ckpt.Meta{Step: 1, World: 2, Layout: map[string]int{"tp": 2}}
	for want, second := range map[string]ckpt.Meta{
		"data position is 0 and 5":                                {Step: 1, World: 2, Rank: 1, Layout: base.Layout, Data: 5},
		"ranks 0 and 1 do not save the same: layout is map[tp:2]": {Step: 1, World: 2, Rank: 1, Layout: map[string]int{"tp": 4}},
	} {
		s := open(t, t.TempDir(), ckpt.Options{})
		if err := s.Save(t.Context(), base, m.shares(0, 2)); err != nil {
			t.Fatal(err)
		}
		if err := s.Save(t.Context(), second, m.shares(1, 2)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if got := steps(t, s); got != "1 incomplete " {
			t.Errorf("list: %s", got)
		}
	}
	// Other runs, epochs and worlds do not meet at all.
	s := open(t, t.TempDir(), ckpt.Options{})
	for i, meta := range []ckpt.Meta{{World: 2}, {World: 2, Run: "b", Rank: 1}, {World: 2, Epoch: 1, Rank: 1}, {World: 3, Rank: 1}} {
		if err := s.Save(t.Context(), meta, m.shares(meta.Rank, 2)); err != nil {
			t.Fatal(i, err)
		}
	}
	if got := steps(t, s); got != strings.Repeat("0 incomplete ", 4) {
		t.Errorf("list: %s", got)
	}
	// A tensor of two shapes.
	s = open(t, t.TempDir(), ckpt.Options{})
	for rank, shape := range [][]int{{4}, {2, 2}} {
		err := s.Save(t.Context(), ckpt.Meta{World: 2, Rank: rank}, []ckpt.Tensor{ckpt.Of("w", make([]float32, 4), shape...)})
		if rank == 1 &&
			(err == nil ||
				!strings.Contains(err.Error(), `tensor "w" is F32 of shape [2 2] in rank-00001.safetensors, and F32 of shape [4] in a file before`)) {
			t.Errorf("two shapes: %v", err)
		}
	}
}

func TestSavingTwice(t *testing.T) {
	s := open(t, t.TempDir(), ckpt.Options{})
	m := newModel(1)
	meta := ckpt.Meta{Step: 1, World: 2}
	save(t, s, m, meta)
	save(t, s, m, meta) // the same again is nothing new
	if err := s.Save(t.Context(), meta, newModel(2).shares(0, 2)); err == nil ||
		!strings.Contains(err.Error(), "give every launch its own Meta.Run") {
		t.Errorf("other data: %v", err)
	}
	got := m.blank()
	if _, err := s.Load(t.Context(), 1, got); err != nil {
		t.Fatal(err)
	}
	m.equal(t, got)
	meta.Run, meta.Epoch = "again", 1
	second := newModel(3)
	save(t, s, second, meta)
	if _, err := s.Load(t.Context(), 1, got); err != nil { // the later epoch's
		t.Fatal(err)
	}
	second.equal(t, got)
}

// A manifest whose parts are rewritten together with the checksum: what the
// checksum cannot see, the rules for what fits together do.
func TestManifestRules(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, ckpt.Options{})
	save(t, s, newModel(1), ckpt.Meta{Step: 1, World: 2})
	path := filepath.Join(folderOf(t, dir, 1), "manifest.json")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string]func(m map[string]any){
		`format "x"`:                  func(m map[string]any) { m["format"] = "x" },
		"unknown field":               func(m map[string]any) { m["colour"] = "blue" },
		"2 files of 3 ranks":          func(m map[string]any) { m["world"] = 3 },
		"is of step 9":                func(m map[string]any) { m["step"] = 9 },
		"reaches out":                 func(m map[string]any) { part(m)["offset"] = []int{1 << 40} },
		"a part in file 7 of 2":       func(m map[string]any) { part(m)["file"] = 7 },
		"bytes at 99999999 of rank":   func(m map[string]any) { part(m)["begin"] = 99999999 },
		`file 0 is "../../x" of rank`: func(m map[string]any) { m["files"].([]any)[0].(map[string]any)["name"] = "../../x" },
		"checksum \"zz\": want 16":    func(m map[string]any) { m["files"].([]any)[0].(map[string]any)["head_xxh3"] = "zz" },
		"byte 0 of the data; the manifest does not say so": func(m map[string]any) { part(m)["begin"] = 8 },
		"twice or out of order":                            func(m map[string]any) { m["tensors"] = append(m["tensors"].([]any), m["tensors"].([]any)[0]) },
	} {
		var m map[string]any
		if err := json.Unmarshal(good, &m); err != nil {
			t.Fatal(err)
		}
		delete(m, "xxh3")
		edit(m)
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, ckpt.Seal(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if found := judge(t, s, 1); len(found) != 1 || !strings.Contains(found[0].What, want) {
			t.Errorf("%v, want %q", found, want)
		}
	}
}

func part(m map[string]any) map[string]any {
	return m["tensors"].([]any)[0].(map[string]any)["parts"].([]any)[0].(map[string]any)
}

// Files that other programs wrote, with and without an index beside them.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, header, data string) {
		b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(string(b)+header+data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file("model-00001-of-00002.safetensors",
		`{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[24,32]},"a":{"dtype":"F16","shape":[3,4],"data_offsets":[0,24]}}`,
		"0123456789abcdefghijklmnABCDEFGH")
	file("model-00002-of-00002.safetensors", `{"c":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}   `, "OPQRSTUV")
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, ckpt.Options{Keep: 1})
	want := []ckpt.Tensor{
		{Name: "a", Type: "F16", Global: []int{3, 4}, Offset: []int{1, 1}, Shape: []int{2, 2}, Data: make([]byte, 8)},
		{Name: "b", Type: "F32", Shape: []int{2}, Data: make([]byte, 8)},
		{Name: "c", Type: "I64", Shape: []int{}, Data: make([]byte, 8)},
	}
	if _, _, err := s.Resume(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{"abcdijkl", "ABCDEFGH", "OPQRSTUV"} {
		if string(want[i].Data) != text {
			t.Errorf("%s: %q, want %q", want[i].Name, want[i].Data, text)
		}
	}
	// Training from there leaves them alone.
	save(t, s, newModel(1), ckpt.Meta{Step: 1, World: 1})
	save(t, s, newModel(2), ckpt.Meta{Step: 2, World: 1})
	if got := steps(t, s); got != "0 foreign 2 complete " {
		t.Errorf("list: %s", got)
	}
	change(t, filepath.Join(dir, "model-00002-of-00002.safetensors"), func(b []byte) []byte { return b[:len(b)-1] })
	save(t, s, newModel(3), ckpt.Meta{Step: 3, World: 1})
	if got := steps(t, s); got != "0 damaged 3 complete " {
		t.Errorf("list: %s", got)
	}
}
