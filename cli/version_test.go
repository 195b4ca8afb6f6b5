package cli

import (
	"bytes"
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersionReadsTheBuild(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-11-16T00:00:00Z"}, {Key: "vcs.modified", Value: "true"}}}
	want := build{"v1.2.3", "abc", "2026-11-16T00:00:00Z", true, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	if got := thisBuild(info, true); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := thisBuild(nil, false); got.Version != "(devel)" || got.Commit != "unknown" || got.Dirty {
		t.Errorf("without build information: %+v", got)
	}
}

func TestVersionPrints(t *testing.T) {
	var out, errs bytes.Buffer
	if code := Main([]string{"version", "--json"}, nil, &out, &errs); code != 0 {
		t.Fatal(code, errs.String())
	}
	var b build
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil || b.Go != runtime.Version() || b.Version == "" || b.Commit == "" {
		t.Errorf("%+v, %v", b, err)
	}
	out.Reset()
	if code := Main([]string{"version"}, nil, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "weft      ") || strings.Count(out.String(), "\n") != 5 {
		t.Errorf("exit %d, printed\n%s", code, out.String())
	}
	if code := Main([]string{"version", "now"}, nil, &out, &errs); code != 2 {
		t.Errorf("an argument too many: exit %d, want 2", code)
	}
}
