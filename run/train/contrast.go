package train

import (
	"context"
	"slices"
	"time"
)

// Contrast is what overlapping gains: medians over steps that took turns without
// and with it. Times are of one rank.
type Contrast struct {
	Steps    int           `json:"steps"` // of each kind
	Forward  time.Duration `json:"forward"`
	Backward time.Duration `json:"backward"` // computing, without overlap
	Comm     time.Duration `json:"comm"`     // collectives among replicas, without overlap and without waiting for the slowest to begin
	Apart    time.Duration `json:"apart"`    // passes until gradients are complete, without overlap
	Together time.Duration `json:"together"` // with it
	// Hidden is the share of communication that overlapping hid: (Apart - Together) / Comm.
	// It counts what computing lost by running beside communication, which Stats.Hidden
	// does not: where ranks have no cores to spare the two differ.
	Hidden float64 `json:"hidden"`
}

// Contrast trains for 2*steps steps, of which every other one does not overlap
// communication. All ranks call it.
func (t *Trainer) Contrast(ctx context.Context, steps int) (Contrast, error) {
	defer func(overlap bool) { t.cfg.Overlap = overlap }(t.cfg.Overlap)
	var forward, backward, comm, apart, together []time.Duration
	for range steps {
		for _, overlap := range []bool{false, true} {
			t.cfg.Overlap = overlap
			s, err := t.Step(ctx)
			if err != nil {
				return Contrast{}, err
			}
			if overlap {
				together = append(together, s.Passes)
				continue
			}
			forward, backward, comm, apart = append(forward, s.Forward), append(backward, s.Backward), append(comm, s.Comm), append(apart, s.Passes)
		}
	}
	c := Contrast{Steps: steps, Forward: median(forward), Backward: median(backward), Comm: median(comm), Apart: median(apart),
		Together: median(together)}
	if c.Comm > 0 {
		c.Hidden = max(0, min(1, float64(c.Apart-c.Together)/float64(c.Comm)))
	}
	return c, nil
}

func median(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[len(list)/2]
}
