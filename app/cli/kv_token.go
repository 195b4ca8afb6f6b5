package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/move/kvcache"
)

func newKVToken() *cobra.Command {
	var file, tenant string
	var life time.Duration
	var claim kvcache.Claim
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Issue a short-lived token for one tenant and one cache",
		Long: `Issue a token for a tenant's worker. It opens the tenant's blocks at one cache (its --name) until it expires, and nothing
else. Workers send it as 'Authorization: Bearer TOKEN'; the tenant's own token stays here. With --agent it is valid for
that agent's memory only.`,
		Example: `  weft kv token --tenants tenants.json --tenant a --audience cache-1 --for 8h`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case file == "":
				return errors.New("--tenants is missing: name the file of 'weft kv serve --tenants'")
			case claim.Audience == "":
				return errors.New("--audience is missing: give the cache's name, which is --name of 'weft kv serve'")
			case life < time.Second:
				return fmt.Errorf("--for %s: want at least one second", life)
			}
			list, err := readTenantFile(file)
			if err != nil {
				return err
			}
			for _, t := range list {
				if t.Name == tenant {
					claim.Tenant, claim.Until = tenant, time.Now().Add(life)
					fmt.Fprintln(cmd.OutOrStdout(), kvcache.Issue(t.Token, claim))
					return nil
				}
			}
			var names []string
			for _, t := range list {
				names = append(names, t.Name)
			}
			return fmt.Errorf("--tenant %q: %s has no such tenant; it has %s", tenant, file, strings.Join(names, ", "))
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "tenants", "", "`FILE` with tenants as JSON")
	f.StringVar(&tenant, "tenant", "", "`NAME` of the tenant")
	f.StringVar(&claim.Audience, "audience", "", "`NAME` of the cache that it is for")
	f.StringVar(&claim.Agent, "agent", "", "`NAME` of the only agent whose memory it may name; default: any")
	f.Uint64Var(&claim.Generation, "generation", 0, "`NUMBER` of that agent's life; 0 for any")
	f.DurationVar(&life, "for", time.Hour, "`TIME` that it lasts")
	return cmd
}
