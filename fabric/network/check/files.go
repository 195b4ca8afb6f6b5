package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/model/topo/format"
	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// wholeTables are the tables of SONiC's database whose rows are all the plan's: one more
// is an address, a VLAN or a route that nobody planned.
var wholeTables = []string{"INTERFACE", "LOOPBACK_INTERFACE", "VLAN", "VLAN_INTERFACE", "VLAN_MEMBER", "STATIC_ROUTE", "PORTCHANNEL", "VRF",
	"ACL_TABLE"}

// siteFields are what SONiC knows better than the plan.
var siteFields = []string{"mac", "hostname", "description"}

// database compares SONiC's running database with the emitted one, row by row.
func (c *comparer) database(s *network.Switch, d *device) {
	if d.db == nil {
		return
	}
	var want map[string]map[string]map[string]any
	if err := json.Unmarshal(c.emitted("switches/"+s.Name+"/etc/sonic/config_db.json"), &want); err != nil {
		return // it is not SONiC that the plan has there
	}
	for _, table := range slices.Sorted(maps.Keys(want)) {
		for _, key := range slices.Sorted(maps.Keys(want[table])) {
			got, ok := d.db[table][key]
			if !ok {
				c.row(s, Missing, table, key, "the row is missing", fmt.Sprint(want[table][key]), "")
				continue
			}
			c.fields(s, table, key, want[table][key], got)
		}
	}
	for _, table := range wholeTables {
		for _, key := range slices.Sorted(maps.Keys(d.db[table])) {
			if _, ok := want[table][key]; !ok {
				c.row(s, Extra, table, key, "a row that the plan does not have", "", fmt.Sprint(d.db[table][key]))
			}
		}
	}
}

// fields compares the fields of a row.
func (c *comparer) fields(s *network.Switch, table, key string, want, got map[string]any) {
	for _, field := range slices.Sorted(maps.Keys(want)) {
		if w, g := fmt.Sprint(want[field]), fmt.Sprint(got[field]); w != g && !slices.Contains(siteFields, field) {
			c.row(s, Differ, table, key+" "+field, "the field differs", w, g)
		}
	}
}

func (c *comparer) row(s *network.Switch, state State, table, key, what, want, got string) {
	c.add(Finding{State: state, Kind: Running, Device: s.Name, Part: table + " " + key, What: what, Want: want, Got: got,
		Command: "cat /etc/sonic/config_db.json", Fix: "load the emitted config_db.json: config load, then config save"})
}

// services are dialects whose files are no device's.
var services = []string{"dhcp", "nccl", "opensm", "slurm"}

// emitted is a file of a switch as weft net emit writes it; nil if it writes none.
func (c *comparer) emitted(path string) []byte {
	if c.files == nil {
		c.files = map[string][]byte{}
		dialects := []string{}
		for i := range c.p.Switches {
			if d := c.p.Dialect(&c.p.Switches[i]); d != "" && !slices.Contains(dialects, d) {
				dialects = append(dialects, d)
			}
		}
		files, err := emit.Make(c.p, dialects)
		if err != nil {
			return nil // a plan that cannot be written has no files to compare with
		}
		for _, f := range files {
			c.files[f.Path] = f.Data
		}
	}
	return c.files[path]
}

// service compares files of a service as a folder of readings has them, slurm/topology.conf and
// opensm/opensm.conf among them, with the emitted ones. It reports whether there is such a service.
func (c *comparer) service(name string, r map[string][]byte) bool {
	if !slices.Contains(services, name) {
		return false
	}
	files, err := emit.Make(c.p, []string{name})
	if err != nil {
		return false
	}
	want := map[string][]byte{}
	for _, f := range files {
		want[f.Path[strings.LastIndexByte(f.Path, '/')+1:]] = f.Data
	}
	for _, file := range slices.Sorted(maps.Keys(r)) {
		data := r[file]
		w, ok := want[file]
		if conf := want["topology.conf"]; file == "topology.yaml" && conf != nil { // Slurm from 25.05 on reads either
			var err error
			if data, err = format.SlurmConf(r[file]); err != nil {
				c.add(Finding{State: Unknown, Kind: Reading, Device: name, Part: file, What: "not checked: " + err.Error(),
					Fix: "correct it, or remove it: Slurm prefers it to topology.conf"})
				continue
			}
			w, ok = conf, true
		}
		if !ok {
			c.add(Finding{State: Unknown, Kind: Reading, Device: name, Part: file, What: "not checked: no such file is emitted",
				Got: clip(string(r[file])), Fix: "leave it out, or look at it by hand"})
			continue
		}
		if missing, more := difference(statements(w), statements(data)); len(missing)+len(more) > 0 {
			c.add(Finding{State: Differ, Kind: Running, Device: name, Part: file, What: "the file is not the emitted one",
				Want: clip(strings.Join(missing, "; ")), Got: clip(strings.Join(more, "; ")), Fix: "weft net emit, and put the file there again"})
		}
	}
	return true
}

// statements are the lines of a file without comments, lists of hosts written out, whatever
// the spaces between words.
func statements(data []byte) []string {
	lines, _ := joined(string(data))
	for i, line := range lines {
		words := strings.Fields(line)
		for j, w := range words {
			key, value, ok := strings.Cut(w, "=")
			if !ok {
				continue
			}
			if list, err := hostlist.Expand(value); err == nil {
				slices.Sort(list)
				value = strings.Join(list, ",")
			}
			words[j] = strings.ToLower(key) + "=" + value
		}
		lines[i] = strings.Join(words, " ")
	}
	return lines
}
