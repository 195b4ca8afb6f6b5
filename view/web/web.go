// Package web is the page that shows a run while it runs: ranks and their
// states, the loss curve, throughput, collectives, lateness, epochs, failures
// and checkpoints, live over server-sent events, and each of them as JSON.
//
// A Board is fed from any goroutine and read by HTTP handlers:
//
//	b := web.NewBoard()
//	go http.Serve(listener, b.Handler())
//	b.Job(web.Job{Title: "weft up", Model: "gpt 4x128", Started: time.Now()})
//	b.Step(report.Step{ID: 0, Step: 1, Loss: 5.5, Tokens: 4096, ...})
//
// Everything that the page loads is embedded; it asks no other host for
// anything.
//
// # Units
//
// Keys of JSON name their unit: _ns are nanoseconds and _us microseconds, both
// integers; _bytes are bytes; _per_s is a rate a second; gb_per_s is 10^9 bytes
// a second. Instants are RFC 3339 and are left out where they are unknown.
package web

import "time"

// Job is what runs.
type Job struct {
	Title     string    `json:"title"`
	Model     string    `json:"model"`
	Layout    string    `json:"layout"`
	Transport string    `json:"transport"` // shm, tcp, mem, or several of them
	Command   string    `json:"command"`
	Params    int       `json:"params"`
	Ranks     int       `json:"ranks"` // asked for
	Started   time.Time `json:"started,omitzero"`
	Until     time.Time `json:"until,omitzero"` // zero: no end
	Ended     bool      `json:"ended"`
	Watch     string    `json:"watch,omitempty"`  // where the page of its watch is
	Studio    string    `json:"studio,omitempty"` // where it is drawn on a picture
}

// States of a rank. Others are shown by their own name.
const (
	Starting   = "starting"
	Healthy    = "healthy"
	Suspect    = "suspect"
	Failed     = "failed"
	Recovering = "recovering"
	Left       = "left"
)

// Rank is one slot of the run: a process that can be replaced by another.
type Rank struct {
	ID    int    `json:"id"`
	Rank  int    `json:"rank"` // -1: none in this epoch
	Host  string `json:"host"`
	Pid   int    `json:"pid"`
	State string `json:"state"`
	// Step is the last one finished. 0 leaves what the Step calls of the same
	// process said.
	Step     int   `json:"step"`
	Restarts int   `json:"restarts"`
	Replica  int   `json:"replica"` // place in the layout; -1: a spare rank
	Tensor   int   `json:"tensor"`
	Stage    int   `json:"stage"`
	Memory   int64 `json:"memory_bytes"` // resident
}

// Epoch is one membership.
type Epoch struct {
	Number     uint64    `json:"number"`
	At         time.Time `json:"at,omitzero"`
	Members    []int     `json:"members"` // ids in the order of ranks
	Recovering []int     `json:"recovering"`
	Reason     string    `json:"reason"`
	Step       int       `json:"step"`
	Layout     string    `json:"layout"`
}

// Event is something that happened once. Kinds are kill, exit, failure, epoch,
// restart, joined, stopped, continued, checkpoint, coordinator, resumed, error,
// drill, verdict, over and note.
type Event struct {
	At   time.Time `json:"at,omitzero"`
	Kind string    `json:"kind"`
	ID   int       `json:"id"` // -1: of no rank
	Text string    `json:"text"`
	// Of "resumed": how long after the failure everybody knew of it, and trained
	// again.
	Detect time.Duration `json:"detect_ns,omitempty"`
	Resume time.Duration `json:"resume_ns,omitempty"`
}

// Checkpoint is one of a step; a later call with the same step replaces it.
// States are writing, complete, failed and emergency.
type Checkpoint struct {
	Step  int           `json:"step"`
	At    time.Time     `json:"at,omitzero"`
	Bytes int64         `json:"bytes"`
	Took  time.Duration `json:"took_ns"`
	State string        `json:"state"`
	Text  string        `json:"text,omitempty"`
}

// Measure is a figure with its name and where it comes from: "overlap hidden",
// "83%", "apart 41 ms, together 33 ms, collectives 9.7 ms".
type Measure struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Note  string `json:"note,omitempty"`
}
