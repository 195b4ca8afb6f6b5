//go:build linux

package tcp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/conform"
	"github.com/weft-fabric/weft/run/transport"
)

func TestMain(m *testing.M) {
	if os.Getenv("WEFT_TCP_BENCH") != "" {
		benchChild()
		return
	}
	if os.Getenv("WEFT_TCP_RANK") != "" {
		if err := rankChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv("WEFT_CONFORM_BODY") != "" {
		os.Exit(conform.Main(m, bodies))
	}
	goleak.VerifyTestMain(m)
}

// gatherer is a Gather among goroutines.
type gatherer struct {
	mu    sync.Mutex
	n     int
	blobs [][]byte
	left  int
	done  chan struct{}
}

func (g *gatherer) gather(rank int) transport.Gather {
	return func(ctx context.Context, mine []byte) ([][]byte, error) {
		g.mu.Lock()
		if g.left == 0 {
			g.blobs, g.left, g.done = make([][]byte, g.n), g.n, make(chan struct{})
		}
		g.blobs[rank] = mine
		blobs, done := g.blobs, g.done
		if g.left--; g.left == 0 {
			close(done)
		}
		g.mu.Unlock()
		select {
		case <-done:
			return blobs, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// endpoints opens n of them in this process.
func endpoints(t testing.TB, n int, change func(*Config)) []*Endpoint {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	g := &gatherer{n: n}
	es, errs := make([]*Endpoint, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			cfg := Config{Rank: i, Size: n, Gather: g.gather(i), Token: "secret"}
			if change != nil {
				change(&cfg)
			}
			es[i], errs[i] = Open(ctx, cfg)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(es) })
	return es
}

// unopened is an endpoint without connections.
func unopened(t *testing.T, size int) *Endpoint {
	t.Helper()
	e, err := unconnected(Config{Size: size}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func closeAll(es []*Endpoint) {
	var wg sync.WaitGroup
	for _, e := range es {
		wg.Go(func() { e.Close() })
	}
	wg.Wait()
}

func conformWith(t *testing.T, change func(*Config)) {
	conform.Test(t, func(t *testing.T, n int) []transport.Endpoint {
		var out []transport.Endpoint
		for _, e := range endpoints(t, n, change) {
			out = append(out, e)
		}
		return out
	})
}

func TestConform(t *testing.T) { conformWith(t, nil) }

func TestConformStreams(t *testing.T) { conformWith(t, func(c *Config) { c.Streams = 3 }) }
