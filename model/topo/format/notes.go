package format

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// nowhere begins the attribute of a GPU that names the target of links to a
// device which the file does not hold, with the number of links.
const nowhere = "nvlink.nowhere."

// Notes says what a reader should know of a graph that was read: links that
// lead out of the file, and rates that the file does not state.
func Notes(g *topo.Graph) []string {
	var notes []string
	links, targets := 0, []string{}
	for _, attrs := range g.Attrs {
		for key, count := range attrs {
			if target, ok := strings.CutPrefix(key, nowhere); ok {
				links += number(count)
				targets = append(targets, target)
			}
		}
	}
	if links > 0 {
		slices.Sort(targets)
		targets = slices.Compact(targets)
		shown := strings.Join(targets[:min(len(targets), 4)], ", ")
		if len(targets) > 4 {
			shown += " and others"
		}
		notes = append(notes, fmt.Sprintf("%d accelerator links lead to devices that the file does not hold: %s; they are left out",
			links, shown))
	}
	if n := g.Unstated(); n > 0 {
		notes = append(notes, fmt.Sprintf("the rates of %d links are not stated; say what they are with --link, such as --link ndr", n))
	}
	return notes
}
