package read

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-fabric/weft/doctor"
)

func TestTry(t *testing.T) {
	for _, run := range []string{"gpu_error_1st", "lock_gil_1st"} {
		for _, skip := range [][]int{nil, {12, 14}, {9, 14}, {12}, {9}, {5}, {12, 14, 3}} {
			files, _ := filepath.Glob("/tmp/doctor/fix/nvrx/tests/attribution/unit/fr_traces/" + run + "/_dump_*")
			var c doctor.Case
			for i, f := range files {
				var r int
				fmt.Sscanf(filepath.Base(f), "_dump_%d", &r)
				skipped := false
				for _, s := range skip {
					skipped = skipped || s == r
				}
				if skipped {
					continue
				}
				b, _ := os.ReadFile(f)
				v, err := unpickle(b)
				if err != nil {
					t.Fatal(err)
				}
				d := flight(fmt.Sprintf("%s/renamed%c", run, 'a'+i), v.(*pdict))
				c.Dumps = append(c.Dumps, d)
			}
			rep := doctor.Hangs(&c)
			t.Logf("%s without %v", run, skip)
			for _, h := range rep {
				t.Logf("  %+v", h)
			}
		}
	}
}
