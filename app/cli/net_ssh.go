package cli

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/check"
)

// sshTime is how long a device may take to answer all commands.
const sshTime = time.Minute

type sshDevice struct {
	name string
	sw   bool
}

// sshDevices lists all hosts and those switches that have a shell of Linux, which InfiniBand's have not.
func sshDevices(p *network.Plan) (list []sshDevice) {
	for i := range p.Hosts {
		list = append(list, sshDevice{p.Hosts[i].Name, false})
	}
	for i := range p.Switches {
		if !p.Switches[i].IB {
			list = append(list, sshDevice{p.Switches[i].Name, true})
		}
	}
	return list
}

// readSSH asks every host and switch of a plan over ssh, sixteen at a time: all
// commands of a device in one shell. A device that does not answer is told of and
// is unknown. rsh is the command before the device's name.
func readSSH(cmd *cobra.Command, p *network.Plan, user string, rsh []string) (check.Readings, error) {
	if len(rsh) == 0 {
		rsh = []string{"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=8"}
	}
	if _, err := exec.LookPath(rsh[0]); err != nil {
		return nil, fmt.Errorf("--from ssh: %w", err)
	}
	list := sshDevices(p)
	out := check.Readings{}
	var mu sync.Mutex
	var group sync.WaitGroup
	turns := make(chan struct{}, 16)
	done := 0
	for _, d := range list {
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			ctx, cancel := context.WithTimeout(cmd.Context(), sshTime)
			defer cancel()
			to := d.name
			if user != "" {
				to = user + "@" + to
			}
			ask := exec.CommandContext(ctx, rsh[0], append(append([]string{}, rsh[1:]...), to, "sh", "-s")...)
			ask.WaitDelay = 5 * time.Second
			ask.Stdin = strings.NewReader(check.Script(d.sw, func(c check.Command) []string { return c.Args }))
			var said strings.Builder
			ask.Stderr = &said
			data, err := ask.Output()
			r := check.Split(data)
			mu.Lock()
			defer mu.Unlock()
			done++
			if len(r) > 0 {
				out[d.name] = r
			} else {
				why := strings.TrimSpace(said.String())
				if why == "" && err != nil {
					why = err.Error()
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "%s does not answer: %s\n", d.name, why)
			}
			if done%100 == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d asked\n", done, len(list))
			}
		})
	}
	group.Wait()
	if len(out) == 0 {
		return nil,
			finding{fmt.Errorf("none of %s answers; see above, or collect by other means: weft net collect --print", count(len(list), "device"))}
	}
	return out, nil
}
