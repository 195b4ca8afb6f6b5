package read

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// What schedulers record of a job's end: Slurm's accounting and Kubernetes' pods. Both are typed, so they count for more
// than what programs print.
//
//	JobID|JobName|State|ExitCode|NodeList          sacct -P, or a table with dashes under its head
//	4411.0|python|OUT_OF_MEMORY|0:125|c[21-22]
//
//	JobId=4411 JobName=train JobState=NODE_FAIL    scontrol show job, in one line or several
//
//	Name:   worker-1                               kubectl describe pod
//	    State:          Terminated
//	      Reason:       OOMKilled
//	      Exit Code:    137

var sacctHead = regexp.MustCompile(`^\s*JobID(?:Raw)?\b.*\bState\b`)

// readSacct reads Slurm's accounting.
func readSacct(s *scan, b []byte) error {
	var cols func(l string) []string
	var head []string
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		switch {
		case sacctHead.MatchString(l) && strings.Contains(l, "|"):
			cols = func(l string) []string { return strings.Split(l, "|") }
			head = cols(l)
		case sacctHead.MatchString(l):
			cols, head = nil, strings.Fields(l)
		case cols == nil && strings.HasPrefix(l, "-----"):
			cols = columns(l)
		case cols != nil && strings.TrimSpace(l) != "":
			s.sacctRow(n, l, named(head, cols(l)))
		}
	}
	return nil
}

var scontrolField = regexp.MustCompile(`(?:^|\s)(JobId|JobName|JobState|ExitCode|EndTime|NodeList)=(\S*)`)

// scontrolNames are the fields of scontrol as sacct calls them.
var scontrolNames = map[string]string{"JobId": "JobID", "JobState": "State", "EndTime": "End"}

// readScontrol reads what Slurm's controller says of jobs.
func readScontrol(s *scan, b []byte) error {
	row, n, from := map[string]string{}, 0, 1
	flush := func() {
		if row["JobID"] != "" {
			s.sacctRow(from, row["JobID"]+" "+row["JobName"]+" "+row["State"], row)
		}
		row, from = map[string]string{}, n
	}
	for l := range strings.Lines(string(b)) {
		n++
		for _, m := range scontrolField.FindAllStringSubmatch(strings.TrimRight(l, "\r\n"), -1) {
			if m[1] == "JobId" {
				flush()
			}
			name := scontrolNames[m[1]]
			if name == "" {
				name = m[1]
			}
			row[name] = m[2]
		}
	}
	flush()
	return nil
}

// named gives values the names of their columns.
func named(head, values []string) map[string]string {
	row := map[string]string{}
	for i, v := range values[:min(len(values), len(head))] {
		row[strings.TrimSpace(head[i])] = strings.TrimSpace(v)
	}
	return row
}

// columns cuts a line where a line of dashes has its gaps.
func columns(dashes string) func(string) []string {
	var ends []int
	for i := range dashes {
		if dashes[i] == '-' && (i+1 == len(dashes) || dashes[i+1] == ' ') {
			ends = append(ends, i+1)
		}
	}
	return func(l string) (out []string) {
		at := 0
		for _, e := range ends {
			out = append(out, l[min(at, len(l)):min(e, len(l))])
			at = e
		}
		return out
	}
}

// slurmEnds are states of Slurm's accounting, which cuts them in tables, as lines of the doctor.
var slurmEnds = []struct{ state, kind, why string }{
	{"NODE_FAIL", "host_lost", ""}, {"BOOT_FAIL", "host_lost", ""}, {"OUT_OF_ME", "oom_event", ""},
	{"TIMEOUT", "cancelled", "TIME LIMIT"}, {"DEADLINE", "cancelled", "DEADLINE"}, {"PREEMPTED", "cancelled", "PREEMPTION"},
}

// sacctRow takes a job or a step. A cancelled step follows from what ended the job.
func (s *scan) sacctRow(n int, text string, row map[string]string) {
	id, state := row["JobID"], row["State"]
	whole := !strings.Contains(id, ".")
	l := doctor.Line{At: s.at(n, text), Rank: -1, Dev: -1, Warn: true, Msg: text, Time: clock(row["End"]),
		F: map[string]string{"by": "sacct", "job": id, "name": row["JobName"], "state": state}}
	if nodes := row["NodeList"]; !strings.ContainsAny(nodes, "[,") {
		l.F["hosts"] = nodes
	}
	for _, e := range slurmEnds {
		if strings.HasPrefix(state, e.state) {
			l.Kind, l.F["why"] = e.kind, e.why
		}
	}
	if l.Kind != "" {
		s.addLine(l)
		return
	}
	s.addLineOf(l, state, whole, row["ExitCode"])
}

