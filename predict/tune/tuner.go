package tune

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/predict/tune/table"
)

// tunerOps are the collectives that NCCL's tuner plug-ins are asked about, by NCCL's numbers.
var tunerOps = []sched.Collective{sched.Broadcast, sched.Reduce, sched.AllGather, sched.ReduceScatter, sched.AllReduce}

// inTables are the algorithms as tables for NCCL name them.
var inTables = map[string]string{"Tree": "tree", "Ring": "ring", "CollNetDirect": "collnet_direct", "CollNetChain": "collnet_chain",
	"NVLS": "nvls", "NVLSTree": "nvls_tree", "PAT": "pat"}

// TunerTable is what NCCL should run on these GPUs, for NCCL's tuner plug-ins: the choice of the model, or, between ring and tree,
// that of a calibration where one is given; the protocol is then the fastest that the model has for the algorithm.
func (m *NCCL) TunerTable(cal *Calibration) ([]table.Row, error) {
	var rows []table.Row
	for number, op := range tunerOps {
		choose := func(b unit.Bytes) (Choice, error) { return m.tunerChoice(op, b, cal) }
		first, err := choose(0)
		if err != nil {
			return nil, err
		}
		row, err := m.tunerRow(number, first)
		if err != nil {
			return nil, err
		}
		same := func(b unit.Bytes, c Choice) (bool, Choice, error) {
			x, err := choose(b)
			return err == nil && x.Algo == c.Algo && x.Proto == c.Proto, x, err
		}
		current := first
		for last, b := unit.Bytes(0), unit.Bytes(1); b <= 1<<40; last, b = b, b*2 {
			for from := last; ; {
				ok, _, err := same(b, current)
				if err != nil {
					return nil, err
				}
				if ok {
					break
				}
				lo, hi := from, b // the choice is current's at lo and another one at hi
				for hi-lo > 1 {
					mid := lo + (hi-lo)/2
					if ok, _, err = same(mid, current); err != nil {
						return nil, err
					} else if ok {
						lo = mid
					} else {
						hi = mid
					}
				}
				row.Max = int64(hi) - 1
				rows = append(rows, row)
				if current, err = choose(hi); err != nil {
					return nil, err
				}
				if row, err = m.tunerRow(number, current); err != nil {
					return nil, err
				}
				row.Min, from = int64(hi), hi
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// tunerRow is a row that begins at no bytes and has no end.
func (m *NCCL) tunerRow(number int, c Choice) (table.Row, error) {
	r := table.Row{Func: number, Algo: slices.Index(table.Algos, inTables[c.Algo]),
		Proto: slices.Index(table.Protos, strings.ToLower(c.Proto)), Max: math.MaxInt64,
		Channels: table.Any, Nodes: m.Nodes(), Ranks: m.Ranks(), PipeOps: table.Any, RegBuff: table.Any}
	if r.Algo < 0 || r.Proto < 0 {
		return r, fmt.Errorf("%s: NCCL's tables have no word for %s with %s", tunerOps[number], c.Algo, c.Proto)
	}
	return r, nil
}

// tunerChoice is the choice for one size.
func (m *NCCL) tunerChoice(op sched.Collective, b unit.Bytes, cal *Calibration) (Choice, error) {
	own := m.Choose(op, b)
	if cal == nil {
		return own, nil
	}
	sel, err := m.Select(op, max(b, 1), cal)
	if err != nil {
		return own, err
	}
	best := "" // the cheaper of the two that NCCL has
	for _, x := range append([]cost.Ranked{sel.Ranked}, sel.Others...) {
		if name := map[string]string{"ring": "Ring", "double-binary-tree": "Tree"}[x.Name]; name != "" {
			best = name
			break
		}
	}
	var found *Choice
	for _, c := range m.Table(op, b) {
		if !c.Excluded && c.Algo == best && (found == nil || c.Time < found.Time) {
			found = &c
		}
	}
	if found == nil {
		return own, nil
	}
	return *found, nil
}
