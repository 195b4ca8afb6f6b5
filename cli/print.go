package cli

import (
	"encoding/json"
	"io"

	"github.com/weft-fabric/weft/unit"
)

// unitRate turns a count into a factor for a rate.
func unitRate(n int) unit.Rate { return unit.Rate(n) }

// printJSON writes a value as indented JSON, the one form of --json.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
