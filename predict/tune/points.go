package tune

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// Point is one measurement.
type Point struct {
	Op      sched.Collective
	GPUs    int
	Nodes   int
	Bytes   unit.Bytes // of the larger buffer, as nccl-tests counts
	Time    unit.Time
	InPlace bool
}

// opNames are the names of nccl-tests' programs and of other tools for weft's collectives.
var opNames = map[string]sched.Collective{
	"all_reduce": sched.AllReduce, "allreduce": sched.AllReduce, "all_gather": sched.AllGather, "allgather": sched.AllGather,
	"reduce_scatter": sched.ReduceScatter, "reducescatter": sched.ReduceScatter, "alltoall": sched.AllToAll, "all_to_all": sched.AllToAll,
	"broadcast": sched.Broadcast, "reduce": sched.Reduce, "sendrecv": sched.SendRecv, "send_recv": sched.SendRecv, "gather": sched.Gather,
	"scatter": sched.Scatter,
}

// ParseOp reads a collective by weft's name or by nccl-tests'.
func ParseOp(s string) (sched.Collective, error) {
	if op, err := sched.ParseCollective(s); err == nil {
		return op, nil
	}
	name := strings.TrimSuffix(strings.ReplaceAll(strings.ToLower(s), "-", "_"), "_perf")
	if op, ok := opNames[name]; ok {
		return op, nil
	}
	var known []string
	for _, op := range sched.Collectives() {
		known = append(known, op.String())
	}
	return 0, fmt.Errorf("unknown operation %q; known: %s", s, strings.Join(known, ", "))
}

var typeSizes = map[string]int64{
	"int8": 1, "uint8": 1, "char": 1, "int32": 4, "int": 4, "uint32": 4, "int64": 8, "uint64": 8, "half": 2, "float16": 2, "bfloat16": 2,
	"float": 4, "float32": 4, "double": 8, "float64": 8, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1,
}

var (
	perfName = regexp.MustCompile(`\b(all_reduce|all_gather|alltoall|reduce_scatter|broadcast|reduce|sendrecv|gather|scatter)_perf\b`)
	rankLine = regexp.MustCompile(`Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device`)
	mpiLabel = regexp.MustCompile(`^\[\d+,\d+\]<std(?:out|err)>:\s*`)
)

// ReadNCCLTests reads a log of nccl-tests, in the old form (an error column, no
// root) or the new one (#wrong, root). Several logs may follow each other. Lines
// that are neither comments nor rows, such as NCCL's own messages, are passed
// over. Old logs do not name the operation; it then follows from the columns,
// except that all-gather and all-to-all look alike: use ReadNCCLTestsAs.
func ReadNCCLTests(r io.Reader) ([]Point, error) { return ReadNCCLTestsAs(r, 0) }

// ReadNCCLTestsAs is ReadNCCLTests for a log of a known operation; 0 means that
// the log tells.
func ReadNCCLTestsAs(r io.Reader, op sched.Collective) ([]Point, error) {
	log := &testLog{op: op, given: op != 0}
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 64<<10), 1<<20)
	number := 0
	for in.Scan() {
		number++
		if err := log.line(mpiLabel.ReplaceAllString(in.Text(), "")); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", number+1, err)
	}
	if len(log.points) == 0 {
		return nil,
			errors.New("no rows of nccl-tests found; expected lines like \"1048576  262144  float  sum  74.78  14.02  24.54 ...\" below a header with size, count, type, time")
	}
	return log.points, nil
}

// testLog is the state while reading.
type testLog struct {
	op      sched.Collective
	given   bool
	columns []string // before the times: size, count, type, redop, root; empty before the header
	ranks   int
	perRank int // nThread x nGpus of the header, for logs without rank lines
	hosts   []string
	points  []Point
}

// line reads a line of nccl-tests' output. What looks like a row and cannot be read is an error, once a header was
// seen; everything else is skipped.
func (l *testLog) line(s string) error {
	if m := perfName.FindStringSubmatch(s); m != nil && !l.given {
		l.op = opNames[m[1]]
	}
	fields := strings.Fields(s)
	if len(fields) == 0 {
		return nil
	}
	if strings.HasPrefix(fields[0], "#") {
		l.comment(s, fields)
		return nil
	}
	if _, err := strconv.ParseInt(fields[0], 10, 64); err != nil || len(fields) < 6 {
		if err == nil && l.columns != nil && len(fields) >= 3 {
			if _, known := typeSizes[fields[2]]; known {
				return fmt.Errorf("a row of %d columns; at least 7 expected (size, count, type, time, algbw, busbw, error)", len(fields))
			}
		}
		return nil
	}
	if _, known := typeSizes[fields[2]]; !known {
		if l.columns == nil {
			return nil
		}
		return fmt.Errorf("unknown data type %q in a row; known ones are those of nccl-tests, such as float, half, bfloat16", fields[2])
	}
	return l.row(fields)
}

// setting is the number behind a name in the header, 1 without one.
func setting(fields []string, name string) int {
	n := 1
	for i := 1; i+1 < len(fields); i++ {
		if v, err := strconv.Atoi(fields[i+1]); err == nil && v > 0 && v < 1<<20 && fields[i] == name {
			n = v
		}
	}
	return n
}

// comment reads a line that begins with #: the settings, a rank, or the names of the columns.
func (l *testLog) comment(s string, fields []string) {
	switch {
	case len(fields) > 2 && fields[1] == "nThread":
		l.ranks, l.hosts, l.columns, l.perRank = 0, nil, nil, 0
		if !l.given && perfName.FindString(s) == "" && len(l.points) > 0 {
			l.op = 0 // a further log, of an operation of its own
		}
		l.perRank = setting(fields, "nThread") * setting(fields, "nGpus")
	case rankLine.MatchString(s):
		m := rankLine.FindStringSubmatch(s)
		l.ranks++
		if !slices.Contains(l.hosts, m[2]) {
			l.hosts = append(l.hosts, m[2])
		}
	case slices.Contains(fields, "size") && slices.Contains(fields, "count") && slices.Contains(fields, "time"):
		l.columns = nil
		for _, f := range fields {
			if f == "time" {
				break
			}
			if f != "#" {
				l.columns = append(l.columns, strings.TrimPrefix(f, "#"))
			}
		}
	}
}

// row reads a row of the table, of which the old and the new form have different columns.
func (l *testLog) row(fields []string) error {
	if l.columns == nil {
		return errors.New("a row before the header that names the columns; the log is cut at its beginning")
	}
	if l.ranks == 0 {
		l.ranks = l.perRank
	}
	if l.ranks == 0 {
		return errors.New("the log does not say how many ranks took part: neither \"# nThread\" nor \"#  Rank\" lines precede the row")
	}
	head := l.head(fields)
	if rest := len(fields) - len(head); rest < 4 {
		return fmt.Errorf("a row of %d columns; %d and time, algbw, busbw and errors expected", len(fields), len(head))
	}
	at := func(name string) string {
		if i := slices.Index(head, name); i >= 0 {
			return fields[i]
		}
		return ""
	}
	size, err := strconv.ParseInt(at("size"), 10, 64)
	if err != nil || size < 0 {
		return fmt.Errorf("size is %q; a number of bytes expected", at("size"))
	}
	count, err := strconv.ParseInt(at("count"), 10, 64)
	if err != nil || count < 0 {
		return fmt.Errorf("count is %q; a number of elements expected", at("count"))
	}
	op := l.op
	if op == 0 {
		if op, err = l.infer(size, count*typeSizes[at("type")], at("redop"), at("root")); err != nil {
			return err
		}
		if op == 0 {
			return nil
		}
	}
	return l.times(fields[len(head):], Point{Op: op, GPUs: l.ranks, Nodes: max(len(l.hosts), 1), Bytes: unit.Bytes(size)})
}

// head is the columns of a row before its times. The old form leaves redop blank for operations that do not reduce, and
// the row is one word shorter then.
func (l *testLog) head(fields []string) []string {
	head := slices.Clone(l.columns)
	i := slices.Index(head, "redop")
	if i < 0 || i >= len(fields) {
		return head
	}
	if _, err := strconv.ParseFloat(fields[i], 64); err != nil {
		return head
	}
	if rest := len(fields) - len(head); slices.Contains(head, "root") && rest >= 4 && rest%4 == 0 {
		return head
	}
	return slices.Delete(head, i, i+1)
}

