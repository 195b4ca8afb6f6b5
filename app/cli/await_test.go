package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// What is waited for is said; when the time is over the error names it, and why it could not be reached.
func TestAwait(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := await(ctx, &out, "the etcd at 127.0.0.1:1", func(ctx context.Context) error {
		<-ctx.Done()
		return errors.Join(ctx.Err(), unreached([]string{"http://127.0.0.1:1"}))
	})
	if err == nil || !strings.Contains(err.Error(), "the etcd at 127.0.0.1:1 did not answer within") ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the error is %v", err)
	}
	if !strings.Contains(out.String(), "waiting for the etcd at 127.0.0.1:1, 10s at most") {
		t.Errorf("it said %q", out.String())
	}
	for listen, want := range map[string]string{"0.0.0.0:7080": "127.0.0.1:7080", "[::]:7080": "127.0.0.1:7080",
		"10.0.0.1:7080": "10.0.0.1:7080"} {
		if at := reachable(listen, "http://127.0.0.1:2379"); at != want {
			t.Errorf("a cache at %s is found at %s, want %s", listen, at, want)
		}
	}
	out.Reset()
	if err := await(t.Context(), &out, "nothing", func(context.Context) error { return nil }); err != nil || out.Len() > 0 {
		t.Errorf("what answers at once: %v, %q", err, out.String())
	}
	wrong := errors.New("another cache has the name")
	if err := await(t.Context(), &out, "it", func(context.Context) error { return wrong }); err != wrong {
		t.Errorf("an answer that refuses: %v", err)
	}
}
