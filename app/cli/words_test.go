package cli

import (
	"regexp"
	"testing"

	"github.com/spf13/cobra"
)

// The help of a verb uses the field's words, and none that only the authors know.
func TestHelpUsesPlainWords(t *testing.T) {
	insider := regexp.MustCompile(`\bS[0124]\b|[Tt]he documents?\b|\b[Rr]ooms?\b|\boffices?\b|\bgraves?\b|\bso many\b|\bdecider|\b[Dd]oors?\b|\btempers?\b|\b[Ss]hy\b`)
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		for _, help := range []string{c.Short, c.Long, c.Example, c.Flags().FlagUsages()} {
			if m := insider.FindString(help); m != "" {
				t.Errorf("the help of %s says %q:\n%s", c.CommandPath(), m, help)
			}
		}
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(newRoot())
}