// times reads time, two rates and errors out of place, then in place. p has the rest of the point.
func (l *testLog) times(fields []string, p Point) error {
	for i, place := range []bool{false, true} {
		k := 4 * i
		if k >= len(fields) {
			break
		}
		if fields[k] == "N/A" {
			continue
		}
		us, err := strconv.ParseFloat(fields[k], 64)
		if err != nil || !(us >= 0) || us > 1e12 {
			return fmt.Errorf("time is %q; microseconds expected", fields[k])
		}
		p.Time, p.InPlace = cost.Span(us), place
		l.points = append(l.points, p)
	}
	return nil
}

// infer tells the operation from the columns; 0 where a row of no bytes says nothing.
func (l *testLog) infer(size, buffer int64, redop, root string) (sched.Collective, error) {
	reduces := redop != "" && redop != "none"
	rooted := root != "" && root != "-1"
	if size == 0 || buffer == 0 {
		return 0, nil
	}
	whole := size == buffer // else the row counts the elements of one block
	switch {
	case rooted && reduces:
		return sched.Reduce, nil
	case rooted && whole:
		return sched.Broadcast, nil
	case reduces && whole:
		return sched.AllReduce, nil
	case reduces:
		return sched.ReduceScatter, nil
	case !rooted && whole:
		return sched.SendRecv, nil
	case rooted:
		return 0, errors.New("the log does not say whether it is of gather or of scatter; name the operation")
	default:
		return 0, errors.New("the log does not say whether it is of all-gather or of all-to-all; name the operation")
	}
}

// pointColumns are the columns of a file of raw points.
var pointColumns = []string{"op", "gpus", "nodes", "bytes", "time_us"}

// ReadPoints reads raw points as comma-separated values with a header that names
// op, gpus, bytes, time_us and, optionally, nodes, in any order.
func ReadPoints(r io.Reader) ([]Point, error) {
	in := csv.NewReader(r)
	in.Comment = '#'
	in.TrimLeadingSpace = true
	head, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("no header; expected %s: %w", strings.Join(pointColumns, ","), err)
	}
	at := map[string]int{}
	for i, name := range head {
		name = strings.TrimSpace(name)
		if !slices.Contains(pointColumns, name) {
			return nil, fmt.Errorf("unknown column %q; known: %s", name, strings.Join(pointColumns, ", "))
		}
		if _, twice := at[name]; twice {
			return nil, fmt.Errorf("column %q stands twice in the header", name)
		}
		at[name] = i
	}
	for _, name := range pointColumns {
		if _, ok := at[name]; !ok && name != "nodes" {
			return nil, fmt.Errorf("no column %q; expected %s", name, strings.Join(pointColumns, ","))
		}
	}
	var points []Point
	for {
		row, err := in.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		line, _ := in.FieldPos(0)
		p, err := pointOf(row, at)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		points = append(points, p)
	}
	if len(points) == 0 {
		return nil, errors.New("a header and no points")
	}
	return points, nil
}

// pointOf reads a row of a CSV file. at has the columns by name; nodes may be missing.
func pointOf(row []string, at map[string]int) (Point, error) {
	get := func(name string) string { return strings.TrimSpace(row[at[name]]) }
	p := Point{Nodes: 1}
	var err error
	if p.Op, err = ParseOp(get("op")); err != nil {
		return p, err
	}
	if p.GPUs, err = strconv.Atoi(get("gpus")); err != nil || p.GPUs < 1 {
		return p, fmt.Errorf("gpus is %q; a whole number from 1 expected", get("gpus"))
	}
	if _, ok := at["nodes"]; ok {
		if p.Nodes, err = strconv.Atoi(get("nodes")); err != nil || p.Nodes < 1 || p.Nodes > p.GPUs {
			return p, fmt.Errorf("nodes is %q; a whole number from 1 to the number of GPUs, %d, expected", get("nodes"), p.GPUs)
		}
	}
	if p.Bytes, err = unit.ParseBytes(get("bytes")); err != nil {
		return p, err
	}
	us, err := strconv.ParseFloat(get("time_us"), 64)
	if err != nil || !(us > 0) || math.IsInf(us, 0) || us > 1e12 {
		return p, fmt.Errorf("time_us is %q; microseconds above 0 expected", get("time_us"))
	}
	p.Time = cost.Span(us)
	return p, nil
}
