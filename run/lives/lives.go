// Package lives names and writes the files of a watch folder (WEFT_WATCH), by
// which processes report to their host's agent:
//
//	live-SPACE-PID.json      a rank's operations, rewritten twice per second (package comm)
//	launch-SPACE-PID.jsonl   starts and ends of a launcher's ranks, a line each (package launch)
//
// Hosts and containers may share the folder. SPACE is the boot id and the process
// namespace, so that equal process ids do not collide.
package lives

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Space names the process numbers that this process's own number is one of. Where
// the kernel does not tell, hosts differ at least in their names.
var Space = sync.OnceValue(func() string { return cmp.Or(SpaceOf("/proc", "self"), hostName()) })

func hostName() string {
	host, _ := os.Hostname()
	return strings.NewReplacer("/", "_", "-", "_").Replace(host)
}

// SpaceOf is the Space of a process of this host; proc is where its /proc is
// mounted. It is empty if the kernel refuses to tell.
func SpaceOf(proc, pid string) string {
	boot, err := os.ReadFile(filepath.Join(proc, "sys/kernel/random/boot_id"))
	if err != nil { // no Linux
		return hostName()
	}
	space, err := os.Readlink(filepath.Join(proc, pid, "ns/pid"))
	if err != nil {
		return ""
	}
	digits := strings.Trim(space, "pid:[]")
	return strings.ReplaceAll(strings.TrimSpace(string(boot)), "-", "")[:12] + "_" + digits
}

// Live is the file of a rank.
func Live(space string, pid int) string { return fmt.Sprintf("live-%s-%d.json", space, pid) }

// Launch is the file of a launcher.
func Launch(space string, pid int) string { return fmt.Sprintf("launch-%s-%d.jsonl", space, pid) }

// Launcher reads the space and process number back out of a launcher's file name.
func Launcher(name string) (space string, pid int, ok bool) {
	rest, found := strings.CutPrefix(name, "launch-")
	rest, suffix := strings.CutSuffix(rest, ".jsonl")
	at := strings.LastIndexByte(rest, '-')
	if !found || !suffix || at < 0 {
		return "", 0, false
	}
	pid, err := strconv.Atoi(rest[at+1:])
	return rest[:at], pid, err == nil
}

// What a Record is about.
const (
	Started = "started" // a rank's process was
	Ended   = "ended"   // a rank's process has
	Said    = "said"    // the last lines of one that failed
	Over    = "over"    // the whole run is
)

// How a run is over.
const (
	Finished  = "finished"
	Failed    = "failed"    // Rank is who failed first
	Cancelled = "cancelled" // somebody asked it to end
)

// Record is a line of a launcher's file.
type Record struct {
	Event  string  `json:"event"`
	At     float64 `json:"at"` // seconds since 1970
	Job    string  `json:"job,omitempty"`
	Rank   int     `json:"rank"`
	Size   int     `json:"size,omitempty"`
	Host   string  `json:"host,omitempty"` // that the launcher was told to start it on; empty is its own
	PID    int     `json:"pid,omitempty"`
	Code   int     `json:"code,omitempty"`   // it exited with
	Signal int     `json:"signal,omitempty"` // that ended it
	Asked  bool    `json:"asked,omitempty"`  // the launcher had sent it a signal to end before
	How    string  `json:"how,omitempty"`    // of Over

	Last []string `json:"last,omitempty"` // lines of standard error, of Said
}

// logs are the launcher's files that this process writes, by folder.
var logs struct {
	mu   sync.Mutex
	open map[string]*os.File
}

// Write adds a line to this launcher's file in a folder. A run must not fail
// because nobody can be told of it, so what cannot be written is dropped.
func Write(dir string, r Record) {
	r.At = float64(time.Now().UnixNano()) / 1e9
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // a record holds nothing that JSON has not
	}
	logs.mu.Lock()
	defer logs.mu.Unlock()
	f := logs.open[dir]
	if f == nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return
		}
		sweep(dir)
		f, err = os.OpenFile(filepath.Join(dir, Launch(Space(), os.Getpid())), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return
		}
		if logs.open == nil {
			logs.open = map[string]*os.File{}
		}
		logs.open[dir] = f
	}
	_, _ = f.Write(append(line, '\n'))
}

// sweep removes the files that launchers of this space left long ago.
func sweep(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, "launch-"+Space()+"-*.jsonl"))
	for _, name := range names {
		_, pid, ok := Launcher(filepath.Base(name))
		st, err := os.Stat(name)
		if _, alive := os.Stat(fmt.Sprintf("/proc/%d", pid)); ok && err == nil && os.IsNotExist(alive) && time.Since(st.ModTime()) > time.Hour {
			_ = os.Remove(name)
		}
	}
}
