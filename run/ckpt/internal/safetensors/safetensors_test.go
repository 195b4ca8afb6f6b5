package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	other "github.com/maruel/safetensors"
	"github.com/weft-fabric/weft/run/ckpt/internal/safetensors"
	"pgregory.net/rapid"
)

func parse(text string, data int64) (safetensors.Header, error) {
	return safetensors.Parse([]byte(text), data)
}

func TestParse(t *testing.T) {
	h, err := parse(`{"b":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   `,
		16)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Entries) != 2 || h.Entries[0].Name != "a" || h.Entries[1].Begin != 4 || h.Metadata["k"] != "v" {
		t.Errorf("%+v", h)
	}
	if _, err := parse(`{}`, 0); err != nil {
		t.Errorf("a file without tensors: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:           "does not start with {",
		`[]`:         "does not start with {",
		` {}`:        "does not start with {",
		`{`:          "EOF",
		`{}x`:        "follows the closing brace",
		`{}{}`:       "follows the closing brace",
		`{"a":1}`:    `tensor "a"`,
		`{"a":{}}`:   `unknown element type ""; known: BOOL`,
		`{"a":null}`: `unknown element type ""`,
		`{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,8]}}`:                                                       `unknown element type "F4"`,
		`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}}`:                                                        "want two numbers",
		`{"a":{"dtype":"F32","data_offsets":[0,8]}}`:                                                                  "no shape",
		`{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,8]}}`:                                                    "cannot unmarshal",
		`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`:                                                      "want 12 bytes",
		`{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`:                                                     "want lengths from 0 on",
		`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}`:                                  "2^63",
		`{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`:                                                      "want 8 bytes",
		`{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}`:                                                     "want 8 bytes",
		`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`:                                                      "starts at byte 4",
		`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`:                                                      "end at byte 4 of the data, which has 8",
		`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32"}}`:                                  `"a" is there twice`,
		`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"x":1}}`:                               "__metadata__",
		`{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}`: `starts at byte 0 of the data; the one before ends at 8`,
	} {
		if _, err := parse(text, 8); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for _, n := range []uint64{0, 1, safetensors.MaxHeader + 1, math.MaxUint64} {
		if _, err := safetensors.Length(binary.LittleEndian.AppendUint64(nil, n)); err == nil {
			t.Errorf("a header of %d bytes is accepted", n)
		}
	}
	if _, err := safetensors.Length(make([]byte, 7)); err == nil {
		t.Error("7 bytes are accepted")
	}
}

// headers draws a header whose entries fill the data, in the order Encode is given.
func headers(t *rapid.T) (safetensors.Header, []byte) {
	var h safetensors.Header
	types := []safetensors.Type{safetensors.F32, safetensors.BF16, safetensors.I64, safetensors.Bool, safetensors.U16}
	names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z\."<é ]{1,8}`), 1, 6, rapid.ID).Draw(t, "names")
	at := int64(0)
	for _, n := range names {
		e := safetensors.Entry{Name: n, Type: rapid.SampledFrom(types).Draw(t, "type"), Begin: at}
		e.Shape = rapid.SliceOfN(rapid.IntRange(0, 4), 0, 3).Draw(t, "shape")
		size := int64(e.Type.Size())
		for _, d := range e.Shape {
			size *= int64(d)
		}
		at += size
		e.End = at
		h.Entries = append(h.Entries, e)
	}
	if rapid.Bool().Draw(t, "meta") {
		h.Metadata = map[string]string{"k": rapid.String().Draw(t, "value")}
	}
	data := make([]byte, at)
	for i := range data {
		data[i] = byte(i)
	}
	return h, data
}

// What Encode writes is read alike by Parse and by another implementation.
func TestEncodeIsReadByAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, data := headers(t)
		head, err := h.Encode(64)
		if err != nil {
			t.Fatal(err)
		}
		n, err := safetensors.Length(head)
		if err != nil || n+safetensors.Prefix != len(head) || len(head)%64 != 0 {
			t.Fatalf("length %d of %d: %v", n, len(head), err)
		}
		got, err := safetensors.Parse(head[safetensors.Prefix:], int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		file, err := other.Parse(append(bytes.Clone(head), data...))
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range h.Entries {
			g := got.Entries[slices.IndexFunc(got.Entries, func(g safetensors.Entry) bool { return g.Name == e.Name })]
			if g.Type != e.Type || !slices.Equal(g.Shape, e.Shape) || g.Begin != e.Begin || g.End != e.End {
				t.Fatalf("%+v, want %+v", g, e)
			}
			o := file.Tensors[i]
			if o.Name != e.Name || string(o.DType) != string(e.Type) || !bytes.Equal(o.Data, data[e.Begin:e.End]) {
				t.Fatalf("the other reads %+v, want %+v", o, e)
			}
		}
		if got.Metadata["k"] != strings.ToValidUTF8(h.Metadata["k"], "\ufffd") {
			t.Fatalf("metadata %q, want %q", got.Metadata, h.Metadata)
		}
	})
}

// Whatever Parse accepts fills the data exactly, and survives being written again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`), int64(8))
	f.Add([]byte(`{"__metadata__":{"x":"y"},"a":{"dtype":"I8","shape":[0,7],"data_offsets":[0,0]},"b":{"dtype":"I8","shape":[],"data_offsets":[0,1]}}  `),
		int64(1))
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}`), int64(0))
	f.Add([]byte(`{}`), int64(0))
	f.Fuzz(func(t *testing.T, header []byte, data int64) {
		h, err := safetensors.Parse(header, data)
		if err != nil {
			return
		}
		at := int64(0)
		for _, e := range h.Entries {
			n := int64(e.Type.Size())
			for _, d := range e.Shape {
				n *= int64(d)
			}
			if e.Begin != at || e.End-e.Begin != n {
				t.Fatalf("%+v at %d", e, at)
			}
			at = e.End
		}
		if at != data {
			t.Fatalf("entries end at %d of %d", at, data)
		}
		head, err := h.Encode(8)
		if err != nil {
			t.Fatal(err)
		}
		again, err := safetensors.Parse(head[safetensors.Prefix:], data)
		if err != nil || len(again.Entries) != len(h.Entries) {
			t.Fatalf("%v: %d entries, want %d", err, len(again.Entries), len(h.Entries))
		}
	})
}
