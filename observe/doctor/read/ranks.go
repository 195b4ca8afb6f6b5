package read

import (
	"maps"
	"slices"

	"github.com/weft-fabric/weft/observe/doctor"
)

// ownWords are kinds of lines that a rank's process prints itself, not a launcher about it.
var ownWords = map[string]bool{"watchdog": true, "pgstate": true, "stuck": true, "exception": true, "cuda_error": true, "cuda_oom": true,
	"nccl_failed": true, "store_lost": true, "gloo_late": true, "gloo_lost": true, "disk_full": true, "loader_shm": true,
	"gpu_access": true, "files": true, "no_name": true, "no_master": true, "not_joined": true, "rendezvous": true, "not_number": true,
	"checkpoint": true}

// fileRanks is what files say of their ranks, in their lines and by their names.
type fileRanks struct {
	said  map[string]map[int]bool // by the lines of a file
	forms map[string]int          // files of a form of names
	wrong map[string]bool         // forms of which a file says something else
}

// ranksOfFiles gives lines that do not say whose they are the rank that their file is named after: rank0.log, rank_3.txt,
// worker-2/stderr. Of names without the word rank there must be several, and what any of those files says of its own rank
// must agree: folders 0 to 7 are often local ranks.
func ranksOfFiles(c *doctor.Case) {
	r := saidRanks(c)
	of := map[string]int{}
	for i := range c.Files {
		f := &c.Files[i]
		n, ok := doctor.RankOfFile(f.Path)
		if !ok || !r.trust(n) {
			continue
		}
		of[f.Path] = n.Rank
		if r.said[f.Path][n.Rank] = true; f.Kind != "empty" {
			f.Ranks = slices.Sorted(maps.Keys(r.said[f.Path]))
		}
	}
	for i := range c.Lines {
		l := &c.Lines[i]
		if r, ok := of[l.At.File]; ok && l.Rank < 0 && ofItsRank(l) {
			l.Rank = r
		}
	}
}

// trust says whether a name tells a rank.
func (r *fileRanks) trust(n doctor.FileRank) bool {
	return !r.wrong[n.Form] && (n.Sure || r.forms[n.Form] > 1)
}

// ofItsRank says whether a line is of the process that wrote the file.
func ofItsRank(l *doctor.Line) bool { return ownWords[l.Kind] || toldByItself[l.F["by"]] }

// saidRanks collects the ranks that each file's lines name as their own, and which forms of file names contradict them.
func saidRanks(c *doctor.Case) *fileRanks {
	r := &fileRanks{said: map[string]map[int]bool{}, forms: map[string]int{}, wrong: map[string]bool{}}
	for i := range c.Files {
		set := map[int]bool{}
		for _, rank := range c.Files[i].Ranks {
			set[rank] = true
		}
		r.said[c.Files[i].Path] = set
	}
	for i := range c.Lines {
		l := &c.Lines[i]
		if set := r.said[l.At.File]; set != nil && l.Rank >= 0 && ownWords[l.Kind] {
			set[l.Rank] = true
		}
	}
	for name, ranks := range r.said {
		n, ok := doctor.RankOfFile(name)
		if !ok {
			continue
		}
		r.forms[n.Form]++
		others := maps.Clone(ranks)
		delete(others, n.Rank)
		r.wrong[n.Form] = r.wrong[n.Form] || len(others) > 0
	}
	return r
}

// toldByItself are those that tell of a process's end from inside of it.
var toldByItself = map[string]bool{"loader": true, "python": true, "libc": true}
