package ckpt_test

import (
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/weft-fabric/weft/run/ckpt"
)

// objects starts an object store in this process.
func objects(t testing.TB) {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("models"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	for name, value := range map[string]string{"AWS_ENDPOINT_URL": server.URL, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"} {
		if t, ok := t.(*testing.T); ok {
			t.Setenv(name, value)
		}
	}
}

// Ranks save to an object store at the same time; retention, damage and resharding
// to a directory are as with a directory.
func TestObjectStore(t *testing.T) {
	objects(t)
	const world = 4
	stores := make([]*ckpt.Store, world)
	for rank := range world {
		stores[rank] = open(t, "s3://models/gpt/run1", ckpt.Options{Keep: 2})
	}
	for step := int64(1); step <= 4; step++ {
		m := newModel(step)
		var wg sync.WaitGroup
		for rank, s := range stores {
			wg.Go(func() {
				if err := s.Async(t.Context(), ckpt.Meta{Step: step, Rank: rank, World: world}, m.shares(rank, world)); err != nil {
					t.Error(err)
				}
				if err := s.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	s := stores[0]
	if got := steps(t, s); got != "3 complete 4 complete " {
		t.Fatalf("list: %s", got)
	}
	m := newModel(4)
	got := m.blank()
	man, _, err := s.Resume(t.Context(), got)
	if err != nil || man.Step != 4 {
		t.Fatalf("%+v %v", man, err)
	}
	m.equal(t, got)

	dir := filepath.Join(t.TempDir(), "local")
	dst := open(t, dir, ckpt.Options{})
	cut, err := ckpt.FindLayout("rows")
	if err != nil {
		t.Fatal(err)
	}
	if err := ckpt.Reshard(t.Context(), s, man, dst, 3, cut, ""); err != nil {
		t.Fatal(err)
	}
	got = m.blank()
	if _, err := dst.Load(t.Context(), 4, got); err != nil {
		t.Fatal(err)
	}
	m.equal(t, got)

	none := open(t, "s3://models/gpt/run2", ckpt.Options{})
	if _, err := none.At(t.Context(), 4); err == nil || !strings.Contains(err.Error(), "no checkpoint in s3://models/gpt/run2") {
		t.Errorf("an empty prefix: %v", err)
	}
}
