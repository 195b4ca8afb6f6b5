package ckpt_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/weft-fabric/weft/run/ckpt"
)

// Whatever is read as a manifest is written back as the same bytes or, where it was
// formatted otherwise, as one that reads alike; nothing panics.
func FuzzManifest(f *testing.F) {
	// Short seeds: time that go test spends on making long ones shorter is lost.
	f.Add([]byte(`{"format":"weft-checkpoint-1","world":1,"files":[{"name":"rank-00000.safetensors","size":24,"head":8,"head_xxh3":"0123456789abcdef"}],"tensors":[{"name":"w","dtype":"F32","shape":[2,2],"parts":[{"offset":[0,0],"shape":[2,2]}]}]}`),
		true)
	f.Add([]byte(`{"format":"weft-checkpoint-1","world":1,"files":[{"name":"rank-00000.safetensors"}],"tensors":[{"name":"w","dtype":"F32","shape":[4611686018427387904,4],"parts":[{"offset":[0],"shape":[1]}]}]}`),
		true)
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

// A shard file of any contents beside a good one: it may be refused, or taken for
// what it says, but nothing panics, and what was completed loads or is damaged.
func FuzzShard(f *testing.F) {
	const meta = `{\"format\":\"weft-checkpoint-1\",\"world\":2,\"parts\":{\"p\":{\"name\":\"w\",\"global\":[2,2],\"offset\":[0,0]}},\"chunks_xxh3\":[\"0123456789abcdef\"]}`
	f.Add([]byte(`{"__metadata__":{"weft":"`+meta+`"},"p":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}`), []byte("abcdefgh"))
	f.Add([]byte(`{"__metadata__":{"weft":"{}"}}`), []byte(nil))
	f.Add([]byte(`{}`), []byte(nil))
	f.Fuzz(func(t *testing.T, header, data []byte) {
		mem := newMemory()
		s, err := ckpt.New(mem, ckpt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		good := ckpt.Tensor{Name: "w", Type: "F32", Global: []int{2, 2}, Offset: []int{1, 0}, Shape: []int{1, 2}, Data: make([]byte, 8)}
		if err := s.Save(ctx, ckpt.Meta{World: 2, Rank: 1}, []ckpt.Tensor{good}); err != nil {
			t.Fatal(err)
		}
		list, err := s.List(ctx)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		mem.blobs[list[0].Folder+"/rank-00000.safetensors"] = append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))),
			header...), data...)
		saved := s.Save(ctx, ckpt.Meta{World: 2, Rank: 1}, []ckpt.Tensor{good})
		list, err = s.List(ctx)
		if err != nil || (saved == nil) != (list[0].State == ckpt.Complete) {
			t.Fatalf("saved: %v; list: %+v, %v", saved, list, err)
		}
		if saved != nil {
			return
		}
		found, err := s.Verify(ctx, list[0])
		if err != nil {
			t.Fatal(err)
		}
		whole := ckpt.Tensor{Name: "w", Type: "F32", Shape: []int{2, 2}, Data: make([]byte, 16)}
		if _, err := s.Load(ctx, 0, []ckpt.Tensor{whole}); err != nil && len(found) == 0 {
			t.Fatalf("load: %v; verify found nothing", err)
		}
	})
}
