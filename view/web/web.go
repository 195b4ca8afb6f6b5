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
	Title     string    `json:"title"`            // name of the run
	Model     string    `json:"model"`            // what is trained
	Layout    string    `json:"layout"`           // replicas, tensor and pipeline ranks
	Transport string    `json:"transport"`        // shm, tcp, mem, or several
	Command   string    `json:"command"`          // the command line
	Params    int       `json:"params"`           // model parameters
	Ranks     int       `json:"ranks"`            // ranks requested
	Started   time.Time `json:"started,omitzero"` // when the run began
	Until     time.Time `json:"until,omitzero"`   // when it is to end; absent: no end
	Ended     bool      `json:"ended"`            // the run is over
	Watch     string    `json:"watch,omitempty"`  // its watch page
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
	ID    int    `json:"id"`    // number of the slot
	Rank  int    `json:"rank"`  // rank in this epoch; -1: none
	Host  string `json:"host"`  // name of its host
	Pid   int    `json:"pid"`   // process id
	State string `json:"state"` // starting, healthy, suspect, failed, recovering, left
	// Step is the last one finished. 0 leaves what the Step calls of the same
	// process said.
	Step     int   `json:"step"`         // last step it finished
	Restarts int   `json:"restarts"`     // restarts
	Replica  int   `json:"replica"`      // replica in the layout; -1: a spare rank
	Tensor   int   `json:"tensor"`       // tensor rank
	Stage    int   `json:"stage"`        // pipeline stage
	Memory   int64 `json:"memory_bytes"` // resident memory
}

// Epoch is a numbered list of members.
type Epoch struct {
	Number     uint64    `json:"number"`      // from 1
	At         time.Time `json:"at,omitzero"` // when
	Members    []int     `json:"members"`     // slots in rank order
	Recovering []int     `json:"recovering"`  // slots catching up
	Reason     string    `json:"reason"`      // why it was formed
	Step       int       `json:"step"`        // first step
	Layout     string    `json:"layout"`      // its layout
}

// Event is something that happened once.
type Event struct {
	At   time.Time `json:"at,omitzero"` // when
	Kind string    `json:"kind"`        // kill, exit, failure, epoch, restart, joined, stopped, continued, checkpoint, coordinator, resumed, error, drill, verdict, over, note
	ID   int       `json:"id"`          // slot; -1: none
	Text string    `json:"text"`        // text
	// Of "resumed": how long after the failure everybody knew of it, and trained
	// again.
	Detect time.Duration `json:"detect_ns,omitempty"` // resumed: until all knew
	Resume time.Duration `json:"resume_ns,omitempty"` // resumed: until all trained again
}

// Checkpoint is the saved state of a step. A later call with the same step replaces it.
type Checkpoint struct {
	Step  int           `json:"step"`           // the step
	At    time.Time     `json:"at,omitzero"`    // when
	Bytes int64         `json:"bytes"`          // written
	Took  time.Duration `json:"took_ns"`        // how long it took
	State string        `json:"state"`          // writing, complete, failed, emergency
	Text  string        `json:"text,omitempty"` // details
}

// Measure is a figure of the run, such as "overlap hidden", "83%", "apart 41 ms, together 33 ms, collectives 9.7 ms".
type Measure struct {
	Name  string `json:"name"`           // name
	Value string `json:"value"`          // value with unit
	Note  string `json:"note,omitempty"` // source
}
