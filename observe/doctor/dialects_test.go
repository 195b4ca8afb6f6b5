package doctor_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Lines composed after the known formats of these programs. The labels were written before anything read them.
func TestDialects(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		id    string // "" for nothing
		hosts string
		ranks []int
	}{
		"JAX names a task on the same line": {"2025-05-12 11:02:31.123456: E external/xla/xla/tsl/distributed_runtime/coordination/coordination_service_agent.cc:301] Polled an error from coordination service (this can be an error from this or another task). Heartbeat timeout: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:5\n" +
			"2025-05-12 11:02:31.123999: F external/xla/xla/pjrt/distributed/client.h:88] Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that another task died; see the other task logs for more details.\n",
			"process-died", "", []int{5}},
		"systemd-oomd leaves no line of the kernel": {"Aug 30 06:58:55 gpu-9 systemd-oomd[812]: Killed /system.slice/slurmstepd.scope/job_77 due to memory pressure for /system.slice being 51.07% > 50.00% for > 20s with reclaim activity\n",
			"host-out-of-memory", "gpu-9", nil},
		"systemd-oomd starts": {"Aug 30 06:58:55 gpu-9 systemd-oomd[812]: Swap is currently not detected; memory pressure usage will be degraded\nAug 30 06:58:56 gpu-9 kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n",
			"", "", nil},
		"Redfish, critical": {`{"@odata.type":"#Event.v1_7_0.Event","Id":"5","Name":"Event Array","Context":"gpu-044","Events":[{"EventType":"Alert","EventId":"1203","EventTimestamp":"2025-06-01T10:20:30Z","Severity":"Critical","MessageSeverity":"Critical","Message":"The resource property GPU_SXM_3 Temperature has detected errors of type 'Overtemperature shutdown'.","MessageId":"ResourceEvent.1.2.ResourceErrorsDetected","OriginOfCondition":{"@odata.id":"/redfish/v1/Systems/HGX_Baseboard_0/Processors/GPU_SXM_3"}}]}`,
			"host-hardware", "gpu-044", nil},
		"Redfish, a login": {`{"@odata.type":"#Event.v1_7_0.Event","Id":"6","Name":"Event Array","Context":"gpu-044","Events":[{"EventType":"Alert","EventId":"1204","EventTimestamp":"2025-06-01T10:20:30Z","MessageSeverity":"OK","Message":"A session was created.","MessageId":"Base.1.8.Success"}]}`,
			"", "", nil},
	} {
		r := diagnose(t, file(c.text))
		if c.id == "" {
			if len(ids(r, doctor.Warning)) > 0 {
				t.Errorf("%s: %v: %s", name, ids(r, doctor.Warning), r.Verdict)
			}
			continue
		}
		f := found(r, c.id)
		if f == nil || r.Findings[0].ID != c.id || strings.Join(f.Subject.Hosts, " ") != c.hosts || !slices.Equal(f.Subject.Ranks, c.ranks) {
			t.Errorf("%s: %v: %s", name, ids(r, doctor.Info), r.Verdict)
		}
	}
}
