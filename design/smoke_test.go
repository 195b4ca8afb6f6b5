package design

import (
	"os"
	"testing"
	"time"
	"fmt"

	"github.com/weft-fabric/weft/cluster"
	"github.com/weft-fabric/weft/topo/build"
	"github.com/weft-fabric/weft/topo/catalog"
)

func TestSmoke(t *testing.T) {
	c := catalog.Default()
	var name string
	var su int
	fmt.Sscanf(os.Getenv("P"), "%s %d", &name, &su)
	p := map[string]int{}
	if su > 0 {
		p["su"] = su
		if name == "rail" || name == "fat-tree" { p = map[string]int{"hosts": su} }
	}
	s := time.Now()
	b, err := build.BuildPreset(c, name, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("build", time.Since(s))
	s = time.Now()
	r, err := Analyze(&cluster.Cluster{Name: name, Graph: b.Graph, Catalog: c, Growth: cluster.Growth{Unit: b.Growth.Unit, UnitHosts: b.Growth.UnitHosts, MaxHosts: b.Growth.MaxHosts, Next: b.Next}, Notes: b.Notes})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("analyze", time.Since(s))
	if os.Getenv("Q") == "" {
	r.Text(os.Stdout)
	}
	f, _ := os.Create("/tmp/design.html")
	r.HTML(f, "")
	f.Close()
}
