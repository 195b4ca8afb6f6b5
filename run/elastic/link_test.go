package elastic

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/internal/member"
)

func TestConnectSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct{ value, says string }{
		{"", "weft up"},
		{"seven", "is not a descriptor"},
		{"1", "is not a descriptor"},
		{"987654", "descriptor 987654"},
	} {
		t.Setenv(EnvAgent, c.value)
		if l, err := Connect(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s=%q: %v, %v; want it to say %q", EnvAgent, c.value, l, err, c.says)
		}
	}
}

// An address that is none of this host's is told when the process starts, not when
// it is rank 0 for the first time.
func TestAHostThatIsAnother(t *testing.T) {
	ours, theirs := sockets(t)
	defer ours.Close()
	if _, err := connect(theirs, "192.0.2.1"); err == nil || !strings.Contains(err.Error(), "192.0.2.1") {
		t.Errorf("%v", err)
	}
	if _, err := theirs.Write([]byte("x")); err == nil {
		t.Error("the connection with the agent is left open")
	}
}

// A process gets its end of the connection as a descriptor.
func TestConnectByDescriptor(t *testing.T) {
	ours, theirs := sockets(t)
	defer ours.Close()
	raw, err := theirs.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	own := -1 // a descriptor that is the link's to close
	if e := raw.Control(func(fd uintptr) { own, err = unix.Dup(int(fd)) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	theirs.Close()
	t.Setenv(EnvAgent, strconv.Itoa(own))
	l, err := Connect()
	if err != nil {
		t.Fatal(err)
	}
	var said []Kind
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Lines(ours, func(w Word) { said = append(said, w.Kind) })
	}()
	if err := l.Report("colour", func() {}); err == nil {
		t.Error("a function can be reported")
	}
	if err := l.Report("colour", "red"); err != nil {
		t.Error(err)
	}
	l.Progress(7, time.Second)
	l.Close(nil)
	<-done
	var rest []Kind // beats come when they come
	for _, k := range said {
		if k != Beat {
			rest = append(rest, k)
		}
	}
	if want := []Kind{Hello, Report, Ended}; !reflect.DeepEqual(rest, want) {
		t.Errorf("%v, want %v", rest, want)
	}
}

// Connections that come before an epoch's turn wait for it, and those that come after it
// are for the next.
func TestTheListenerHasTurns(t *testing.T) {
	t.Parallel()
	d, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dial := func() net.Conn {
		c, err := net.Dial("tcp", d.ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	same := func(a, b net.Conn) bool { return a.LocalAddr().String() == b.RemoteAddr().String() }
	early := dial()
	first := d.open()
	if c, err := first.Accept(); err != nil || !same(early, c) {
		t.Fatalf("%v, %v", c, err)
	}
	got := make(chan error, 1)
	go func() { _, err := first.Accept(); got <- err }()
	first.retire()
	first.retire()
	late := dial()
	second := d.open()
	if c, err := second.Accept(); err != nil || !same(late, c) {
		t.Fatalf("the second turn: %v, %v", c, err)
	}
	select {
	case err := <-got:
		t.Fatalf("a retired turn ended before it was closed: %v", err)
	default:
	}
	if first.Addr().String() != d.ln.Addr().String() {
		t.Error(first.Addr())
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := <-got; err != net.ErrClosed {
		t.Error(err)
	}
	if _, err := first.Accept(); err != net.ErrClosed {
		t.Error(err)
	}
	go func() {
		c, err := second.Accept()
		if c != nil {
			c.Close()
		}
		got <- err
	}()
	waiting := dial() // accepted by the listener at most, by no turn
	d.close()
	d.close()
	if err := <-got; err != nil && err != net.ErrClosed {
		t.Error(err)
	}
	waiting.SetReadDeadline(time.Now().Add(limit))
	if _, err := waiting.Read(make([]byte, 1)); os.IsTimeout(err) {
		t.Error("a closed listener leaves callers waiting")
	}
}

func TestWhichEpochsEndAStep(t *testing.T) {
	seats := func(lives ...string) (list []Seat) {
		for i, l := range lives {
			list = append(list, Seat{ID: member.ID(i), Life: member.Life(l[0])})
		}
		return list
	}
	old := &Epoch{Number: 1, Members: seats("a", "b")}
	for _, c := range []struct {
		name          string
		next          *Epoch
		without, same bool
	}{
		{"the same", &Epoch{Members: seats("a", "b")}, false, true},
		{"one more", &Epoch{Members: seats("a", "b", "c")}, false, false},
		{"one less", &Epoch{Members: seats("a")}, true, false},
		{"one less after the step", &Epoch{Members: seats("a"), Waits: true}, false, false},
		{"another process", &Epoch{Members: seats("a", "x")}, true, false},
		{"the same that halt", &Epoch{Members: seats("a", "b"), Halt: true}, false, false},
	} {
		if got := c.next.without(old); got != c.without {
			t.Errorf("%s: without is %v", c.name, got)
		}
		if got := same(c.next, old); got != c.same {
			t.Errorf("%s: same is %v", c.name, got)
		}
	}
}

// FuzzLines: what comes over a connection is read as words or refused, and what is
// read is what would be written.
func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"kind":"assign","place":{"number":3,"rank":1,"members":[{"id":0,"life":"0000000000000000"},{"id":4,"life":"0000000000000001"}],"addr":"127.0.0.1:1","token":"t","waits":true}}` +
		"\n" + `{"kind":"stop"}`))
	f.Add([]byte(`{"kind":"failed","epoch":2,"at":"2026-01-02T03:04:05.000000006Z","blame":[{"id":1,"life":"00000000000000ab"}],"text":"a\nb"}` +
		"\n\n"))
	f.Add([]byte(`{"kind":"report","name":"step","data":{"loss":1e-3}}`))
	f.Add([]byte(`{"kind":"beat","step":9,"pace_ns":5}` + "\r\n{"))
	f.Add([]byte("not json\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		go func() {
			ours.Write(b)
			ours.Close()
		}()
		var words []Word
		err := Lines(theirs, func(w Word) { words = append(words, w) })
		theirs.Close()
		lines := bytes.Count(b, []byte("\n")) + 1
		if len(words) > lines {
			t.Fatalf("%d words of %d lines", len(words), lines)
		}
		if err == nil && len(words) == 0 && len(bytes.TrimSpace(b)) > 0 {
			t.Fatalf("%q was passed over", b)
		}
		for _, w := range words {
			line, err := json.Marshal(w)
			if err != nil {
				t.Fatalf("%+v: %v", w, err)
			}
			if bytes.ContainsRune(line, '\n') {
				t.Fatalf("%q is not one line", line)
			}
			var again Word
			if err := json.Unmarshal(line, &again); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			twice, err := json.Marshal(again)
			if err != nil || !bytes.Equal(line, twice) {
				t.Fatalf("%s, then %s, %v", line, twice, err)
			}
		}
	})
}
