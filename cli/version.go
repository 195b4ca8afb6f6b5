package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build is what 'weft version' prints; the keys of --json are kept.
type build struct {
	Version  string `json:"version"`  // as Go derives it from the tag, or (devel)
	Commit   string `json:"commit"`   // unknown if the binary was not built in a checkout
	Time     string `json:"time"`     // of the commit
	Dirty    bool   `json:"dirty"`    // the checkout had changes that were not committed
	Go       string `json:"go"`       // the compiler
	Platform string `json:"platform"` // system/processor
}

// thisBuild reads what the Go linker wrote into the binary.
func thisBuild(info *debug.BuildInfo, ok bool) build {
	b := build{Version: "(devel)", Commit: "unknown", Time: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Dirty = s.Value == "true"
		}
	}
	return b
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, commit, compiler and platform of this binary",
		Long: `Print what this binary was built from. A binary that was built outside of a
checkout, or by 'go run', has version (devel) and an unknown commit.`,
		Example: `  weft version
  weft version --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisBuild(debug.ReadBuildInfo())
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			commit := b.Commit
			if b.Dirty {
				commit += ", with changes that were not committed"
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "weft      %s\ncommit    %s\ntime      %s\ngo        %s\nplatform  %s\n", b.Version, commit, b.Time, b.Go, b.Platform)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
