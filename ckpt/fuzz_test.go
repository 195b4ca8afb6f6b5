package ckpt_test

import (
	"bytes"
	"testing"

	"github.com/weft-fabric/weft/ckpt"
)

// Whatever is read as a manifest is written back as the same bytes or, where it was
// formatted otherwise, as one that reads alike; nothing panics.
func FuzzManifest(f *testing.F) {
	// Short seeds: time that go test spends on making long ones shorter is lost.
	f.Add([]byte(`{"format":"weft-checkpoint-1","world":1,"files":[{"name":"rank-00000.safetensors","size":24,"head":8,"head_xxh3":"0123456789abcdef"}],"tensors":[{"name":"w","dtype":"F32","shape":[2,2],"parts":[{"offset":[0,0],"shape":[2,2]}]}]}`), true)
	f.Add([]byte(`{"format":"weft-checkpoint-1","world":1,"files":[{"name":"rank-00000.safetensors"}],"tensors":[{"name":"w","dtype":"F32","shape":[4611686018427387904,4],"parts":[{"offset":[0],"shape":[1]}]}]}`), true)
	f.Add([]byte("{\"xxh3\":\"0123456789abcdef\",\n}"), false)
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
