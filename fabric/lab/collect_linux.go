package lab

import (
	"fmt"
	"os/exec"
	"sync"

	"github.com/weft-fabric/weft/fabric/network/check"
)

// Collect asks every node of the lab what fabric/network/check wants to know. A command
// that fails leaves no reading.
func (i *Info) Collect() (check.Readings, error) {
	if err := i.Settled(); err != nil {
		return nil, fmt.Errorf("lab %s does not answer: %w", i.Spec.Name, err)
	}
	out := check.Readings{}
	var mu sync.Mutex
	var group sync.WaitGroup
	turns := make(chan struct{}, 4)
	for k := range i.Spec.Nodes {
		n := &i.Spec.Nodes[k]
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			r := i.collect(n)
			mu.Lock()
			defer mu.Unlock()
			if len(r) > 0 {
				out[n.Name] = r
			}
		})
	}
	group.Wait()
	if len(out) == 0 {
		return nil, fmt.Errorf("lab %s does not answer", i.Spec.Name)
	}
	return out, nil
}

// collect runs all commands of one node in one shell.
func (i *Info) collect(n *Node) map[string][]byte {
	line, err := i.Command(n.Name, "sh", "-c", check.Script(n.Router, func(c check.Command) []string {
		switch {
		case c.Daemon() != "" && c.Daemon() != i.Spec.Routing:
			return nil
		case c.Args[0] == "vtysh":
			return append([]string{"vtysh", "-N", n.Name}, c.Args[1:]...)
		case c.Args[0] == "birdc":
			return append([]string{"birdc", "-s", "/run/weft/" + n.Name + "/bird.ctl"}, c.Args[1:]...)
		case c.Args[0] == "lldpcli":
			return append([]string{"lldpcli", "-u", "/run/weft/" + n.Name + "/lldpd.socket"}, c.Args[1:]...)
		}
		return c.Args
	}))
	if err != nil {
		return nil
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.WaitDelay = outputTime
	data, _ := cmd.Output()
	return check.Split(data)
}
