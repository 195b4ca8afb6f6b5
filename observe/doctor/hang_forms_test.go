package doctor_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
)

// with changes a key of a dictionary, or takes it away.
func (d dict) with(key string, f func(v any) (any, bool)) dict {
	out := dict{}
	for _, p := range d {
		if p.k == key {
			v, keep := f(p.v)
			if !keep {
				continue
			}
			p.v = v
		}
		out = append(out, p)
	}
	return out
}

func (d dict) without(keys ...string) dict {
	for _, k := range keys {
		d = d.with(k, func(any) (any, bool) { return nil, false })
	}
	return d
}

func (d dict) get(key string) any {
	for _, p := range d {
		if p.k == key {
			return p.v
		}
	}
	return nil
}

// entries changes every entry of a dump.
func (d dict) entries(f func(e dict) dict) dict {
	return d.with("entries", func(v any) (any, bool) {
		out := []any{}
		for _, e := range v.([]any) {
			if x := f(e.(dict)); x != nil {
				out = append(out, x)
			}
		}
		return out, true
	})
}

// plainValue is a dump for encoding/json.
func plainValue(v any) any {
	switch v := v.(type) {
	case dict:
		out := map[string]any{}
		for _, p := range v {
			out[p.k] = plainValue(p.v)
		}
		return out
	case []any:
		out := []any{}
		for _, x := range v {
			out = append(out, plainValue(x))
		}
		return out
	case tuple:
		return []any{v[0], v[1]}
	}
	return v
}

// forms are dumps as versions of PyTorch write them, and as people keep them.
var forms = map[string]func(d dict) []byte{
	"2.3: one sequence number, groups as text, no status": func(d dict) []byte {
		return pickle(d.without("pg_status", "version").entries(func(e dict) dict {
			seq := e.get("collective_seq_id")
			e = e.without("collective_seq_id", "p2p_seq_id", "op_id", "timeout_ms", "retired", "is_p2p").with("process_group",
				func(v any) (any, bool) { return v.(tuple)[0], true })
			return append(e, pair{"seq_id", seq})
		}))
	},
	"no state, only times": func(d dict) []byte {
		return pickle(d.entries(func(e dict) dict {
			var at any
			if e.get("state") == "completed" {
				at = 1700000000000000009
			}
			return append(e.without("state", "retired"), pair{"time_discovered_completed_ns", at}, pair{"time_discovered_started_ns", nil})
		}))
	},
	"no groups, names of files": func(d dict) []byte { return pickle(d.without("pg_config", "pg_status")) },
	"members as numbers": func(d dict) []byte {
		return pickle(d.with("pg_config", func(v any) (any, bool) {
			out := dict{}
			for _, p := range v.(dict) {
				out = append(out, pair{p.k, p.v.(dict).with("ranks", func(v any) (any, bool) {
					list := []any{}
					for _, w := range strings.Split(strings.Trim(v.(string), "[]"), ", ") {
						n := 0
						fmt.Sscan(w, &n)
						list = append(list, n)
					}
					return list, true
				})})
			}
			return out, true
		}))
	},
	"JSON, numbers as text": func(d dict) []byte {
		d = d.with("pg_status", func(v any) (any, bool) {
			out := dict{}
			for _, p := range v.(dict) {
				st := dict{}
				for _, x := range p.v.(dict) {
					st = append(st, pair{x.k, fmt.Sprint(x.v)})
				}
				out = append(out, pair{p.k, st})
			}
			return out, true
		}).entries(func(e dict) dict {
			return append(e, pair{"time_discovered_started_ns", 0}, pair{"time_discovered_completed_ns", 0})
		})
		b, _ := json.MarshalIndent(plainValue(d), "", "  ")
		return b
	},
	"JSON of one line": func(d dict) []byte { b, _ := json.Marshal(plainValue(d)); return b },
	"no status":        func(d dict) []byte { return pickle(d.without("pg_status")) },
	"status unknown": func(d dict) []byte {
		return pickle(d.with("pg_status", func(v any) (any, bool) {
			out := dict{}
			for _, p := range v.(dict) {
				out = append(out, pair{p.k, dict{{"last_enqueued_collective", -1}, {"last_started_collective", -1}, {"last_completed_collective", -1}}})
			}
			return out, true
		}))
	},
	"the last twelve operations": func(d dict) []byte {
		return pickle(d.with("entries", func(v any) (any, bool) { l := v.([]any); return l[max(0, len(l)-12):], true }))
	},
	"started, with times": func(d dict) []byte {
		return pickle(d.entries(func(e dict) dict {
			if e.get("state") == "scheduled" {
				e = e.with("state", func(any) (any, bool) { return "started", true })
			}
			return append(e, pair{"duration_ms", 4}, pair{"frames", []any{dict{{"filename", "train.py"}, {"line", 7}, {"name", "step"}}}},
				pair{"thread_id", "140"}, pair{"thread_name", "python3"})
		}))
	},
	"another library": func(d dict) []byte {
		return pickle(append(d.without("nccl_version"), pair{"comm_lib_version", "2.29.2"},
			pair{"nccl_comm_state", dict{{"0x7f", dict{{"rank", "0"}}}}}).entries(func(e dict) dict {
			return e.with("profiling_name", func(v any) (any, bool) { return "xccl:" + strings.TrimPrefix(v.(string), "nccl:"), true })
		}))
	},
	"coalesced operations beside": func(d dict) []byte {
		return pickle(d.with("entries", func(v any) (any, bool) {
			out := []any{}
			for i, x := range v.([]any) {
				e := x.(dict)
				out = append(out, e)
				if e.get("state") == "completed" && i%5 == 0 { // a batch of messages that ended
					out = append(out, e.with("profiling_name", func(any) (any, bool) { return "nccl:coalesced", true }).with("is_p2p",
						func(any) (any, bool) { return true, true }))
				}
			}
			return out, true
		}))
	},
	"gzip": func(d dict) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write(pickle(d))
		w.Close()
		return b.Bytes()
	},
}

