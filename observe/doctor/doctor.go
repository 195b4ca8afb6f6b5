// Package doctor finds causes in evidence: logs, dumps and counters of a cluster
// that runs NCCL, PyTorch or weft. It answers who is to blame, since when, how
// sure, on what evidence, and what to do next.
//
//	files ──► observe/doctor/read ──► Case ──► Diagnose ──► Report
//
// A Case is what was read, as plain values. Rules are catalogue rows where they are
// data, and small functions where they are logic. Consequences are folded under their
// cause, unknowns are reported as unknown, and healthy evidence gives no finding.
//
// The package is pure: it opens no file and reads no clock. observe/doctor/read turns
// bytes into a Case.
package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Severity is how bad a finding is.
type Severity int

const (
	Info     Severity = iota // good to know; nothing is wrong because of it alone
	Warning                  // slower, fragile, or wrong soon
	Critical                 // a job fails, hangs or runs at a fraction of its speed
)

var severities = []string{"info", "warning", "critical"}

func (s Severity) String() string { return severities[s] }

// MarshalText writes info, warning or critical.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *Severity) UnmarshalText(b []byte) (err error) {
	*s, err = ParseSeverity(string(b))
	return err
}

// ParseSeverity reads info, warning or critical.
func ParseSeverity(text string) (Severity, error) {
	if i := slices.Index(severities, text); i >= 0 {
		return Severity(i), nil
	}
	return 0, fmt.Errorf("unknown severity %q; known: %s", text, strings.Join(severities, ", "))
}

// Evidence is a line that a finding rests on. Line is 0 where a file has no
// lines, as in a binary dump.
type Evidence struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Text string `json:"text"`
}

func (e Evidence) String() string {
	if e.File == "" {
		return e.Text
	}
	if e.Line == 0 {
		return e.File + ": " + e.Text
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text)
}

// Subject is what a finding is about. Ranks are those of the job's largest
// communicator.
type Subject struct {
	Ranks   []int    `json:"ranks"`
	Hosts   []string `json:"hosts"`
	Devices []string `json:"devices"`
	Links   []string `json:"links"`
}

func (s Subject) empty() bool {
	return len(s.Ranks)+len(s.Hosts)+len(s.Devices)+len(s.Links) == 0
}

// add joins another subject to this one.
func (s *Subject) add(o Subject) {
	s.Ranks = append(s.Ranks, o.Ranks...)
	s.Hosts = append(s.Hosts, o.Hosts...)
	s.Devices = append(s.Devices, o.Devices...)
	s.Links = append(s.Links, o.Links...)
	s.tidy()
}

// Tidy gives the subject in order, without doubles and empty names.
func (s Subject) Tidy() Subject {
	s.Ranks, s.Hosts, s.Devices, s.Links = slices.Clone(s.Ranks), slices.Clone(s.Hosts), slices.Clone(s.Devices), slices.Clone(s.Links)
	s.tidy()
	return s
}

// tidy sorts, removes doubles and empty names, and leaves no nil list, so that
// JSON has lists.
func (s *Subject) tidy() {
	slices.Sort(s.Ranks)
	s.Ranks = slices.DeleteFunc(slices.Compact(s.Ranks), func(r int) bool { return r < 0 })
	for _, l := range []*[]string{&s.Hosts, &s.Devices, &s.Links} {
		slices.SortFunc(*l, natural)
		*l = slices.DeleteFunc(slices.Compact(*l), func(x string) bool { return x == "" })
		if *l == nil {
			*l = []string{}
		}
	}
	if s.Ranks == nil {
		s.Ranks = []int{}
	}
}

// String lists ranks, hosts, devices and links, long lists in short.
func (s Subject) String() string {
	var parts []string
	if len(s.Ranks) > 0 {
		parts = append(parts, plural(len(s.Ranks), "rank")+" "+Numbers(s.Ranks))
	}
	for _, l := range []struct {
		what string
		list []string
	}{{"host", s.Hosts}, {"device", s.Devices}, {"link", s.Links}} {
		if len(l.list) > 0 {
			parts = append(parts, plural(len(l.list), l.what)+" "+few(l.list))
		}
	}
	return strings.Join(parts, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return what
	}
	return what + "s"
}

