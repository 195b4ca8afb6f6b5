package check

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

const birdProtocols = `BIRD 2.0.12 ready.
Name       Proto      Table      State  Since         Info
device1    Device     ---        up     20:10:01.234
fabric3    BGP        ---        up     20:10:02.100  Established
  BGP state:          Established
    Neighbor address: fe80::58:1aff:fef2:19a0%swp3s0
    Neighbor AS:      4200000001
    Local AS:         4200010000
  Channel ipv4
    State:          UP
swp3s1     BGP        ---        start  20:10:02.100  Active        Socket: Connection refused
  BGP state:          Active
    Neighbor address: fe80::1%swp3s1
    Neighbor AS:      4200000001
    Local AS:         4200010000
`

const birdBFD = `BIRD 2.0.12 ready.
bfd1:
IP address                Interface  State      Since         Interval  Timeout
fe80::58:1aff:fef2:19a0   swp3s0     Up         20:10:03.100    0.300    0.900
fe80::1                   swp3s1     Down       20:10:03.100    1.000    0.000
`

// TestBirdIsRead: sessions, AS numbers and BFD as BIRD prints them, by interface.
func TestBirdIsRead(t *testing.T) {
	d := &device{}
	if err := d.parse("bird-protocols.txt", []byte(birdProtocols)); err != nil {
		t.Fatal(err)
	}
	if err := d.parse("bird-bfd.txt", []byte(birdBFD)); err != nil {
		t.Fatal(err)
	}
	if d.asn != 4200010000 || len(d.peers) != 2 || d.peers["swp3s0"] != (peer{"Established", 4200000001}) ||
		d.peers["swp3s1"].state != "Active" {
		t.Errorf("AS %d, sessions %v", d.asn, d.peers)
	}
	if len(d.bfd) != 2 || d.bfd["swp3s0"] != "up" || d.bfd["swp3s1"] != "down" {
		t.Errorf("BFD %v", d.bfd)
	}
	for _, name := range []string{"bird-protocols.txt", "bird-bfd.txt"} {
		if err := (&device{}).parse(name, []byte("Unable to connect to server control socket\n")); err == nil {
			t.Errorf("%s: an error message is taken for an answer", name)
		}
	}
}

// TestScriptsAreSplit: a shell runs the script, and every command that succeeds is told from the others, whatever it prints.
func TestScriptsAreSplit(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no shell")
	}
	cmd := bounded.Command(t, "sh", "-s")
	cmd.Stdin = strings.NewReader(Script(true, func(c Command) []string {
		switch c.Name {
		case "ip-addr.json":
			return []string{"printf", "[1,\n2]"}
		case "lldp.json":
			return []string{"false"}
		case "bgp.json":
			return []string{"echo", "it's", "$HOME", "`x`"}
		case "sysctl.txt":
			return []string{"cat"} // the rest of the script is not its input
		case "rib.json":
			return []string{"false"} // the daemon does not answer
		case "bird-bfd.txt":
			return []string{"/no/such/command"}
		}
		return nil
	}))
	data, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := Split(data)
	want := map[string]string{"ip-addr.json": "[1,\n2]", "bgp.json": "it's $HOME `x`", "sysctl.txt": "", "rib.json": ""}
	if len(got) != len(want) {
		t.Errorf("%d outputs: %q", len(got), got)
	}
	for name, text := range want {
		if out, ok := got[name]; !ok || string(out) != text {
			t.Errorf("%s: %q, want %q", name, out, text)
		}
	}
}

func FuzzBird(f *testing.F) {
	f.Add([]byte(birdProtocols))
	f.Add([]byte(birdBFD))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &device{}
		_ = d.parse("bird-protocols.txt", data)
		_ = d.parse("bird-bfd.txt", data)
		_ = Split(data)
	})
}