// addLineOf adds the line of a job or step in a state that does not tell by itself.
func (s *scan) addLineOf(l doctor.Line, state string, whole bool, code string) {
	switch {
	case strings.HasPrefix(state, "CANCELLED") && whole:
		l.Kind = "cancelled"
		if _, by, ok := strings.Cut(state, " by "); ok {
			l.F["why"] = "CANCELLED BY USER " + by
		}
	case strings.HasPrefix(state, "COMPLETED") && whole:
		l.Kind, l.Warn = "job_done", false
	case strings.HasPrefix(state, "FAILED") && whole:
		l.Kind, l.F["code"], l.F["whole"] = "job_failed", slurmCode(code), "1"
	case strings.HasPrefix(state, "FAILED"):
		l.Kind, l.F["code"] = "exit", slurmCode(code)
	default:
		return
	}
	s.addLine(l)
}

// slurmCode turns Slurm's exit:signal into an exit code, negative for a signal.
func slurmCode(text string) string {
	code, signal, _ := strings.Cut(text, ":")
	if signal != "" && signal != "0" {
		return "-" + signal
	}
	return code
}

// pod is what kubectl describe has said of one so far.
type pod struct {
	name, node string
	state      string // Terminated, or another; "" outside of a container's state
	reason     string
	code       string
	job, index string // of its labels
	pending    bool
}

// neverRuns are reasons of a waiting container or of events for which a pod stays Pending until somebody acts.
var neverRuns = map[string]bool{"ImagePullBackOff": true, "ErrImagePull": true, "InvalidImageName": true, "ErrImageNeverPull": true,
	"CreateContainerConfigError": true, "CreateContainerError": true, "RunContainerError": true, "Unschedulable": true,
	"SchedulingGated": true, "FailedScheduling": true, "FailedMount": true, "FailedAttachVolume": true, "FailedCreatePodSandBox": true,
	"UnexpectedAdmissionError": true}

var (
	podField = regexp.MustCompile(`^( *)([A-Z][A-Za-z ]*):\s+(\S.*?)\s*$`)
	podEvent = regexp.MustCompile(`^\s+Warning\s+(Evicted|OOMKilling|SystemOOM|Preempted|Preempting|NodeNotReady)\s+(.*)`)
	podStuck = regexp.MustCompile(`^\s+Warning\s+(\w+)\s+\S+(?: \(x\d+ over \S+\))?\s+[\w.-]+\s+(\S.*)`)
)

// readPods reads kubectl describe of one pod or several.
func readPods(s *scan, b []byte) error {
	p := &pod{}
	n := 0
	for l := range strings.Lines(string(b)) {
		n++
		l = strings.TrimRight(l, "\r\n")
		if m := podEvent.FindStringSubmatch(l); m != nil {
			s.podEvent(n, l, p, m[1], m[2])
		} else if m := podStuck.FindStringSubmatch(l); m != nil && p.pending && neverRuns[m[1]] {
			s.podWaits(n, l, p, m[1]+": "+m[2])
		} else if m := podField.FindStringSubmatch(l); m != nil {
			s.podField(n, l, p, len(m[1]), m[2], m[3])
		}
	}
	return nil
}

// head takes a field of the pod itself, and returns false if it is none of those that count.
func (p *pod) head(name, value string) bool {
	switch name {
	case "Name":
		*p = pod{name: value}
	case "Node":
		p.node, _, _ = strings.Cut(value, "/")
	case "Status":
		p.pending = value == "Pending"
	default:
		return false
	}
	return true
}

// neverStarts says whether a field is a reason to wait that does not go away by itself.
func (p *pod) neverStarts(name, value string) bool {
	return p.state == "Waiting" && name == "Reason" && neverRuns[value]
}

// podField takes a field. Names stand at the margin, a container's state below it.
func (s *scan) podField(n int, text string, p *pod, indent int, name, value string) {
	switch {
	case indent == 0 && p.head(name, value):
	case indent == 0 && name == "Reason" && value == "Evicted":
		s.podEvent(n, text, p, value, "")
	case name == "State" || name == "Last State":
		p.state, p.reason, p.code = value, "", ""
	case p.neverStarts(name, value):
		s.podWaits(n, text, p, value)
	case p.state == "Terminated":
		s.podTerminated(n, text, p, name, value)
	}
}

// podTerminated takes a field of how a container ended.
func (s *scan) podTerminated(n int, text string, p *pod, name, value string) {
	switch name {
	case "Reason":
		p.reason = value
	case "Exit Code":
		p.code = value
		s.podEnd(n, text, p, 0)
	case "Finished":
		if at, err := time.Parse(time.RFC1123Z, value); err == nil {
			s.podEnded(float64(at.Unix()))
		}
		p.state = ""
	}
}

// podWaits is a pod that will not start by itself.
func (s *scan) podWaits(n int, text string, p *pod, why string) {
	s.addLine(doctor.Line{At: s.at(n, p.name+": "+strings.TrimSpace(text)), Kind: "pending", Host: p.name, Rank: -1, Dev: -1, Warn: true,
		Msg: text, F: map[string]string{"by": "kubernetes", "node": p.node, "why": why}})
}

