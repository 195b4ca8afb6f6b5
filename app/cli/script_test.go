package cli_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/weft-fabric/weft/app/cli"
	"github.com/weft-fabric/weft/fabric/lab"
	"github.com/weft-fabric/weft/internal/bounded"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"weft": func() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// Every verb has a transcript under testdata/script; go test -update rewrites
// what they expect, and a person reads the difference.
func TestScripts(t *testing.T) {
	examples, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       os.Getenv("UPDATE") != "",
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// exit CODE ARGS... runs weft and wants the exit code.
			"exit": func(ts *testscript.TestScript, _ bool, args []string) {
				err := ts.Exec("weft", args[1:]...)
				code := 0
				if e := (*exec.ExitError)(nil); errors.As(err, &e) {
					code = e.ExitCode()
				}
				if fmt.Sprint(code) != args[0] {
					ts.Fatalf("weft %s: exit %d, want %s", strings.Join(args[1:], " "), code, args[0])
				}
			},
		},
		Setup: func(e *testscript.Env) error {
			e.Setenv("EXAMPLES", examples+"/../../examples")
			// A process that a script leaves behind with its output would be waited for without end.
			e.Defer(bounded.Guard(e.T().(testing.TB), 6*time.Minute, "WORK="+e.WorkDir))
			name := fmt.Sprintf("script-%d", os.Getpid())
			e.Setenv("LAB", name)
			if strings.HasSuffix(e.WorkDir, "script-lab") {
				e.Defer(func() { _ = lab.Down(name) }) // where the script did not come to it
			}
			return nil
		},
		Condition: func(word string) (bool, error) {
			if word != "lab" {
				return false, fmt.Errorf("unknown condition %q", word)
			}
			return !testing.Short() && lab.Check(&lab.Spec{}) == nil, nil
		},
	})
}
