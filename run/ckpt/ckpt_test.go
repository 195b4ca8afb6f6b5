package ckpt_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-fabric/weft/run/ckpt"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("WEFT_CKPT_WRITER"); dir != "" {
		writer(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// model is a set of whole tensors with contents that depend on a step.
type model []ckpt.Tensor

func newModel(step int64) model {
	m := model{
		{Name: "embed", Type: "F32", Shape: []int{50, 24}},
		{Name: "layer.0.up", Type: "BF16", Shape: []int{24, 96}},
		{Name: "layer.0.down", Type: "F16", Shape: []int{96, 24}},
		{Name: "conv", Type: "F32", Shape: []int{5, 3, 7, 2}},
		{Name: "bias", Type: "F64", Shape: []int{13}},
		{Name: "scale", Type: "F32", Shape: []int{}},
		{Name: "mask", Type: "BOOL", Shape: []int{3, 5}},
		{Name: "empty", Type: "I32", Shape: []int{0, 4}},
	}
	for i := range m {
		n := m[i].Type.Size()
		for _, d := range m[i].Shape {
			n *= d
		}
		m[i].Data = make([]byte, n)
		fill(m[i].Data, uint64(step), uint64(i))
	}
	return m
}

func fill(p []byte, a, b uint64) {
	r := rand.New(rand.NewPCG(a, b))
	for len(p) >= 8 {
		binary.LittleEndian.PutUint64(p, r.Uint64())
		p = p[8:]
	}
	for i := range p {
		p[i] = byte(r.Uint64())
	}
}

// blank is the model with the same tensors and no contents.
func (m model) blank() model {
	b := make(model, len(m))
	for i, t := range m {
		b[i] = t
		b[i].Data = make([]byte, len(t.Data))
	}
	return b
}

func (m model) equal(t testing.TB, o model) {
	t.Helper()
	for i := range m {
		if !bytes.Equal(m[i].Data, o[i].Data) {
			t.Errorf("tensor %s is not what was saved", m[i].Name)
		}
	}
}

func open(t testing.TB, where string, o ckpt.Options) *ckpt.Store {
	t.Helper()
	s, err := ckpt.Open(t.Context(), where, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// save writes a model as world ranks that share the writing.
func save(t testing.TB, s *ckpt.Store, m model, meta ckpt.Meta) {
	t.Helper()
	for rank := range meta.World {
		meta.Rank = rank
		if err := s.Save(t.Context(), meta, m.shares(rank, meta.World)); err != nil {
			t.Fatal(err)
		}
	}
}

func (m model) shares(rank, world int) []ckpt.Tensor {
	var list []ckpt.Tensor
	for _, t := range m {
		list = append(list, t.Share(rank, world))
	}
	return list
}

func steps(t testing.TB, s *ckpt.Store) string {
	t.Helper()
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, e := range list {
		text += fmt.Sprintf("%d %s ", e.Step, e.State)
	}
	return text
}

func TestSaveAndLoad(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "a", "b"), ckpt.Options{})
	m := newModel(200)
	meta := ckpt.Meta{Step: 200, Epoch: 3, World: 4, Run: "x", Data: 12800, Layout: map[string]int{"dp": 4},
		Random: map[string][]byte{"dropout": {1, 2, 3}}, Extra: map[string]string{"loss": "2.5"}}
	save(t, s, m, meta)
	got := m.blank()
	man, err := s.Load(t.Context(), 200, got)
	if err != nil {
		t.Fatal(err)
	}
	m.equal(t, got)
	if man.Step != 200 || man.Epoch != 3 || man.World != 4 || man.Data != 12800 || man.Layout["dp"] != 4 || man.Extra["loss"] != "2.5" {
		t.Errorf("manifest %+v", man)
	}
	for rank := range 4 {
		if !bytes.Equal(man.Random(rank)["dropout"], []byte{1, 2, 3}) {
			t.Errorf("rank %d: random states %v", rank, man.Random(rank))
		}
	}
	if want := "200 complete "; steps(t, s) != want {
		t.Errorf("list %q, want %q", steps(t, s), want)
	}
}
