package launch

import (
	"cmp"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/run/lives"
)

// jobNames are the variables that name a job, the first that is set counts. The
// agent finds the job of a rank by the same ones.
var jobNames = []string{"SLURM_JOB_ID", "WEFT_JOB", "JOB_NAME", "TORCHELASTIC_RUN_ID", "PBS_JOBID"}

// reported says in which folder the process is reported, "" for none, and as what.
func (c *Command) reported() (dir string, r lives.Record) {
	env := c.Env
	if c.remote != nil {
		env = c.remote
	}
	get := func(name string) string { return variable(env, name) }
	if dir = get("WEFT_WATCH"); dir == "" {
		return "", r
	}
	r = lives.Record{Rank: c.Rank, Host: c.Host}
	r.Size, _ = strconv.Atoi(get("WORLD_SIZE"))
	for _, name := range jobNames {
		r.Job = cmp.Or(r.Job, get(name))
	}
	if port := get("MASTER_PORT"); r.Job == "" && port != "" {
		r.Job = "port-" + port
	}
	return dir, r
}

// variable is what a process with this environment beside ours has under a name.
func variable(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return os.Getenv(name)
}

// report tells of the start or the end of the process. One that runs on another
// host has another number there.
func (p *Process) report(event string) {
	if p.watch == "" {
		return
	}
	r := p.record
	r.Event = event
	if !p.remote {
		r.PID = p.Pid
	}
	if event == lives.Ended {
		p.mu.Lock()
		r.Code, r.Signal, r.Asked = p.exit.Code, int(p.exit.Signal), p.asked
		p.mu.Unlock()
	}
	lives.Write(p.watch, r)
}

// quote reports the last words of a process that failed, once all of them are in.
func (p *Process) quote() {
	e := p.Exit()
	if p.watch == "" || e.OK() || len(e.Stderr) == 0 {
		return
	}
	r := p.record
	r.Event, r.Last = lives.Said, e.Stderr
	if !p.remote {
		r.PID = p.Pid
	}
	lives.Write(p.watch, r)
}

// Over reports how a whole run ended, where its ranks were reported: it
// finished, a rank's failure ended it, or, with any other error, somebody did.
func Over(dir, job string, err error) {
	r := lives.Record{Event: lives.Over, Job: job, How: lives.Cancelled}
	var f *Failure
	switch {
	case dir == "":
		return
	case err == nil:
		r.How = lives.Finished
	case errors.As(err, &f) && f.Asked == nil:
		r.How, r.Rank = lives.Failed, f.Exit.Rank
	}
	lives.Write(dir, r)
}
