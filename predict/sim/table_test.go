package sim

import (
	"fmt"
	"os"

	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// tableFaults are what is bad in the table of `make sim-table`.
var tableFaults = map[string]Options{
	"healthy":   {},
	"dead NIC":  {Fail: []string{"n5:nic2"}},
	"slow leaf": {Slow: []Slow{{"leaf3", 0.5}}},
	"three":     {Fail: []string{"n5:nic2"}, Slow: []Slow{{"leaf3", 0.5}, {"n11:gpu6", 0.7}}},
}

// tableNamed are the algorithms that the table names instead of auto.
var tableNamed = map[string]string{"all-reduce": "hierarchical/rabenseifner", "all-gather": "hierarchical/halving-doubling",
	"reduce-scatter": "hierarchical/halving-doubling", "broadcast": "double-binary-tree", "all-to-all": "pairwise-xor"}

// TestTable prints what simulating 1 GiB takes, by operation, size and fault, each in a process of its own: `make sim-table`. A cell
// that takes more than a minute of processor time has no answer, as in weft sim collective.
func TestTable(t *testing.T) {
	if cell := os.Getenv("WEFT_SIM_CELL"); cell != "" {
		fmt.Println(tableCell(t, strings.Split(cell, "|")))
		return
	}
	if os.Getenv("WEFT_SIM_TABLE") == "" {
		t.Skip("make sim-table runs this; it takes about half an hour")
	}
	fmt.Println("| GPUs | operation | fault | algorithm | processor s | peak MB | time |\n|---|---|---|---|---|---|---|")
	for _, gpus := range strings.Split(os.Getenv("WEFT_SIM_TABLE"), ",") {
		for _, op := range []string{"all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all"} {
			for _, fault := range []string{"healthy", "dead NIC", "slow leaf", "three"} {
				for _, name := range []string{"auto", tableNamed[op]} {
					cmd := bounded.Command(t, os.Args[0], "-test.run=^TestTable$")
					cmd.Env = append(os.Environ(), "WEFT_SIM_CELL="+strings.Join([]string{gpus, op, fault, name}, "|"))
					out, _ := cmd.Output()
					answer, _, _ := strings.Cut(string(out), "\n")
					peak := int64(0)
					if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
						peak = u.Maxrss >> 10
					}
					used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
					fmt.Printf("| %s | %s | %s | %s | %.1f | %d | %s |\n", gpus, op, fault, name, used.Seconds(), peak, answer)
				}
			}
		}
	}
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
	o := tableFaults[cell[2]]
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
