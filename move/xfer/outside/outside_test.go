package outside

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// lines runs a whole conversation and gives the answers.
func lines(t *testing.T, text string) (out []answer) {
	t.Helper()
	var b bytes.Buffer
	if err := Main(strings.NewReader(text), &b); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&b)
	for d.More() {
		var a answer
		if err := d.Decode(&a); err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

// What is wrong is answered with its kind, and the next call is heard. python/tests/kv_clients.py moves data through it.
func TestWrongCalls(t *testing.T) {
	got := lines(t, `{"id": 1, "do": "describe"}
nonsense
{"id": 3, "do": "new", "name": "a"}
{"id": 4, "do": "new", "name": "b"}
{"id": 5, "do": "fly"}
{"id": 6, "do": "register", "name": "m", "addr": 0, "len": 10}
{"id": 7, "do": "deregister", "name": "m"}
{"id": 8, "do": "prepare", "peer": "nobody", "descs": [{"r": "x", "o": 0, "n": 1}]}
{"id": 9, "do": "prepare", "descs": [{"r": "x", "o": 0, "n": 1}]}
{"id": 10, "do": "post", "op": "READ", "local": 1, "far": 2}
{"id": 11, "do": "poll", "req": 5}
{"id": 12, "do": "release", "req": 5}
{"id": 13, "do": "drop", "list": 5}
{"id": 14, "do": "notify", "peer": "nobody"}
{"id": 15, "do": "open", "blob": "AAAA"}
{"id": 16, "do": "forget", "name": "nobody"}
{"id": 17, "do": "notices"}
`)
	want := []string{"parameter", "parameter", "", "parameter", "parameter", "parameter", "not found", "not found", "not found", "not found",
		"not found", "not found", "not found", "not found", "backend", "not found", ""}
	if len(got) != len(want) {
		t.Fatalf("%d answers, want %d", len(got), len(want))
	}
	for i, a := range got {
		if a.Kind != want[i] || (a.Error != "") != (want[i] != "") {
			t.Errorf("call %d: %q %q, want %q", i+1, a.Kind, a.Error, want[i])
		}
	}
}

func FuzzMain(f *testing.F) {
	f.Add([]byte("{\"id\": 3, \"do\": \"new\", \"name\": \"a\"}\n{\"id\": 4, \"do\": \"prepare\", \"descs\": [{}]}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Contains(text, []byte("register")) || bytes.Contains(text, []byte("listen")) || len(text) > 1<<16 {
			return // memory of the process that tests, and addresses of this host
		}
		var b bytes.Buffer
		_ = Main(bytes.NewReader(text), &b)
	})
}
