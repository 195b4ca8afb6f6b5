package cli

import (
	"testing"
	"time"
)

// A limit counts processor time: a machine that does other work finds what an idle one does.
func TestLimitCountsProcessorTime(t *testing.T) {
	used := 5 * time.Second
	stop := spent(time.Minute, func() time.Duration { return used })
	if used += time.Minute; stop() {
		t.Error("stopped at the limit")
	}
	if used++; !stop() {
		t.Error("not stopped beyond the limit")
	}
	if spent(0, nil) != nil {
		t.Error("no limit stops")
	}
}
