package cli

import (
	"slices"
	"strings"
	"testing"
)

// What ranks must use is told to them, and a name that is none is refused with those that are.
func TestRequiredTransport(t *testing.T) {
	f := linkFlags{transport: "tcp", require: "mixed"}
	if list, err := f.env(); err != nil || !slices.Contains(list, "WEFT_TRANSPORT=tcp") || !slices.Contains(list, "WEFT_REQUIRE=mixed") {
		t.Errorf("%v, %v", list, err)
	}
	f.require = "shared"
	if _, err := f.env(); err == nil || !strings.Contains(err.Error(), `--require: unknown transport "shared"; known: shm, tcp, mixed, ucx`) {
		t.Errorf("a transport that there is none of: %v", err)
	}
}
