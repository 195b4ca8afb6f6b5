package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/weft-fabric/weft/model/unit"
)

// unitRate turns a count into a factor for a rate.
func unitRate(n int) unit.Rate { return unit.Rate(n) }

// count says "1 host" and "2 hosts".
func count(n int, what string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(what, "ch"), strings.HasSuffix(what, "ss"):
		what += "es"
	default:
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// printJSON writes a value as indented JSON, the one form of --json.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// newTable writes columns that tabs part.
func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }
