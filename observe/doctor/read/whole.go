package read

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Files that are one value: pickles and JSON.

// readPickle reads a flight recorder's dump.
func readPickle(s *scan, b []byte) error {
	v, err := unpickle(b)
	d, _ := v.(*pdict)
	if err != nil && !errors.Is(err, errCut) {
		if errors.Is(err, errCode) {
			s.c.Files[len(s.c.Files)-1].Kind = "refused"
			return fmt.Errorf("pickle: %w; the file is not a flight recorder's dump, or it was tampered with", err)
		}
		if !isFlight(d) {
			return fmt.Errorf("pickle: %w", err)
		}
	}
	if !isFlight(d) {
		if err != nil {
			return fmt.Errorf("pickle: %w before anything of a dump was in it", err)
		}
		s.c.Files[len(s.c.Files)-1].Kind = "unknown"
		return fmt.Errorf("a pickle, but no flight recorder's dump: it has no entries and no pg_config")
	}
	dump := flight(s.file, d)
	if err != nil {
		s.cutDump(&dump)
		s.note(doctor.Cut, "%v: %d operations were read", err, len(dump.Entries))
	}
	s.c.Dumps = append(s.c.Dumps, dump)
	s.c.Files[len(s.c.Files)-1].Kind = "flight recorder"
	return nil
}

// cutDump marks a dump that ends in the middle. Its last operation is not whole.
func (s *scan) cutDump(d *doctor.Dump) {
	d.Truncated = true
	if n := len(d.Entries); n > 0 {
		d.Entries = d.Entries[:n-1]
	}
	if len(d.Entries) == 0 {
		s.note(doctor.Unread, "the dump ends before its first whole operation")
	}
}

// isJSON says whether a file is JSON from its first bytes. Logs that are lines of JSON, of containers and of the
// journal, are not: they are read line by line.
func isJSON(b []byte, text string) bool {
	t := strings.TrimLeft(strings.TrimPrefix(text, "\ufeff"), " \t\r\n")
	if len(t) < 2 || strings.HasPrefix(t, `{"log":`) {
		return false
	}
	first, _, _ := strings.Cut(t, "\n")
	if strings.Contains(first, `"MESSAGE"`) || strings.Contains(first, `"__REALTIME_TIMESTAMP"`) {
		return false // the journal
	}
	switch t[0] {
	case '{':
		return strings.ContainsAny(t[1:2], "\" \n\r\t}")
	case '[': // it may begin a log line: [1,0]<stdout>: or [2024-01-02 ...]
		return strings.ContainsAny(t[1:2], "{ \n\r\t]") && strings.Contains(t[:min(len(t), 200)], "{")
	}
	return false
}

// readJSON reads the JSON forms: dumps, RAS, Inspector, nccl-tests, ip -j.
func readJSON(s *scan, b []byte) error {
	j := &jsoner{b: bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))}
	found := 0
	for {
		j.space()
		if j.at >= len(j.b) {
			break
		}
		n := 1 + bytes.Count(j.b[:j.at], []byte("\n"))
		if found > 0 {
			n = 0 // counting anew for every line would take long
		}
		v, err := j.value(0)
		ok := s.jsonValue(n, v, err)
		if ok {
			found++
		}
		if err != nil {
			if found > 0 {
				s.note(doctor.Partial, "line %d: %v: what is before was read", j.lineAt(), err)
				// Lines of JSON: go on with the next line.
				if i := bytes.IndexByte(j.b[min(j.at, len(j.b)):], '\n'); i >= 0 {
					j.at += i + 1
					continue
				}
				return nil
			}
			return fmt.Errorf("JSON: %w", err)
		}
	}
	if found == 0 {
		return errNotThis
	}
	return nil
}

// jsonForm is a kind of JSON object, recognised by its keys.
type jsonForm struct {
	kind string
	is   func(v *pdict) bool
	read func(s *scan, n int, v *pdict, err error) bool // false: it is something else after all
}

// hasAny says whether at least one of the keys is there.
func (d *pdict) hasAny(keys ...string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { return d.has(k) })
}

// jsonForms are tried in this order: the first that reads an object has it.
var jsonForms = []jsonForm{
	{"NCCL Inspector", func(v *pdict) bool {
		return v.has("header") && v.has("metadata") || v.hasAny("coll_perf", "p2p_perf", "dump_stats")
	},
		func(s *scan, n int, v *pdict, _ error) bool { s.inspector(n, v); return true }},
	{"flight recorder", isFlight, func(s *scan, _ int, v *pdict, err error) bool { s.dump(flight(s.file, v), err); return true }},
	{"RAS report", func(v *pdict) bool { return v.hasAny("communicators", "communicators_count") },
		func(s *scan, _ int, v *pdict, _ error) bool { s.rasJSON(v); return true }},
	{"RAS events", func(v *pdict) bool { return v.has("event") && v.has("peer") && v.has("group") },
		func(s *scan, n int, v *pdict, _ error) bool { s.rasEvent(n, v); return true }},
	{"nccl-tests", func(v *pdict) bool { return v.has("results") && v.hasAny("config", "devices", "version") },
		func(s *scan, _ int, v *pdict, _ error) bool { s.benchJSON(v); return true }},
	{"weft flight record", func(v *pdict) bool { return v.has("records") && v.has("rank") },
		func(s *scan, _ int, v *pdict, err error) bool { s.dump(weftFlight(s.file, v), err); return true }},
	{"Redfish events", func(v *pdict) bool { return v.hasAny("Events", "Members") },
		func(s *scan, _ int, v *pdict, _ error) bool { return s.redfish(v) }},
	{"Kubernetes pods", func(v *pdict) bool { return v.has("kind") }, func(s *scan, _ int, v *pdict, _ error) bool { return s.podJSON(v) }},
}

// dump keeps a dump; err says that its file ended too early.
func (s *scan) dump(d doctor.Dump, err error) {
	if err != nil {
		s.cutDump(&d)
	}
	s.c.Dumps = append(s.c.Dumps, d)
}

// jsonValue reads one value of a file, begun in line n, and says whether it is of a known form. err says that the value
// was cut.
func (s *scan) jsonValue(n int, v any, err error) bool {
	kind := &s.c.Files[len(s.c.Files)-1].Kind
	switch v := v.(type) {
	case *pdict:
		for _, f := range jsonForms {
			if f.is(v) && f.read(s, n, v, err) {
				*kind = f.kind
				return true
			}
		}
	case *plist:
		known := false
		for _, x := range v.l {
			if k := s.jsonItem(n, x); k != "" {
				known, *kind = true, k
			}
		}
		return known
	}
	return false
}

// jsonItem reads an element of a list, and returns what it is; "" if it is nothing known.
func (s *scan) jsonItem(n int, x any) string {
	d, _ := x.(*pdict)
	switch {
	case d == nil:
		return ""
	case d.has("ifname"):
		s.ipAddress(d)
		return "ip -j"
	case d.has("header"):
		s.inspector(n, d)
		return "NCCL Inspector"
	case d.has("links") && d.has("nodes"):
		s.netq(d)
		return "NetQ topology"
	}
	return ""
}
