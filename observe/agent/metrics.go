package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/model/metrics"
	"github.com/weft-fabric/weft/observe/internal/health"
)

// names are the names under which people already have boards for counters of /sys,
// from node_exporter. Data are counted in words of four bytes there and in bytes here.
var names = map[string]string{
	"port_xmit_data": "port_data_transmitted_bytes", "port_rcv_data": "port_data_received_bytes",
	"port_xmit_packets": "port_packets_transmitted", "port_rcv_packets": "port_packets_received",
	"symbol_error": "symbol_error", "link_error_recovery": "link_error_recovery", "link_downed": "link_downed",
	"port_rcv_errors":                 "port_errors_received",
	"port_rcv_remote_physical_errors": "port_receive_remote_physical_errors",
	"port_rcv_switch_relay_errors":    "port_receive_switch_relay_errors", "port_xmit_discards": "port_discards_transmitted",
	"port_xmit_constraint_errors": "port_constraint_errors_transmitted", "port_rcv_constraint_errors": "port_constraint_errors_received",
	"local_link_integrity_errors":     "local_link_integrity_errors",
	"excessive_buffer_overrun_errors": "excessive_buffer_overrun_errors", "VL15_dropped": "vl15_dropped",
	"port_xmit_wait":      "port_transmit_wait",
	"unicast_rcv_packets": "unicast_packets_received", "unicast_xmit_packets": "unicast_packets_transmitted",
	"multicast_rcv_packets": "multicast_packets_received", "multicast_xmit_packets": "multicast_packets_transmitted",
	"out_of_sequence": "out_of_sequence_packets_received", "packet_seq_err": "packet_sequence_errors",
	"implied_nak_seq_err": "implied_nak_seq_errors", "duplicate_request": "duplicate_requests_packets",
	"local_ack_timeout_err": "local_ack_timeout_errors", "rnr_nak_retry_err": "rnr_nak_retry_packets_received",
	"req_cqe_error": "req_cqes_errors", "req_cqe_flush_error": "req_cqes_flush_errors",
	"resp_cqe_error": "resp_cqes_errors", "resp_cqe_flush_error": "resp_cqes_flush_errors",
	"req_remote_access_errors": "req_remote_access_errors", "req_remote_invalid_request": "req_remote_invalid_request_errors",
	"resp_local_length_error": "resp_local_length_errors", "resp_remote_access_errors": "resp_remote_access_errors",
	"out_of_buffer": "out_of_buffer_drops", "rx_icrc_encapsulated": "rx_icrc_encapsulated_errors",
	"roce_adp_retrans": "roce_adp_retransmits", "roce_adp_retrans_to": "roce_adp_retransmits_timeout",
	"roce_slow_restart": "roce_slow_restart_used", "roce_slow_restart_cnps": "roce_slow_restart_cnps",
	"roce_slow_restart_trans":    "roce_slow_restart",
	"np_ecn_marked_roce_packets": "np_ecn_marked_roce_packets_received", "np_cnp_sent": "np_cnp_packets_sent",
	"rp_cnp_handled": "rp_cnp_packets_handled", "rp_cnp_ignored": "rp_cnp_ignored_packets_received",
	"rx_atomic_requests": "rx_atomic_requests", "rx_dct_connect": "rx_dct_connect_requests", "rx_read_requests": "rx_read_requests",
	"rx_write_requests": "rx_write_requests",
}

// WriteMetrics writes what was sampled last in Prometheus' text format.
func (a *Agent) WriteMetrics(w io.Writer, now time.Time) error {
	return a.page(now).Write(w)
}

