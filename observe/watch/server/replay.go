package server

import (
	"fmt"

	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/internal/store"
)

// Replay plays what a store recorded between two times, in virtual time: the machine
// gets every report when it arrived and is asked once a second. each, where it is set, is
// called after every second with the incidents that opened or ended; false ends it.
func Replay(dir string, c watch.Config, from, to float64, each func(now float64, m *watch.Machine, news []watch.Incident) bool) error {
	names, err := store.Schemas(dir)
	if err != nil {
		return err
	}
	m := watch.New(c)
	d := store.NewDecoder()
	next, n, on := 0.0, 0, true
	err = store.Read(dir, store.Raw, func(b []byte) bool {
		at, r, err := d.Report(b)
		if err != nil || at < from {
			return true
		}
		if at > to {
			return false
		}
		if next == 0 {
			next = at
		}
		if at-next > 3600 { // the server was not running
			next = at
		}
		for ; next < at && on; next++ { // a server looks behind what came
			on = each(next, m, m.Tick(next))
		}
		if r.Counters != nil {
			if r.Counters.Values == nil {
				r.Counters = nil // the beginning of its file is gone
			} else {
				r.Counters.Names = names[r.Counters.Schema]
			}
		}
		if m.Observe(at, r) == nil {
			n++
		}
		return on
	})
	if err == nil && n == 0 {
		return fmt.Errorf("%s has no reports of that time", dir)
	}
	for end := next + 5; err == nil && on && next < end; next++ {
		on = each(next, m, m.Tick(next))
	}
	return err
}
