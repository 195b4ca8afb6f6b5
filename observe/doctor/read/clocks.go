package read

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Clocks of different files. Most logs have times without a zone or a year, dmesg counts from the start of the host, and
// clocks are wrong. Events that several files tell of happened at one moment:
//
//	a.log   [rank0]:[E603 12:41:09 ...] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=14728
//	b.log   [rank4]:[E603 07:41:09 ...] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=14728     5 h behind: a zone
//
//	a.log   [2026-06-03 12:00:09] n0:4100:4200 [0] NCCL INFO ncclCommInitRank ... commId 0x8f2e - Init COMPLETE
//	b.log   [2026-06-03 12:00:04] n1:4100:4200 [0] NCCL INFO ncclCommInitRank ... commId 0x8f2e - Init COMPLETE  5 s behind: a clock
//
//	job.log   exitcode  : -9 (pid: 4101), at 12:31:02
//	dmesg     [93122.118201] Out of memory: Killed process 4101         the host started 93121 s before that
//
// A difference of a multiple of 15 minutes is a zone. What remains is the error of a clock only where the event is the same
// to the second on all hosts, as the end of a communicator's setup is. Ranks give an operation up up to a step apart.

const (
	zone     = 900.0 // seconds between zones
	atOnce   = 60.0  // how far apart the files tell of an event
	farthest = 14 * 3600.0
	noYear   = 1972 // of times that leave it out
	clockOff = 1.0  // seconds from which the error of a clock is told
)

// moment is an event that other files may tell of as well.
type moment struct {
	at    float64
	exact bool // it is the same to the second everywhere
}

// fileClock is a file's events by their names, and what must be added to its times.
type fileClock struct {
	name    string
	host    string // that all of it is of, "" for several
	boot    bool   // times are seconds since the host started
	kernel  bool   // it has lines of a kernel: people think in the times of their job
	moments map[string]moment
	shift   float64
	known   bool
}

// note adds an event of a host; several hosts leave the file with none.
func (f *fileClock) note(host, key string, at float64, exact bool) {
	if f.host != host {
		f.host = ""
	}
	if key == "" || at == 0 {
		return
	}
	if old, ok := f.moments[key]; !ok || at < old.at {
		f.moments[key] = moment{at, exact}
	}
}

// clocks moves the times of files to the clock of the one that shares most of its events with others.
func clocks(c *doctor.Case) {
	years(c)
	files := fileClocks(c)
	order := slices.SortedFunc(maps.Values(files), func(a, b *fileClock) int {
		return cmp.Or(cmp.Compare(later(a.kernel), later(b.kernel)), cmp.Compare(len(b.moments), len(a.moments)), cmp.Compare(a.name, b.name))
	})
	for len(order) > 1 { // the clock of the first, then of those that share events with files that are set
		order[0].known = true
		set := []*fileClock{order[0]}
		for i := 0; i < len(set); i++ {
			for _, f := range order {
				if !f.known && f.fit(c, set[i]) {
					set = append(set, f)
				}
			}
		}
		order = slices.DeleteFunc(order, func(f *fileClock) bool { return f.known })
	}
	shift(c, files)
}

// shift moves the times of a case as their files say. Times since a host's start become times of the day where another
// file told when that was.
func shift(c *doctor.Case, files map[string]*fileClock) {
	for i := range c.Lines {
		if l := &c.Lines[i]; l.Time != 0 && files[l.At.File] != nil {
			l.Time += files[l.At.File].shift
		}
	}
	for i := range c.Kernel {
		k := &c.Kernel[i]
		switch f := files[k.At.File]; {
		case f == nil:
		case k.Time != 0:
			k.Time += f.shift
		case f.boot && f.shift != 0:
			k.Time = k.Uptime + f.shift
		}
	}
}

func later(b bool) int {
	if b {
		return 1
	}
	return 0
}

// years gives times without a year that of the dated ones they lie nearest to.
func years(c *doctor.Case) {
	var dated []float64
	each := func(f func(at *float64)) {
		for i := range c.Lines {
			f(&c.Lines[i].Time)
		}
		for i := range c.Kernel {
			f(&c.Kernel[i].Time)
		}
	}
	yearless := func(at float64) bool { return time.Unix(int64(at), 0).UTC().Year() == noYear }
	each(func(at *float64) {
		if *at != 0 && !yearless(*at) {
			dated = append(dated, *at)
		}
	})
	if len(dated) == 0 {
		return
	}
	slices.Sort(dated)
	mid := dated[len(dated)/2]
	year := time.Unix(int64(mid), 0).UTC().Year()
	each(func(at *float64) {
		if *at == 0 || !yearless(*at) {
			return
		}
		t := time.Unix(int64(*at), 0).UTC()
		best := math.Inf(1)
		for _, y := range []int{year - 1, year, year + 1} {
			if then := float64(t.AddDate(y-noYear, 0, 0).Unix()); math.Abs(then-mid) < math.Abs(best-mid) {
				best = then
			}
		}
		*at = best + (*at - math.Floor(*at))
	})
}

