//go:build linux

package lab

import (
	"encoding/json"
	"errors"
	"flag"
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

var fabrics = flag.Int("lab.fabrics", 0, "how many random fabrics are held against the model, each whole and with eight faults")

var firstSeed = flag.Uint64("lab.from", 0, "the first of their seeds")

var onlyVRFs = flag.Bool("lab.vrfs", false, "only fabrics with VRFs, which need a kernel that has them")

// TestModelAgreesWithFRR: on random small fabrics of every family, whole and with random faults, every packet that
// real routers deliver arrives in the model, and every packet that they lose is lost there.
func TestModelAgreesWithFRR(t *testing.T) {
	if testing.Short() {
		t.Skip("brings routers up")
	}
	count, faults := bounded.Times(1, 12), 2
	if *firstSeed == 0 && *fabrics == 0 {
		*firstSeed = 3 // tenants: bridges over several leaves, as well as routes
	}
	if *fabrics > 0 {
		count, faults = *fabrics, 8
	}
	var sum modelSum
	t.Run("fabrics", func(t *testing.T) {
		for seed := *firstSeed; seed < *firstSeed+uint64(count); seed++ {
			t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
				if *fabrics > 0 {
					t.Parallel() // they mostly wait for routers
				}
				judgeFabric(t, seed, faults, &sum)
			})
		}
	})
	t.Logf("%d fabrics %v, %d cases: %d packets compared, %d of them lost in both", count, sum.kinds, sum.cases, sum.packets, sum.lost)
	if sum.lost == 0 {
		t.Error("no packet was lost: neither tenants nor faults keep any apart")
	}
}

// modelSum counts what was compared.
type modelSum struct {
	mu                   sync.Mutex
	kinds                map[string]int
	cases, packets, lost int
}

func (s *modelSum) fabric(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kinds == nil {
		s.kinds = map[string]int{}
	}
	s.kinds[kind]++
}

func (s *modelSum) add(trips []prove.Trip) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cases++
	s.packets += len(trips)
	for _, trip := range trips {
		if !trip.Reached {
			s.lost++
		}
	}
}

// judgeFabric holds one random fabric against the model, whole and with faults.
func judgeFabric(t *testing.T, seed uint64, faults int, sum *modelSum) {
	rng := rand.New(rand.NewPCG(seed, 34))
	kind, p := randomFabric(t, rng, int(seed))
	sum.fabric(kind)
	spec, err := NewSpec(p, fmt.Sprintf("model-%d-%d", seed, os.Getpid()), Options{Routing: "frr", Setup: "plain"})
	if err != nil {
		t.Fatal(err)
	}
	i := bring(t, spec)
	for k := range p.Hosts {
		echo(t, i, p.Hosts[k].Name)
	}
	compareWithModel(t, fmt.Sprintf("seed %d, %s, no fault", seed, kind), i, p, filesOf(t, p), prove.Failure{}, sum)
	if list, err := i.Traffic(TrafficConfig{Bytes: 64 << 10, Limit: time.Minute, Apart: 2 * time.Second}); err != nil {
		t.Fatal(err)
	} else if k := slices.IndexFunc(list, func(x Transfer) bool { return !x.AsPlanned() }); k >= 0 {
		t.Errorf("seed %d, %s: %+v", seed, kind, list[k])
	}
	for range faults {
		var names []string
		var failure prove.Failure
		files := filesOf(t, p)
		planted := randomFaults(rng, p)
		for _, f := range planted {
			names = append(names, f.name)
			runAll(t, i, f.node, f.plant)
			failure.Cables, failure.Switches = append(failure.Cables, f.failure.Cables...), append(failure.Switches, f.failure.Switches...)
			if f.edit != nil {
				f.edit(files)
			}
		}
		t.Logf("seed %d: %v", seed, names)
		compareWithModel(t, fmt.Sprintf("seed %d, %s, %s", seed, kind, strings.Join(names, " and ")), i, p, files, failure, sum)
		for _, f := range slices.Backward(planted) {
			runAll(t, i, f.node, f.undo)
		}
		// The next case begins with a whole lab: sessions are up at both ends, and routes are back.
		if err := until(3*time.Minute, func() error { return errors.Join(established(i), i.whole()) }); err != nil {
			t.Fatalf("seed %d: %v undone: %v\n%s", seed, names, err, routersSay(i))
		}
	}
	if err := Down(spec.Name); err != nil {
		t.Fatal(err)
	}
}

