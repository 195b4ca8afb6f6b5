package outside

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/move/xfer"
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

// slow is storage whose writes wait until free is closed. in hears of the first one.
type slow struct {
	xfer.Storage
	in, free chan struct{}
	once     sync.Once
}

func (s *slow) Kind() xfer.Kind { return xfer.File }

func (s *slow) WriteAt(ctx context.Context, p []byte, off int64) error {
	s.once.Do(func() { close(s.in) })
	<-s.free
	return s.Storage.WriteAt(ctx, p, off)
}

// A region that a peer still reads when the time for its end is over stays the program's to deregister, and its name is not given away.
func TestDeregisterAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), bounded.Limit)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	memory := make([]byte, 1<<20)
	register := call{Do: "register", Name: "m", Addr: uint64(uintptr(unsafe.Pointer(&memory[0]))), Len: int64(len(memory))}
	g := New(os.Getpid())
	defer g.Close()
	must(g.do(call{Do: "new", Name: "owner of what is read"}, &answer{}))
	must(g.do(register, &answer{}))
	if g.do(register, &answer{}) == nil || g.regions["m"] == nil {
		t.Fatal("a name was given twice, or the first region was lost over it")
	}

	reader, err := xfer.New(xfer.Config{Name: "slow reader"})
	must(err)
	defer reader.Close()
	disk := &slow{Storage: xfer.Memory(make([]byte, len(memory))), in: make(chan struct{}), free: make(chan struct{})}
	mine, err := reader.Register("disk", disk, 0)
	must(err)
	owner, err := reader.Open(g.a.Describe())
	must(err)
	theirs, err := owner.Region("m")
	must(err)
	local, err := reader.Prepare(nil, []xfer.Desc{mine.At(0, mine.Size())})
	must(err)
	far, err := reader.Prepare(owner, []xfer.Desc{theirs.At(0, mine.Size())})
	must(err)
	q, err := reader.Post(xfer.Transfer{Op: xfer.Read, Local: local, Remote: far})
	must(err)
	<-disk.in

	late, over := context.WithCancel(ctx)
	over()
	if err := g.deregister(late, call{Name: "m"}); !errors.Is(err, context.Canceled) {
		t.Errorf("it was deregistered under a reader: %v", err)
	}
	if g.do(register, &answer{}) == nil {
		t.Error("its name was given away")
	}
	close(disk.free)
	_ = q.Wait(ctx) // whether it read in time is the reader's to know
	must(g.deregister(ctx, call{Name: "m"}))
	must(g.do(register, &answer{}))
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
