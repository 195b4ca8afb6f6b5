// Package release says which weft this is: what 'make dist' told the linker, or else what Go wrote into the binary.
package release

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"slices"
)

const module = "github.com/weft-fabric/weft"

// Set by the linker (Flags).
var version, commit, when string

// Build is what a binary was built from.
type Build struct {
	Version  string `json:"version"`  // of the release, or as Go derives it from the tag, or (devel)
	Commit   string `json:"commit"`   // unknown if the binary was not built in a checkout
	Time     string `json:"time"`     // of the commit
	Dirty    bool   `json:"dirty"`    // the checkout had changes that were not committed
	Go       string `json:"go"`       // the compiler
	Platform string `json:"platform"` // system/processor
}

// This is the build of this binary.
func This() Build { return of(debug.ReadBuildInfo()) }

// of puts together what the linker set and what the toolchain recorded. The linker wins: a release says its version
// also where the sources had no repository.
func of(info *debug.BuildInfo, ok bool) Build {
	b := Build{Version: version, Commit: commit, Time: when, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if ok {
		b.Version = cmp.Or(b.Version, info.Main.Version)
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = cmp.Or(b.Commit, s.Value)
			case "vcs.time":
				b.Time = cmp.Or(b.Time, s.Value)
			case "vcs.modified":
				b.Dirty = s.Value == "true"
			}
		}
	}
	b.Version, b.Commit, b.Time = cmp.Or(b.Version, "(devel)"), cmp.Or(b.Commit, "unknown"), cmp.Or(b.Time, "unknown")
	return b
}

// ID tells builds of weft apart, also inside programs that use it as a library: the version, or the revision it was built from; empty
// if neither is known, as in tests.
func ID() string { return idOf(debug.ReadBuildInfo()) }

// idOf names the build for comparing ranks. Two builds of one revision are the same, and "" is unknown. Where weft is a
// dependency, the revision that the toolchain recorded is of another module and says nothing.
func idOf(info *debug.BuildInfo, ok bool) string {
	if version != "" {
		return version
	}
	if !ok {
		return ""
	}
	mods := append([]*debug.Module{&info.Main}, info.Deps...)
	i := slices.IndexFunc(mods, func(m *debug.Module) bool { return m.Path == module })
	switch {
	case i < 0:
		return ""
	case mods[i].Version != "" && mods[i].Version != "(devel)":
		return mods[i].Version
	case i > 0: // the revision is that of another module
		return ""
	}
	at := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" })
	if at < 0 {
		return ""
	}
	return info.Settings[at].Value
}

// Flags are those of the linker that write a release into a binary.
func Flags(version, commit, when string) string {
	flags := ""
	for _, x := range [][2]string{{"version", version}, {"commit", commit}, {"when", when}} {
		flags += " -X " + module + "/run/release." + x[0] + "=" + x[1]
	}
	return flags[1:]
}
