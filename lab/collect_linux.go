package lab

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/network/check"
)

// Collect asks every node of the lab what network/check wants to know. A command
// that fails leaves no reading.
func (i *Info) Collect() (check.Readings, error) {
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

// collect runs all commands of one node in one shell; a mark stands before the
// output of each, and its status behind.
func (i *Info) collect(n *Node) map[string][]byte {
	const mark = "==weft=="
	var script strings.Builder
	for _, c := range check.Commands() {
		if n.Router && !c.Switch || !n.Router && !c.Host {
			continue
		}
		args := append([]string{}, c.Args...)
		switch args[0] {
		case "vtysh":
			args = append([]string{"vtysh", "-N", n.Name}, args[1:]...)
		case "lldpcli":
			args = append([]string{"lldpcli", "-u", "/run/weft/" + n.Name + "/lldpd.socket"}, args[1:]...)
		}
		fmt.Fprintf(&script, "echo; echo %s %s\n", mark, c.Name)
		for _, a := range args {
			fmt.Fprintf(&script, "'%s' ", strings.ReplaceAll(a, "'", `'\''`))
		}
		fmt.Fprintf(&script, " 2>/dev/null\necho; echo %s $?\n", mark)
	}
	line, err := i.Command(n.Name, "sh", "-c", script.String())
	if err != nil {
		return nil
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.WaitDelay = outputTime
	data, _ := cmd.Output()
	out := map[string][]byte{}
	name, begin := "", 0
	for at := 0; at < len(data); {
		end := bytes.IndexByte(data[at:], '\n')
		if end < 0 {
			end = len(data) - at - 1
		}
		text := string(data[at : at+end])
		if word, ok := strings.CutPrefix(text, mark+" "); ok {
			if name == "" {
				name, begin = word, at+end+1
			} else {
				if word == "0" {
					out[name] = bytes.TrimSpace(data[begin:at])
				}
				name = ""
			}
		}
		at += end + 1
	}
	return out
}
