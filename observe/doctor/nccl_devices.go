package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// noEntry are the forms in which the lack of a device file appears.
var noEntry = []string{"ENOENT", "No such file", "errno 2", "errno=2"}

// devices judges which RDMA devices could be opened.
func (d *diag) devices(multi bool) {
	jb := d.job
	jb.each(func(_ *proc, l *Line) {
		id := "verbs-device-missing"
		if slices.ContainsFunc(noEntry, func(text string) bool { return strings.Contains(l.F["rest"], text) }) {
			id = "verbs-permission"
		}
		s := d.of(l)
		s.Devices = []string{l.Host + ":" + strings.Trim(l.F["dev"], ".,")}
		d.find(id, s, l.At)
	}, "ib_open", "ib_query")
	lists := map[string][]ibDevice{}
	jb.each(func(p *proc, l *Line) {
		list := ibDevices(l.F["list"])
		if len(list) > len(lists[l.Host]) {
			lists[l.Host] = list
		}
		if len(list) == 0 {
			f := d.find("ib-list-empty", d.of(l), l.At)
			if !multi {
				f.Severity = Info
			}
		}
		ib := slices.ContainsFunc(list, func(x ibDevice) bool { return strings.HasPrefix(x.layer, "IB") })
		roce := slices.ContainsFunc(list, func(x ibDevice) bool { return x.layer == "RoCE" })
		if ib && roce {
			d.find("ib-roce-mixed", d.of(l), l.At)
		}
	}, "ib_using")
	d.hcaNames(lists)
	if multi && len(lists) > 1 {
		d.nicCounts(lists)
	}
}

// devicesKnown collects by host the RDMA devices that logs and port listings name; whole are hosts with a listing, of
// which all devices are known.
func (d *diag) devicesKnown(lists map[string][]ibDevice) (have map[string]map[string]bool, whole map[string]bool) {
	have, whole = map[string]map[string]bool{}, map[string]bool{}
	for h, list := range lists {
		have[h] = map[string]bool{}
		for _, x := range list {
			have[h][x.name] = true
		}
	}
	for _, p := range d.c.Ports {
		if p.Switch || p.Device == "" {
			continue
		}
		inner(have, p.Host)[p.Device] = true
		whole[p.Host] = true
	}
	return have, whole
}

// unmatched lists the names of a filter that fit no device. With = in front names must be equal, else they are prefixes.
func unmatched(filter string, devices map[string]bool) (lost []string) {
	names, exact := strings.CutPrefix(filter, "=")
	for part := range strings.SplitSeq(names, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(part), ":")
		if name == "" {
			continue
		}
		found := false
		for dev := range devices {
			found = found || dev == name || !exact && strings.HasPrefix(dev, name)
		}
		if !found {
			lost = append(lost, name)
		}
	}
	return lost
}

// hcaNames finds devices that NCCL_IB_HCA names and that are not there.
func (d *diag) hcaNames(lists map[string][]ibDevice) {
	have, whole := d.devicesKnown(lists)
	d.job.each(func(p *proc, l *Line) {
		if l.F["var"] != "NCCL_IB_HCA" || l.Host == "" || have[l.Host] == nil {
			return
		}
		val := strings.TrimSpace(l.F["val"])
		if strings.HasPrefix(val, "^") {
			return
		}
		lost := unmatched(val, have[l.Host])
		// Devices that the log does not list may be down; only a full list is proof,
		// or a list from which other names of the filter are missing entirely.
		if len(lost) > 0 {
			f := d.find("hca-name-wrong", Subject{Hosts: []string{l.Host}, Devices: prefixed(l.Host, lost)}, l.At)
			if !whole[l.Host] {
				f.Confidence = min(f.Confidence, 0.7)
				f.Cause = "the list was copied from another kind of host, or these ports are down"
			}
		}
	}, "env", "env_hca")
}

// nicCounts finds hosts that open fewer NICs than most hosts.
func (d *diag) nicCounts(lists map[string][]ibDevice) {
	count := map[int][]string{}
	for h, list := range lists {
		count[len(list)] = append(count[len(list)], h)
	}
	if len(count) < 2 {
		return
	}
	common := slices.MaxFunc(slices.Sorted(maps.Keys(count)), func(a, b int) int {
		return cmp.Or(cmp.Compare(len(count[a]), len(count[b])), cmp.Compare(a, b))
	})
	d.job.each(func(_ *proc, l *Line) {
		if n := len(ibDevices(l.F["list"])); n < common && n > 0 {
			f := d.find("nic-count-differs", Subject{Hosts: []string{l.Host}}, l.At)
			f.Cause = fmt.Sprintf("these hosts open %d NICs, the others %d; NCCL goes on by default and may hang or run at the pace of the slowest",
				n, common)
		}
	}, "ib_using")
}

func prefixed(host string, names []string) []string {
	var out []string
	for _, n := range names {
		out = append(out, host+":"+n)
	}
	return out
}

// ibDevice is an element of NET/IB : Using.
type ibDevice struct {
	index int
	name  string
	port  string
	layer string
}

var ibElement = regexp.MustCompile(`\[(\d+)\]([^:\s]+):(\d+)/(\S+)`)

func ibDevices(list string) []ibDevice {
	var out []ibDevice
	for _, m := range ibElement.FindAllStringSubmatch(list, -1) {
		layer, _, _ := strings.Cut(m[4], ":") // 2.30 adds rail and plane
		out = append(out, ibDevice{num(m[1]), m[2], m[3], layer})
	}
	return out
}
