package doctor_test

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Only with NCCL_COMM_ID does NCCL look for an interface in a subnet: NCCL_SOCKET_IFNAME has no part in it.
func TestNoInterfaceInTheSubnet(t *testing.T) {
	const (
		head  = "e82c50601d13:213:213 [0] NCCL INFO NCCL_COMM_ID set by environment to 192.168.0.91:27030.\n"
		none  = "\ne82c50601d13:213:213 [0] include/socket.h:197 NCCL WARN Net : No interface found in the same subnet as remote address 192.168.0.91<27030>\n"
		fatal = "\ne82c50601d13:213:213 [0] bootstrap.cc:45 NCCL WARN NET/Socket : No usable listening interface found\n"
		local = "\ne82c50601d13:213:213 [0] misc/socket.cc:197 NCCL WARN Net : No interface found in the same subnet as remote address fe80::1461:22ff:fe33:b471<45015>\n"
		done  = "e82c50601d13:213:213 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xabc - Init COMPLETE\n"
		ip    = `[{"ifname":"eth0","operstate":"UP","mtu":1500,"addr_info":[{"family":"inet","local":"192.168.0.34","prefixlen":24}]}]`
	)
	entry, err := doctor.Explain("comm-id-subnet")
	if err != nil {
		t.Fatal(err)
	}
	sure := entry.Confidence // what labelled cases allow
	for _, c := range []struct {
		name     string
		files    map[string]string
		severity doctor.Severity
		low, top float64
		cause    string
	}{
		{"it ends there", file(head + none + fatal), doctor.Critical, sure, sure, "NCCL_COMM_ID is set"},
		{"it goes on with another interface", file(head + none + done), doctor.Warning, 0.5, 0.7, "NCCL_COMM_ID is set"},
		{"link-local", file(local + fatal), doctor.Critical, sure, sure, "link-local"},
		{"an interface is in it", map[string]string{"job.log": head + none + fatal, "ip.e82c50601d13.json": ip}, doctor.Critical, 0.5, 0.7,
			"eth0 of this host is in the subnet"},
	} {
		r := diagnose(t, c.files)
		f := found(r, "comm-id-subnet")
		if f == nil || f.Severity != c.severity || f.Confidence < c.low || f.Confidence > c.top || !strings.Contains(f.Cause, c.cause) ||
			found(r, "no-interface") != nil {
			t.Errorf("%s: %s: %+v", c.name, r.Verdict, f)
		}
		if f != nil && strings.Contains(f.Fix, "NCCL_SOCKET_IFNAME") {
			t.Errorf("%s: %s", c.name, f.Fix)
		}
	}
	// Without a filter in sight, a missing interface is not surely the filter's.
	const no = "\nn0:213:213 [0] bootstrap.cc:61 NCCL WARN Bootstrap : no socket interface found\n"
	bare, set := diagnose(t, file(no)), diagnose(t, file("n0:213:213 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth9\n"+no))
	if a, b := found(bare, "no-interface"), found(set, "no-interface"); a == nil || b == nil || a.Confidence >= b.Confidence {
		t.Errorf("%+v\n%+v", a, b)
	}
}
