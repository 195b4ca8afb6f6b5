package format

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// smiMatrix is a matrix as read: devices in the order of the columns.
type smiMatrix struct {
	devices []smiDevice
	columns []string            // which of the attributes below the file has
	cells   [][]topo.Connection // known where filled[i][j]
	line    []int               // line of each device's row
}

type smiDevice struct {
	label   string // GPU0, NIC0, mlx5_0
	gpu     bool
	index   int // of a GPU or a NIC
	cpus    string
	numa    string
	gpuNUMA string
	device  string // the NIC's name in the operating system
	seen    bool
}

// smiColumns are the columns after the matrix and the attributes of a GPU that keep them.
var smiColumns = []struct{ key, head string }{{"smi.cpus", "CPU Affinity"}, {"smi.numa", "NUMA Affinity"}, {"smi.gpu-numa", "GPU NUMA ID"}}

// maxDevices bounds a matrix; the largest single-system image sold has 72 GPUs.
const maxDevices = 512

var (
	ansi     = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]|\\[[0-9;]+m") // a copy from a screen or a web page has often lost the escape itself
	gpuLabel = regexp.MustCompile(`^GPU(0|[1-9][0-9]{0,3})$`)
	nicLabel = regexp.MustCompile(`^NIC(0|[1-9][0-9]{0,3})$`)
	glued    = regexp.MustCompile(`(GPU[0-9]+)`) // a terminal that drops tabs runs names together
	legend   = regexp.MustCompile(`^\s*NIC([0-9]{1,4}):\s*(\S+)\s*$`)
	bonded   = regexp.MustCompile(`^(NV|XG|IC)([0-9]{1,3})$`)
)

// detectSMI looks for a line of column names that starts with GPU0 or another GPU.
func detectSMI(head []byte) bool {
	for line := range bytes.Lines(head) {
		if len(line) > maxLine {
			return false
		}
		if smiHeader(ansi.ReplaceAllString(string(line), "")) != nil {
			return true
		}
	}
	return false
}

// smiHeader gives the column names of a header line, nil if it is none. The
// names of the last columns have blanks in them and end the list of devices.
func smiHeader(line string) []string {
	head := line
	for _, last := range []string{"CPU Affinity", "CPUAffinity", "NUMA Affinity", "GPU NUMA ID"} {
		head, _, _ = strings.Cut(head, last)
	}
	head = strings.TrimSpace(head)
	if !strings.HasPrefix(head, "GPU") && len(head) == len(strings.TrimSpace(line)) {
		return nil
	}
	names := strings.Fields(glued.ReplaceAllString(head, "$1 "))
	if len(names) == 0 || !deviceLabel(names[0]) {
		return nil
	}
	for _, n := range names {
		if _, err := smiCell(n); err == nil {
			return nil // a row of the matrix, not its head
		}
		if !deviceLabel(n) {
			return nil
		}
	}
	return names
}

// deviceLabel reports whether a word can head a row or a column: GPU0, NIC0, or a NIC's own name.
func deviceLabel(s string) bool { return gpuLabel.MatchString(s) || nicName(s) }

// nicName reports whether a word can name a NIC's column: NIC0, mlx5_0, roceo1, bnxt_re0, efa_0.
func nicName(s string) bool {
	if len(s) > 64 || s == "" || strings.Trim(s, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-") != "" {
		return false
	}
	return strings.ContainsAny(s, "0123456789")
}

