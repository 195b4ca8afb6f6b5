package read

import (
	"path"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// The hosts of files whose lines do not name theirs.

// knownHost is the known host that a file's name or folder names.
func knownHost(name string, known map[string]bool) string {
	dir, base := path.Split(name)
	for _, part := range append([]string{base}, reversed(strings.Split(strings.Trim(dir, "/"), "/"))...) {
		if h := knownWord(part, known); h != "" {
			return h
		}
		for h := range known {
			if len(h) > 2 && strings.Contains(part, h) && !strings.Contains(part, h+"0") {
				if i := strings.Index(part, h) + len(h); i >= len(part) || part[i] < '0' || part[i] > '9' {
					return h
				}
			}
		}
	}
	return ""
}

// knownWord looks for a known host among the words of a part, and among the parts of those that dashes join.
func knownWord(part string, known map[string]bool) string {
	for _, w := range strings.FieldsFunc(part, func(r rune) bool { return strings.ContainsRune("._@+=,", r) }) {
		if known[w] {
			return w
		}
		for _, cut := range []string{"-", "_"} {
			for x := range strings.SplitSeq(w, cut) {
				if known[x] {
					return x
				}
			}
		}
	}
	return ""
}

// hostFromName guesses the host of a file whose content does not say: a folder or a
// part of the name that is a known host.
func hostFromName(name string, known map[string]bool) string {
	if h := knownHost(name, known); h != "" {
		return h
	}
	dir, base := path.Split(name)
	// A name like dmesg.node07.txt, or a folder a host. Pieces of /sys have numbers of
	// their own.
	if i := strings.Index(name, "/class/"); i >= 0 || strings.Contains(name, "/ports/") || strings.Contains(name, "/devices/") {
		dir, base = name[:max(i, 0)], ""
		dir = strings.TrimSuffix(dir, "/sys")
	}
	for _, w := range append(strings.FieldsFunc(base, func(r rune) bool { return strings.ContainsRune("._", r) }),
		path.Base(strings.TrimSuffix(dir, "/"))) {
		for _, x := range append([]string{w}, strings.Split(w, "-")...) {
			if hostWord.MatchString(x) && !notHost.MatchString(x) {
				return x
			}
		}
	}
	return ""
}

var (
	hostWord = regexp.MustCompile(`^[a-z]{1,12}-?\d{1,6}$`)
	notHost  = regexp.MustCompile(`^(?:[abhvtlp]\d{1,3}|gb\d+|mlx\d*|xid\d*|sxid\d*|rank\d*|eth\d*|ens?\d*|ib\d*|test\d*|run\d*|job\d*|dump\d*|log\d*|kmsg\d*|part\d*|exit-?\d*|code\d*|page\d*|phase\d*|step-?\d*|file\d*|gpu\d*|nic\d*|try\d*|case\d*|v\d+|x\d+|cuda\d*|nccl\d*|hdr\d*|ndr\d*|edr\d*|perf(?:query)?\d*|diag\d*|health\d*|ibstat(?:us)?\d*|iblinkinfo\d*|dmesg\d*|smi\d*|topo\d*|nvlink\d*|ethtool\d*|lspci\d*|mlxlink\d*|sample\d*|snap\d*|pass\d*|stat\d*|out\d*|err\d*|std(?:out|err)\d*|messages\d*|syslog\d*|journal\d*|counters?\d*|trace\d*|flight\d*|ras\d*|attempt\d*|restart\d*|round\d*|time\d*|before\d*|after\d*|old\d*|new\d*|worker\d*-?log\d*)$`)
)

func reversed(l []string) []string {
	l = slices.Clone(l)
	slices.Reverse(l)
	return l
}

// Finish fills in what single files do not know: the hosts of files that do not name theirs, and the zones of their clocks.
func Finish(c *doctor.Case) {
	defer clocks(c)
	ranksOfFiles(c)
	known := map[string]bool{}
	for i := range c.Lines {
		if h := c.Lines[i].Host; h != "" {
			known[h] = true
		}
	}
	for i := range c.Perf {
		if h := c.Perf[i].Host; h != "" {
			known[h] = true
		}
	}
	memo := map[string]string{}
	guess := func(h *string, file string) {
		if *h != "" {
			return
		}
		g, ok := memo[file]
		if !ok {
			g = hostFromName(file, known)
			memo[file] = g
		}
		*h = g
	}
	for i := range c.Kernel {
		guess(&c.Kernel[i].Host, c.Kernel[i].At.File)
	}
	for i := range c.GPUs {
		guess(&c.GPUs[i].Host, c.GPUs[i].At.File)
	}
	for i := range c.Paths {
		guess(&c.Paths[i].Host, c.Paths[i].At.File)
	}
	for i := range c.Ports {
		if !c.Ports[i].Switch {
			guess(&c.Ports[i].Host, c.Ports[i].At.File)
		}
	}
	for i := range c.Ether {
		guess(&c.Ether[i].Host, c.Ether[i].At.File)
	}
	for i := range c.PCI {
		guess(&c.PCI[i].Host, c.PCI[i].At.File)
	}
	for i := range c.Addresses {
		guess(&c.Addresses[i].Host, c.Addresses[i].At.File)
	}
	// The log of a job is of many hosts: only a host that is known from elsewhere counts.
	for i := range c.Kernel {
		known[c.Kernel[i].Host] = true
	}
	delete(known, "")
	for i := range c.Lines {
		if l := &c.Lines[i]; l.Kind != "version" && l.Host == "" {
			g, ok := memo["known "+l.At.File]
			if !ok {
				g = knownHost(l.At.File, known)
				memo["known "+l.At.File] = g
			}
			l.Host = g
		}
	}
}
