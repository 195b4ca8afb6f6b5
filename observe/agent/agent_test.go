package agent

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/internal/health"
)

// host writes a copy of /sys with two ports.
func host(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for p, text := range map[string]string{
		"proc/sys/kernel/random/boot_id":                                    "boot-1",
		"sys/class/infiniband/mlx5_0/ports/1/state":                         "4: ACTIVE",
		"sys/class/infiniband/mlx5_0/ports/1/phys_state":                    "5: LinkUp",
		"sys/class/infiniband/mlx5_0/ports/1/rate":                          "400 Gb/sec (4X NDR)",
		"sys/class/infiniband/mlx5_0/ports/1/link_layer":                    "InfiniBand",
		"sys/class/infiniband/mlx5_0/ports/1/counters/link_downed":          "3",
		"sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data":       "1000",
		"sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence":   "7",
		"sys/class/infiniband/mlx5_0/ports/1/hw_counters/brand_new_counter": "1",
		"sys/class/infiniband/mlx5_1/ports/1/state":                         "1: DOWN",
		"sys/class/infiniband/mlx5_1/ports/1/counters/link_downed":          "0",
		"sys/bus/pci/devices/0000:17:00.0/class":                            "0x020700",
		"sys/bus/pci/devices/0000:17:00.0/current_link_width":               "8",
		"sys/bus/pci/devices/0000:17:00.0/max_link_width":                   "16",
		"sys/bus/pci/devices/0000:17:00.0/aer_dev_fatal":                    "Undefined 0\nTOTAL_ERR_FATAL 0",
		"proc/net/netstat": "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 0 4 5",
	} {
		set(t, root, p, text)
	}
	return root
}

func set(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func state(s Snapshot, device, metric string) health.State {
	for _, x := range s.States {
		if x.Device == device && x.Metric == metric {
			return x.State
		}
	}
	return -1
}

// Samples become metrics under known names, and states.
func TestAgentSamplesAndJudges(t *testing.T) {
	root := host(t)
	a := New(Config{Root: root, Host: "n1", Interval: 10 * time.Second, Log: quiet()})
	at := time.Now()
	a.Sample(at)
	for i := 1; i <= 4; i++ {
		if i == 2 {
			set(t, root, "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "4")
		}
		a.Sample(at.Add(time.Duration(10*i) * time.Second))
	}
	s := a.Last()
	for _, w := range []struct {
		device, metric string
		state          health.State
	}{{"mlx5_0", "link_downed", health.Bad}, {"mlx5_1", "link_downed", health.Good}, {"mlx5_0", "port_active", health.Good},
		{"mlx5_1", "port_active", health.Bad}, {"0000:17:00.0", "width_ratio", health.Bad}} {
		if got := state(s, w.device, w.metric); got != w.state {
			t.Errorf("%s of %s is %s, not %s", w.metric, w.device, got, w.state)
		}
	}
	if len(s.Events) != 3 {
		t.Errorf("events %v", s.Events)
	}
	var b bytes.Buffer
	if err := a.WriteMetrics(&b, at.Add(41*time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`node_infiniband_port_data_transmitted_bytes_total{device="mlx5_0",port="1"} 4000`,
		`node_infiniband_link_downed_total{device="mlx5_0",port="1"} 4`, `node_infiniband_state_id{device="mlx5_1",port="1"} 1`,
		`node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1"} 5e+10`,
		`node_infiniband_out_of_sequence_packets_received_total{device="mlx5_0",port="1"} 7`,
		`weft_rdma_brand_new_counter_total{device="mlx5_0",port="1"} 1`,
		`weft_health_state{device="mlx5_0",port="1",check="link_downed"} 3`,
		`node_netstat_TcpExt_ListenDrops 5`, `weft_pcie_link_width{addr="0000:17:00.0"} 8`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if tool, err := exec.LookPath("promtool"); err == nil {
		cmd := bounded.Command(t, tool, "check", "metrics")
		cmd.Stdin = &b
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState.ExitCode() != 3 { // 3 is a matter of taste: names that others chose
			t.Errorf("promtool: %v\n%s", err, out)
		}
	}
}

// A file that is refused hides its port alone.
func TestAgentIsolatesWhatIsRefused(t *testing.T) {
	root := host(t)
	bad := filepath.Join(root, "sys/class/infiniband/mlx5_1/ports/1/counters/link_downed")
	os.Remove(bad)
	if err := os.Mkdir(bad, 0o755); err != nil { // reading a folder fails as a restricted port does
		t.Fatal(err)
	}
	a := New(Config{Root: root, Host: "n1", Interval: time.Second, Log: quiet()})
	a.Sample(time.Now())
	a.Sample(time.Now().Add(time.Second))
	s := a.Last()
	if len(s.Refused) != 1 || !strings.Contains(s.Refused[0], "mlx5_1") || s.Ports[0].Counters["link_downed"] != 3 {
		t.Errorf("refused %v, ports %+v", s.Refused, s.Ports)
	}
	if a.errors != 1 {
		t.Errorf("the file was tried %d times", a.errors)
	}
}

// A port whose files fail for a while, as those of a NIC that is being reset, is read again.
func TestAgentReadsAgain(t *testing.T) {
	root := host(t)
	file := filepath.Join(root, "sys/class/infiniband/mlx5_1/ports/1/counters/link_downed")
	os.Remove(file)
	if err := os.Symlink("link_downed", file); err != nil { // leads to itself
		t.Fatal(err)
	}
	a := New(Config{Root: root, Host: "n1", Interval: time.Second, Log: quiet()})
	a.Sample(time.Now())
	if s := a.Last(); len(s.Refused) != 1 {
		t.Fatalf("refused %v", s.Refused)
	}
	os.Remove(file)
	if err := os.WriteFile(file, []byte("9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a.Sample(time.Now().Add(time.Second))
	if s := a.Last(); len(s.Refused) != 0 || s.Ports[1].Counters["link_downed"] != 9 {
		t.Errorf("refused %v, ports %+v", s.Refused, s.Ports)
	}
}

// The server's answers.
func TestAgentServes(t *testing.T) {
	a := New(Config{Root: host(t), Host: "n1", Interval: time.Minute, Log: quiet()})
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		a.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	if code, _ := get("/healthz"); code != 503 {
		t.Errorf("before the first sample /healthz says %d", code)
	}
	a.Sample(time.Now())
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("/healthz says %d", code)
	}
	_, body := get("/state")
	var s Snapshot
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Host != "n1" || len(s.Ports) != 2 {
		t.Errorf("/state: %v %+v", err, s)
	}
}

// The files of deploy are what their consumers read.
func TestDeployFiles(t *testing.T) {
	b, err := os.ReadFile("../../deploy/weft-agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Kind string
		Spec struct {
			Template struct {
				Spec struct {
					HostPID    bool `yaml:"hostPID"`
					Containers []struct{ Args []string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(b, &d); err != nil || d.Kind != "DaemonSet" || !d.Spec.Template.Spec.HostPID ||
		d.Spec.Template.Spec.Containers[0].Args[0] != "agent" {
		t.Errorf("%v %+v", err, d)
	}
	if tool, err := exec.LookPath("systemd-analyze"); err == nil {
		out, err := bounded.Command(t, tool, "verify", "--man=no", "../../deploy/weft-agent.service").CombinedOutput()
		text := string(out)
		if err != nil && !strings.Contains(text, "is not executable") && !strings.Contains(text, "No such file") {
			t.Errorf("systemd-analyze: %v\n%s", err, text)
		}
	}
}