// Every form of a dump gives the same culprits.
func TestHangInEveryForm(t *testing.T) {
	for name, form := range forms {
		for _, c := range []struct {
			what     string
			limit    map[int]int
			culprits []int
			skip     map[int]bool
		}{
			{"all files", map[int]int{3: 21}, []int{3}, nil},
			{"two culprits", map[int]int{5: 21, 6: 21}, []int{5, 6}, nil},
			{"its file is missing", map[int]int{3: 21}, []int{3}, map[int]bool{3: true}},
			{"none", nil, nil, nil},
		} {
			if strings.HasPrefix(name, "no groups") && c.skip != nil {
				continue // nothing says that there is a rank 3
			}
			j := grid(8, 20).stop(c.limit, nil)
			read1 := func(name func(int) string) *doctor.Report {
				ca := &doctor.Case{}
				for r := range len(j.program) {
					if !c.skip[r] {
						if err := read.File(ca, name(r), "", bytes.NewReader(form(j.value(r)))); err != nil {
							t.Fatal(err)
						}
					}
				}
				read.Finish(ca)
				return doctor.Diagnose(ca, doctor.Options{})
			}
			r := read1(numbered)
			var got []int
			if r.Hang != nil {
				got = r.Hang.Culprits
			}
			if !slices.Equal(got, c.culprits) {
				t.Errorf("%s, %s: culprits %v, want %v (%+v)", name, c.what, got, c.culprits, r.Hang)
			}
		}
	}
}

// Two jobs of different size in one folder, and two of the same size: each has its own verdict.
func TestTwoJobsInOneFolder(t *testing.T) {
	a, b := grid(8, 20).stop(map[int]int{3: 21}, nil), grid(4, 20).stop(map[int]int{1: 21}, nil)
	c := &doctor.Case{}
	for r := range 8 {
		read.File(c, fmt.Sprintf("dumps/jobA_rank_%d", r), "", bytes.NewReader(a.file(r)))
	}
	for r := range 4 {
		read.File(c, fmt.Sprintf("dumps/jobB_rank_%d", r), "", bytes.NewReader(b.file(r)))
	}
	r := doctor.Diagnose(c, doctor.Options{})
	var all [][]int
	for _, h := range append(slices.Clone(r.Hangs), *r.Hang) {
		all = append(all, h.Culprits)
	}
	slices.SortFunc(all, slices.Compare)
	if len(all) != 2 || !slices.Equal(all[0], []int{1}) || !slices.Equal(all[1], []int{3}) {
		t.Errorf("%v", all)
	}
}
