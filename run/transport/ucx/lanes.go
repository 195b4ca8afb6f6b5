package ucx

import (
	"slices"
	"strings"
)

// lane is one of the ways that UCX took to a peer.
type lane struct {
	name   string // posix, cma, tcp, rc_mlx5
	device string // memory, eth0, mlx5_0:1
	uses   []string
}

// parseLanes reads what ucp_ep_print_info prints:
//
//	#                 lane[0]:  2:tcp/lo.0 md[1]           -> md[1]/tcp/sysdev[255] am am_bw#0 wireup
//
// Lines that are none of lanes are passed over: versions of UCX differ in them.
func parseLanes(text string) (lanes []lane) {
	for line := range strings.Lines(text) {
		_, rest, ok := strings.Cut(line, "lane[")
		if !ok {
			continue
		}
		_, rest, ok = strings.Cut(rest, "]:")
		if !ok {
			continue
		}
		f := strings.Fields(rest)
		if len(f) == 0 {
			continue
		}
		name := f[0]
		if n, after, ok := strings.Cut(name, ":"); ok && strings.Trim(n, "0123456789") == "" {
			name = after
		}
		name, device, ok := strings.Cut(name, "/")
		if !ok || name == "" {
			continue
		}
		if i := strings.LastIndexByte(device, '.'); i >= 0 && strings.Trim(device[i+1:], "0123456789") == "" {
			device = device[:i]
		}
		l := lane{name: name, device: device}
		if i := slices.Index(f, "->"); i >= 0 && i+2 <= len(f) {
			for _, u := range f[i+2:] {
				l.uses = append(l.uses, strings.TrimRight(u, ","))
			}
		}
		lanes = append(lanes, l)
	}
	return lanes
}

// carries is the lane of messages; nil if none says that it is.
func carries(lanes []lane) *lane {
	for i := range lanes {
		if slices.Contains(lanes[i].uses, "am") {
			return &lanes[i]
		}
	}
	return nil
}

// names are the transports of lanes, that of messages first, each once.
func names(lanes []lane) (list []string) {
	if l := carries(lanes); l != nil {
		list = append(list, l.name)
	}
	for _, l := range lanes {
		if !slices.Contains(list, l.name) {
			list = append(list, l.name)
		}
	}
	return list
}
