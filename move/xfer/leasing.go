package xfer

import (
	"fmt"
	"time"
)

type leased struct {
	id  uint64
	put []byte
}

// lease gives a lease, takes up one that was granted, or renews one.
func (g *guest) lease(f *frame) (leased, error) {
	r := reader{b: f.payload}
	granted, ttl := r.num(), time.Duration(r.num())
	caps := r.caps()
	descs := r.descs()
	if err := r.end(); err != nil {
		return leased{}, err
	}
	l, err := g.agent.leaseFor(g.id, granted, ttl, caps, descs)
	if err != nil {
		return leased{}, err
	}
	g.mu.Lock()
	g.leases[l] = struct{}{}
	g.mu.Unlock()
	select {
	case <-l.ended: // and may have looked for itself before it was there
		g.mu.Lock()
		delete(g.leases, l)
		g.mu.Unlock()
	default:
	}
	var w writer
	w.num(uint64(l.slot + 1))
	l.mu.Lock()
	w.num(uint64(max(time.Until(l.until), 1)))
	l.mu.Unlock()
	return leased{l.id, w}, nil
}

// leaseFor is the lease of a holder: a new one, or the one with a number.
func (a *Agent) leaseFor(holder ID, granted uint64, ttl time.Duration, caps []capability, descs []Desc) (*lease, error) {
	ttl = min(ttl, a.cfg.Lease)
	if ttl <= 0 {
		return nil, fmt.Errorf("%w: a lease for %s", ErrLimit, ttl)
	}
	if granted == 0 {
		if len(descs) == 0 {
			return nil, fmt.Errorf("%w: a lease of nothing", ErrBounds)
		}
		if err := a.allowed(caps, descs); err != nil {
			return nil, err
		}
		return a.grant(holder, descs, ttl, epochsOf(caps))
	}
	a.mu.Lock()
	l := a.leases[granted]
	a.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("%w: it was given back, or its time was over", ErrLease)
	}
	for _, d := range descs {
		if !l.covers(d) {
			return nil, fmt.Errorf("%w: it does not cover %d bytes at %d of region %d", ErrLease, d.Len, d.Off, d.Region)
		}
	}
	if err := l.taken(holder, ttl); err != nil {
		return nil, err
	}
	return l, nil
}

// taken gives a grant to whoever takes it up first, for as long as it was given for, and renews a lease for its holder.
func (l *lease) taken(holder ID, ttl time.Duration) error {
	l.mu.Lock()
	if l.holder.Name == "" {
		l.holder = holder
		l.mu.Unlock()
		return nil
	}
	same := l.holder == holder
	l.mu.Unlock()
	if !same {
		return fmt.Errorf("%w: it belongs to %s", ErrLease, l.holderName())
	}
	return l.renew(ttl)
}

// epochsOf gives the epochs of descriptions that capabilities are of.
func epochsOf(caps []capability) func(region uint32) uint64 {
	of := map[uint32]uint64{}
	for _, c := range caps {
		of[c.region] = c.epoch
	}
	return func(region uint32) uint64 { return of[region] }
}

// allowed checks the keys of the regions that descriptors name.
func (a *Agent) allowed(caps []capability, descs []Desc) error {
	keys := map[uint32]bool{}
	for _, c := range caps {
		r, err := a.region(c.region)
		if err != nil {
			return err
		}
		if r.key != c.key {
			return fmt.Errorf("region %q: %w", r.name, ErrKey)
		}
		keys[c.region] = true
	}
	for i, d := range descs {
		if (i == 0 || d.Region != descs[i-1].Region) && !keys[d.Region] {
			if _, err := a.region(d.Region); err != nil {
				return err
			}
			return fmt.Errorf("region %d: %w: none was given", d.Region, ErrKey)
		}
	}
	return nil
}

func (l *lease) holderID() ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}
