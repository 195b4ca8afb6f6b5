package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/app/internal/studio"
)

func newStudioGallery() *cobra.Command {
	var dir, from string
	cmd := &cobra.Command{
		Use: "gallery -o DIR", Short: "Write pages of known clusters, each with a collective or a plan to look at",
		Long: `Write a page for each of several clusters, as 'weft studio -o' does, and an index of
them: a SuperPOD, a rail fabric with a dead spine, NVL72 racks, a dragonfly, a program
synthesised for a DGX-1, and a 405B model planned on 16,384 GPUs. The pages compute what
they show when they are opened.`,
		Example: `  weft studio gallery -o gallery`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return errors.New("say where to write the pages: -o DIR")
			}
			c, err := compiled(cmd.Context(), from)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			for _, p := range studio.Gallery() {
				if err := output(cmd, filepath.Join(dir, p.File), func(w io.Writer) error { return studio.File(w, c, p.Open) }); err != nil {
					return fmt.Errorf("%s: %w", p.File, err)
				}
			}
			return output(cmd, filepath.Join(dir, "index.html"), studio.Index)
		},
	}
	cmd.Flags().StringVarP(&dir, "output", "o", "", "`DIR` to write the pages to")
	cmd.Flags().StringVar(&from, "engine", "", "`DIR` with a compiled engine")
	return cmd
}