// happened names the event of a line that other files may tell of as well, "" if it has none. Exact ones have one time in
// all files; of the others the earliest counts.
func happened(l *doctor.Line) (key string, exact bool) {
	switch l.Kind {
	case "watchdog":
		return "waits " + l.F["group"] + " " + l.F["seq"] + " " + l.F["op"], false
	case "init_done":
		if l.F["cid"] != "" {
			return "ready " + l.F["cid"] + " " + l.F["n"], true
		}
	case "exit":
		return ended(l.Host, l.F["pid"]), false
	}
	return "", false
}

// fileClocks collects the events of each file that another may tell of.
func fileClocks(c *doctor.Case) map[string]*fileClock {
	files := map[string]*fileClock{}
	note := func(file, host, key string, at float64, exact bool) *fileClock {
		f := files[file]
		if f == nil {
			f = &fileClock{name: file, host: host, moments: map[string]moment{}}
			files[file] = f
		}
		f.note(host, key, at, exact)
		return f
	}
	for i := range c.Lines {
		l := &c.Lines[i]
		if key, exact := happened(l); key != "" {
			note(l.At.File, l.Host, key, l.Time, exact)
		}
	}
	for i := range c.Kernel {
		k := &c.Kernel[i]
		key := ""
		if k.Kind == "oom_kill" || k.Kind == "nccl_crash" {
			key = ended(k.Host, k.F["pid"])
		}
		f := note(k.At.File, k.Host, key, cmp.Or(k.Time, k.Uptime), false)
		f.kernel, f.boot = true, f.boot || k.Time == 0
	}
	return files
}

// ended names the end of a process, "" if it is not known which.
func ended(host, pid string) string {
	if host == "" || pid == "" || pid == "0" {
		return ""
	}
	return "end " + host + " " + pid
}

// fit sets the clock of a file by the events that it shares with one that is set.
func (f *fileClock) fit(c *doctor.Case, to *fileClock) bool {
	all, exact := f.differences(to)
	mid, n := middle(all)
	if n == 0 || to.boot {
		return false
	}
	if f.boot { // the start of its host
		f.shift, f.known = mid, true
		return true
	}
	whole := math.Round(mid/zone) * zone
	if math.Abs(whole) > farthest || math.Abs(mid-whole) > atOnce {
		return false
	}
	f.shift, f.known = whole, true
	if off, n := middle(exact); n > 0 && math.Abs(off-whole) >= clockOff {
		f.shift = off
		f.tell(c, to, off-whole, n)
	}
	return true
}

// differences are how much later the other clock shows the moments that both have, and those of exact ones.
func (f *fileClock) differences(to *fileClock) (all, exact []float64) {
	for key, m := range f.moments {
		if other, ok := to.moments[key]; ok {
			d := other.at + to.shift - m.at
			all = append(all, d)
			if m.exact {
				exact = append(exact, d)
			}
		}
	}
	return all, exact
}

// tell notes the error of a clock with its file.
func (f *fileClock) tell(c *doctor.Case, to *fileClock, off float64, events int) {
	which := "behind"
	if off < 0 {
		which = "ahead of"
	}
	of := func(x *fileClock) string { return cmp.Or(x.host, x.name) }
	for i := range c.Files {
		if c.Files[i].Path == f.name {
			c.Files[i].Notes = append(c.Files[i].Notes,
				doctor.Note{Kind: doctor.Clock,
					Text: fmt.Sprintf("the clock of %s is %.1f s %s that of %s, within %.1f s, by %d events that both saw: its times are corrected",
						of(f), math.Abs(off), which, of(to), 0.8/math.Sqrt(float64(events)), events)})
		}
	}
}

// middle is the mean of those that lie near the median, and how many those are; fewer than half of them are none.
func middle(list []float64) (mean float64, n int) {
	if len(list) == 0 {
		return 0, 0
	}
	slices.Sort(list)
	mid := list[len(list)/2]
	for _, d := range list {
		if math.Abs(d-mid) <= atOnce {
			mean += d
			n++
		}
	}
	if 2*n < len(list) {
		return 0, 0
	}
	return mean / float64(n), n
}
