package change

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/model/topo"
)

// Read finds the devices, cables and racks in the files that weft net emit wrote.
func Read(files map[string][]byte) (Site, error) {
	s := Site{Files: map[string][]byte{}, Racks: map[string]string{}}
	seen := map[string]bool{}
	for path, data := range files {
		part := strings.SplitN(path, "/", 3)
		if len(part) < 3 || part[0] != "hosts" && part[0] != "switches" {
			continue
		}
		s.Files[path] = data
		if seen[part[0]+part[1]] {
			continue
		}
		seen[part[0]+part[1]] = true
		if part[0] == "hosts" {
			s.Hosts = append(s.Hosts, part[1])
		} else {
			s.Switches = append(s.Switches, part[1])
		}
	}
	slices.SortFunc(s.Hosts, topo.Natural)
	slices.SortFunc(s.Switches, topo.Natural)
	return s, s.cables(files["cables/cables.csv"], seen)
}

// Only leaves out files of sorts that another site has none of: a folder may hold dialects that nobody compares.
func (s *Site) Only(other Site) {
	sorts := map[string]bool{}
	sort := func(path string) string {
		part := strings.SplitN(path, "/", 3)
		return part[0] + "/" + part[2]
	}
	for path := range other.Files {
		sorts[sort(path)] = true
	}
	maps.DeleteFunc(s.Files, func(path string, _ []byte) bool { return !sorts[sort(path)] })
}

// cables reads cables.csv. Cables of devices without files, such as InfiniBand switches, are no part of the site.
func (s *Site) cables(data []byte, known map[string]bool) error {
	rows, at, err := table(data)
	if err != nil {
		return err
	}
	for _, r := range rows {
		c := network.Cable{{Device: r[at["from_device"]], Port: r[at["from_port"]]}, {Device: r[at["to_device"]], Port: r[at["to_port"]]}}
		if !known["switches"+c[0].Device] || !known["hosts"+c[1].Device] && !known["switches"+c[1].Device] {
			continue
		}
		s.Cables = append(s.Cables, c)
		for _, side := range []string{"from", "to"} {
			if unit := r[at[side+"_unit"]]; unit != "" { // of a floor plan; other racks are numbers of the builder
				s.Racks[r[at[side+"_device"]]] = r[at[side+"_rack"]] + " unit " + unit
			}
		}
	}
	return nil
}

// table reads cables.csv: its rows, and where its columns are.
func table(data []byte) (rows [][]string, at map[string]int, err error) {
	rows, err = csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil || len(rows) == 0 {
		return nil, nil, fmt.Errorf("cables/cables.csv is missing or cannot be read: %v", err)
	}
	at = map[string]int{}
	for i, name := range rows[0] {
		at[name] = i
	}
	for _, name := range []string{"from_device", "from_port", "to_device", "to_port", "from_rack", "to_rack", "from_unit", "to_unit"} {
		if _, ok := at[name]; !ok {
			return nil, nil, fmt.Errorf("cables/cables.csv has no column %s", name)
		}
	}
	return rows[1:], at, nil
}

// files are a device's, by path.
type files map[string][]byte

// byDevice sorts files by the device that they are for.
func byDevice(all map[string][]byte) map[string]files {
	out := map[string]files{}
	for path, data := range all {
		name := strings.SplitN(path, "/", 3)[1]
		if out[name] == nil {
			out[name] = files{}
		}
		out[name][path] = data
	}
	return out
}

// same reports whether two sets of files say the same, whatever their comments say: those name the plan.
func (f files) same(g files) bool {
	return maps.EqualFunc(f, g, func(a, b []byte) bool { return bytes.Equal(a, b) || said(a) == said(b) })
}

