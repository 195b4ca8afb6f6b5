//go:build unix

package route

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/move/openai"
	"go.uber.org/goleak"
)

// TestMain is also an engine, a process of its own.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "engine" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		fmt.Println(l.Addr())
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the test
			os.Exit(0)
		}()
		mux := http.NewServeMux()
		mux.Handle("/", openai.Handler(parrot{}))
		mux.HandleFunc("POST /tokenize", tokenize)
		panic(http.Serve(l, mux))
	}
	goleak.VerifyTestMain(m)
}

// parrot says its process's number and the prompt's last letters. The prompt says where it stops for good: "hang N".
type parrot struct{}

func (parrot) Card() openai.Card             { return openai.Card{ID: "parrot", Context: 1 << 20} }
func (parrot) Decode(id int) ([]byte, error) { return []byte{byte(id)}, nil }
func (parrot) Encode(s string) (ids []int) {
	for _, b := range []byte(s) {
		ids = append(ids, int(b))
	}
	return ids
}

func (parrot) Generate(ctx context.Context, j openai.Job, each func(openai.Token) bool) (int, error) {
	var prompt []byte
	for _, id := range j.Prompt {
		prompt = append(prompt, byte(id))
	}
	hang, cached := -1, len(prompt)
	if _, after, ok := strings.Cut(string(prompt), "hang "); ok {
		_, _ = fmt.Sscan(after, &hang)
	}
	if strings.Contains(string(prompt), "evicted") {
		cached = 0
	}
	for i, b := range []byte(fmt.Sprintf("%d %s", os.Getpid(), prompt[max(0, len(prompt)-8):])) {
		if i == hang {
			<-ctx.Done()
		}
		if !each(openai.Token{ID: int(b), Bytes: []byte{b}}) {
			break
		}
	}
	return cached, ctx.Err()
}

// startEngine starts an engine and returns its address.
func startEngine(t *testing.T) (string, *exec.Cmd) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := bounded.Server(t, exe, "engine")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	at, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + strings.TrimSpace(at), cmd
}

// front is a router with engines behind it.
type front struct {
	*Router
	url  string
	cmds map[int]*exec.Cmd // by process
}

func newFront(t *testing.T, n int, o Options) front {
	t.Helper()
	f := front{cmds: map[int]*exec.Cmd{}}
	for range n {
		at, cmd := startEngine(t)
		o.Engines = append(o.Engines, at)
		f.cmds[cmd.Process.Pid] = cmd
	}
	var err error
	if f.Router, err = New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	server := httptest.NewServer(f.Handler())
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

// ask sends a prompt, and returns the number of the process that answered.
func (f front) ask(t *testing.T, prompt string) (pid int) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "parrot", "prompt": prompt, "max_tokens": 20})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.Post(f.url+"/v1/completions", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var a struct{ Choices []struct{ Text string } }
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil || len(a.Choices) != 1 {
		t.Fatalf("%s: %v %+v", r.Status, err, a)
	}
	last := ""
	if _, err := fmt.Sscan(a.Choices[0].Text, &pid, &last); err != nil || last != prompt[len(prompt)-8:] {
		t.Fatalf("%q answers %q: %v", a.Choices[0].Text, prompt, err)
	}
	return pid
}

// stream sends a prompt and calls each with the text so far. It returns text, error and whether [DONE] came.
func (f front) stream(t *testing.T, prompt string, each func(text string)) (text, failed string, done bool) {
	t.Helper()
	body := fmt.Sprintf(`{"model": "parrot", "prompt": %q, "max_tokens": 20, "stream": true}`, prompt)
	r, err := http.Post(f.url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if done = data == "[DONE]"; done {
			break
		}
		var a struct {
			Choices []struct{ Text string }
			Error   struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &a); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		failed += a.Error.Message
		for _, c := range a.Choices {
			text += c.Text
			each(text)
		}
	}
	return text, failed, done
}

func conversation(k, turns int) string {
	s := strings.Repeat(fmt.Sprintf("instructions %04d ", k), 20)
	for i := range turns {
		s += fmt.Sprintf("turn %d of conversation %d; ", i, k)
	}
	return fmt.Sprintf("%s end%05d", s, k)
}

// Every turn of a conversation reaches the engine that has its beginning, and conversations spread over all engines.
func TestConversationsStayTogether(t *testing.T) {
	f := newFront(t, 3, Options{})
	home, use := map[int]int{}, map[int]int{}
	for turn := range 4 {
		for k := range 9 {
			pid := f.ask(t, conversation(k, turn))
			if turn == 0 {
				home[k] = pid
				use[pid]++
			}
			if pid != home[k] {
				t.Errorf("turn %d of conversation %d went to %d, the others to %d", turn, k, pid, home[k])
			}
		}
	}
	if len(use) != 3 {
		t.Errorf("conversations by engine: %v", use)
	}
	known, all := 0, 0
	for _, e := range f.Status().Engines {
		known, all = known+e.Known, all+e.Prompts
		if e.Waiting != 0 {
			t.Errorf("%+v has nothing to do", e)
		}
	}
	if known*10 < all*6 {
		t.Errorf("%d of %d bytes had been seen", known, all)
	}
}

