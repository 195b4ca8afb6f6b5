package cli

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// studioAt starts the verb and gives its page's address and how to end it.
func studioAt(t *testing.T, args ...string) (string, func() error) {
	t.Helper()
	cmd := newStudio()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	cmd.SetContext(ctx)
	cmd.SetOut(in)
	cmd.SetArgs(args)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Execute(); in.Close() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("it printed %q: %v; %v", line, err, <-ended)
	}
	go io.Copy(io.Discard, out)
	return strings.TrimSpace(strings.TrimPrefix(line, "page")), func() error { cancel(); return <-ended }
}

// The verb serves the file that it was given, and ends with its context. On an address that others reach it wants a token.
func TestStudioServes(t *testing.T) {
	page, stop := studioAt(t, "../../examples/dragonfly.yaml", "--listen", "127.0.0.1:0")
	if strings.Contains(page, "#") {
		t.Errorf("a page for this host alone has a token: %s", page)
	}
	answer, err := http.Post(page+"api/start", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(answer.Body)
	answer.Body.Close()
	if !strings.Contains(string(body), "balanced dragonfly, a = 2p = 2h = 8") {
		t.Errorf("the page does not start with the file: %.300s", body)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	page, stop = studioAt(t, "--listen", "0.0.0.0:0")
	at, token, ok := strings.Cut(page, "#t=")
	if !ok || len(token) < 20 {
		t.Fatalf("no token in %s", page)
	}
	at = strings.Replace(at, "[::]", "127.0.0.1", 1)
	at = strings.Replace(at, "localhost", "127.0.0.1", 1)
	for bearer, want := range map[string]int{"": 401, "Bearer " + token: 200} {
		r, err := http.NewRequest("POST", at+"api/start", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", bearer)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("with %q: %d, want %d", bearer, answer.StatusCode, want)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
