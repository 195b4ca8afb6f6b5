package release

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestBuildIsReadFromTheBinary(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-11-16T00:00:00Z"}, {Key: "vcs.modified", Value: "true"}}}
	want := Build{"v1.2.3", "abc", "2026-11-16T00:00:00Z", true, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	if got := of(info, true); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := of(nil, false); got.Version != "(devel)" || got.Commit != "unknown" || got.Time != "unknown" || got.Dirty {
		t.Errorf("without build information: %+v", got)
	}
}

func TestIDTellsBuildsApart(t *testing.T) {
	revision := []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}}
	for _, x := range []struct {
		name string
		info debug.BuildInfo
		want string
	}{
		{"a tag", debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.2.3"}, Settings: revision}, "v1.2.3"},
		{"a checkout", debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}, Settings: revision}, "abc"},
		{"no checkout", debug.BuildInfo{Main: debug.Module{Path: module}}, ""},
		{"a library", debug.BuildInfo{Main: debug.Module{Path: "other", Version: "v9"}, Deps: []*debug.Module{{Path: module, Version: "v1.2.4"}},
			Settings: revision}, "v1.2.4"},
		{"a library that was replaced", debug.BuildInfo{Main: debug.Module{Path: "other"},
			Deps: []*debug.Module{{Path: module, Version: "(devel)"}}, Settings: revision}, ""},
		{"another program", debug.BuildInfo{Main: debug.Module{Path: "other"}, Settings: revision}, ""},
	} {
		if got := idOf(&x.info, true); got != x.want {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}