// said is a file without its comments.
func said(data []byte) string {
	var out strings.Builder
	for line := range strings.Lines(string(data)) {
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "#") && !strings.HasPrefix(t, "!") && !strings.HasPrefix(t, "//") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// Outcome is what was proven of a step.
type Outcome struct {
	Pairs   int                    `json:"pairs"`  // of addresses that reach one another all the time
	States  int                    `json:"states"` // that were looked at
	Broken  int                    `json:"broken"`
	Counter []prove.Counterexample `json:"counterexamples,omitempty"` // of what does not hold meanwhile
}

// Whole sorts networks into those whose hosts reach one another in a site as it is, and the names of the others:
// no step breaks what is broken already.
func Whole(s Site, areas []prove.Area) (whole []prove.Area, broken []string, err error) {
	for _, a := range areas {
		var o Outcome
		if err := newState(s).look([]prove.Area{a}, &o); err != nil {
			return nil, nil, err
		}
		if o.Broken > 0 {
			broken = append(broken, a.Name)
		} else {
			whole = append(whole, a)
		}
	}
	return whole, broken, nil
}

// Prove looks at every state on the way: before the new cables of a step are plugged in, with the old and with
// the new files of its devices, and after it. Hosts that are drained count again after their step.
func Prove(now, next Site, steps []Step, areas []prove.Area) ([]Outcome, error) {
	st, fresh := newState(now), byDevice(next.Files)
	var out []Outcome
	for i := range steps {
		s := &steps[i]
		o := Outcome{}
		for _, c := range s.Unplug {
			delete(st.cables, c)
		}
		for _, h := range slices.Concat(s.Drain, s.Remove, s.Add) {
			st.off[h] = true
		}
		phases := []func(){func() {}, func() {
			for _, name := range s.Configure {
				st.files[name] = fresh[name]
			}
		}, func() {
			for _, c := range s.Plug {
				st.cables[c] = true
			}
			for _, h := range slices.Concat(s.Drain, s.Add) {
				delete(st.off, h)
			}
			for _, h := range s.Remove {
				delete(st.files, h)
			}
		}}
		for _, phase := range phases {
			phase()
			if err := st.look(areas, &o); err != nil {
				return nil, fmt.Errorf("step %d, %s: %w", i+1, s.Title, err)
			}
		}
		out = append(out, o)
	}
	return out, st.arrived(next)
}

// state is a network on the way.
type state struct {
	files  map[string]files // of devices
	cables map[network.Cable]bool
	off    map[string]bool
}

func newState(now Site) *state {
	st := &state{files: byDevice(now.Files), cables: map[network.Cable]bool{}, off: map[string]bool{}}
	for _, c := range now.Cables {
		st.cables[c] = true
	}
	return st
}

// look proves what must hold in every state.
func (st *state) look(areas []prove.Area, o *Outcome) error {
	all := map[string][]byte{}
	for name, list := range st.files {
		if !st.off[name] {
			maps.Copy(all, list)
		}
	}
	var b bytes.Buffer
	b.WriteString("from_device,from_port,to_device,to_port\n")
	rows := []string{}
	for c := range st.cables {
		rows = append(rows, strings.Join([]string{c[0].Device, c[0].Port, c[1].Device, c[1].Port}, ","))
	}
	slices.Sort(rows)
	b.WriteString(strings.Join(rows, "\n"))
	all["cables/cables.csv"] = b.Bytes()
	n, err := prove.Load(all)
	if err != nil {
		return err
	}
	r := n.Prove(areas, prove.Options{})
	o.States++
	for _, name := range []string{"files are modelled", "hosts reach one another", "no loops, no black holes", "networks are apart",
		"full packets pass"} {
		v := r.Verdict(name)
		if v == nil {
			continue
		}
		if name == "hosts reach one another" && (o.States == 1 || v.Cases < o.Pairs) {
			o.Pairs = v.Cases
		}
		o.Broken += v.Broken
		o.Counter = append(o.Counter, v.Counter...)
	}
	return nil
}

// arrived reports whether the steps lead to the network that was wanted.
func (st *state) arrived(next Site) error {
	for _, c := range next.Cables {
		if !st.cables[c] {
			return fmt.Errorf("no step plugs in %s", c)
		}
		delete(st.cables, c)
	}
	for c := range st.cables {
		return fmt.Errorf("no step unplugs %s", c)
	}
	want := byDevice(next.Files)
	for name := range want {
		if !st.files[name].same(want[name]) {
			return fmt.Errorf("no step brings the files of %s", name)
		}
	}
	for name := range st.files {
		if want[name] == nil {
			return fmt.Errorf("no step removes %s", name)
		}
	}
	return nil
}
