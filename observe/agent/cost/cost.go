// Package cost measures what an agent costs a host: processor time, memory and system
// calls of a process that runs for a while.
package cost

// Figures are what a process cost over a time.
type Figures struct {
	Seconds  float64 `json:"seconds"`
	CPU      float64 `json:"cpu"`             // share of a core
	Memory   int64   `json:"memory_bytes"`    // resident, at most
	Reads    float64 `json:"reads_per_s"`     // read and write calls, by /proc/PID/io
	Syscalls float64 `json:"syscalls_per_s"`  // of every kind, in a run of its own; -1 if they could not be counted
	Why      string  `json:"why,omitempty"`   // why not
	Most     []Call  `json:"calls,omitempty"` // the most frequent ones
}

// Call is a system call and how often it was made.
type Call struct {
	Number int     `json:"number"`
	Name   string  `json:"name"`
	PerS   float64 `json:"per_s"`
}
