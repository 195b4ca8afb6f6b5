package read

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// PyTorch's flight recorder writes a dictionary a rank: the groups that the rank
// is in, their status, and the last operations. The dump does not say which rank
// wrote it; the file's name may, and the groups do.

var (
	lastNumber = regexp.MustCompile(`(\d+)\D*$`)
	p2pName    = regexp.MustCompile(`^(send|recv) (\d+)(->|<-)(\d+)`)
)

// flightKeys are keys beside the operations that only dumps of PyTorch have.
var flightKeys = []string{"pg_config", "pg_status", "version", "nccl_version", "comm_lib_version"}

// isFlight reports whether a dictionary looks like a dump of PyTorch.
func isFlight(d *pdict) bool {
	if d == nil || !d.has("entries") && !d.has("pg_config") {
		return false
	}
	if slices.ContainsFunc(flightKeys, func(key string) bool { return d.has(key) }) {
		return true
	}
	// JSON has its keys in order: of a file that was cut nothing but operations may be left.
	for _, e := range d.list("entries") {
		ed, _ := e.(*pdict)
		return ed != nil && ed.has("profiling_name") && (ed.has("process_group") || ed.has("pg_id"))
	}
	return false
}

// flight turns PyTorch's flight record into a dump. A rank of -1 is not stated, neither in the record nor in the file's name.
func flight(name string, d *pdict) doctor.Dump {
	out := doctor.Dump{File: name, Rank: -1, NameRank: -1, Version: d.text("version"), NCCL: d.text("nccl_version")}
	if out.NCCL == "" {
		out.NCCL = d.text("comm_lib_version")
	}
	if n := d.int("rank", -1); n >= 0 && n < 1<<24 {
		out.Rank = int(n)
	}
	base := path.Base(name)
	for _, ext := range []string{".gz", ".json", ".pkl", ".pickle", ".pt", ".bin"} {
		base = strings.TrimSuffix(base, ext)
	}
	if m := lastNumber.FindStringSubmatch(base); m != nil && len(m[1]) < 8 {
		out.NameRank, _ = strconv.Atoi(m[1])
	}
	ids := map[string]int{} // a group's name to its id, by the entries
	for _, e := range d.list("entries") {
		ed, _ := e.(*pdict)
		if ed == nil {
			continue
		}
		o := operation(ed)
		out.Entries = append(out.Entries, o)
		if o.GroupID >= 0 {
			if old, ok := ids[o.Group]; !ok || old == o.GroupID {
				ids[o.Group] = o.GroupID
			}
		}
	}
	status := d.dict("pg_status")
	if config := d.dict("pg_config"); config != nil {
		out.Groups = flightGroups(config, status, ids)
	} else { // old dumps: the members of a group are those that have operations of it
		for _, o := range out.Entries {
			if !slices.ContainsFunc(out.Groups, func(g doctor.Group) bool { return g.Name == o.Group }) {
				out.Groups = append(out.Groups, doctor.Group{ID: o.GroupID, Name: o.Group, Desc: o.Desc, LastEnqueued: -1, LastCompleted: -1})
			}
		}
	}
	out.Idle = idle(status)
	return out
}

// flightGroups lists the process groups with what each had enqueued and completed, in the order of their keys.
func flightGroups(config, status *pdict, ids map[string]int) (groups []doctor.Group) {
	for _, key := range slices.Sorted(maps.Keys(config.m)) {
		g, _ := config.m[key].(*pdict)
		if g == nil {
			continue
		}
		group := doctor.Group{ID: -1, Name: g.text("name"), Desc: g.text("desc"), Ranks: ranks(g.get("ranks")), LastEnqueued: -1,
			LastCompleted: -1}
		if group.Name == "" {
			group.Name = key
		}
		if id, ok := ids[group.Name]; ok {
			group.ID = id
		}
		if st := status.dict(strconv.Itoa(group.ID)); group.ID >= 0 && st != nil {
			group.HasStatus = true
			group.LastEnqueued = st.int("last_enqueued_collective", -1)
			group.LastCompleted = st.int("last_completed_collective", -1)
		}
		groups = append(groups, group)
	}
	return groups
}

// idle says whether every group has completed all that was enqueued. A record without a status says nothing: false.
func idle(status *pdict) bool {
	if status == nil || len(status.m) == 0 {
		return false
	}
	for _, v := range status.m {
		st, _ := v.(*pdict)
		if st == nil || st.int("last_enqueued_collective", -2) != st.int("last_completed_collective", -3) ||
			st.int("last_enqueued_collective", -1) < 0 {
			return false
		}
	}
	return true
}

