package doctor

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Absence is evidence. Where most ranks of a job say that an operation took too long, a rank that should have said so and
// did not waits in nothing: it is the one that the others wait for.

// wordsAtTheEnd are kinds of lines that a rank prints when a job comes to a halt.
var wordsAtTheEnd = []string{"watchdog", "pgstate", "stuck", "exception", "cuda_error", "cuda_oom", "nccl_failed", "store_lost", "barrier",
	"fingerprint", "gloo_late", "gloo_lost"}

var (
	rankFile   = regexp.MustCompile(`(?i)(?:^|[^a-z])(?:global[_-]?)?rank[_.-]?(\d{1,6})(?:\D|$)`)
	otherRank  = regexp.MustCompile(`(?i)(?:node|local|tp|pp|dp|ep|cp|group)[_-]?rank`)
	workerFile = regexp.MustCompile(`(?i)(?:worker|task|proc|process)[_.-]?(\d{1,6})(?:[^\d]|$)`)
	folderFile = regexp.MustCompile(`(?:^|/)(\d{1,4})/std(?:out|err)(?:\.log|\.txt)?$`)
)

// FileRank is the rank that a file is named after. Files of one form have the same name but for the number.
type FileRank struct {
	Rank int
	Form string
	Sure bool // the name says rank; a worker's number may count something else
}

// RankOfFile is the rank that a file or the folder it is in is named after.
func RankOfFile(name string) (FileRank, bool) {
	dir, base := path.Split(name)
	folder := path.Base(dir)
	for _, t := range []struct {
		re   *regexp.Regexp
		text string
		sure bool
	}{{rankFile, base, true}, {rankFile, folder, true}, {folderFile, name, false}, {workerFile, base, false}, {workerFile, folder, false}} {
		m := t.re.FindStringSubmatchIndex(t.text)
		if m == nil || otherRank.MatchString(t.text) {
			continue
		}
		n := num(t.text[m[2]:m[3]])
		form := strings.Replace(name, t.text, t.text[:m[2]]+"*"+t.text[m[3]:], 1)
		return FileRank{Rank: n, Form: form, Sure: t.sure}, true
	}
	return FileRank{}, false
}

// roll is who belongs to a job and who of them spoke.
type roll struct {
	size   int          // ranks of the job
	told   bool         // a line says how many there are; else it is the highest rank seen
	here   map[int]bool // their logs are among the files
	spoke  map[int]bool // when the job came to a halt
	shared bool         // several ranks write into one file
}

// callRoll says who of the job that rules are about should have spoken, and who did.
func (d *diag) callRoll() roll {
	jb := d.job
	r := roll{size: jb.size(), here: map[int]bool{}, spoke: map[int]bool{}}
	if jb.world != nil {
		for rank := range jb.world.members {
			r.here[rank] = true
		}
	}
	d.listen(&r)
	jb.each(func(_ *proc, l *Line) { r.size = max(r.size, min(num(l.F["n"]), mostRanks)) }, "member")
	r.told = r.size > 0
	d.filesHere(&r)
	for rank := range r.here { // what a line says may be of a part of the job
		if rank >= r.size {
			r.size, r.told = rank+1, false
		}
	}
	return r
}

// filesHere notes ranks whose logs are among the files, also where they say nothing that matters.
func (d *diag) filesHere(r *roll) {
	for _, f := range d.c.Files {
		if n, ok := RankOfFile(f.Path); ok && n.Sure && len(d.j.jobs) == 1 {
			r.here[n.Rank] = true
		}
		for _, rank := range f.Ranks {
			if d.job.has(f.Path) {
				r.here[rank] = true
			}
		}
	}
}

// listen notes who spoke when the job came to a halt.
func (d *diag) listen(r *roll) {
	byFile := map[string]int{}
	d.job.each(func(_ *proc, l *Line) {
		rank := d.j.rankOf(l)
		if rank < 0 || rank >= mostRanks {
			return
		}
		r.here[rank], r.spoke[rank] = true, true
		if old, ok := byFile[l.At.File]; ok && old != rank {
			r.shared = true
		}
		byFile[l.At.File] = rank
	}, wordsAtTheEnd...)
}

// silent are the ranks that should have spoken and did not.
func (r *roll) silent() (list []int) {
	for rank := range r.size {
		if !r.spoke[rank] {
			list = append(list, rank)
		}
	}
	return list
}

// correct says in a finding about all ranks that only some of them timed out.
func (r *roll) correct(f *Finding, silent []int) {
	if len(f.Subject.Ranks) < r.size {
		f.Title = fmt.Sprintf("%d of %d ranks timed out in one operation", len(f.Subject.Ranks), r.size)
	}
	if len(silent) > 0 {
		f.Confidence = min(f.Confidence, 0.5)
		f.Cause = ranksText(silent) + " said nothing of it: the others wait for them, or their logs were not given"
	}
}

