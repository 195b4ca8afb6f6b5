package agent

import (
	"fmt"
	"strings"
	"testing"
)

// What Slurm 22.05 and Kubernetes 1.29 print of jobs that ended.
func TestScheduledJobs(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want string // events, jobs, ranks, codes and signals
	}{
		"sacct, cancelled": {"JobID|JobName|State|ExitCode|End|NodeList\n7|train|CANCELLED by 1000|0:0|2026-11-18T05:00:00|n[1-2]\n7.0|python|CANCELLED|0:15|2026-11-18T05:00:00|n[1-2]\n",
			"over train-7 cancelled"},
		"sacct, a script that hides a failed step": {"JobID|JobName|State|ExitCode|End|NodeList\n8|train|COMPLETED|0:0|2026-11-18T05:00:00|n1\n8.0|python|FAILED|3:0|2026-11-18T05:00:00|n1\n",
			"over train-8 failed"},
		"scontrol, time limit": {"JobId=9 JobName=train\n   UserId=root(0) GroupId=root(0) MCS_label=N/A\n   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)\n   Requeue=1 Restarts=0 BatchFlag=0 Reboot=0 ExitCode=0:1\n   StartTime=2026-11-18T04:00:00 EndTime=2026-11-18T05:00:00 Deadline=N/A\n   NodeList=n1\n",
			"over train-9 cancelled"},
		"scontrol -o, node failed": {"JobId=10 JobName=train UserId=root(0) GroupId=root(0) MCS_label=N/A JobState=NODE_FAIL Reason=NodeDown Requeue=0 ExitCode=0:0 EndTime=2026-11-18T05:00:00 NodeList=n2 \n",
			"over train-10 failed n2"},
		"scontrol, runs": {"JobId=11 JobName=train\n   JobState=RUNNING Reason=None\n", "no job has ended"},
		"pods": {`{"kind":"List","items":[
{"kind":"Pod","metadata":{"name":"train-1-x7k2p","labels":{"batch.kubernetes.io/job-name":"train","batch.kubernetes.io/job-completion-index":"1"}},"spec":{"nodeName":"k1"},"status":{"phase":"Failed","containerStatuses":[{"state":{"terminated":{"exitCode":137,"reason":"OOMKilled","finishedAt":"2026-11-18T05:00:01Z"}}}]}},
{"kind":"Pod","metadata":{"name":"train-0-9f8d2","labels":{"batch.kubernetes.io/job-name":"train","batch.kubernetes.io/job-completion-index":"0"}},"spec":{"nodeName":"k0"},"status":{"phase":"Failed","containerStatuses":[{"state":{"running":{}},"lastState":{"terminated":{"exitCode":1,"reason":"Error","finishedAt":"2026-11-18T05:00:03Z"}}}]}}]}`,
			"ended train 1 signal 9 host-out-of-memory, ended train 0 code 1"},
		"something else": {"hello\n", "no job has ended"},
	} {
		rep, err := Scheduled(strings.NewReader(c.text))
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var list []string
		for _, l := range rep.Launches {
			s := l.Event + " " + l.Job
			switch {
			case l.Event == "over":
				s += " " + l.How + " " + l.Host
			case l.Signal != 0:
				s += fmt.Sprintf(" %d signal %d", l.Rank, l.Signal)
			default:
				s += fmt.Sprintf(" %d code %d", l.Rank, l.Code)
			}
			if l.Event == "ended" {
				s += " " + l.Why
			}
			list = append(list, strings.TrimSpace(s))
		}
		if got := strings.Join(list, ", "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
