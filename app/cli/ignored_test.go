package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// given sets a flag to a value that it takes.
func given(t *testing.T, flags *pflag.FlagSet, condition string) {
	t.Helper()
	name, value, _ := strings.Cut(condition, "=")
	if value != "" {
		if err := flags.Set(name, value); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, v := range []string{"true", "2", "2s", "x", "x=2", "1s,2s"} {
		if flags.Set(name, v) == nil {
			return
		}
	}
	t.Fatalf("--%s takes none of the values that are tried", name)
}

// Every flag that a mode would pass over is refused there, by its name and with what to do, and not elsewhere.
func TestIgnoredFlagsAreRefused(t *testing.T) {
	verb := func(x *ignored) *cobra.Command {
		cmd, _, err := newRoot().Find(strings.Fields(x.verb))
		if err != nil || strings.TrimPrefix(cmd.CommandPath(), "weft ") != x.verb {
			t.Fatalf("no verb %q: %v", x.verb, err)
		}
		return cmd
	}
	for _, x := range ignoredFlags {
		for _, name := range strings.Fields(x.flags) {
			modes := strings.Fields(x.with)
			if x.without != "" {
				modes = []string{""}
			}
			for _, mode := range modes {
				cmd := verb(&x)
				if mode != "" {
					given(t, cmd.Flags(), mode)
				}
				if err := x.check(cmd.Flags()); err != nil {
					t.Errorf("%s in mode %q without --%s: %v", x.verb, mode, name, err)
				}
				given(t, cmd.Flags(), name)
				if err := cmd.PreRunE(cmd, nil); err == nil || !strings.Contains(err.Error(), "would change nothing") ||
					!strings.Contains(err.Error(), "--"+name+" ") {
					t.Errorf("%s --%s in mode %q is not refused: %v", x.verb, name, mode, err)
				}
			}
			for _, mode := range append(strings.Fields(x.without), "") {
				if mode == "" && x.without != "" {
					continue
				}
				cmd := verb(&x)
				if mode != "" {
					given(t, cmd.Flags(), mode)
				}
				given(t, cmd.Flags(), name)
				if err := x.check(cmd.Flags()); err != nil {
					t.Errorf("%s --%s in mode %q: %v", x.verb, name, mode, err)
				}
			}
		}
	}
}

// The same from outside: exit code 2, and the error names the flag, its value and what to do.
func TestPassedOverInputIsWrongUse(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"bench all-gather -n 2 -o max", "-o max: all-gather"},
		{"bench all-gather -n 2 -r 1", "-r 1: all-gather"},
		{"bench all-reduce -n 2 -r 0", "-r 0: all-reduce"},
		{"bench all-reduce -n 2 -i 0", "-i 0"},
		{"bench all-reduce -n 2 -i 8 -f 3", "--stepfactor 3"},
		{"bench barrier -n 2 -d int8", "-d int8: barrier"},
		{"bench barrier -n 2 -b 8", "-b 8: barrier"},
		{"bench barrier -n 2 --floor 1GB/s", "--floor 1GB/s: barrier"},
		{"bench --compare all-gather --out-of-place", "--out-of-place"},
		{"bench --compare barrier --sizes 8", "--sizes 8"},
		{"run -n 1 --restart one -- true", "--restart one"},
		{"run -n 1 --explain -- true", "--explain"},
		{"run -n 1 --coord-user me -- true", "--coord-user me"},
		{"run --nproc 1 --coord-user me -- true", "--coord-user"},
		{"run -n 1 --tls /no/folder -- true", "--tls=/no/folder"},
		{"bench all-reduce -n 2 --tls /no/folder", "--tls=/no/folder"},
		{"up --layers -3 --steps 1", "--layers -3"},
		{"up --layers 0 --steps 1", "--layers 0"},
		{"explain dgx-h100 --bound --root 1", "--root 1: all-reduce"},
		{"algo show ring -n 4 --dims 2x2", "--dims 2x2: ring"},
		{"algo show ring -n 4 --inner ring", "--inner ring: ring"},
		{"algo show ring -n 4 --local 2", "--local 2: ring"},
		{"algo show pat -n 4 --pieces 2", "--pieces 2: pat"},
		{"algo show ring -n 4 --aggregate 2", "--aggregate 2: ring"},
		{"algo show ring -n 4 --op all-reduce --root 2", "--root 2: all-reduce"},
		{"algo verify pat -n 4 --root 2", "--root 2"},
		{"algo synth dgx-h100 --size 1MiB --root 1", "--root 1: all-reduce"},
		{"topo build dgx-h100 --list", "dgx-h100"},
		{"doctor --list /dev/null", "/dev/null"},
		{"sim train llama3-8b --mixed", "--mixed"},
		{"agent --once --listen :1", "--listen :1"},
	} {
		var said strings.Builder
		if code := Main(strings.Fields(c.line), strings.NewReader(""), io.Discard, &said); code != 2 || !strings.Contains(said.String(), c.want) {
			t.Errorf("weft %s: exit code %d, want 2 and %q:\n%s", c.line, code, c.want, said.String())
		}
	}
}

// A launcher that has left half of what it sets is told of, not taken for none: each of its processes would be a world of one.
func TestHalfALauncherIsWrongUse(t *testing.T) {
	for _, variable := range []string{"SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK"} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, "1")
			var said strings.Builder
			if code := Main([]string{"run", "--", "true"}, strings.NewReader(""), io.Discard, &said); code != 2 ||
				!strings.Contains(said.String(), variable) {
				t.Errorf("weft run: exit code %d, want 2 and %s named:\n%s", code, variable, said.String())
			}
			if code := Main([]string{"run", "-n", "1", "--", "true"}, strings.NewReader(""), io.Discard, io.Discard); code != 0 {
				t.Errorf("weft run -n 1: exit code %d", code)
			}
		})
	}
}
