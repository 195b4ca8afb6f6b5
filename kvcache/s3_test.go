package kvcache

import (
	"bytes"
	"testing"
	"time"

	"github.com/weft-fabric/weft/ckpt/blob"
	"github.com/weft-fabric/weft/internal/store"
)

// Packs in an object store by its protocol: two caches write a pack once, a third that is empty reads it.
func TestObjectStore(t *testing.T) {
	ctx := limit(t)
	endpoint, _ := store.Start(t)
	t.Setenv("AWS_ENDPOINT_URL", endpoint)
	with := func(o *Options) {
		place, err := blob.Open("s3://weft/kv")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(place.Close)
		o.Store = place
	}
	all := path(1, 8)
	var written, there int64
	for range 2 {
		c := small(t, with)
		for i := range all {
			if _, err := c.Put("default", Path{Keys: all}, i, content("default", all[i])); err != nil {
				t.Fatal(err)
			}
		}
		for end := time.Now().Add(20 * time.Second); c.Stat().Counters.Packed+c.Stat().Counters.Raced < 2; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the packs were not written: %+v", c.Stat().Counters)
			}
		}
		written += c.Stat().Counters.Packed
		there += c.Stat().Counters.Raced
	}
	if written != 2 || there != 2 {
		t.Errorf("%d packs written, %d were there; want 2 and 2", written, there)
	}
	c := small(t, with)
	if w, err := c.Match(ctx, "default", Path{Keys: all}); err != nil || len(w) != 8 || w[7] != InStore {
		t.Fatal(w, err)
	}
	for i := range all {
		var got []byte
		w, ok, err := c.Get(ctx, "default", Path{Keys: all}, i, func(b []byte) error { got = bytes.Clone(b); return nil })
		if err != nil || !ok || w != InStore || !bytes.Equal(got, content("default", all[i])) {
			t.Errorf("block %d: %v %t %v", i, w, ok, err)
		}
	}
}
