package doctor

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/spell"
)

//go:embed data/env.csv
var envCSV string

//go:embed data/xid.csv
var xidCSV string

//go:embed data/nvlink5.csv
var nvlink5CSV string

func rows(text string) [][]string {
	list, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		panic("doctor: a table of this package is broken: " + err.Error())
	}
	return list[1:]
}

// variable is a setting of NCCL and the versions that read it.
type variable struct{ first, last [3]int }

var variables = func() map[string]variable {
	m := map[string]variable{}
	for _, r := range rows(envCSV) {
		a, _ := parseVersion(r[1])
		b, _ := parseVersion(r[2])
		m[r[0]] = variable{a, b}
	}
	return m
}()

// newestKnown is the last version that the tables cover.
var newestKnown = [3]int{2, 30, 7}

// pluginVariables begin names that plugins read, not NCCL.
var pluginVariables = []string{"NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_IBEXT_", "NCCL_UCX_", "NCCL_SHARP_", "NCCL_INSPECTOR_",
	"NCCL_OFI_", "NCCL_TUNER_CONFIG", "NCCL_PROFILE_", "NCCL_PROFILER_", "NCCL_TESTS_", "NCCL_EXAMPLE", "NCCL_PLUGIN_", "NCCL_NVTX_",
	"NCCL_TCPX_", "NCCL_SHIM_", "NCCL_VERSION", "NCCL_HOME", "NCCL_ROOT", "NCCL_INCLUDE", "NCCL_LIB", "NCCL_DIR", "NCCL_PATH"}

// unknownVariable says why a version does not read a variable, "" if it does.
func unknownVariable(name string, v [3]int, known bool) string {
	if slices.ContainsFunc(pluginVariables, func(p string) bool { return strings.HasPrefix(name, p) }) {
		return ""
	}
	x, ok := variables[name]
	if !ok {
		if known && slices.Compare(v[:], newestKnown[:]) > 0 {
			return "" // newer than the tables
		}
		s := name + " is read by no version of NCCL"
		if near := nearest(name); near != "" {
			s += "; " + near + " is meant?"
		}
		return s
	}
	if !known {
		return ""
	}
	if slices.Compare(v[:], x.first[:]) < 0 {
		return fmt.Sprintf("%s is read from %s on, this is %s", name, dotted(x.first), dotted(v))
	}
	if slices.Compare(v[:], x.last[:]) > 0 && x.last != newestKnown {
		return fmt.Sprintf("%s was removed after %s, this is %s", name, dotted(x.last), dotted(v))
	}
	return ""
}

func dotted(v [3]int) string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// nearest is the known variable with the fewest letters changed, "" if none is near.
func nearest(name string) string {
	return spell.Nearest(name, slices.Sorted(maps.Keys(variables)))
}

// Xid is what a code of the GPU driver means.
type Xid struct {
	Code                            int
	Name, Meaning, Action, Severity string
	Effect                          string
}

var xids = func() map[int]Xid {
	m := map[int]Xid{}
	for _, r := range rows(xidCSV) {
		code, _ := strconv.Atoi(r[0])
		m[code] = Xid{code, r[1], r[2], r[3], r[4], r[5]}
	}
	return m
}()

// nvlink5Rows are the lines of NVIDIA's table for one Xid and one error status.
func nvlink5Rows(code int, status uint64) (list [][]string) {
	for _, r := range rows(nvlink5CSV) {
		st, err := strconv.ParseUint(strings.TrimPrefix(r[5], "0x"), 16, 64)
		if r[0] == strconv.Itoa(code) && err == nil && st == status {
			list = append(list, r)
		}
	}
	return list
}

// nvlink5 decodes Xid 144 to 150 by unit, subcode and error status.
func nvlink5(code int, unit string, intr, status uint64) (severity, action string, ok bool) {
	sub := strconv.FormatUint(intr>>20&0x3f, 10)
	var loose []string
	for _, r := range nvlink5Rows(code, status) {
		if r[2] == sub && (strings.EqualFold(r[1], unit) || unit == "") {
			return r[6], strings.ReplaceAll(r[8], "_", " "), true
		}
		if strings.EqualFold(r[1], unit) && loose == nil {
			loose = r
		}
	}
	if loose != nil {
		return loose[6], strings.ReplaceAll(loose[8], "_", " "), true
	}
	return "", "", false
}