// page is what Prometheus reads. Names are node_exporter's where it has the same figure, so that existing dashboards
// work.
func (a *Agent) page(now time.Time) *metrics.Page {
	a.mu.Lock()
	s, xids, readErrors := a.last, maps.Clone(a.xids), a.errors
	a.mu.Unlock()
	var e metrics.Page
	for _, p := range s.Ports {
		l := []string{"device", p.Device, "port", p.Port}
		e.Add("node_infiniband_state_id", metrics.Gauge, "State of the port: 1 down, 2 init, 3 armed, 4 active.", float64(p.StateID), l...)
		e.Add("node_infiniband_physical_state_id", metrics.Gauge, "Physical state of the port: 2 polling, 3 disabled, 5 link up.",
			float64(p.PhysID), l...)
		e.Add("node_infiniband_rate_bytes_per_second", metrics.Gauge, "Rate of the port.", p.Rate*1e9/8, l...)
		for _, c := range slices.Sorted(maps.Keys(p.Counters)) {
			v := float64(p.Counters[c])
			n, ok := names[c]
			switch {
			case c == "lifespan":
				continue
			case !ok:
				e.Add("weft_rdma_"+clean(c)+"_total", metrics.Counter, "Counter "+c+" of /sys.", v, l...)
				continue
			case c == "port_xmit_data" || c == "port_rcv_data":
				v *= 4
			}
			e.Add("node_infiniband_"+n+"_total", metrics.Counter, "Counter "+c+" of /sys.", v, l...)
		}
		if p.Where != "" {
			e.Add("weft_port_info", metrics.Gauge, "Where a port is in the cluster.", 1, "host", s.Host, "device", p.Device, "port", p.Port, "guid",
				p.GUID, "rail", rail(p.Place.Rail), "leaf", p.Place.Leaf, "switch_port", strconv.Itoa(p.Place.Port))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(s.Nets)) {
		e.Add("node_network_carrier_changes_total", metrics.Counter, "How often the carrier came or went.", s.Nets[n], "device", n)
	}
	for _, d := range s.Ether {
		for _, c := range slices.Sorted(maps.Keys(d.Counters)) {
			e.Add("node_ethtool_"+ethtoolName(c), metrics.Untyped, "Counter "+c+" of the driver.", float64(d.Counters[c]), "device", d.Device)
		}
	}
	if s.Memory > 0 {
		e.Add("weft_memory_available_ratio", metrics.Gauge, "Part of the memory that programs can still get.", s.Memory)
	}
	for _, p := range s.PCI {
		e.Add("weft_pcie_link_width", metrics.Gauge, "PCIe lanes in use.", p.Width, "addr", p.Addr)
		e.Add("weft_pcie_link_width_max", metrics.Gauge, "PCIe lanes that are possible.", p.WidthMax, "addr", p.Addr)
		e.Add("weft_pcie_link_gts", metrics.Gauge, "PCIe speed in GT/s.", p.GTs, "addr", p.Addr)
		for _, k := range slices.Sorted(maps.Keys(p.AER)) {
			e.Add("weft_pcie_aer_total", metrics.Counter, "PCIe errors by severity.", p.AER[k], "addr", p.Addr, "severity", k)
		}
	}
	for _, g := range s.GPUs {
		l := []string{"gpu", strconv.Itoa(g.Index), "UUID", g.UUID, "pci_bus_id", g.Bus, "modelName", g.Name, "hostname", s.Host}
		for _, x := range []struct {
			name string
			kind metrics.Kind
			help string
			v    float64
		}{
			{"DCGM_FI_DEV_GPU_UTIL", metrics.Gauge, "GPU utilisation in percent.", g.Util},
			{"DCGM_FI_DEV_POWER_USAGE", metrics.Gauge, "Power in watts.", g.Power},
			{"DCGM_FI_DEV_GPU_TEMP", metrics.Gauge, "Temperature in degrees.", g.Temp},
			{"DCGM_FI_DEV_SM_CLOCK", metrics.Gauge, "SM clock in MHz.", g.Clock},
			{"DCGM_FI_DEV_FB_USED", metrics.Gauge, "Memory in use, MiB.", g.MemUsed / (1 << 20)},
			{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", metrics.Counter, "PCIe replays.", float64(g.Replays)},
			{"weft_gpu_power_limit_watts", metrics.Gauge, "Power limit.", g.Limit},
			{"weft_gpu_throttle_reasons", metrics.Gauge, "Bits of the clock event reasons.", float64(g.Throttle)},
			{"weft_gpu_ecc_uncorrectable_total", metrics.Counter, "Uncorrectable memory errors since the driver was loaded.", float64(g.ECC)},
			{"weft_nvlink_active", metrics.Gauge, "NVLinks that are up.", float64(g.NVLinks)},
		} {
			if x.v >= 0 {
				e.Add(x.name, x.kind, x.help, x.v, l...)
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(xids)) {
		if kind, code, ok := strings.Cut(k, " "); ok {
			e.Add("weft_"+kind+"_total", metrics.Counter, "Events of the GPU driver since the agent started.", float64(xids[k]), kind, code)
		}
	}
	for _, j := range s.Jobs {
		e.Add("weft_rank_info", metrics.Gauge, "Ranks on this host.", 1, "job", j.Job, "rank", strconv.Itoa(j.Rank), "host", s.Host, "gpu", j.GPU,
			"nic", j.NIC.NIC, "rail", rail(j.NIC.Rail))
	}
	for _, k := range slices.Sorted(maps.Keys(s.TCP)) {
		group := map[bool]string{true: "TcpExt", false: "Tcp"}[strings.HasPrefix(k, "Listen")]
		e.Add("node_netstat_"+group+"_"+k, metrics.Untyped, "Statistic "+k+".", s.TCP[k])
	}
	if s.ShmFree > 0 {
		e.Add("weft_dev_shm_free_bytes", metrics.Gauge, "Free space of /dev/shm.", s.ShmFree)
	}
	for _, x := range s.States {
		e.Add("weft_health_state", metrics.Gauge, "State of a check: 0 unknown, 1 good, 2 warn, 3 bad.",
			float64(x.State), "device", x.Device, "port", x.Port, "check", x.Metric)
	}
	e.Add("weft_agent_info", metrics.Gauge, "The agent of this host.", 1, "host", s.Host, "boot", s.Boot)
	e.Add("weft_agent_sample_age_seconds", metrics.Gauge, "Age of the last sample.", now.Sub(time.Unix(0, int64(s.At*1e9))).Seconds())
	e.Add("weft_agent_sample_seconds", metrics.Gauge, "How long the last sample took.", s.Took)
	e.Add("weft_agent_read_errors_total", metrics.Counter, "Files that were refused.", float64(readErrors))
	return &e
}

// ethtoolName is node_exporter's name for a counter of ethtool -S.
func ethtoolName(s string) string {
	s = clean(s)
	for _, r := range [][2]string{{"rx_", "received_"}, {"tx_", "transmitted_"}} {
		if rest, ok := strings.CutPrefix(s, r[0]); ok {
			return r[1] + rest
		}
	}
	return s
}

// rail is the number of a rail, "" if it is not known.
func rail(n int) string {
	if n < 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// clean makes a name of what is in /sys.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return '_'
	}, s)
}

// Handler serves /metrics, /state (JSON) and /healthz.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		a.WriteMetrics(w, time.Now())
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(a.Last())
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if age := time.Since(time.Unix(0, int64(a.Last().At*1e9))); age > 3*a.c.Interval {
			http.Error(w, fmt.Sprintf("the last sample is %s old", age.Round(time.Second)), http.StatusServiceUnavailable)
			return
		}
		worst := health.Unknown
		for _, x := range a.Last().States {
			worst = cmp.Or(max(worst, x.State), health.Unknown)
		}
		fmt.Fprintln(w, worst)
	})
	return mux
}
