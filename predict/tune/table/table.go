// Package table is the file in which weft tells NCCL what to run: which algorithm and protocol for which collective and size. It is
// the CSV that the example among NCCL's tuner plug-ins reads, so one file serves both that plug-in and libweft.so:
//
//	# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
//	allreduce,0,65536,tree,ll,-1,2,16,-1,-1
//
// -1 means any, and for channels that NCCL chooses. The first row that fits counts.
package table

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The names of NCCL's collectives, algorithms and protocols, by the numbers that NCCL has for them.
var (
	Funcs  = []string{"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}
	Algos  = []string{"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}
	Protos = []string{"ll", "ll128", "simple"}
)

// Any stands for every number of nodes, ranks and the like.
const Any = -1

// Row says what runs for a range of sizes.
type Row struct {
	Func, Algo, Proto int   // numbers in Funcs, Algos, Protos
	Min, Max          int64 // bytes, both included; Max is math.MaxInt64 for no end
	Channels          int   // Any for as many as NCCL chooses
	Nodes, Ranks      int   // Any for all
	PipeOps, RegBuff  int   // Any for all
}

// header names the columns.
const header = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"

// Write writes rows with remarks above them.
func Write(w io.Writer, rows []Row, remarks ...string) error {
	b := bufio.NewWriter(w)
	for _, r := range remarks {
		fmt.Fprintf(b, "# %s\n", strings.ReplaceAll(r, "\n", " "))
	}
	fmt.Fprintln(b, header)
	for _, r := range rows {
		fmt.Fprintf(b, "%s,%d,%d,%s,%s,%d,%d,%d,%d,%d\n", Funcs[r.Func], r.Min, r.Max, Algos[r.Algo], Protos[r.Proto], r.Channels, r.Nodes,
			r.Ranks, r.PipeOps, r.RegBuff)
	}
	return b.Flush()
}

// maxRows bounds a table; one of weft has some 30 rows for a number of ranks.
const maxRows = 100000

// Read reads what Write writes, and what NCCL's example plug-in reads: the last two columns, or four, may be missing.
func Read(r io.Reader) ([]Row, error) {
	var rows []Row
	s := bufio.NewScanner(r)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' || n == 1 && strings.HasPrefix(line, "collective_type") {
			continue
		}
		row, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if rows = append(rows, row); len(rows) > maxRows {
			return nil, fmt.Errorf("line %d: more than %d rows", n, maxRows)
		}
	}
	return rows, s.Err()
}

func parse(line string) (row Row, err error) {
	f := strings.Split(line, ",")
	if len(f) < 6 || len(f) > 10 {
		return row, fmt.Errorf("%d columns; want 6 to 10: %s", len(f), header[2:])
	}
	for i := range f {
		f[i] = strings.TrimSpace(f[i])
	}
	name := func(i int, what string, list []string) int {
		k := slices.Index(list, strings.ToLower(f[i]))
		if k < 0 && err == nil {
			err = fmt.Errorf("%s %q is none of %s", what, f[i], strings.Join(list, ", "))
		}
		return k
	}
	number := func(i int, what string, least int64) int64 {
		v, e := strconv.ParseInt(f[i], 10, 64)
		if (e != nil || v < least) && err == nil {
			err = fmt.Errorf("%s %q is not a number of %d or more", what, f[i], least)
		}
		return v
	}
	any := func(i int, what string) int {
		if i >= len(f) {
			return Any
		}
		v := number(i, what, Any)
		if v > math.MaxInt32 && err == nil {
			err = fmt.Errorf("%s %q is too large", what, f[i])
		}
		return int(v)
	}
	row = Row{Func: name(0, "collective", Funcs), Algo: name(3, "algorithm", Algos), Proto: name(4, "protocol", Protos),
		Min: number(1, "min_bytes", 0), Max: number(2, "max_bytes", 0),
		Channels: any(5, "channels"), Nodes: any(6, "nNodes"), Ranks: any(7, "nRanks"), PipeOps: any(8, "numPipeOps"), RegBuff: any(9, "regBuff")}
	if err == nil && row.Max < row.Min {
		err = fmt.Errorf("max_bytes %d is below min_bytes %d", row.Max, row.Min)
	}
	return row, err
}

// For keeps the rows that can fit a communicator.
func For(rows []Row, nodes, ranks int) []Row {
	var list []Row
	for _, r := range rows {
		if (r.Nodes == Any || r.Nodes == nodes) && (r.Ranks == Any || r.Ranks == ranks) {
			list = append(list, r)
		}
	}
	return list
}
