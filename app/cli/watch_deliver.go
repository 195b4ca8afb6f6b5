package cli

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/observe/watch/deliver"
	"github.com/weft-fabric/weft/observe/watch/server"
)

// deliveries is where a server's findings go.
type deliveries struct {
	notifier *deliver.Notifier
	targets  []deliver.Target
	every    time.Duration
	log      *slog.Logger
}

// deliveries reads where incidents and metrics go. Nothing is sent yet.
func (f *watchServe) deliveries(cmd *cobra.Command) (*deliveries, error) {
	d := &deliveries{every: f.pushEvery, log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))}
	if d.every < time.Second {
		return nil, fmt.Errorf("--push-every %s: at least 1s", d.every)
	}
	var hooks []*deliver.Hook
	for _, text := range f.notify {
		h, err := deliver.ParseHook(text, f.url)
		if err != nil {
			return nil, fmt.Errorf("--notify: %w", err)
		}
		hooks = append(hooks, h)
	}
	for _, text := range f.push {
		t, err := deliver.ParseTarget(text)
		if err != nil {
			return nil, fmt.Errorf("--push: %w", err)
		}
		d.targets = append(d.targets, t)
	}
	d.notifier = deliver.NewNotifier(hooks, d.log)
	return d, nil
}

func (d *deliveries) run(ctx context.Context, s *server.Server) {
	go d.notifier.Run(ctx)
	if len(d.targets) > 0 {
		go deliver.Push(ctx, d.every, s.WriteMetrics, d.targets, d.log)
	}
}
