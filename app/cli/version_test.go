package cli

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/run/release"
)

func TestVersionPrints(t *testing.T) {
	var out, errs bytes.Buffer
	if code := Main([]string{"version", "--json"}, nil, &out, &errs); code != 0 {
		t.Fatal(code, errs.String())
	}
	var b release.Build
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil || b.Go != runtime.Version() || b.Version == "" || b.Commit == "" {
		t.Errorf("%+v, %v", b, err)
	}
	out.Reset()
	if code := Main([]string{"version"}, nil, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "weft      ") ||
		strings.Count(out.String(), "\n") != 5 {
		t.Errorf("exit %d, printed\n%s", code, out.String())
	}
	if code := Main([]string{"version", "now"}, nil, &out, &errs); code != 2 {
		t.Errorf("an argument too many: exit %d, want 2", code)
	}
}