// An engine that is full of work gives a prompt away, although it has its beginning.
func TestBusyEnginesShare(t *testing.T) {
	f := newFront(t, 2, Options{})
	home := f.ask(t, conversation(1, 0))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	// Prompts that hang before their first token, longer in all than the conversation.
	var waiting int
	for k := range 40 {
		body := fmt.Sprintf(`{"model": "parrot", "prompt": %q, "max_tokens": 20, "stream": true}`,
			conversation(1, 3)+fmt.Sprintf(" %03d hang 0 ", k))
		q, err := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/json")
		wg.Go(func() {
			if r, err := http.DefaultClient.Do(q); err == nil {
				r.Body.Close()
			}
		})
		waiting++
	}
	for {
		have := 0
		for _, e := range f.Status().Engines {
			have += e.Requests
		}
		if have == waiting+1 {
			break
		}
		select {
		case <-time.After(time.Millisecond): // between two looks
		case <-t.Context().Done():
			t.Fatal("requests do not arrive")
		}
	}
	for _, e := range f.Status().Engines {
		if e.Requests < 5 {
			t.Errorf("of %d requests engine %s has %d; %d has the conversation", waiting, e.Engine, e.Requests, home)
		}
	}
}

// An engine dies after the first tokens: the client gets an error, not half an answer that looks whole.
func TestEngineDiesMidStream(t *testing.T) {
	f := newFront(t, 2, Options{})
	text, failed, done := f.stream(t, "hang 8 abc", func(text string) {
		if pid := 0; len(text) == 8 {
			if _, err := fmt.Sscan(text, &pid); err != nil {
				t.Fatal(err)
			}
			_ = f.cmds[pid].Process.Kill()
		}
	})
	if len(text) != 8 || !strings.Contains(failed, "in the middle of the answer") || !done {
		t.Errorf("%q, error %q, done %t", text, failed, done)
	}
	if s := f.Status(); s.Broken != 1 || s.Retries != 0 {
		t.Errorf("%+v", s)
	}
}

// An engine dies, or freezes, before the first token: another one answers, and the client notices nothing.
func TestRetriesBeforeTheFirstToken(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(s.String(), func(t *testing.T) {
			f := newFront(t, 2, Options{Health: 100 * time.Millisecond})
			home := f.ask(t, conversation(1, 0))
			if err := f.cmds[home].Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			var how syscall.WaitStatus // a signal takes effect some time after it was sent
			if _, err := syscall.Wait4(home, &how, syscall.WUNTRACED, nil); err != nil || !how.Stopped() && !how.Signaled() {
				t.Fatalf("%v %v", how, err)
			}
			if other := f.ask(t, conversation(1, 1)); other == home {
				t.Errorf("%d answered after %s", other, s)
			}
			text, failed, done := f.stream(t, conversation(1, 2), func(string) {})
			if pid := 0; failed != "" || !done {
				t.Errorf("%q %s", text, failed)
			} else if _, err := fmt.Sscan(text, &pid); err != nil || pid == home {
				t.Errorf("%d answered after %s: %v", pid, s, err)
			}
			_ = f.cmds[home].Process.Kill()
		})
	}
}

// What an engine reports as not cached is no longer believed to be there.
func TestEvictedBlocksAreForgotten(t *testing.T) {
	f := newFront(t, 1, Options{})
	known := func() int { return f.Status().Engines[0].Known }
	for i := range 3 {
		f.ask(t, conversation(7, i))
	}
	before := known()
	if before == 0 {
		t.Fatal("nothing is remembered")
	}
	f.ask(t, conversation(7, 3)+" evicted "+"12345678") // known, but the engine reports nothing cached
	middle := known()
	f.ask(t, conversation(7, 3)+"12345678")
	if middle == before || known() != middle {
		t.Errorf("known bytes: %d, %d, %d", before, middle, known())
	}
}

// Without an engine the answer is 503 with the reason; an engine that comes back is used again.
func TestNoEngine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	f := newFront(t, 0, Options{Engines: []string{"http://" + at}, Health: 20 * time.Millisecond})
	r, err := http.Post(f.url+"/v1/completions", "application/json", strings.NewReader(`{"model": "parrot", "prompt": "12345678"}`))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if r.StatusCode != 503 || !strings.Contains(string(text), "connection refused") || !strings.Contains(string(text), `"server_error"`) {
		t.Errorf("%s: %s", r.Status, text)
	}
	if _, err := New(t.Context(), Options{Engines: []string{"localhost"}}); err == nil {
		t.Error("an engine without http:// is accepted")
	}
	if l, err = net.Listen("tcp", at); err != nil {
		t.Skip("the port was taken")
	}
	s := &http.Server{Handler: openai.Handler(parrot{})}
	go s.Serve(l)
	defer s.Close()
	for f.Status().Up == 0 {
		select {
		case <-time.After(time.Millisecond): // between two looks
		case <-t.Context().Done():
			t.Fatal("the engine is not seen")
		}
	}
	f.ask(t, "12345678")
	for path, want := range map[string]int{"/v1/models": 200, "/v1/models/parrot": 200, "/v1/models/meta/parrot": 404, "/v1/embeddings": 404} {
		r, err := http.Get(f.url + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != want || !strings.Contains(string(text), `"id":"parrot"`) && want == 200 {
			t.Errorf("%s: %s %s", path, r.Status, text)
		}
	}
}
