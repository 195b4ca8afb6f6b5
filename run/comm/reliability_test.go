package comm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// page is docs/reference/tables/faults.md.
func (m *matrix) page() string {
	var b strings.Builder
	b.WriteString(pageHead)
	b.WriteString("| fault | transport | cases | errors | right rank named | late | wrong data | noticed, p50 | p99 |\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n")
	var all tally
	for _, k := range m.order() {
		y := m.rows[k]
		all.add(y)
		b.WriteString(line(k.fault, k.transport, y))
	}
	b.WriteString(line("**all**", "", &all))
	b.WriteString(pageNotes)
	for _, k := range m.order() {
		if s := m.samples[k]; s != "" {
			fmt.Fprintf(&b, "%s, %s:\n\n    %s\n\n", k.fault, k.transport, s)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func line(fault, transport string, y *tally) string {
	named, p50, p99 := "must succeed", "", ""
	if y.errors > 0 {
		named = fmt.Sprintf("%d (%.2f%%)", y.right, 100*float64(y.right)/float64(y.errors))
	}
	if len(y.notice) > 0 && transport != "" {
		p50, p99 = y.quantile(0.5).Round(100*time.Microsecond).String(), y.quantile(0.99).Round(100*time.Microsecond).String()
	}
	return fmt.Sprintf("| %s | %s | %d | %d | %s | %d | %d | %s | %s |\n", fault, transport, y.cases, y.errors, named, y.late, y.bad, p50, p99)
}

// The page has a line for every fault over every transport, and each says that
// no data was wrong.
func TestPageHasTheWholeMatrix(t *testing.T) {
	b, err := os.ReadFile(faultsPage)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(b), pageHead) || !strings.Contains(string(b), pageNotes) {
		t.Errorf("%s is not what its test writes; go test ./run/comm -run FaultMatrix -update rewrites it", faultsPage)
	}
	for _, fault := range faults {
		for _, transport := range []string{"shm", "tcp"} {
			if !applies(fault, transport) {
				continue
			}
			var found string
			for l := range strings.Lines(string(b)) {
				if strings.HasPrefix(l, fmt.Sprintf("| %s | %s | %d |", fault, transport, 6*len(trialOps))) {
					found = l
				}
			}
			if cells := strings.Split(found, "|"); len(cells) < 9 || strings.TrimSpace(cells[7]) != "0" {
				t.Errorf("the line of %s over %s: %q", fault, transport, found)
			}
		}
	}
}

const faultsPage = "../../docs/reference/tables/faults.md"

const pageHead = `# Faults of ranks

Made by:

    go test ./run/comm -run FaultMatrix -update

[Reliability](../reliability.md) says what holds. Two cores, four ranks (kills: four to eight). ` + "`go test ./run/comm`" + ` runs a sixth of
the cases.

Twelve kinds of fault are tried in each of fifteen operations, between real processes. A process is killed, stopped or misbehaves at a
point that it announces, before the operation or inside it. Every case runs with three sizes (20 bytes, 4 KB and 160 KB per block), in
registered and plain memory, in and out of place, and with each rank as the victim, including rank 0 and the root. After each
case one more operation is called, and every survivor must get an error that names the right rank.

- A dead, stopped or absent rank must be named, and no other. If ranks call different things, two are named, and the one that
  differs is among them.
- Errors must come within a second after the time limit, here 300 ms. Dead ranks are noticed without it: the last columns
  say how long after the kill.
- Data is wrong if a result is incomplete or an input changed on any rank.
- Four faults must have no effect: a slow rank, a closed stream while another is left, garbage on the port, and a full /dev/shm.

`

const pageNotes = `
A case is repeated with twice the limit if the machine gave a rank no core for a quarter of it. The test fails, and writes no
page, if a rank hangs, or if a rank that ended by itself leaves a process, segment, socket or goroutine behind.

## What the errors say

`
