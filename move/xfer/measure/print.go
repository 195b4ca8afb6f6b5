package measure

import (
	"fmt"
	"io"

	"github.com/weft-fabric/weft/model/unit"
)

// PrintHead prints the names of the columns, nixlbench's and ours.
func PrintHead(w io.Writer) {
	fmt.Fprintf(w, "%-16s %-10s %-14s %-14s %-14s %-14s %-14s %-14s %-12s %-12s %-12s %-8s\n",
		"Block Size (B)", "Batch Size", "B/W (GB/Sec)", "Avg Lat. (us)", "Avg Prep (us)", "P99 Prep (us)", "Avg Post (us)", "P99 Post (us)",
		"Avg Tx (us)", "P99 Tx (us)", "CPU s/GB", "Path")
}

// PrintRow prints a line.
func PrintRow(w io.Writer, r Row, compare bool) {
	fmt.Fprintf(w, "%-16d %-10d %-14.3f %-14.1f %-14.1f %-14.1f %-14.1f %-14.1f %-12.1f %-12.1f %-12.3f %-8s\n",
		r.Block, r.Batch, float64(r.Rate)/1e9, r.Latency, r.Prep, r.PrepP99, r.Post, r.PostP99, r.Tx, r.TxP99, r.CPU, r.Path)
	if r.Batch > 1 {
		fmt.Fprintf(w, "    %.3f million descriptors per second\n", r.Descs/1e6)
	}
	if !compare {
		return
	}
	for _, b := range r.Beside {
		if b.Why != "" {
			fmt.Fprintf(w, "    %-12s not measured: %s\n", b.Name, b.Why)
			continue
		}
		fmt.Fprintf(w, "    %-12s %v, ours by theirs %.2f", b.Name, unit.Rate(b.Rate), b.Ratio)
		if b.CPU > 0 {
			fmt.Fprintf(w, "; CPU s/GB %.3f", b.CPU)
		}
		fmt.Fprintln(w)
	}
}
