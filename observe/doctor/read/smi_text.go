package read

import (
	"strings"
)

// nvidia-smi -q for people: the tree of nvidia-smi -q -x, by indentation and with other names.

// smiNames are the XML names of what the text calls otherwise than in lower case with underscores, by the text's name, behind
// the section where that matters.
var smiNames = map[string]string{"GPU UUID": "uuid", "Utilization/Gpu": "gpu_util", "Utilization/GPU": "gpu_util",
	"GPU Current Temp": "gpu_temp", "GPU Slowdown Temp": "gpu_temp_slow_threshold", "Clocks/SM": "sm_clock", "Max Clocks/SM": "sm_clock",
	"PCIe Generation": "pcie_gen", "PCIe Generation/Max": "max_link_gen", "PCIe Generation/Current": "current_link_gen",
	"Link Width": "link_widths", "Link Width/Max": "max_link_width", "Link Width/Current": "current_link_width",
	"GPU Link Info": "pci_gpu_link_info", "Replays Since Reset": "replay_counter",
	"Remapping Failure Occurred": "remapped_row_failure", "Remapped Rows/Pending": "remapped_row_pending",
	"Remapped Rows/Uncorrectable Error": "remapped_row_unc", "MIG Mode/Current": "current_mig", "CliqueId": "cliqueId",
	"ClusterUUID": "clusterUuid", "Instantaneous Power Draw": "instant_power_draw", "Double Bit": "double_bit", "Idle": "gpu_idle"}

// smiName is the XML name of a text's entry in a section.
func smiName(section, text string) string {
	for _, k := range []string{section + "/" + text, text} {
		if name := smiNames[k]; name != "" {
			return name
		}
	}
	return strings.ReplaceAll(strings.ToLower(text), " ", "_")
}

// smiLevel is a node whose entries are being read.
type smiLevel struct {
	indent int
	text   string
	node   *xnode
}

// smiTree is what was read so far: the log, and the sections that are open.
type smiTree struct{ open []smiLevel }

// readSMIText reads nvidia-smi -q. What is indented below an entry with a value is of that entry's section.
func readSMIText(s *scan, b []byte) error {
	log := &xnode{name: "nvidia_smi_log"}
	tree, n := &smiTree{[]smiLevel{{-1, "", log}}}, 0
	for l := range strings.Lines(string(b)) {
		n++
		if text := strings.TrimSpace(l); text != "" && !strings.HasPrefix(text, "==") {
			tree.entry(n, len(l)-len(strings.TrimLeft(l, " ")), text)
		}
	}
	return s.smiGPUs(log)
}

// entry adds a line to the section that it is in.
func (t *smiTree) entry(n, indent int, text string) {
	for len(t.open) > 1 && t.open[len(t.open)-1].indent >= indent {
		t.open = t.open[:len(t.open)-1]
	}
	in := t.open[len(t.open)-1]
	if id, ok := strings.CutPrefix(text, "GPU "); ok && indent == 0 && strings.Contains(id, ":") {
		k := &xnode{name: "gpu", id: id, line: n}
		in.node.kids = append(in.node.kids, k)
		t.open = append(t.open, smiLevel{indent, "", k})
		return
	}
	name, value, valued := strings.Cut(text, " : ")
	name = strings.TrimSpace(name)
	k := &xnode{name: smiName(in.text, name), text: strings.TrimSpace(value), line: n}
	in.node.kids = append(in.node.kids, k)
	if !valued {
		t.open = append(t.open, smiLevel{indent, name, k})
	}
}