// silence judges ranks that do not say that the operation timed out in which the others of the whole job wait.
func (d *diag) silence() {
	op, group := d.stoppedIn()
	if op == nil || len(d.c.Dumps) > 0 {
		return
	}
	r := d.callRoll()
	list := r.silent()
	d.job.silent = list
	spoke := r.size - len(list)
	if spoke < 2 {
		return
	}
	if f := d.has("watchdog-same-place"); f != nil {
		r.correct(f, list)
	}
	if len(list) > 0 && !d.hung() && 2*len(list) <= spoke { // nobody else is to blame, and most spoke
		d.hangs = append(d.hangs, r.blame(list, op, group))
	}
}

// stoppedIn is the first operation of the group of all ranks that timed out, or nil.
func (d *diag) stoppedIn() (op *Line, group string) {
	groups, _ := d.timeouts()
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		name, _, _ := strings.Cut(g, " ")
		if all := name == "default" || name == "default_pg" || name == "0"; all || op == nil && d.mostWait(groups[g]) {
			op, group = groups[g][0].l, g
		}
	}
	return op, group
}

// mostWait says whether a group must be that of all ranks, whatever its name: nearly all of them wait in it.
func (d *diag) mostWait(list []timeout) bool {
	ranks := map[int]bool{}
	for _, t := range list {
		ranks[t.rank] = true
	}
	r := d.callRoll()
	return len(ranks) > 2 && 4*len(ranks) >= 3*r.size
}

// blame is the verdict on ranks that are silent while the others wait in an operation.
func (r *roll) blame(list []int, op *Line, group string) Hang {
	h := Hang{Class: "host", Culprits: list, Waiting: slices.Sorted(maps.Keys(r.spoke)), Group: group,
		Operation: strings.TrimSuffix(op.F["op"]+" #"+op.F["seq"], " #"), Confidence: 0.8}
	for _, rank := range list {
		how := "its log is here and does not say that it timed out"
		switch {
		case r.here[rank]:
		case r.shared:
			how = "no line of it is here, although ranks write into one file"
			h.Confidence = min(h.Confidence, 0.75)
		default:
			how = "no log of it is here: it is dead or never started, or its log was not given"
			h.Class, h.Confidence = "missing", 0.5
		}
		h.Why = append(h.Why, fmt.Sprintf("rank %d is silent while %d of %d ranks timed out: %s", rank, r.size-len(list), r.size, how))
	}
	if !r.told {
		h.Confidence = min(h.Confidence, 0.65)
	}
	return h
}

// saving finds ranks that hold a job up because they write a checkpoint.
func (d *diag) saving() {
	last := map[int]*Line{}
	d.job.each(func(_ *proc, l *Line) {
		if rank := d.writer(l); rank >= 0 {
			last[rank] = l
		}
	}, "checkpoint")
	for i := range d.hangs {
		if h := &d.hangs[i]; h.job == nil || h.job == d.job {
			d.blockedBySaving(h.Culprits, last)
		}
	}
}

// blockedBySaving finds those of the ranks that a hang waits for whose last word is that they save.
func (d *diag) blockedBySaving(ranks []int, last map[int]*Line) {
	lines := map[string]int{}
	for _, f := range d.c.Files {
		lines[f.Path] = f.Lines
	}
	shared := d.callRoll().shared
	for _, rank := range ranks {
		l := last[rank]
		if l == nil || l.F["done"] != "" || !shared && lines[l.At.File]-l.At.Line > 8 {
			continue // it wrote on after it began to save
		}
		f := d.find("checkpoint-blocks", Subject{Ranks: []int{rank}, Hosts: []string{l.Host}}, l.At)
		if shared {
			f.Confidence = 0.7
		}
	}
}

// writer is the rank that printed a line: by its prefix, or by who else writes into the file. Programs that print
// once for all ranks do so on rank 0.
func (d *diag) writer(l *Line) int {
	if r := d.j.rankOf(l); r >= 0 {
		return r
	}
	if n, ok := RankOfFile(l.At.File); ok && n.Sure {
		return n.Rank
	}
	owner := -1
	for _, p := range d.job.procs {
		for _, m := range p.members {
			if m.comm != d.job.world || p.lines[0].At.File != l.At.File {
				continue
			}
			if owner >= 0 && owner != m.rank {
				return 0
			}
			owner = m.rank
		}
	}
	return max(owner, 0)
}