// few names the first of a list.
func few(list []string) string {
	if len(list) > 8 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:8], ", "), len(list)-8)
	}
	return strings.Join(list, ", ")
}

// Numbers writes 0-3,7.
func Numbers(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		if b.Len() > 120 {
			fmt.Fprintf(&b, "... (%d in all)", len(list))
			break
		}
		if j > i {
			fmt.Fprintf(&b, "%d-%d", list[i], list[j])
		} else {
			fmt.Fprintf(&b, "%d", list[i])
		}
		i = j + 1
	}
	return b.String()
}

// Finding is one thing that is wrong or worth knowing.
type Finding struct {
	ID           string     `json:"id"` // a row of the catalogue
	Title        string     `json:"title"`
	Severity     Severity   `json:"severity"`
	Confidence   float64    `json:"confidence"` // 0 to 1
	Layer        string     `json:"layer"`
	Job          string     `json:"job,omitempty"` // which job, where several were read
	Since        string     `json:"since,omitempty"`
	Subject      Subject    `json:"subject"`
	Evidence     []Evidence `json:"evidence"`
	More         int        `json:"more_evidence,omitempty"` // lines beyond those kept
	Cause        string     `json:"cause"`
	Fix          string     `json:"fix"`
	Confirm      string     `json:"confirm,omitempty"` // what would make it certain
	Where        []string   `json:"where,omitempty"`   // rail, leaf and port of each suspect, by the cluster file
	Consequences []string   `json:"consequences"`

	apart   bool // of a host or a time that is none of a job's
	crashed bool // of a dead process: a signal ended it that no other rank's failure brings

	causes map[string]bool // keys of what Cause says beyond the catalogue's sentence
}

// brief is the title with whom it is about.
func (f *Finding) brief() string {
	if who := f.Subject.String(); who != "" {
		return f.Title + " (" + who + ")"
	}
	return f.Title
}

// addCause says a cause once, by its key, and reports whether it is new. The first takes the place of the catalogue's
// sentence, further ones are appended.
func (f *Finding) addCause(key, why string) bool {
	switch {
	case f.causes[key]:
		return false
	case f.causes == nil:
		f.causes, f.Cause = map[string]bool{}, why
	default:
		f.Cause += "; " + why
	}
	f.causes[key] = true
	return true
}

// maxEvidence is how many lines a finding keeps; the rest is counted.
const maxEvidence = 12

func (f *Finding) addEvidence(list ...Evidence) {
	for _, e := range list {
		if slices.Contains(f.Evidence, e) {
			continue
		}
		if len(f.Evidence) >= maxEvidence {
			f.More++
			continue
		}
		f.Evidence = append(f.Evidence, e)
	}
}

// Hang says who holds a job up.
type Hang struct {
	Culprits   []int    `json:"culprits"`
	Class      string   `json:"class"` // a row of HangClasses
	Group      string   `json:"group"` // of the operation that the others wait in
	Operation  string   `json:"operation"`
	Job        string   `json:"job,omitempty"`
	Confidence float64  `json:"confidence"`
	Waiting    []int    `json:"waiting"`              // ranks that wait for them, directly or through others
	Candidates []int    `json:"candidates,omitempty"` // ranks without a dump, of which nothing is known
	Why        []string `json:"why"`

	about map[int]int // by the number of a line of Why: the rank that it is about
	job   *job        // nil where dumps of all jobs were judged
}

// HangClasses says what each class of a hang means.
var HangClasses = map[string]string{
	"host":     "the culprits have no unfinished work: their program stopped issuing (GIL, data loader, exception, I/O)",
	"gpu":      "the culprits issued work that their peers finished and they did not: the GPU or its NVLink is stuck",
	"link":     "two ranks wait in one operation that both have issued: the path between them",
	"network":  "all ranks of a group wait in one operation that all have issued: the network below it",
	"mismatch": "ranks issued different operations at one place of the order",
	"order":    "ranks issued operations of two groups in opposite order and wait for one another",
	"missing":  "the culprits left no dump and no last words: dead, or never started",
	"behind":   "the culprits launched fewer operations than their peers",
}

