package server

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/internal/store"
)

// gap is how long a store may say nothing, in beats, until the server counts as not running.
const gap = 7200

// player plays what a store recorded.
type player struct {
	m      *watch.Machine
	next   int64 // beat that is judged next, 0 before the first report
	pauses []pause
	end    int64 // the last beat that the server judged, if it said so
	each   func(now float64, m *watch.Machine, news []watch.Incident) bool
	on     bool
}

// Replay plays what a store recorded between two times, in virtual time: the machine gets every report when it arrived and is
// asked at the same beats as the server was. each, where it is set, is called after every beat with the incidents that opened
// or ended; false ends it.
func Replay(dir string, c watch.Config, from, to float64, each func(now float64, m *watch.Machine, news []watch.Incident) bool) error {
	names, err := store.Schemas(dir)
	if err != nil {
		return err
	}
	p := &player{m: watch.New(c), each: each, on: true}
	if err := p.lives(dir); err != nil {
		return err
	}
	d := store.NewDecoder()
	n := 0
	err = store.Read(dir, store.Raw, func(b []byte) bool {
		at, r, err := d.Report(b)
		if err != nil || at < from {
			return true
		}
		if at > to {
			return false
		}
		p.until(beatAt(at))
		if r.Counters != nil {
			r.Counters = named(r.Counters, names)
		}
		if p.m.Observe(at, r) == nil {
			n++
		}
		return p.on
	})
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("%s has no reports of that time", dir)
	}
	p.finish(to)
	return nil
}

// named gives counters the names of their series, and returns nil if the beginning of their file is gone, and with it the
// values.
func named(c *watch.Counters, names map[string][]string) *watch.Counters {
	if c.Values == nil {
		return nil
	}
	c.Names = names[c.Schema]
	return c
}

// finish plays on until the server ended, or for some beats if it was killed and did not say when.
func (p *player) finish(to float64) {
	end := p.next + beatAt(5)
	if p.end >= p.next-1 {
		end = p.end
	}
	p.until(min(end, p.next+gap, beatAt(min(to, 1e15))))
}

// lives reads when the server did not run.
func (p *player) lives(dir string) error {
	return store.Read(dir, store.Event, func(b []byte) bool {
		var e event
		if json.Unmarshal(b, &e) != nil {
			return true
		}
		if e.Pause != nil {
			p.pauses = append(p.pauses, *e.Pause)
		}
		p.end = max(p.end, e.End)
		return true
	})
}

// until judges all beats up to one.
func (p *player) until(last int64) {
	if p.next == 0 || last-p.next > gap {
		p.next = last
	}
	for ; p.next <= last && p.on; p.next++ {
		if i := slices.IndexFunc(p.pauses, func(x pause) bool { return x.From == p.next }); i >= 0 {
			p.m.Pause(timeOf(p.next), timeOf(p.pauses[i].To))
			p.next = p.pauses[i].To
		}
		p.on = p.each(timeOf(p.next), p.m, p.m.Tick(timeOf(p.next)))
	}
}
