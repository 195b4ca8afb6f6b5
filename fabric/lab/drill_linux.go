package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Drill plants a fault in the lab, measures, repairs it and reports.
func (i *Info) Drill(ctx context.Context, name string, cfg DrillConfig) (*Drill, error) {
	t, err := i.aim()
	if err != nil {
		return nil, err
	}
	near, beyond := t.near, t.beyond
	b, err := i.breakage(name, t)
	if err != nil {
		return nil, err
	}
	d := &Drill{Where: b.where, Noticed: []Notice{}, Drift: []string{}, Shares: []Share{}, Restored: -1}
	for _, f := range Faults() {
		if f.Name == name {
			d.Fault = f
		}
	}
	cfg.Log("%s: waiting until every leaf has all its ways", name)
	if err := until(60*time.Second, i.whole); err != nil {
		return nil, fmt.Errorf("the lab is not whole before the drill: %w", err)
	}
	if len(cfg.Hosts) == 0 {
		cfg.Hosts = append(append([]string{}, near[:min(2, len(near))]...), beyond[:min(2, len(beyond))]...)
	}
	var ranks *ranks
	if len(cfg.Program) > 0 {
		cfg.Log("%s: starting %d ranks", name, len(cfg.Hosts))
		if ranks, err = i.start(ctx, &cfg); err != nil {
			return nil, err
		}
		defer ranks.stop()
	}
	size := b.size
	if size == 0 {
		size = 64
	}
	p, err := i.probe(t.from, t.to, t.src, t.dst, 16, size, 2*time.Millisecond)
	if err != nil {
		return nil, err
	}
	w := i.watch(t)
	mark := func() (time.Time, []uint64, []uint64) {
		c, _ := i.counters(b.shares)
		return time.Now(), c, i.railBytes(cfg.Hosts)
	}
	t0, c0, r0 := mark()
	cfg.Log("%s: before, %s", name, cfg.Phase)
	if err := pause(ctx, cfg.Phase); err != nil {
		return nil, err
	}
	var known map[conn][]int
	if ranks != nil {
		if known, err = i.known(); err != nil {
			return nil, err
		}
	}
	t1, c1, r1 := mark()
	cfg.Log("%s: broken, %s: %s", name, cfg.During, b.where)
	w.begin(t1)
	repaired := false
	defer func() {
		if !repaired {
			_ = b.repair()
		}
	}()
	planted := make(chan error, 1)
	go func() { planted <- b.plant() }()
	if err := cfg.hold(ctx, p, w); err != nil {
		<-planted
		return nil, err
	}
	if err := <-planted; err != nil {
		return nil, fmt.Errorf("planting %s: %w", name, err)
	}
	d.Noticed = append(d.Noticed, w.end()...)
	d.Probe.Dead = p.dead(time.Second)
	t2, c2, r2 := mark()
	if ranks != nil {
		d.Runtime = &Runtime{Known: len(known)}
		if first, what := ranks.noticed(t1, t2); what != "" {
			d.Noticed = append(d.Noticed, Notice{"weft's runtime", what, first})
		}
		if d.Runtime.Suspect, err = i.blame(ranks, known, t1, t2); err != nil {
			return nil, err
		}
	}
	if cfg.Drift != nil {
		if d.Drift, err = cfg.Drift(); err != nil {
			return nil, err
		}
	}
	t3, _, r3 := mark()
	cfg.Log("%s: repaired", name)
	repaired = true
	if err := b.repair(); err != nil {
		return nil, fmt.Errorf("repairing %s: %w", name, err)
	}
	if err := until(60*time.Second, i.whole); err == nil {
		d.Restored = float64(time.Since(t3).Microseconds()) / 1000
	}
	if err := pause(ctx, cfg.Phase); err != nil {
		return nil, err
	}
	t4, _, r4 := mark()
	dead := d.Probe.Dead
	d.Probe = p.end()
	d.Probe.Dead, d.Probe.From, d.Probe.To = dead, t.from, t.to
	for k, port := range b.shares {
		d.Shares = append(d.Shares, Share{port, portion(c0, c1, k), portion(c1, c2, k)})
	}
	if ranks != nil {
		failed := ranks.stop()
		n := len(cfg.Hosts)
		d.Runtime.Ranks, d.Runtime.Bytes = n, cfg.Bytes
		d.Runtime.Before = ranks.phase(t0, t1, n, r0, r1)
		d.Runtime.During = ranks.phase(t1, t2, n, r1, r2)
		d.Runtime.After = ranks.phase(t3.Add(time.Duration(max(d.Restored, 0))*time.Millisecond), t4, n, r3, r4)
		d.Runtime.Wrong, d.Runtime.Lost, d.Runtime.Back = ranks.tally(t1)
		if failed != nil {
			d.Runtime.Failed = failed.Error()
		}
	}
	slices.SortStableFunc(d.Noticed, func(a, b Notice) int { return int(a.MS - b.MS) })
	return d, nil
}

// portion is one counter's part of what all of them grew by.
func portion(from, to []uint64, k int) float64 {
	all := 0.0
	for j := range to {
		all += float64(to[j] - from[j])
	}
	if all == 0 {
		return 0
	}
	return float64(to[k]-from[k]) / all
}

// hold waits while the fault is there.
func (cfg *DrillConfig) hold(ctx context.Context, p *prober, w *watcher) error {
	if err := pause(ctx, cfg.During); err != nil || cfg.Until == nil {
		return err
	}
	return until(time.Minute, func() error {
		if cfg.Until(p.dead(time.Second), w.noticed()) || ctx.Err() != nil {
			return ctx.Err()
		}
		return errors.New("what the drill waits for did not happen within a minute")
	})
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
