package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/run/comm"
)

// Steady is what a rank does whose work shall be watched while its network is broken: one
// all-reduce after the other, each verified, of some
// bytes, until SIGTERM comes to rank 0. It writes a JSON object a
// line: "operation" from rank 0 with its bytes, time and wrong elements, and from
// every rank what happens to its links ("path lost", "path back", "link lost", "link back").
func Steady(ctx context.Context, bytes int, out io.Writer) error {
	cfg, err := comm.FromEnv()
	if err != nil {
		return err
	}
	if bytes < 8 {
		return fmt.Errorf("operations of %d bytes; want at least 8", bytes)
	}
	var asked atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		if _, ok := <-signals; ok {
			asked.Store(true)
		}
	}()
	log := slog.New(slog.NewJSONHandler(out, nil))
	cfg.Log = log
	c, err := comm.Join(ctx, cfg)
	if err != nil {
		return err
	}
	// Element 0 is not part of the sums: rank 0 says there that it was asked to end.
	src, dst := make([]float32, bytes/4), make([]float32, bytes/4)
	want := float32(0)
	for r := range c.Size() {
		want += float32(r + 1)
	}
	for stop := false; !stop; {
		for i := range src {
			src[i] = float32(c.Rank() + 1)
		}
		src[0] = 0
		if c.Rank() == 0 && asked.Load() {
			src[0] = 1
		}
		began := time.Now()
		if err := comm.AllReduceTo(ctx, c, dst, src, comm.Sum); err != nil {
			return err
		}
		took := time.Since(began)
		wrong := 0
		for _, x := range dst[1:] {
			if x != want {
				wrong++
			}
		}
		stop = dst[0] != 0
		if c.Rank() == 0 || wrong > 0 {
			log.Info("operation", "rank", c.Rank(), "bytes", bytes, "took", took, "wrong", wrong)
		}
	}
	return c.Close()
}
