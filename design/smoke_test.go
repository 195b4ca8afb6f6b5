package design

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/weft-fabric/weft/cluster"
	"github.com/weft-fabric/weft/draw"
	"strings"
)

func TestSmoke(t *testing.T) {
	var name string
	var su int
	fmt.Sscanf(os.Getenv("P"), "%s %d", &name, &su)
	p := map[string]int{}
	if su > 0 {
		p["su"] = su
		if name == "rail" || name == "fat-tree" {
			p = map[string]int{"hosts": su}
		}
	}
	c, err := cluster.Preset(name, p)
	if err != nil {
		t.Fatal(err)
	}
	s := time.Now()
	r, err := Analyze(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("analyze", time.Since(s))
	if os.Getenv("Q") == "" {
		r.Text(os.Stdout)
	}
	var svg strings.Builder
	if err := draw.Cluster(&svg, c.Graph, draw.Options{}); err != nil {
		t.Log(err)
	}
	f, _ := os.Create("/tmp/design.html")
	r.HTML(f, svg.String())
	f.Close()
}
