package drill

import (
	"fmt"
	"io"
	"slices"
)

// Within counts the verdicts that came within the limit.
func (r *Row) Within() (n int) {
	for _, s := range r.Seconds {
		if s <= r.Limit {
			n++
		}
	}
	return n
}

// Markdown writes the table for a page.
func (t *Table) Markdown(w io.Writer) error {
	fmt.Fprintf(w,
		"| injected | times | detected | right subject | seconds to the verdict: median, most | within the limit | other alarms before it |\n|---|---:|---:|---:|---|---|---:|\n")
	all, right := 0, 0
	for _, r := range t.Rows {
		if r.Note != "" && r.Injected == 0 {
			fmt.Fprintf(w, "| %s | 0 | | | %s | | |\n", r.Fault, r.Note)
			continue
		}
		secs := "none"
		if s := slices.Sorted(slices.Values(r.Seconds)); len(s) > 0 {
			secs = fmt.Sprintf("%.1f, %.1f", s[len(s)/2], s[len(s)-1])
		}
		fmt.Fprintf(w, "| %s | %d | %d | %d | %s | %d of %d in %.0f s | %d |\n",
			r.Fault, r.Injected, r.Detected, r.Right, secs, r.Within(), r.Injected, r.Limit, r.Others)
		all, right = all+r.Injected, right+r.Right
	}
	if all > 0 {
		fmt.Fprintf(w, "\nRight subject: %d of %d, %.0f%%.", right, all, 100*float64(right)/float64(all))
	}
	if t.Healthy > 0 {
		busy := ""
		if t.Hogs > 0 {
			busy = fmt.Sprintf(" next to %d busy processes, load average %.0f", t.Hogs, t.Load)
		}
		fmt.Fprintf(w, " Undisturbed: %.0f minutes%s, %d false alarms.", t.Healthy/60, busy, t.FalseAlarms)
	}
	_, err := fmt.Fprintln(w)
	return err
}