// podEnd is a container that ended.
func (s *scan) podEnd(n int, text string, p *pod, at float64) {
	l := doctor.Line{At: s.at(n, p.name+": "+p.reason+", exit code "+p.code), Kind: "exit", Host: p.name, Rank: -1, Dev: -1, Warn: true,
		Msg: text, Time: at,
		F: map[string]string{"code": p.code, "by": "kubernetes", "node": p.node, "job": p.job, "index": p.index}}
	switch {
	case p.reason == "OOMKilled":
		l.Kind = "oom_event"
	case p.reason == "Completed" || p.code == "0":
		l.Kind, l.Warn = "job_done", false
	}
	s.addLine(l)
}

// podEnded gives the line that was added last its time.
func (s *scan) podEnded(at float64) {
	if n := len(s.c.Lines); n > 0 && s.c.Lines[n-1].At.File == s.file {
		s.c.Lines[n-1].Time = at
	}
}

// podEvent is an event that ends a pod.
func (s *scan) podEvent(n int, text string, p *pod, reason, msg string) {
	l := doctor.Line{At: s.at(n, text), Host: p.name, Rank: -1, Dev: -1, Warn: true, Msg: text,
		F: map[string]string{"by": "kubernetes", "node": p.node, "why": msg}}
	switch reason {
	case "Evicted":
		l.Kind = "evicted"
	case "OOMKilling", "SystemOOM":
		l.Kind = "oom_event"
	case "NodeNotReady":
		l.Kind, l.F["hosts"] = "host_lost", p.node
	default:
		l.Kind, l.F["why"] = "cancelled", "PREEMPTION"
	}
	s.addLine(l)
}

// podJSON reads kubectl get pods -o json.
func (s *scan) podJSON(d *pdict) bool {
	pods := []any{d}
	if d.text("kind") != "Pod" {
		pods = d.list("items")
	}
	some := false
	for _, x := range pods {
		v, _ := x.(*pdict)
		if v == nil || v.text("kind") != "Pod" || v.dict("status") == nil {
			continue
		}
		some = true
		p := &pod{name: v.dict("metadata").text("name"), node: v.dict("spec").text("nodeName")}
		labels := v.dict("metadata").dict("labels")
		p.job = firstText(labels, "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "batch.kubernetes.io/job-name", "job-name")
		p.index = firstText(labels, "jobset.sigs.k8s.io/job-global-index", "training.kubeflow.org/replica-index",
			"batch.kubernetes.io/job-completion-index")
		st := v.dict("status")
		if st.text("reason") == "Evicted" {
			s.podEvent(0, p.name+": "+st.text("message"), p, "Evicted", st.text("message"))
		}
		for _, c := range st.list("conditions") {
			s.podCondition(c, p)
		}
		for _, c := range slices.Concat(st.list("initContainerStatuses"), st.list("containerStatuses")) {
			s.podStatus(c, p)
		}
	}
	return some
}

// disrupted are the reasons of a pod's condition DisruptionTarget, as the events that they are.
var disrupted = map[string]string{"DeletionByTaintManager": "NodeNotReady", "DeletionByPodGC": "NodeNotReady",
	"PreemptionByScheduler": "Preempted", "PreemptionByKubeScheduler": "Preempted", "EvictionByEvictionAPI": "Evicted",
	"TerminationByKubelet": "Evicted"}

// podCondition takes why a pod is ended from outside. The pod itself may stay Running for as long as its host is gone.
func (s *scan) podCondition(c any, p *pod) {
	v, _ := c.(*pdict)
	if v == nil {
		return
	}
	if why := v.text("reason"); v.text("type") == "PodScheduled" && v.text("status") == "False" && neverRuns[why] {
		s.podWaits(0, why+": "+v.text("message"), p, why+": "+v.text("message"))
		s.podEnded(clock(v.text("lastTransitionTime")))
	}
	if v.text("type") != "DisruptionTarget" || v.text("status") != "True" {
		return
	}
	if event, known := disrupted[v.text("reason")]; known {
		s.podEvent(0, p.name+": "+v.text("reason")+": "+v.text("message"), p, event, v.text("message"))
		s.podEnded(clock(v.text("lastTransitionTime")))
	}
}

// firstText is the first of several fields that is set.
func firstText(d *pdict, names ...string) string {
	for _, n := range names {
		if d != nil && d.text(n) != "" {
			return d.text(n)
		}
	}
	return ""
}

// podStatus takes how a container ended, now or before its last restart.
func (s *scan) podStatus(c any, p *pod) {
	v, _ := c.(*pdict)
	if w := v.dict("state").dict("waiting"); w != nil && neverRuns[w.text("reason")] {
		why := w.text("reason") + ": " + w.text("message")
		s.podWaits(0, why, p, why)
	}
	for _, k := range []string{"lastState", "state"} {
		if v == nil {
			return
		}
		t := v.dict(k).dict("terminated")
		if t == nil {
			continue
		}
		p.reason, p.code = t.text("reason"), strconv.FormatInt(t.int("exitCode", 0), 10)
		s.podEnd(0, p.name+" "+p.reason, p, clock(t.text("finishedAt")))
	}
}
