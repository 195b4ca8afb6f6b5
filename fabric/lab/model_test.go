//go:build linux

package lab

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
)

// TestModelAgreesWithFRR: on random small fabrics, whole and with a random fault, every packet that real routers
// deliver arrives in the model, and every packet that they lose is lost there.
func TestModelAgreesWithFRR(t *testing.T) {
	if testing.Short() {
		t.Skip("brings routers up")
	}
	packets, lost := 0, 0
	for seed := range uint64(bounded.Times(1, 12)) {
		rng := rand.New(rand.NewPCG(seed, 34))
		p := randomFabric(t, rng)
		spec, err := NewSpec(p, fmt.Sprintf("model-%d-%d", seed, os.Getpid()), Options{Routing: "frr", Setup: "networkd"})
		if err != nil {
			t.Fatal(err)
		}
		i := bring(t, spec)
		for k := range p.Hosts {
			echo(t, i, p.Hosts[k].Name)
		}
		files := filesOf(t, p)
		compareWithModel(t, fmt.Sprintf("seed %d, no fault", seed), i, p, files, prove.Failure{}, &packets, &lost)
		for _, f := range randomFaults(t, rng, p) {
			for node, script := range f.plant {
				if out, err := i.Run(node, "sh", "-c", script); err != nil {
					t.Fatalf("%s: %v %s", script, err, out)
				}
			}
			if f.edit != nil {
				f.edit(files)
			}
			compareWithModel(t, fmt.Sprintf("seed %d, %s", seed, f.name), i, p, files, f.failure, &packets, &lost)
		}
		if err := Down(spec.Name); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d packets compared, %d of them lost in both, 0 disagreements", packets, lost)
	if lost == 0 {
		t.Error("no fault lost a packet")
	}
}

// randomFabric is a plan of two pods with one or two rails and up to three spines.
func randomFabric(t *testing.T, rng *rand.Rand) *network.Plan {
	t.Helper()
	rails, spines := 1+rng.IntN(2), 1+rng.IntN(3)
	text := fmt.Sprintf(`name: model
kinds:
  small:
    devices:
      cpu0: {kind: cpu}
      gpu[0-%d]: {kind: gpu, model: H100-SXM, parent: cpu0, link: pcie5}
      nic[0-%d]: {kind: nic, model: ConnectX-7-Ethernet, parent: cpu0, link: pcie5}
hosts: {"n[0-3]": small}
fabric: {family: rail, pod: 2, leaf: {switch: SN5600-400, down: 2, up: %d, link: 400gbe}, spine: {switch: SN5600-400, count: %d}, link: 400gbe}
`, rails-1, rails-1, spines, spines)
	c, err := cluster.Parse("model.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := network.Make("model.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// modelFault is a thing to break in the lab, and the same for the model: a failure, or a changed file.
type modelFault struct {
	name    string
	plant   map[string]string // scripts by node
	failure prove.Failure
	edit    func(map[string][]byte)
}

// randomFaults are a session that is taken out of one end's configuration, and then with it a cable or a switch that fails.
func randomFaults(t *testing.T, rng *rand.Rand, p *network.Plan) []modelFault {
	t.Helper()
	var trunks [][2]string // switch and port
	for k := range p.Switches {
		s := &p.Switches[k]
		for j := range s.Ports {
			if s.Ports[j].Host == network.None {
				trunks = append(trunks, [2]string{s.Name, emit.PortName(p, s, s.Ports[j].Number)})
			}
		}
	}
	x := trunks[rng.IntN(len(trunks))]
	file := "switches/" + x[0] + "/etc/frr/frr.conf"
	out := []modelFault{{name: "without neighbor " + x[1] + " on " + x[0],
		plant: map[string]string{x[0]: fmt.Sprintf("vtysh -N %s -c 'configure terminal' -c 'router bgp %d' -c 'no neighbor %s interface'", x[0], p.Switch(x[0]).ASN, x[1])},
		edit: func(files map[string][]byte) {
			files[file] = []byte(strings.Replace(string(files[file]), " neighbor "+x[1]+" interface v6only peer-group FABRIC\n", "", 1))
		}}}
	if y := trunks[rng.IntN(len(trunks))]; rng.IntN(2) == 0 {
		return append(out, modelFault{name: "cable " + y[0] + ":" + y[1], plant: map[string]string{y[0]: "ip link set " + y[1] + " down"}, failure: prove.Failure{Cables: []string{y[0] + ":" + y[1]}}})
	}
	s := &p.Switches[rng.IntN(len(p.Switches))]
	var down []string
	for j := range s.Ports {
		down = append(down, "ip link set "+emit.PortName(p, s, s.Ports[j].Number)+" down")
	}
	return append(out, modelFault{name: "switch " + s.Name, plant: map[string]string{s.Name: strings.Join(down, "; ")}, failure: prove.Failure{Switches: []string{s.Name}}})
}

func filesOf(t *testing.T, p *network.Plan) map[string][]byte {
	t.Helper()
	list, err := emit.Make(p, []string{"cables", "frr", "netplan"})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range list {
		files[f.Path] = f.Data
	}
	return files
}

// compareWithModel sends a packet between all pairs on each rail, until real routers have settled on what the model says.
func compareWithModel(t *testing.T, name string, i *Info, p *network.Plan, files map[string][]byte, f prove.Failure, packets, lost *int) {
	t.Helper()
	model, err := prove.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	var trips []prove.Trip
	for rail := range p.Rails {
		for a := range p.Hosts {
			for b := range p.Hosts {
				path, err := p.Path(p.Hosts[a].Name, p.Hosts[b].Name, "collective", rail)
				if a == b || err != nil {
					continue
				}
				there, err := model.FollowWithout(f, p.Hosts[a].Name, path.Source, path.Target)
				if err != nil {
					t.Fatal(err)
				}
				// A connection needs the way back, too.
				back, err := model.FollowWithout(f, p.Hosts[b].Name, path.Target, path.Source)
				if err != nil {
					t.Fatal(err)
				}
				there.Reached = there.Reached && back.Reached
				trips = append(trips, there)
			}
		}
	}
	err = until(60*time.Second, func() error {
		var mu sync.Mutex
		var wrong []string
		var group sync.WaitGroup
		for _, trip := range trips {
			group.Go(func() {
				err := transfer(i, trip.From, "", trip.Source, trip.Target, 2*time.Second)
				if (err == nil) == trip.Reached {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				wrong = append(wrong, fmt.Sprintf("%v; the lab: %v", trip, err))
			})
		}
		group.Wait()
		slices.Sort(wrong)
		if len(wrong) > 0 {
			return fmt.Errorf("%d of %d packets disagree, the first: %s", len(wrong), len(trips), wrong[0])
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	*packets += len(trips)
	for _, trip := range trips {
		if !trip.Reached {
			*lost++
		}
	}
}
