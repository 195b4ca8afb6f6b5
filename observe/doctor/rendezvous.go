package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Jobs that did not come together, and what is left of them when nothing else explains their end.

// rendezvous judges jobs that did not come together.
func (d *diag) rendezvous() {
	jb := d.job
	jb.each(func(_ *proc, l *Line) {
		f := d.find("rendezvous-incomplete", d.of(l), l.At)
		f.Subject.Ranks = []int{} // the rank that says so is there
		f.Cause = fmt.Sprintf("%s of %s came: the others did not start, are late, died, or have another address, port or world size",
			l.F["have"], l.F["want"])
	}, "not_joined")
	jb.each(func(_ *proc, l *Line) {
		f := d.find("rendezvous-incomplete", Subject{Ranks: []int{num(l.F["root"])}}, l.At)
		f.Confidence = 0.7
		f.Cause = fmt.Sprintf("rank %s of a group did not make the communicator's id: it is late, dead, or not in this group's code", l.F["root"])
	}, "no_id")
	jb.each(func(_ *proc, l *Line) {
		f := d.find("rendezvous-unreachable", d.of(l), l.At)
		if a := l.F["addr"]; a != "" {
			where := strings.TrimSuffix(a+":"+l.F["port"], ":")
			f.Subject.Links = append(f.Subject.Links, "to "+where)
			if strings.HasPrefix(a, "127.") || a == "localhost" || a == "::1" {
				f.Cause = "nothing listens at " + where + ": rank 0 is not there or is late; ranks of other hosts would need its real address"
			}
		}
	}, "no_master")
	if d.has("rendezvous-unreachable") == nil && d.has("rendezvous-incomplete") == nil {
		jb.each(func(_ *proc, l *Line) {
			if strings.Contains(l.Msg, "RendezvousTimeoutError") {
				d.find("rendezvous-incomplete", Subject{}, l.At)
			} else {
				d.find("rendezvous-unreachable", Subject{}, l.At)
			}
		}, "rendezvous")
	}
	jb.each(func(_ *proc, l *Line) { d.find("rendezvous-port-used", d.of(l), l.At) }, "port_used")
	d.ranksTwice()
	jb.each(func(_ *proc, l *Line) {
		if l.F["gpu"] == "" {
			d.find("memlock", d.of(l), l.At).Confidence = 0.6
			return
		}
		f := d.find("peermem-missing", d.of(l), l.At)
		f.Severity = Critical
		f.Cause = "the NIC cannot register memory of the GPU: neither nvidia-peermem nor DMA-BUF is there, or the container does not see it"
	}, "no_mr")
}

// ranksTwice finds ranks that two processes have while others have none.
func (d *diag) ranksTwice() {
	seen := map[int][]*Line{}
	world := 0
	d.job.each(func(_ *proc, l *Line) {
		seen[l.Rank] = append(seen[l.Rank], l)
		world = max(world, num(l.F["n"]))
	}, "member")
	if len(seen) < world {
		for _, r := range slices.Sorted(maps.Keys(seen)) {
			if list := seen[r]; len(list) > 1 {
				f := d.find("rank-twice", Subject{Ranks: []int{r}}, list[0].At, list[1].At)
				f.Cause = fmt.Sprintf("processes of different hosts have the same ranks, and %d of %d ranks are nobody's: the launcher does not tell hosts apart (NODE_RANK, srun's tasks a node)",
					world-len(seen), world)
			}
		}
	}
}

// storeLost finds a store that is gone. A process that ends closes it: where nothing else failed, a warning of it is also
// what a job prints when it is done.
func (d *diag) storeLost() {
	calm := !d.job.some("exit", "exception", "watchdog", "stuck", "cancelled")
	asked := d.afterCancel()
	d.job.each(func(_ *proc, l *Line) {
		if asked(l) {
			return
		}
		f := d.find("store-lost", d.of(l), l.At)
		if calm = calm && strings.Contains(l.Msg, "[W"); calm {
			f.Severity, f.Cause = Info, "rank 0 ended first: usual when a job is done, a failure if it was not"
		} else {
			f.Severity, f.Cause = byID[f.ID].Severity, byID[f.ID].Cause
		}
	}, "store_lost")
}

// lastWords judges what PyTorch says of NCCL where nothing else explains it.
func (d *diag) lastWords() {
	for _, jb := range d.j.jobs {
		d.job = jb
		jb.each(func(_ *proc, l *Line) { d.consequence("the store of rank 0 is gone", l) }, "store_lost")
		if !slices.ContainsFunc(d.list, func(f *Finding) bool { return f.Severity == Critical }) && !jb.some("nccl_failed") {
			d.storeLost()
		}
		jb.each(func(_ *proc, l *Line) { d.consequence("NCCL gave up: "+l.F["what"], l) }, "nccl_failed")
		if slices.ContainsFunc(d.list, func(f *Finding) bool { return f.Severity == Critical }) {
			continue
		}
		jb.each(func(_ *proc, l *Line) {
			what := l.F["what"]
			if strings.Contains(what, "remote process exited") {
				d.find("peer-closed", d.of(l), l.At)
				return
			}
			f := d.find("nccl-failed", d.of(l), l.At)
			f.Cause = what + map[string]string{
				"unhandled system error": ": a socket, memory or a file; often an interface, a firewall or a peer that is gone",
				"unhandled cuda error":   ": often memory of the GPU, a driver that does not fit, or /dev/shm",
				"internal error":         ": often a peer that is gone, or a bug",
				"invalid usage":          ": often two ranks on one GPU",
			}[what]
			if strings.Contains(what, "nable to load NCCL") {
				f.Cause = "libnccl was not found, or one that does not fit: LD_LIBRARY_PATH, the nvidia-nccl package"
			}
		}, "nccl_failed")
	}
	d.job = nil
}
