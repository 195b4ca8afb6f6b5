package agent

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/run/lives"
)

// failedSteps are jobs of which a step failed, whatever the script made of it.
func failedSteps(c *doctor.Case) map[string]bool {
	steps := map[string]bool{}
	for i := range c.Lines {
		l := &c.Lines[i]
		if job, _, step := strings.Cut(l.F["job"], "."); step && (l.Kind == "exit" || l.Kind == "oom_event") {
			steps[job] = true
		}
	}
	return steps
}

// Scheduled reads what a scheduler recorded of jobs (sacct -P, scontrol show job, kubectl
// get pods -o json), as a report for a server. Where a scheduler knows that a job was
// cancelled, ran out of its time or lost a node, its word counts for more than what the
// processes show.
func Scheduled(r io.Reader) (*watch.Report, error) {
	b, err := io.ReadAll(io.LimitReader(r, biggest))
	if err != nil {
		return nil, err
	}
	c := &doctor.Case{}
	if err := read.File(c, "scheduler", "", bytes.NewReader(b)); err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	rep := &watch.Report{Host: cmp.Or(host, "scheduler")}
	steps := failedSteps(c)
	for i := range c.Lines {
		l := &c.Lines[i]
		var x watch.Launch
		var ok bool
		switch l.F["by"] {
		case "sacct":
			if x, ok = slurmEnd(l); x.How == lives.Finished && steps[l.F["job"]] {
				x.How = lives.Failed
			}
		case "kubernetes":
			x, ok = podEnd(l)
		}
		if ok {
			rep.From = l.F["by"]
			rep.Launches = append(rep.Launches, x)
		}
	}
	if len(rep.Launches) == 0 {
		return nil, fmt.Errorf("no job has ended in it; give the output of 'sacct -P', 'scontrol show job ID' or 'kubectl get pods -o json'")
	}
	return rep, nil
}

// slurmEnd is how a whole job ended. Its name is that under which agents report its ranks.
func slurmEnd(l *doctor.Line) (x watch.Launch, ok bool) {
	id := l.F["job"]
	x = watch.Launch{Event: lives.Over, At: l.Time, Job: id, Rank: -1, Said: l.F["state"]}
	if name := l.F["name"]; name != "" {
		x.Job = name + "-" + id
	}
	switch l.Kind {
	case "job_done":
		x.How = lives.Finished
	case "cancelled":
		x.How = lives.Cancelled
	case "job_failed", "oom_event":
		x.How = lives.Failed
	case "host_lost":
		x.How, x.Host = lives.Failed, l.F["hosts"]
		x.Why = "host-lost"
	}
	return x, x.How != "" && !strings.Contains(id, ".")
}

var podNumber = regexp.MustCompile(`^(.+?)(?:-(?:worker|master|launcher|replica|node))?-(\d+)(?:-[a-z0-9]{5})?$`)

// podEnd is how a pod's container ended. The pod's index is its rank, where a pod has one.
func podEnd(l *doctor.Line) (x watch.Launch, ok bool) {
	x = watch.Launch{Event: lives.Ended, At: l.Time, Job: l.F["job"], Host: l.F["node"], Seen: true}
	index := l.F["index"]
	if m := podNumber.FindStringSubmatch(l.Host); m != nil {
		x.Job, index = cmp.Or(x.Job, m[1]), cmp.Or(index, m[2])
	}
	rank, err := strconv.Atoi(index)
	if err != nil || l.Time == 0 {
		return x, false
	}
	x.Rank = rank
	if x.Code, _ = strconv.Atoi(l.F["code"]); x.Code > 128 && x.Code < 160 {
		x.Code, x.Signal = 0, x.Code-128
	}
	if l.Kind == "oom_event" {
		x.Why, x.Said = "host-out-of-memory", l.At.Text
	}
	return x, true
}
