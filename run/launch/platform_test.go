package launch

import (
	"runtime"
	"strings"
	"testing"
)

func TestRanksRunOnLinuxOnly(t *testing.T) {
	if err := supported("darwin"); err == nil || !strings.Contains(err.Error(), "Linux only") || !strings.Contains(err.Error(), "darwin") {
		t.Errorf("on darwin: %v; want an error that says Linux only, and what this is", err)
	}
	if err := supported("linux"); err != nil {
		t.Error(err)
	}
	if err := Supported(); (err == nil) != (runtime.GOOS == "linux") {
		t.Error(err)
	}
}
