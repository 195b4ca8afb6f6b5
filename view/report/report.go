// Package report defines what a rank reports about its work. Agents, the page and the
// run's summary all use these types.
package report

import "time"

// Step is one rank's finished step.
type Step struct {
	ID   int `json:"-"` // the slot of the rank, set by whoever hears the report
	Rank int `json:"rank"`
	Step int `json:"step"`
	// Epoch in which the step was taken. Steps of a later epoch replace those of
	// earlier ones from the first of them on: they were rolled back.
	Epoch uint64 `json:"epoch"`
	// Loss of the step, the mean over the global batch, which every rank knows; 0
	// where this rank does not.
	Loss float64 `json:"loss"`
	Norm float64 `json:"grad_norm"`     // of the gradients, before clipping; 0 where unknown
	Rate float64 `json:"learning_rate"` // 0 where unknown
	// Tokens of the whole step, over all ranks: the same from each of them.
	Tokens int `json:"tokens"`
	// Arrived is when the rank came to the step's commit, where it waits for the
	// slowest; its lateness is Arrived less the earliest Arrived of the step.
	Began   time.Time `json:"began"`
	Arrived time.Time `json:"arrived"`
	Ended   time.Time `json:"ended"`

	// Comm is communication among replicas, Exposed the part of it for which the
	// rank stood still, Tensor the sums within layers, for which it always does, and
	// Bubble its waiting for other stages.
	Forward  time.Duration `json:"forward_ns"`
	Backward time.Duration `json:"backward_ns"`
	Comm     time.Duration `json:"comm_ns"`
	Exposed  time.Duration `json:"exposed_ns"`
	Tensor   time.Duration `json:"tensor_ns"`
	Bubble   time.Duration `json:"bubble_ns"`
	Update   time.Duration `json:"update_ns"`
	Overlap  bool          `json:"overlap"`      // communication among replicas ran beside computing
	Save     time.Duration `json:"save_ns"`      // that a checkpoint held the step up
	Writing  bool          `json:"writing"`      // a checkpoint was being written meanwhile
	Memory   int64         `json:"memory_bytes"` // resident; 0: not asked for
}

// Collective is what one process has spent on one operation and size since its start.
type Collective struct {
	Op    string        `json:"op"`
	Ranks int           `json:"ranks"` // of the communicator
	Bytes int64         `json:"bytes"` // of the larger buffer of one call
	Count int64         `json:"count"`
	Time  time.Duration `json:"time_ns"` // of all calls
	// BusFactor turns algorithm bandwidth into bus bandwidth:
	// busbw = Bytes/Time * BusFactor, 2(n-1)/n for an all-reduce of n ranks.
	BusFactor float64 `json:"bus_factor"`
}