// smiCell reads a cell. SOC is what drivers before 2017 called SYS, and PSB the
// switch on a board of two GPUs, which is one switch and so PIX.
func smiCell(s string) (topo.Connection, error) {
	switch s {
	case "X":
		return topo.Connection{Span: topo.Self}, nil
	case "PIX", "PSB":
		return topo.Connection{Span: topo.PIX}, nil
	case "PXB":
		return topo.Connection{Span: topo.PXB}, nil
	case "PHB":
		return topo.Connection{Span: topo.PHB}, nil
	case "NODE":
		return topo.Connection{Span: topo.NODE}, nil
	case "SYS", "SOC":
		return topo.Connection{Span: topo.SYS}, nil
	}
	if m := bonded.FindStringSubmatch(s); m != nil {
		n, _ := strconv.Atoi(m[2])
		kind := map[string]topo.LinkKind{"NV": topo.NVLink, "XG": topo.XGMI, "IC": topo.ICI}[m[1]]
		if n > 0 {
			return topo.Connection{Via: kind, Links: n}, nil
		}
	}
	return topo.Connection{}, fmt.Errorf("found %q; expected X, NV#, PIX, PXB, PHB, NODE or SYS", clip(s))
}

// readSMI reads the matrix wherever it stands in the text: behind a prompt, coloured, or without its header. Of several
// matrices the first counts. A last line may be cut where the matrix's symmetry says the rest.
func readSMI(data []byte) (*smiMatrix, error) {
	m := &smiMatrix{}
	index := map[string]int{}
	var hasCPU, hasNUMA, hasGPUNUMA, legends bool
	if names, columns := headless(data); names != nil {
		hasCPU, hasNUMA, hasGPUNUMA = columns > 0, columns > 1, columns > 2
		for _, c := range smiColumns[:min(columns, len(smiColumns))] {
			m.columns = append(m.columns, c.key)
		}
		if err := m.head(1, names, index); err != nil {
			return nil, err
		}
	}
	last := 0 // number of a last line without an end
	if len(data) > 0 && data[len(data)-1] != '\n' {
		last = bytes.Count(data, []byte{'\n'}) + 1
	}
	err := lines(data, func(number int, line string) error {
		if len(line) > maxLine {
			return errorAt("nvidia-smi", number, "a line of %d bytes; expected the matrix of nvidia-smi topo -m", len(line))
		}
		if strings.Contains(line, "[") {
			line = ansi.ReplaceAllString(line, "")
		}
		if m.devices == nil {
			names := smiHeader(line)
			if names == nil {
				return nil // a prompt, a date, a title
			}
			hasCPU, hasNUMA, hasGPUNUMA = strings.Contains(line, "CPU Affinity") ||
				strings.Contains(line, "CPUAffinity"), strings.Contains(line, "NUMA Affinity"), strings.Contains(line, "GPU NUMA ID")
			return m.firstLine(number, line, names, hasCPU, index)
		}
		if strings.Contains(line, "Legend:") {
			legends = true
		}
		if l := legend.FindStringSubmatch(line); l != nil {
			if i, ok := index["NIC"+l[1]]; ok {
				m.devices[i].device = l[2]
			}
			return nil
		}
		fields := strings.Fields(line)
		if legends || len(fields) == 0 {
			return nil
		}
		i, ok := index[fields[0]]
		if !ok {
			if len(fields) > 1 {
				if _, err := smiCell(fields[1]); err == nil && fields[1] != "=" {
					return errorAt("nvidia-smi", number, "a row for %q, which has no column", clip(fields[0]))
				}
			}
			return nil
		}
		if m.devices[i].seen {
			return nil // a second matrix, of another host, is not this one's business
		}
		cells := fields[1:]
		if cut := number == last && len(cells) > 0 && len(cells) <= len(m.devices); cut && i >= len(cells) && len(m.cells[len(cells)-1]) > i {
			cells = cells[:len(cells)-1] // the file ends here, perhaps inside a word, and the row above says the same
		}
		if err := m.row(number, i, cells); err != nil {
			return err
		}
		m.affinity(i, line, fields, hasCPU, hasNUMA, hasGPUNUMA)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if m.devices == nil {
		return nil, errorAt("nvidia-smi", 1, "no line of columns GPU0 GPU1 ... found; expected the matrix of nvidia-smi topo -m")
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	return m.ordered(), nil
}

// firstLine takes the names of the columns.
func (m *smiMatrix) firstLine(number int, line string, names []string, hasCPU bool, index map[string]int) error {
	if len(names) > maxDevices {
		return errorAt("nvidia-smi", number, "%d columns; expected at most %d", len(names), maxDevices)
	}
	for _, c := range smiColumns {
		if strings.Contains(line, c.head) || c.key == "smi.cpus" && hasCPU {
			m.columns = append(m.columns, c.key)
		}
	}
	return m.head(number, names, index)
}

// ordered puts the devices in the order of their numbers, GPUs first, so that
// the graph does not depend on the order of the columns.
func (m *smiMatrix) ordered() *smiMatrix {
	at := make([]int, len(m.devices))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(x, y int) int {
		a, b := &m.devices[x], &m.devices[y]
		if a.gpu != b.gpu {
			if a.gpu {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.index, b.index)
	})
	o := &smiMatrix{columns: m.columns}
	for i, from := range at {
		o.devices, o.line = append(o.devices, m.devices[from]), append(o.line, m.line[from])
		row := make([]topo.Connection, i)
		for j := range row {
			row[j] = m.at(from, at[j])
		}
		o.cells = append(o.cells, row)
	}
	return o
}

// headless gives the columns of a matrix that was pasted without its header: the
// rows name them, and cells beyond the rows are NICs. It also says how many
// columns follow the cells. Where there is a header it gives nil.
func headless(data []byte) (names []string, columns int) {
	cells := 0
	headed := errors.New("there is a header")
	err := lines(data, func(_ int, line string) error {
		if len(line) > maxLine || !strings.Contains(line, "GPU") && cells == 0 {
			return nil
		}
		if strings.Contains(line, "[") {
			line = ansi.ReplaceAllString(line, "")
		}
		if smiHeader(line) != nil {
			return headed
		}
		fields := strings.Fields(line)
		if len(fields) < 2 || len(fields) > 2*maxDevices || len(names) == 0 && !gpuLabel.MatchString(fields[0]) ||
			!deviceLabel(fields[0]) {
			return nil
		}
		n := 0
		for _, f := range fields[1:] {
			if _, err := smiCell(f); err != nil {
				break
			}
			n++
		}
		if n == 0 || len(names) == maxDevices || slices.Contains(names, fields[0]) {
			return nil
		}
		if len(names) == 0 {
			cells, columns = min(n, maxDevices), len(fields)-1-n
		}
		names = append(names, fields[0])
		return nil
	})
	if err != nil || len(names) == 0 || len(names) > cells {
		return nil, 0
	}
	for i := 0; len(names) < cells; i++ {
		names = append(names, fmt.Sprintf("NIC%d", i))
	}
	return names, columns
}

// head takes the names of the columns. index receives the number of each.
func (m *smiMatrix) head(number int, names []string, index map[string]int) error {
	nics, legends := 0, true
	for i, n := range names {
		if _, twice := index[n]; twice {
			return errorAt("nvidia-smi", number, "column %s appears twice", n)
		}
		index[n] = i
		d := smiDevice{label: n}
		switch g, c := gpuLabel.FindStringSubmatch(n), nicLabel.FindStringSubmatch(n); {
		case g != nil:
			d.gpu = true
			d.index, _ = strconv.Atoi(g[1])
		case c != nil:
			d.index, _ = strconv.Atoi(c[1])
			nics++
		default:
			d.device, legends = n, false
			nics++
		}
		m.devices = append(m.devices, d)
	}
	if nics = 0; !legends { // an older driver, which heads columns with the devices' own names
		for i := range m.devices {
			if !m.devices[i].gpu {
				m.devices[i].index = nics
				nics++
			}
		}
	}
	m.cells, m.line = make([][]topo.Connection, len(names)), make([]int, len(names))
	return nil
}

// row reads the cells of device i. A last line that was cut off may have too
// few; the columns on the other side of the diagonal say the same.
func (m *smiMatrix) row(number, i int, cells []string) error {
	d := &m.devices[i]
	d.seen, m.line[i] = true, number
	for j := range m.devices {
		if j >= len(cells) {
			break
		}
		c, err := smiCell(cells[j])
		if err != nil {
			return errorAt("nvidia-smi", number, "%s to %s: %v", d.label, m.devices[j].label, err)
		}
		if (c.Span == topo.Self && c.Via == 0) != (i == j) {
			return errorAt("nvidia-smi", number, "%s to %s: found %s; expected X on the diagonal and nowhere else", d.label, m.devices[j].label, c)
		}
		if c.Via != 0 && !(d.gpu && m.devices[j].gpu) {
			return errorAt("nvidia-smi", number, "%s to %s: found %s; only GPUs have such links", d.label, m.devices[j].label, c)
		}
		m.cells[i] = append(m.cells[i], c)
	}
	return nil
}

// affinity reads what follows the cells: by tabs where the line has them, so
// that a blank CPU affinity stays blank, else by what the words look like.
func (m *smiMatrix) affinity(i int, line string, fields []string, hasCPU, hasNUMA, hasGPUNUMA bool) {
	d, n := &m.devices[i], len(m.devices)
	if !d.gpu || len(fields) <= n+1 && !strings.Contains(line, "\t") {
		return
	}
	rest := fields[min(len(fields), n+1):]
	if tabs := strings.Split(line, "\t"); len(tabs) > n+1 && strings.TrimSpace(tabs[0]) == d.label {
		rest = trimmed(tabs[n+1:])
	}
	take := func(has bool) string {
		if !has || len(rest) == 0 {
			return ""
		}
		v := rest[0]
		rest = rest[1:]
		return v
	}
	d.cpus, d.numa = take(hasCPU), take(hasNUMA)
	if len(rest) > 1 && rest[0] == "" { // two tabs stand before the GPU's NUMA id
		rest = rest[1:]
	}
	d.gpuNUMA = take(hasGPUNUMA)
}

func trimmed(cells []string) []string {
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

// check fills one triangle from the other and refuses what disagrees or is missing.
func (m *smiMatrix) check() error {
	for i, d := range m.devices {
		if !d.seen && i == 0 {
			return fmt.Errorf("nvidia-smi: no row for %s", d.label)
		}
		for j := range i {
			if err := m.pair(i, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// pair fills cell j of row i, where the row ends before it, from the cell across the diagonal. Rows end early, they have
// no holes, so what is added here is cell j. How two NICs are joined may stay unknown.
func (m *smiMatrix) pair(i, j int) error {
	d, other := &m.devices[i], &m.devices[j]
	haveIJ, haveJI := j < len(m.cells[i]), i < len(m.cells[j])
	switch {
	case haveIJ && haveJI && m.cells[i][j] != m.cells[j][i]:
		return errorAt("nvidia-smi", m.line[i], "%s to %s is %s, but %s to %s is %s in line %d", d.label, other.label, m.cells[i][j],
			other.label, d.label, m.cells[j][i], m.line[j])
	case haveIJ:
	case haveJI:
		m.cells[i] = append(m.cells[i], m.cells[j][i])
	case d.gpu || other.gpu:
		return fmt.Errorf("nvidia-smi: nothing says how %s and %s are joined: the rows of both are cut off or missing", other.label, d.label)
	default:
		m.cells[i] = append(m.cells[i], topo.Connection{Span: unknownSpan})
	}
	return nil
}

// unknownSpan stands for the span of two NICs whose rows were not pasted along; what the GPUs tell of both decides.
const unknownSpan = topo.SYS + 1

// at gives the connection of two devices, i > j.
func (m *smiMatrix) at(i, j int) topo.Connection {
	if i < j {
		i, j = j, i
	}
	return m.cells[i][j]
}