// established reports whether every router has all its sessions, and knows its neighbours' hardware addresses. FRR sends packets
// of IPv4 to 169.254.0.1 on a port without an IPv4 address, for which it has an entry of its own.
func established(i *Info) error {
	for k := range i.Spec.Nodes {
		n := &i.Spec.Nodes[k]
		if !n.Router {
			continue
		}
		var said struct {
			V4 struct {
				Peers map[string]struct{ State string }
			} `json:"ipv4Unicast"`
		}
		out, err := i.Run(n.Name, "vtysh", "-N", n.Name, "-d", "bgpd", "-c", "show bgp summary json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal(out, &said); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		near, err := i.Run(n.Name, "ip", "neigh", "show", "nud", "permanent")
		if err != nil {
			return err
		}
		for _, port := range n.Uplink {
			if s := said.V4.Peers[port].State; s != "Established" {
				return fmt.Errorf("the session of %s:%s is %q", n.Name, port, s)
			}
			if !strings.Contains(string(near), "169.254.0.1 dev "+port+" lladdr") {
				return fmt.Errorf("%s has no entry for its neighbour on %s", n.Name, port)
			}
		}
	}
	return nil
}

// routersSay is what to look at when a session does not come back.
func routersSay(i *Info) string {
	var b strings.Builder
	for k := range i.Spec.Nodes {
		if n := &i.Spec.Nodes[k]; n.Router {
			out, _ := i.Run(n.Name, "sh", "-c",
				fmt.Sprintf("ip -br addr; ip neigh; ip route; vtysh -N %[1]s -c 'show bgp summary' -c 'show bfd peers brief' -c 'show ip route'; tail -n 20 /run/weft/%[1]s/*.log",
					n.Name))
			fmt.Fprintf(&b, "== %s\n%s\n", n.Name, out)
		}
	}
	return b.String()
}

func runAll(t *testing.T, i *Info, node string, script []string) {
	t.Helper()
	for _, line := range script {
		if out, err := i.Run(node, "sh", "-c", line); err != nil {
			log, _ := i.Run(node, "sh", "-c", "tail -n 40 /run/weft/"+node+"/bgpd.log")
			t.Fatalf("%s: %v %s\n%s", line, err, out, log)
		}
	}
}

// randomFabric is a small plan: each kind in turn, with random counts of rails and spines.
func randomFabric(t *testing.T, rng *rand.Rand, turn int) (string, *network.Plan) {
	t.Helper()
	rails, spines := 1+rng.IntN(2), 1+rng.IntN(3)
	clos := fmt.Sprintf("pod: 2, leaf: {switch: SN5600-400, down: %%d, up: %d, link: 400gbe}, spine: {switch: SN5600-400, count: %d}, link: 400gbe}\n",
		spines, spines)
	list := [][2]string{
		{"rails", "fabric: {family: rail, " + fmt.Sprintf(clos, 2)},
		{"bridged rails", "fabric: {family: rail, " + fmt.Sprintf(clos, 2) + "network: {backend: {links: rail}}\n"},
		{"fat-tree", "fabric: {family: fat-tree, " + fmt.Sprintf(clos, 2*rails)},
		{"tenants", "fabric: {family: fat-tree, " + fmt.Sprintf(clos, 2*rails) +
			"network: {backend: {links: rail, vlan: 100}, tenants: {red: {hosts: [n0, n2]}, blue: {hosts: [n1]}}}\n"},
		{"ring", fmt.Sprintf("fabric: {family: torus, switch: SN5600-400, dims: [%d], ports: %d, link: 400gbe}\n", 4, rails)},
		{"rail-only", "fabric: {family: rail, rail-only: true, " + fmt.Sprintf(clos, 2)},
		{"dragonfly",
			fmt.Sprintf("fabric: {family: dragonfly, switch: SN5600-400, routers: 2, ports: %d, global: 1, groups: 3, link: 400gbe}\n", rails)},
	}
	kind := list[turn%len(list)]
	if *onlyVRFs {
		tenants := []string{"red: {hosts: [n0, n2]}, blue: {hosts: [n1, n3]}", "red: {hosts: [n0, n1]}, blue: {hosts: [n2, n3]}",
			"red: {hosts: [n0, n2]}"}[rng.IntN(3)]
		kind = [2]string{"VRFs", "fabric: {family: fat-tree, " + fmt.Sprintf(clos, 2*rails) + "network: {tenants: {" + tenants +
			"}, routing: {bfd: off}}\n"}
	}
	hosts := 4
	if kind[0] == "dragonfly" {
		hosts = 6
	}
	text := fmt.Sprintf(`name: model
kinds:
  small:
    devices:
      cpu0: {kind: cpu}
      gpu[0-%d]: {kind: gpu, model: H100-SXM, parent: cpu0, link: pcie5}
      nic[0-%d]: {kind: nic, model: ConnectX-7-Ethernet, parent: cpu0, link: pcie5}
hosts: {"n[0-%d]": small}
`, rails-1, rails-1, hosts-1) + kind[1]
	c, err := cluster.Parse("model.yaml", []byte(text), nil)
	if err != nil {
		t.Fatalf("%s: %v", kind[0], err)
	}
	p, err := network.Make("model.yaml", c, nil)
	if err != nil {
		t.Fatalf("%s: %v", kind[0], err)
	}
	return kind[0], p
}

// modelFault is a thing to break in the lab, and the same for the model: a failure, or a changed file.
type modelFault struct {
	name, node  string
	plant, undo []string // scripts
	failure     prove.Failure
	edit        func(map[string][]byte)
}

// randomFaults are one or two of: a session that is taken out of one end's configuration, a cable, a switch, and a switch
// that no longer tells of its bridges.
func randomFaults(rng *rand.Rand, p *network.Plan) (out []modelFault) {
	type end struct{ node, port string }
	var trunks []end
	var bridged, routed []*network.Switch // with networks, and with VRFs, of tenants
	for k := range p.Switches {
		s := &p.Switches[k]
		for j := range s.Ports {
			if s.Ports[j].Host == network.None {
				trunks = append(trunks, end{s.Name, emit.PortName(p, s, s.Ports[j].Number)})
			}
		}
		if slices.ContainsFunc(s.Ports, func(q network.Port) bool { return q.VNI != 0 }) {
			bridged = append(bridged, s)
		}
		if slices.ContainsFunc(s.Ports, func(q network.Port) bool { return q.VRF != 0 }) {
			routed = append(routed, s)
		}
	}
	for range 1 + rng.IntN(2) {
		x := trunks[rng.IntN(len(trunks))]
		bgp := fmt.Sprintf("vtysh -N %s -c 'configure terminal' -c 'router bgp %d' -c ", x.node, p.Switch(x.node).ASN)
		switch draw := rng.IntN(4); {
		case draw == 0:
			// Not "no neighbor": FRR 8.4's bgpd crashes when a neighbour's configuration goes while its port is down.
			out = append(out, modelFault{name: "without neighbor " + x.port + " on " + x.node, node: x.node,
				plant: []string{bgp + "'neighbor " + x.port + " shutdown'"}, undo: []string{bgp + "'no neighbor " + x.port + " shutdown'"},
				edit: without(x.node, " neighbor "+x.port+" interface v6only peer-group FABRIC")})
		case draw == 3 && len(routed) > 0:
			s := routed[rng.IntN(len(routed))]
			out = append(out, keepsVRF(rng, p, s))
		case draw == 1 || draw == 3 && len(bridged) == 0:
			out = append(out, modelFault{name: "cable " + x.node + ":" + x.port, node: x.node, plant: []string{"ip link set " + x.port + " down"},
				undo: []string{"ip link set " + x.port + " up"}, failure: prove.Failure{Cables: []string{x.node + ":" + x.port}}})
		case draw == 2:
			s := p.Switch(x.node)
			f := modelFault{name: "switch " + s.Name, node: s.Name, failure: prove.Failure{Switches: []string{s.Name}}}
			for j := range s.Ports {
				port := emit.PortName(p, s, s.Ports[j].Number)
				f.plant, f.undo = append(f.plant, "ip link set "+port+" down"), append(f.undo, "ip link set "+port+" up")
				if a := s.Ports[j].Addr; a.IsValid() { // which zebra does not bring back
					f.undo = append(f.undo, fmt.Sprintf("ip addr replace %s dev %s", a, port))
				}
			}
			out = append(out, f)
		default:
			s := bridged[rng.IntN(len(bridged))]
			bgp = fmt.Sprintf("vtysh -N %s -c 'configure terminal' -c 'router bgp %d' -c 'address-family l2vpn evpn' -c ", s.Name, s.ASN)
			out = append(out, modelFault{name: s.Name + " tells nobody of its bridges", node: s.Name,
				plant: []string{bgp + "'no advertise-all-vni'"}, undo: []string{bgp + "advertise-all-vni"},
				edit: without(s.Name, "  advertise-all-vni")})
		}
	}
	if len(out) == 2 && out[0].node == out[1].node {
		out = out[:1]
	}
	return out
}

// keepsVRF is a switch that no longer announces what is in one of its VRFs.
func keepsVRF(rng *rand.Rand, p *network.Plan, s *network.Switch) modelFault {
	var here []string
	for _, q := range s.Ports {
		if q.VRF != 0 && !slices.Contains(here, p.VRFs[q.VRF-1].Name) {
			here = append(here, p.VRFs[q.VRF-1].Name)
		}
	}
	name := here[rng.IntN(len(here))]
	bgp := fmt.Sprintf("vtysh -N %s -c 'configure terminal' -c 'router bgp %d vrf %s' -c 'address-family l2vpn evpn' -c ", s.Name, s.ASN, name)
	edit := func(files map[string][]byte) {
		path := "switches/" + s.Name + "/etc/frr/frr.conf"
		before, after, found := strings.Cut(string(files[path]), fmt.Sprintf("router bgp %d vrf %s\n", s.ASN, name))
		if !found {
			panic("no VRF " + name + " in " + path)
		}
		head := string(files[path])[len(before) : len(files[path])-len(after)]
		files[path] = []byte(before + head + strings.Replace(after, "  advertise ipv4 unicast\n", "", 1))
	}
	return modelFault{name: s.Name + " announces nothing of " + name, node: s.Name, plant: []string{bgp + "'no advertise ipv4 unicast'"},
		undo: []string{bgp + "'advertise ipv4 unicast'"}, edit: edit}
}

// without takes a line out of a switch's frr.conf.
func without(node, line string) func(map[string][]byte) {
	return func(files map[string][]byte) {
		path := "switches/" + node + "/etc/frr/frr.conf"
		files[path] = []byte(strings.Replace(string(files[path]), line+"\n", "", 1))
	}
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
func compareWithModel(t *testing.T, name string, i *Info, p *network.Plan, files map[string][]byte, f prove.Failure, sum *modelSum) {
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
	err = until(3*time.Minute, func() error {
		var mu sync.Mutex
		var wrong []string
		var group sync.WaitGroup
		for _, trip := range trips {
			group.Go(func() {
				limit := 2 * time.Second
				if trip.Reached { // it ends when it arrives, and a busy machine may take longer
					limit = time.Minute
				}
				err := transfer(i, trip.From, "", trip.Source, trip.Target, limit)
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
	sum.add(trips)
}
