package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// tableFaults are what is bad in the table of `make sim-table`. The random ones are drawn anew for each size, always the same.
func tableFaults(name string, gpus int) Options {
	switch name {
	case "dead NIC":
		return Options{Fail: []string{"n5:nic2"}}
	case "slow leaf":
		return Options{Slow: []Slow{{"leaf3", 0.5}}}
	case "three random":
		rnd := rand.New(rand.NewPCG(32, uint64(gpus)))
		host := func() int { return rnd.IntN(gpus / 8) }
		return Options{Fail: []string{fmt.Sprintf("n%d:nic%d", host(), rnd.IntN(8))},
			Slow: []Slow{{fmt.Sprintf("leaf%d", rnd.IntN(gpus/64)), 0.5}, {fmt.Sprintf("n%d:gpu%d", host(), rnd.IntN(8)), 0.7}}}
	}
	return Options{}
}

// tableNamed are the algorithms that the table names instead of auto.
var tableNamed = map[string]string{"all-reduce": "hierarchical/rabenseifner", "all-gather": "hierarchical/halving-doubling",
	"reduce-scatter": "hierarchical/halving-doubling", "broadcast": "double-binary-tree", "all-to-all": "pairwise-xor"}

// tablePage is what `make sim-table` writes, a section per size.
const tablePage = "../../docs/reference/tables/sim-scale.md"

// TestTable measures what simulating 1 GiB takes, by operation, size and fault, each in a process of its own: `make sim-table`. A cell
// that takes more than a minute of processor time has no answer, as in weft sim collective.
func TestTable(t *testing.T) {
	if cell := os.Getenv("WEFT_SIM_CELL"); cell != "" {
		fmt.Println(tableCell(t, strings.Split(cell, "|")))
		return
	}
	if os.Getenv("WEFT_SIM_TABLE") == "" {
		t.Skip("make sim-table runs this; it takes minutes per size")
	}
	for _, gpus := range strings.Split(os.Getenv("WEFT_SIM_TABLE"), ",") {
		var b strings.Builder
		fmt.Fprintf(&b, "## %s GPUs\n\n| operation | fault | algorithm | processor s | peak MB | answer |\n|---|---|---|---|---|---|\n", gpus)
		for _, op := range []string{"all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all"} {
			for _, fault := range []string{"healthy", "dead NIC", "slow leaf", "three random"} {
				for _, name := range []string{"auto", tableNamed[op]} {
					row := tableRow(t, gpus, op, fault, name)
					fmt.Print(gpus, " ", row)
					b.WriteString(row)
				}
			}
		}
		if err := setSection(tablePage, "## "+gpus+" GPUs\n", b.String()+"\n"); err != nil {
			t.Fatal(err)
		}
	}
}

// tableRow measures one cell in a process of its own.
func tableRow(t *testing.T, gpus, op, fault, name string) string {
	cmd := bounded.Within(t, 10*time.Minute, os.Args[0], "-test.run=^TestTable$")
	cmd.Env = append(os.Environ(), "WEFT_SIM_CELL="+strings.Join([]string{gpus, op, fault, name}, "|"))
	out, _ := cmd.Output()
	answer, _, _ := strings.Cut(string(out), "\n")
	peak := int64(0)
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		peak = u.Maxrss >> 10
	}
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return fmt.Sprintf("| %s | %s | %s | %.1f | %d | %s |\n", op, fault, name, used.Seconds(), peak, answer)
}

// setSection replaces the section of a page that begins with a heading, or adds it.
func setSection(path, heading, text string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(page), heading)
	after := ""
	if found {
		if at := strings.Index(rest, "\n## "); at >= 0 {
			after = rest[at+1:]
		}
	} else {
		before = strings.TrimRight(before, "\n") + "\n\n"
	}
	return os.WriteFile(path, []byte(strings.TrimRight(before+text+after, "\n")+"\n"), 0o644)
}

// tableCell simulates one cell in this process.
func tableCell(t *testing.T, cell []string) string {
	gpus, err := strconv.Atoi(cell[0])
	if err != nil {
		t.Fatal(err)
	}
	op, err := sched.ParseCollective(cell[1])
	if err != nil {
		t.Fatal(err)
	}
	g := example(t, "rail-131k.yaml")
	o := tableFaults(cell[2], gpus)
	o.Measured, o.Costs = true, DefaultCosts(g, catalog.Default())
	o.Stop = func() bool {
		var u syscall.Rusage
		return syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil && u.Utime.Sec+u.Stime.Sec > 60
	}
	name, r := cell[3], (*Result)(nil)
	if name == "auto" {
		f, err := Best(g, op, gpus, unit.GiB, o, Wish{})
		if err != nil {
			return err.Error()
		}
		name, r = f.Algo, f.Result
	} else {
		a, outer, err := Named(name)
		if err != nil {
			t.Fatal(err)
		}
		j, err := Wish{Outer: outer}.Job(a, g, op, gpus, unit.GiB, catalog.Default())
		if err != nil {
			return err.Error()
		}
		if r, err = Run(g, []Job{j}, o); err != nil {
			return err.Error()
		}
	}
	about := ""
	if r.Every > 0 {
		about = "~"
	}
	return about + r.Time.String() + " " + name
}