// Report is the answer of Diagnose; its keys are stable.
type Report struct {
	Verdict  string    `json:"verdict"`
	Findings []Finding `json:"findings"`
	Hang     *Hang     `json:"hang,omitempty"`
	Hangs    []Hang    `json:"hangs,omitempty"` // of further jobs in the same files
	Jobs     []Job     `json:"jobs"`
	Files    []File    `json:"files"`
	Unread   []Source  `json:"unread"`  // files that could not be read or understood, and why
	Unknown  []string  `json:"unknown"` // what the files do not tell, and what would
	Next     []Step    `json:"next"`    // commands to run, by layer
}

// Job is a set of processes that share communicators.
type Job struct {
	Name   string   `json:"name"`
	Ranks  int      `json:"ranks"`            // of the largest communicator
	Seen   int      `json:"seen"`             // ranks of which something was read
	Silent []int    `json:"silent,omitempty"` // ranks that did not say that the job came to a halt while others did
	Hosts  []string `json:"hosts"`
	NCCL   []string `json:"nccl_versions,omitempty"`
	Groups int      `json:"groups,omitempty"`
}

// File is a source and what it was taken for.
type File struct {
	Path  string `json:"path"`
	Kind  string `json:"kind"`
	Lines int    `json:"lines,omitempty"`
	Notes []Note `json:"notes,omitempty"` // what is missing or was not understood
	Ranks []int  `json:"-"`               // whose lines are in it, by the prefixes of PyTorch
}

// Note is a remark on a source. Rules look at its kind; the text is for people, and JSON has it alone.
type Note struct {
	Kind NoteKind
	Text string
}

// MarshalText writes the text.
func (n Note) MarshalText() ([]byte, error) { return []byte(n.Text), nil }

// NoteKind is what a note means for the evidence.
type NoteKind int

const (
	Partial NoteKind = iota // some of it was not understood or not kept; its end is there
	Cut                     // it ends before its end: what is missing at the end may have been written
	Unread                  // nothing of it could be read or understood
	Clock                   // its clock was wrong, and its times are corrected
)

// Source is a file that tells nothing.
type Source struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// unread says why nothing of a source is known, "" if something is.
func (f *File) unread() string {
	for _, n := range f.Notes {
		if n.Kind == Unread {
			return n.Text
		}
	}
	return map[string]string{"empty": "it is empty", "unread": "it was not read", "unknown": "nothing in it was recognised",
		"refused": "it was refused"}[f.Kind]
}

// Blind says that sources were given and none of them was understood: whether anything is wrong is unknown.
func (r *Report) Blind() bool {
	known := slices.ContainsFunc(r.Files, func(f File) bool { return f.Kind != "archive" && f.unread() == "" })
	return len(r.Findings) == 0 && len(r.Files) > 0 && !known
}

// has says whether a source has a note of a kind.
func (f *File) has(k NoteKind) bool {
	return slices.ContainsFunc(f.Notes, func(n Note) bool { return n.Kind == k })
}

// Step is a command to run next.
type Step struct {
	Layer   string `json:"layer"`
	Command string `json:"command"`
	Why     string `json:"why"`
}

// Worst is the highest severity of a report's findings, and whether there is one.
func (r *Report) Worst() (worst Severity, any bool) {
	for _, f := range r.Findings {
		worst, any = max(worst, f.Severity), true
	}
	return worst, any
}

// inner returns the map at a key of a map of maps, and makes it if there is none yet.
func inner[K, L comparable, V any](m map[K]map[L]V, k K) map[L]V {
	if m[k] == nil {
		m[k] = map[L]V{}
	}
	return m[k]
}

// commonest is the key with the longest list, and the first in order of several.
func commonest[K cmp.Ordered, V any](lists map[K][]V) (most K) {
	for i, k := range slices.Sorted(maps.Keys(lists)) {
		if i == 0 || len(lists[k]) > len(lists[most]) {
			most = k
		}
	}
	return most
}

// natural orders names with numbers as people do: n2 before n10.
func natural(a, b string) int {
	for a != "" && b != "" {
		i, j := digits(a), digits(b)
		if i > 0 && j > 0 {
			x, y := strings.TrimLeft(a[:i], "0"), strings.TrimLeft(b[:j], "0")
			if len(x) != len(y) {
				return len(x) - len(y)
			}
			if c := strings.Compare(x, y); c != 0 {
				return c
			}
			a, b = a[i:], b[j:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
