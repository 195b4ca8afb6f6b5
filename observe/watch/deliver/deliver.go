// Package deliver brings what a server of weft watch knows to where people look:
// incidents to Slack, PagerDuty and everything that takes Alertmanager's webhooks, and
// metrics to Prometheus (remote write) and OpenTelemetry collectors (OTLP over HTTP).
//
//	Incident ──► Hook  ──► a queue with retries ──► POST
//	/metrics ──► Parse ──► RemoteWrite or OTLP  ──► POST, every few seconds
//
// A receiver that does not answer never holds the server up: incidents wait in a bounded
// queue, metrics of that moment are dropped.
package deliver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/run/retry"
)

// message is a request that is to be made.
type message struct {
	url     string
	header  map[string]string
	body    []byte
	confirm func(text string) error // what the answer must be; nil for any
}

// How long a receiver has, how often it is tried and how many incidents wait for it.
const (
	answerTime = 15 * time.Second
	attempts   = 6
	queueKept  = 1000
)

// errRefused is an answer that no repetition changes.
var errRefused = errors.New("refused")

// post makes a request once.
func post(ctx context.Context, client *http.Client, m message) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(m.body))
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	req.Header.Set("User-Agent", "weft-watch")
	for k, v := range m.header {
		req.Header.Set(k, v)
	}
	res, err := client.Do(req)
	if err != nil {
		return safe(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<14))
	switch {
	case res.StatusCode/100 == 2 && m.confirm != nil:
		return m.confirm(string(text))
	case res.StatusCode/100 == 2:
		return nil
	case res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500:
		return fmt.Errorf("it answered %s: %.200s", res.Status, text)
	}
	return fmt.Errorf("%w: it answered %s: %.200s", errRefused, res.Status, text)
}

// safe leaves the address out of an error: that of a Slack hook is a secret.
func safe(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}

// Hook is a receiver of incidents.
type Hook struct {
	Name string // for messages: slack, pagerduty, otlp or webhook
	make func(i watch.Incident) message
	page string
}

// ParseHook reads KIND=VALUE: slack=URL, pagerduty=KEY, otlp=URL and webhook=URL. With @FILE as value it is read from a file, so that
// nobody sees it in the list of processes. PagerDuty's value may begin with the address of another region.
func ParseHook(text, page string) (*Hook, error) {
	kind, value, ok := strings.Cut(text, "=")
	if file, is := strings.CutPrefix(value, "@"); is {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		value = strings.TrimSpace(string(b))
	}
	h := &Hook{Name: kind, page: strings.TrimSuffix(page, "/")}
	switch {
	case !ok || value == "":
		return nil, fmt.Errorf("%q is no receiver; give slack=URL, pagerduty=KEY, otlp=URL or webhook=URL, or @FILE for a value", text)
	case kind == "slack":
		h.make = func(i watch.Incident) message { return h.slack(value, i) }
	case kind == "pagerduty":
		at, key, two := strings.Cut(value, " ")
		if !two {
			at, key = "https://events.pagerduty.com/v2/enqueue", value
		}
		h.make = func(i watch.Incident) message { return h.pagerDuty(at, strings.TrimSpace(key), i) }
		value = at
	case kind == "otlp":
		if u, err := url.Parse(value); err == nil && strings.Trim(u.Path, "/") == "" {
			value = strings.TrimSuffix(value, "/") + "/v1/logs"
		}
		h.make = func(i watch.Incident) message { return h.logRecord(value, i) }
	case kind == "webhook":
		h.make = func(i watch.Incident) message { return h.alertmanager(value, i) }
	default:
		return nil, fmt.Errorf("%q is none of slack, pagerduty, otlp and webhook", kind)
	}
	if u, err := url.Parse(value); err != nil || u.Host == "" || !slices.Contains([]string{"http", "https"}, u.Scheme) {
		return nil, fmt.Errorf("%s has no address that begins with http:// or https://", kind)
	}
	return h, nil
}

// Notifier delivers incidents to hooks, in their order.
type Notifier struct {
	client *http.Client
	log    *slog.Logger
	pause  time.Duration // before the second attempt; doubled before each later one
	lines  []*line
}

// line is a hook and what waits for it.
type line struct {
	hook  *Hook
	queue chan watch.Incident
}

// NewNotifier delivers to hooks once Run runs.
func NewNotifier(hooks []*Hook, log *slog.Logger) *Notifier {
	n := &Notifier{client: http.DefaultClient, log: log, pause: time.Second}
	for _, h := range hooks {
		n.lines = append(n.lines, &line{h, make(chan watch.Incident, queueKept)})
	}
	return n
}

// Notice takes an incident that opened or ended. It never waits.
func (n *Notifier) Notice(i watch.Incident) {
	if i.Severity < doctor.Warning {
		return
	}
	for _, l := range n.lines {
		select {
		case l.queue <- i:
		default:
			n.log.Warn("too many incidents wait; one is not delivered", "to", l.hook.Name, "incident", i.ID)
		}
	}
}

// Run delivers until the context ends.
func (n *Notifier) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, l := range n.lines {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-ctx.Done():
					return
				case i := <-l.queue:
					n.deliver(ctx, l.hook, i)
				}
			}
		}()
	}
	wg.Wait()
}

// deliver tries until it is taken, refused or given up.
func (n *Notifier) deliver(ctx context.Context, h *Hook, i watch.Incident) {
	pauses := retry.Pause(n.pause, n.pause<<attempts)
	for k := range attempts {
		err := post(ctx, n.client, h.make(i))
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case errors.Is(err, errRefused) || k == attempts-1:
			n.log.Warn("an incident was not delivered", "to", h.Name, "incident", i.ID, "error", err)
			return
		}
		if pauses.Wait(ctx) != nil {
			return
		}
	}
}
