package check

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
)

// filterFile is what "nft list table inet weft_networks" says: the filters of a host, with what they dropped.
const filterFile = "nft.txt"

// filter is a rule as the kernel has it, and the packets that it dropped.
type filter struct{ rule, packets string }

var (
	counted = regexp.MustCompile(` counter packets ([0-9]+) bytes [0-9]+`)
	braces  = regexp.MustCompile(`\{ ([^}]*) \}`)
)

// parseFilters reads the rules of all chains.
func (d *device) parseFilters(data []byte) error {
	if !strings.Contains(string(data), "table inet weft_networks") {
		return fmt.Errorf("no table weft_networks")
	}
	d.filters = []filter{}
	for rule, packets := range rules(string(data)) {
		d.filters = append(d.filters, filter{rule, packets})
	}
	return nil
}

// rules gives each rule of a table with its chain and without its counter, and what the counter says.
func rules(text string) func(func(rule, packets string) bool) {
	return func(yield func(rule, packets string) bool) {
		chain := ""
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if name, ok := strings.CutPrefix(line, "chain "); ok {
				chain, _, _ = strings.Cut(name, " ")
			}
			if !strings.Contains(line, " drop") && !strings.Contains(line, " accept") || strings.HasPrefix(line, "type ") ||
				strings.HasPrefix(line, "#") {
				continue
			}
			packets := "0"
			if m := counted.FindStringSubmatch(line); m != nil {
				packets = m[1]
			}
			if !yield(chain+": "+plain(line), packets) {
				return
			}
		}
	}
}

// plain writes a rule without its counter, and sets in one order.
func plain(line string) string {
	line = strings.ReplaceAll(counted.ReplaceAllString(line, ""), " counter ", " ")
	return braces.ReplaceAllStringFunc(line, func(set string) string {
		list := strings.Split(strings.Trim(set, "{} "), ", ")
		slices.Sort(list)
		return strings.Join(list, ",")
	})
}

// filters compares the filters of a host, where it has some, with those that are emitted, and tells what they dropped.
func (c *comparer) filters(h *network.Host, d *device) {
	if d.filters == nil {
		return
	}
	if c.rules == nil {
		c.rules = map[string][]string{}
		for _, f := range emit.NFT(c.p) {
			host := strings.Split(f.Path, "/")[1]
			for rule := range rules(string(f.Data)) {
				c.rules[host] = append(c.rules[host], rule)
			}
		}
	}
	const command = "nft list table inet weft_networks"
	var got []string
	for _, f := range d.filters {
		got = append(got, f.rule)
		if f.packets != "0" {
			c.add(Finding{State: Differ, Kind: Filter, Device: h.Name, Part: "filter " + strings.SplitN(f.rule, ":", 2)[0],
				What: "the filter drops packets: " + f.rule, Want: "0 packets", Got: f.packets + " packets", Command: command,
				Fix: "find who sends between networks (nft monitor trace), then load the file again, which counts from 0"})
		}
	}
	missing, extra := difference(c.rules[h.Name], got)
	if len(missing)+len(extra) > 0 {
		c.add(Finding{State: Differ, Kind: Filter, Device: h.Name, Part: "filter", What: "the kernel does not have the emitted filters",
			Want: strings.Join(missing, "; "), Got: strings.Join(extra, "; "), Command: command, Fix: "nft -f /etc/nftables.d/60-weft.nft"})
	}
}
