package ckpt_test

import (
	"bytes"
	"testing"

	"github.com/weft-fabric/weft/ckpt"
)

// Whatever is read as a manifest is written back as the same bytes or, where it was
// formatted otherwise, as one that reads alike; nothing panics.
func FuzzManifest(f *testing.F) {
	mem := newMemory()
	s, err := ckpt.New(mem, ckpt.Options{})
	if err != nil {
		f.Fatal(err)
	}
	save(f, s, newModel(1), ckpt.Meta{Step: 1, World: 2, Extra: map[string]string{"a": "<b>"}})
	for _, b := range mem.blobs {
		if bytes.HasPrefix(b, []byte(`{"xxh3"`)) {
			f.Add(b, false)
			i := bytes.IndexByte(b, '\n')
			f.Add(append([]byte("{"), b[i+1:]...), true)
		}
	}
	f.Add([]byte(`{"format":"weft-checkpoint-1","world":1,"files":[{"name":"rank-00000.safetensors"}],"tensors":[{"name":"w","dtype":"F32","shape":[4611686018427387904,4],"parts":[{"offset":[0,0],"shape":[1,1]}]}]}`), true)
	f.Add([]byte("{}"), true)
	f.Fuzz(func(t *testing.T, p []byte, seal bool) {
		if seal && len(p) > 0 {
			p = ckpt.Seal(p) // past the checksum, into the rules
		}
		m, err := ckpt.ParseManifest(p)
		if err != nil {
			return
		}
		m.Print(new(bytes.Buffer))
		text, err := ckpt.EncodeManifest(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ckpt.ParseManifest(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		same, err := ckpt.EncodeManifest(again)
		if err != nil || !bytes.Equal(text, same) {
			t.Fatalf("%v\n%s\n%s", err, text, same)
		}
	})
}
