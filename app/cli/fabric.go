package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/weft-fabric/weft/fabric/network/check"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read"
)

// readCables reads what ibnetdiscover or iblinkinfo printed.
func readCables(files []string) ([]check.Cable, error) {
	var c doctor.Case
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		before := len(c.Cables)
		err = read.File(&c, name, "", f)
		f.Close()
		if err != nil {
			return nil, err
		}
		if len(c.Cables) == before {
			return nil, fmt.Errorf("%s holds no cable; it must be what ibnetdiscover or iblinkinfo prints", name)
		}
	}
	var out []check.Cable
	for _, x := range c.Cables {
		command := "ibnetdiscover"
		for _, f := range c.Files {
			if f.Path == x.At.File && f.Kind != "" {
				command = f.Kind
			}
		}
		out = append(out, check.Cable{A: x.A, B: x.B, APort: x.APort, BPort: x.BPort, Width: x.Width, Speed: x.Speed, Up: x.B != "" &&
			!strings.HasPrefix(x.State, "Down"), Command: command})
	}
	return out, nil
}

// fabricDrift compares the planned cables of a graph with those that were read.
func fabricDrift(g *topo.Graph, files []string) ([]check.Finding, error) {
	cables, err := readCables(files)
	if err != nil {
		return nil, err
	}
	return check.Fabric(g, cables), nil
}
