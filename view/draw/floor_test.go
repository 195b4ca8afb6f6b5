package draw

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/floor"
)

// TestFloorShowsEveryRack: the picture is well-formed, twice the same, and holds every rack once.
func TestFloorShowsEveryRack(t *testing.T) {
	c := catalog.Default()
	built, err := build.BuildPreset(c, "superpod-h100", map[string]int{"su": 2})
	if err != nil {
		t.Fatal(err)
	}
	in := floor.Default()
	in.Power, in.Row = 45e3, 7
	p, bad := floor.Make(built.Graph, c, in, nil)
	if bad != nil {
		t.Fatal(bad)
	}
	var a, b bytes.Buffer
	for _, w := range []io.Writer{&a, &b} {
		if err := Floor(w, p, "pod <2>"); err != nil {
			t.Fatal(err)
		}
	}
	if a.String() != b.String() {
		t.Error("two pictures of one plan differ")
	}
	for d := xml.NewDecoder(bytes.NewReader(a.Bytes())); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	hosts := 0
	for _, r := range p.Racks {
		if strings.Count(a.String(), ">"+r.Name+"</text>") != 1 {
			t.Errorf("rack %s is not drawn once", r.Name)
		}
		n := 0
		for _, at := range r.Devices {
			if p.Devices[at].Kind == "host" {
				n++
			}
		}
		hosts += n
		if n > 0 && !strings.Contains(a.String(), fmt.Sprintf(`data-hosts="%d"`, n)) {
			t.Errorf("rack %s does not say how many hosts it has", r.Name)
		}
	}
	if hosts != len(built.Graph.Hosts) {
		t.Errorf("%d hosts drawn, the graph has %d", hosts, len(built.Graph.Hosts))
	}
}
