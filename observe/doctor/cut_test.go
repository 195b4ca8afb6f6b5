package doctor_test

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// A healthy log that is cut in the middle of a line says nothing critical: what is
// missing may just not have been copied. Windows' line ends change nothing.
func TestCutHealthyLogs(t *testing.T) {
	for _, v := range []string{"2.10.3", "2.18.3", "2.27.3", "2.30.7"} {
		text := ncclJob{version: v}.text()
		for cut := 0; cut < len(text); cut += 97 {
			if text[max(cut-1, 0)] == '\n' {
				continue
			}
			r := diagnose(t, file(text[:cut]))
			if got := ids(r, doctor.Critical); len(got) > 0 {
				t.Errorf("NCCL %s cut at %d: %v: %s", v, cut, got, r.Verdict)
			}
		}
		if r := diagnose(t, file(strings.ReplaceAll(text, "\n", "\r\n"))); len(ids(r, doctor.Warning)) > 0 || len(r.Jobs) != 1 ||
			r.Jobs[0].Seen != 4 {
			t.Errorf("NCCL %s with CRLF: %v, %+v", v, ids(r, doctor.Warning), r.Jobs)
		}
	}
}
