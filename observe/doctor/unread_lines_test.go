package doctor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// The abort after a memory fault of a GPU, and the ranks that wait for it, follow from it.
func TestMemoryFaultIsTheCause(t *testing.T) {
	const fault = "[rank3]: Memory access fault by GPU node-2 (Agent handle: 0x56468ab3bb50) on address 0x7fe55fb03000. Reason: Page not present or supervisor privilege.\n"
	for name, text := range map[string]string{
		"an abort":     fault + "Aborted (core dumped)\n",
		"torchrun":     fault + torchTable("n0", 3, -6),
		"the others":   fault + timedOut(0, 41, "ALLREDUCE", 8) + timedOut(1, 41, "ALLREDUCE", 8) + timedOut(2, 41, "ALLREDUCE", 8),
		"no address":   "Memory access fault by GPU node-4 (Agent handle: 0x152e220) on address (nil). Reason: Page not present or supervisor privilege.\n",
		"no reason":    "Memory access fault by GPU node-1 (Agent handle: 0x5de975b3cc80) on address 0x799bfc063000\n",
		"an older one": "Memory access fault by GPU node-2 on address 0x1000. Reason: Page not present or supervisor privilege.\n",
	} {
		r := diagnose(t, file(text))
		if len(r.Findings) == 0 || r.Findings[0].ID != "gpu-access-fault" || found(r, "process-died") != nil ||
			found(r, "watchdog-same-place") != nil {
			t.Errorf("%s: %v: %s", name, ids(r, doctor.Info), r.Verdict)
		}
		if f := found(r, "gpu-access-fault"); f != nil && !strings.HasPrefix(f.Subject.Devices[0], "node-") {
			t.Errorf("%s: %v", name, f.Subject)
		}
	}
}

// Where unused ports are switched off, a port that polls is one that should have a link, also if it is so on all hosts.
func TestPollingBesideDisabled(t *testing.T) {
	polls := ibActive + ibPort("mlx5_2", "Down", "Polling", "10", "0")
	off := ibPort("mlx5_3", "Down", "Disabled", "10", "0")
	r := diagnose(t, map[string]string{"ibstat.n0.txt": polls + off, "ibstat.n1.txt": polls + off})
	f := found(r, "port-down")
	if f == nil || f.Severity < doctor.Warning || strings.Join(f.Subject.Devices, " ") != "n0:mlx5_2 n1:mlx5_2" ||
		!strings.Contains(f.Cause, "cable or switch port") {
		t.Errorf("%s: %+v", r.Verdict, f)
	}
	if g := found(r, "port-disabled"); g == nil || g.Severity != doctor.Info || strings.Join(g.Subject.Devices, " ") != "n0:mlx5_3 n1:mlx5_3" {
		t.Errorf("%+v", g)
	}
	// Without a port that is switched off, what is down everywhere is not wired.
	r = diagnose(t, map[string]string{"ibstat.n0.txt": polls, "ibstat.n1.txt": polls})
	if f := found(r, "port-down"); f == nil || f.Severity != doctor.Info {
		t.Errorf("%s: %+v", r.Verdict, f)
	}
}

// A cable that is pulled is found; one that was put back, and a port that never had one, are not.
func TestCableUnplugged(t *testing.T) {
	const (
		up    = "[   12.100000] mlx5_core 0000:17:00.0 ens1np0: Link up\n"
		in    = "[   10.100000] mlx5_core 0000:17:00.0: Port module event: module 0, Cable plugged\n"
		never = "[   10.100000] mlx5_core 0000:17:00.1: Port module event: module 1, Cable unplugged\n"
		out   = "[99810.100000] mlx5_core 0000:17:00.0: Port module event: module 0, Cable unplugged\n"
		again = "[99990.100000] mlx5_core 0000:17:00.0: Port module event: module 0, Cable plugged\n"
	)
	for text, want := range map[string]bool{in + up + out: true, out: true, in + up + never: false, in + out + again + up: false,
		never + in: false} {
		r := diagnose(t, map[string]string{"dmesg.n0.txt": text})
		if f := found(r, "cable-unplugged"); (f != nil) != want || f != nil &&
			(f.Severity != doctor.Critical || f.Subject.Devices[0] != "n0:0000:17:00.0") {
			t.Errorf("%s%s: %+v", text, r.Verdict, f)
		}
	}
}

// What mlxlink recommends for a port that is down is why it is down. On a link that is up it is about its signal.
func TestRecommendationOfMlxlink(t *testing.T) {
	const text = `Operational Info
----------------
State                           : %s
Physical state                  : %s
Troubleshooting Info
--------------------
Status Opcode                   : %d
Group Opcode                    : %s
Recommendation                  : %s
`
	for says, want := range map[string]string{
		fmt.Sprintf(text, "Polling", "ETH_AN_FSM_ENABLE", 1024, "MNG FW", "Cable is unplugged"):  "port-down",
		fmt.Sprintf(text, "Active", "ETH_AN_FSM_ENABLE", 14, "PHY FW", "Remote faults received"): "ber-high",
	} {
		r := diagnose(t, map[string]string{"mlxlink.n0.txt": says})
		if f := found(r, want); f == nil || len(r.Findings) != 1 || !strings.Contains(f.Cause, "mlxlink: ") {
			t.Errorf("want %s: %s %+v", want, r.Verdict, r.Findings)
		}
	}
}

// An output of ibnetdiscover that is cut says so, wherever it is cut.
func TestCutDiscovery(t *testing.T) {
	const whole = `#
# Topology file: generated on Tue Mar  1 10:00:00 2026
#
vendid=0x2c9
devid=0xd2f0
switchguid=0x1(1)
Switch	4 "S-0000000000000001"		# "leaf1" enhanced port 0 lid 2 lmc 0
[1]	"H-0000000000000010"[1](11) 		# "n1 mlx5_0" lid 5 4xNDR
[2]	"H-0000000000000011"[1](12) 		# "n2 mlx5_0" lid 6 4xNDR

vendid=0x2c9
devid=0x1021
caguid=0x10
Ca	1 "H-0000000000000010"		# "n1 mlx5_0"
[1](11) 	"S-0000000000000001"[1]		# lid 5 lmc 0 "leaf1" lid 2 4xNDR

vendid=0x2c9
devid=0x1021
caguid=0x11
Ca	1 "H-0000000000000011"		# "n2 mlx5_0"
[1](12) 	"S-0000000000000001"[2]		# lid 6 lmc 0 "leaf1" lid 2 4xNDR
`
	said := func(text string) bool {
		r := diagnose(t, map[string]string{"ibnetdiscover.txt": text})
		return strings.Contains(r.Verdict, "one file is cut") && len(r.Unknown) == 1
	}
	if said(whole) {
		t.Error("the whole output is said to be cut")
	}
	first, last := strings.Index(whole, "[2]"), strings.LastIndex(whole, "Ca\t1")
	for at := first; at < last; at++ {
		if !said(whole[:at]) {
			t.Errorf("cut after %q: not said", whole[max(0, at-20):at])
		}
	}
}
