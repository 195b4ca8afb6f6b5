package witness

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/transport/auth"
)

func serve(t *testing.T, dir string) (*Server, *Client) {
	t.Helper()
	s, err := Serve(ServerConfig{Listen: "127.0.0.1:0", Dir: dir, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, &Client{Addr: s.Address(), Token: "secret", Size: 2}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// Votes change by compare and swap, with their record, and each decision has its own.
func TestSwap(t *testing.T) {
	_, c := serve(t, "")
	ctx := within(t)
	one, other := Key{World: [16]byte{1}, Comm: 2, Epoch: 3}, Key{World: [16]byte{1}, Comm: 2, Epoch: 4}
	for i, x := range []struct {
		k       Key
		was, to uint64
		record  []byte
		found   uint64
		kept    string
	}{
		{one, 0, 5, nil, 0, ""},
		{one, 0, 6, nil, 5, ""},
		{one, 5, 6, []byte("first"), 5, ""},
		{one, 5, 7, []byte("second"), 6, "first"},
		{other, 0, 9, []byte("another"), 0, ""},
		{one, 6, 8, nil, 6, "first"},
		{one, 8, 8, nil, 8, "first"},
	} {
		found, kept, err := c.Swap(ctx, x.k, x.was, x.to, x.record)
		if err != nil || found != x.found || string(kept) != x.kept {
			t.Errorf("%d: found %d %q, %v; want %d %q", i, found, kept, err, x.found, x.kept)
		}
	}
}

// Of many that ask at once one is the first.
func TestOneIsFirst(t *testing.T) {
	_, c := serve(t, "")
	ctx := within(t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	first := 0
	for i := range 8 {
		wg.Go(func() {
			found, _, err := c.Swap(ctx, Key{}, 0, uint64(i+1), nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			} else if found == 0 {
				first++
			}
		})
	}
	wg.Wait()
	if first != 1 {
		t.Errorf("%d were the first", first)
	}
}

// What a witness said it says again after a restart, also if its file ends in the middle of a line; a damaged one is an error.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	s, c := serve(t, dir)
	if _, _, err := c.Swap(within(t), Key{Comm: 1}, 0, 7, []byte("record")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "witness")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, append(text, `{"World":[0,`...), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second after what the first wrote
		s, c = serve(t, dir)
		if found, kept, err := c.Swap(within(t), Key{Comm: 1}, 0, 8, nil); found != 7 || string(kept) != "record" || err != nil {
			t.Errorf("found %d %q, %v", found, kept, err)
		}
		if _, _, err := c.Swap(within(t), Key{Comm: 2}, 0, 8, nil); err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
	}
	if err := os.WriteFile(name, []byte("garbage\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Serve(ServerConfig{Listen: "127.0.0.1:0", Dir: dir}); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a damaged file: %v", err)
	}
}

// Strangers are turned away.
func TestToken(t *testing.T) {
	_, c := serve(t, "")
	c.Token = "guess"
	if _, _, err := c.Swap(within(t), Key{}, 0, 1, nil); !errors.Is(err, auth.ErrToken) {
		t.Errorf("with another token: %v", err)
	}
	if _, err := Serve(ServerConfig{Listen: "0.0.0.0:0"}); err == nil || !strings.Contains(err.Error(), "WEFT_TOKEN") {
		t.Errorf("without a token: %v", err)
	}
}
