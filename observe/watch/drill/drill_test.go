package drill

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "patient" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := Patient(ctx); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 3 && os.Args[1] == "agent" {
		reportAs(context.Background(), os.Args[2], os.Args[3])
		os.Exit(0)
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// Real ranks are broken, and the right one is named. 'make drills' does all of it.
func TestDrills(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ranks run on Linux")
	}
	if testing.Short() {
		t.Skip("starts processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	table, err := Run(ctx, Options{Program: []string{os.Args[0], "patient"}, Faults: []string{"stopped rank"}, Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range table.Rows {
		if r.Right != r.Injected {
			t.Errorf("%s: %d of %d named", r.Fault, r.Right, r.Injected)
		}
	}
}