// ranks reads "[0, 1]", or a list of numbers.
func ranks(v any) []int {
	var out []int
	add := func(s string) {
		if n, err := strconv.Atoi(strings.TrimSpace(s)); err == nil && n >= 0 && n < 1<<24 && len(out) < 1<<20 {
			out = append(out, n)
		}
	}
	switch v := v.(type) {
	case string:
		for part := range strings.SplitSeq(strings.Trim(v, "[]() "), ",") {
			add(part)
		}
	case *plist:
		for _, x := range v.l {
			add(print(x))
		}
	}
	return out
}

// operation reads an entry of a flight record. Fields differ between versions of PyTorch: what an old one does not have
// is -1 or empty.
func operation(e *pdict) doctor.Op {
	o := doctor.Op{Record: e.int("record_id", 0), GroupID: int(e.int("pg_id", -1)), State: e.text("state"), From: -1, To: -1,
		Created: e.int("time_created_ns", 0), Timeout: e.int("timeout_ms", 0), P2P: e.bool("is_p2p")}
	switch pg := e.get("process_group").(type) {
	case *plist:
		if len(pg.l) > 0 {
			o.Group = print(pg.l[0])
		}
		if len(pg.l) > 1 {
			o.Desc = print(pg.l[1])
		}
	case string:
		o.Group = pg
	}
	if o.Group == "" && o.GroupID >= 0 {
		o.Group = strconv.Itoa(o.GroupID)
	}
	name := e.text("profiling_name")
	if i := strings.IndexByte(name, ':'); i >= 0 {
		name = name[i+1:]
	}
	o.Name = name
	if m := p2pName.FindStringSubmatch(name); m != nil {
		o.P2P = true
		a, _ := strconv.Atoi(m[2])
		b, _ := strconv.Atoi(m[4])
		if o.From, o.To = a, b; m[3] == "<-" {
			o.From, o.To = b, a
		}
	}
	o.Seq = e.int("collective_seq_id", -1)
	if o.Seq < 0 {
		o.Seq = e.int("seq_id", 0) // dumps before version 2.2
	}
	if o.P2P {
		o.Seq = e.int("p2p_seq_id", o.Seq)
	}
	in, out := print(e.get("input_sizes")), print(e.get("output_sizes"))
	if in != "" || out != "" {
		o.Sizes = fmt.Sprintf("%s %s -> %s", in, strings.Trim(print(e.get("input_dtypes")), "[]"), out)
	}
	o.Done = o.State == "completed" || e.bool("retired") && o.State != "started" && o.State != "scheduled" ||
		e.int("time_discovered_completed_ns", 0) > 0
	for _, f := range e.list("frames") {
		if fd, _ := f.(*pdict); fd != nil {
			o.Frame = fmt.Sprintf("%s:%s %s", fd.text("filename"), fd.text("line"), fd.text("name"))
			break
		}
	}
	return o
}

// weftFlight reads weft's own flight record.
func weftFlight(name string, d *pdict) doctor.Dump {
	out := doctor.Dump{File: name, Rank: int(d.int("rank", -1)), NameRank: -1, Version: "weft"}
	last := map[string]*doctor.Group{}
	var order []string
	for i, r := range d.list("records") {
		rd, _ := r.(*pdict)
		if rd == nil {
			continue
		}
		group := fmt.Sprintf("comm %s epoch %s", rd.text("comm"), rd.text("epoch"))
		o := doctor.Op{Record: int64(i), Group: group, GroupID: -1, Seq: rd.int("seq", 0), Name: rd.text("op"), From: -1, To: -1,
			State: "completed", Done: true,
			Sizes: strings.TrimSpace(rd.text("count") + " " + rd.text("type") + " " + rd.text("reduce"))}
		if rd.text("error") != "" || rd.int("ended_ns", 0) == 0 {
			o.State, o.Done = "started", false
		}
		out.Entries = append(out.Entries, o)
		if last[group] == nil {
			last[group] = &doctor.Group{ID: -1, Name: group, LastEnqueued: -1, LastCompleted: -1}
			order = append(order, group)
		}
		last[group].LastEnqueued, last[group].HasStatus = o.Seq, true
	}
	for _, g := range order {
		out.Groups = append(out.Groups, *last[g])
	}
	return out
}
