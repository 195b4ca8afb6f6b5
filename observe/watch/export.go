// Package watch judges what agents report of a cluster. Reports go in, incidents come
// out, each with who, since when, how sure, on what evidence and what to do:
//
//	Report ──► Machine.Observe        processes, operations, connections, ports, checks
//	           Machine.Tick(now) ──► []Incident that opened or ended
//	           Machine.View(now) ──► what page, screen and JSON show
//
// A rank that comes late to collectives is known by waiting least in them; a slow link by
// the time a byte takes among the links of the job; a hang by the wait-graph of package
// doctor; a bad port by comparison with ports of its role; a slow collective by the
// prediction for the cluster, corrected by what the cluster reaches. What follows from
// another incident is listed under it.
//
// The package is pure: clock and reports are arguments, so a recorded incident can be
// played again. It also writes alerting rules for Prometheus and a dashboard for Grafana
// from health.Rules, so that an alert and an agent's state mean the same.
package watch

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/observe/internal/health"
)

// Rules writes the alerting rules. Each has a waiting time, so that one bad sample
// wakes nobody.
func Rules() string {
	var b strings.Builder
	b.WriteString("# Made by 'weft watch export'. States come from the agents: 0 unknown, 1 good, 2 warn, 3 bad.\ngroups:\n- name: weft\n  rules:\n")
	rule := func(alert, expr, wait, severity, summary, action string) {
		fmt.Fprintf(&b, "  - alert: %s\n    expr: %s\n    for: %s\n    labels:\n      severity: %s\n    annotations:\n      summary: %q\n      action: %q\n", alert, expr, wait, severity, summary, action)
	}
	for _, r := range health.Rules {
		name := alertName(r.Metric)
		if r.Bad != 0 || r.Any {
			rule("Weft"+name, fmt.Sprintf(`weft_health_state{check="%s"} == 3`, r.Metric), "30s", "critical", "{{ $labels.instance }} {{ $labels.device }}: "+r.Why, r.Fix)
		}
		if r.Warn != 0 {
			rule("Weft"+name+"Warning", fmt.Sprintf(`weft_health_state{check="%s"} == 2`, r.Metric), "2m", "warning", "{{ $labels.instance }} {{ $labels.device }}: "+r.Why, r.Fix)
		}
	}
	rule("WeftAgentSilent", `up{job=~".*weft.*"} == 0 or weft_agent_sample_age_seconds > 60`, "2m", "warning", "{{ $labels.instance }}: no samples; its health is unknown", "look at the agent; no data is not good data")
	rule("WeftGPUStalled", `DCGM_FI_DEV_GPU_UTIL >= 99 and on(instance, gpu) DCGM_FI_DEV_POWER_USAGE < 0.4 * weft_gpu_power_limit_watts`, "2m", "critical", "{{ $labels.instance }} GPU {{ $labels.gpu }}: busy at little power, a collective that does not end", "flight recorder dumps, then weft doctor")
	rule("WeftPortSlow", `node_infiniband_rate_bytes_per_second < on(device, port) group_left() quantile by(device, port) (0.5, node_infiniband_rate_bytes_per_second)`, "1m", "critical", "{{ $labels.instance }} {{ $labels.device }}: slower than the same port of other hosts", "reseat or replace the cable")
	rule("WeftRailImbalance", `max by(instance) (rate(node_infiniband_port_data_transmitted_bytes_total[1m])) > 4 * min by(instance) (rate(node_infiniband_port_data_transmitted_bytes_total[1m])) and max by(instance) (rate(node_infiniband_port_data_transmitted_bytes_total[1m])) > 1e9`, "2m", "warning", "{{ $labels.instance }}: one rail carries four times another", "NCCL_IB_HCA, topology file, rail cabling")
	rule("WeftWatchCritical", `max by(kind, exported_job) (weft_watch_incident{severity="critical"}) > 0`, "10s", "critical", "weft watch: {{ $labels.kind }} in {{ $labels.exported_job }}", "weft watch show: the verdict, its evidence and what to do")
	rule("WeftWatchWarning", `max by(kind, exported_job) (weft_watch_incident{severity="warning"}) > 0`, "1m", "warning", "weft watch: {{ $labels.kind }}", "weft watch show: the verdict, its evidence and what to do")
	return b.String()
}

// alertName turns link_downed into LinkDowned.
func alertName(metric string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(metric, "_") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}

type panel struct {
	Title   string           `json:"title"`
	Type    string           `json:"type"`
	GridPos map[string]int   `json:"gridPos"`
	Targets []map[string]any `json:"targets"`
	Field   map[string]any   `json:"fieldConfig"`
	Source  map[string]any   `json:"datasource"`
	ID      int              `json:"id"`
}

// Dashboard writes a dashboard for Grafana 9 and later.
func Dashboard() ([]byte, error) {
	source := map[string]any{"type": "prometheus", "uid": "${source}"}
	var panels []panel
	add := func(title, kind, unit, expr, legend string) {
		i := len(panels)
		panels = append(panels, panel{Title: title, Type: kind, ID: i + 1, Source: source, GridPos: map[string]int{"x": i % 2 * 12, "y": i / 2 * 8, "w": 12, "h": 8},
			Targets: []map[string]any{{"expr": expr, "legendFormat": legend, "refId": "A", "datasource": source}}, Field: map[string]any{"defaults": map[string]any{"unit": unit}, "overrides": []any{}}})
	}
	h := `instance=~"$host"`
	add("Checks that are bad", "table", "none", `weft_health_state{`+h+`} >= 2`, "{{instance}} {{device}} {{check}}")
	add("Age of samples", "timeseries", "s", `weft_agent_sample_age_seconds{`+h+`}`, "{{instance}}")
	add("Sent by port", "timeseries", "Bps", `rate(node_infiniband_port_data_transmitted_bytes_total{`+h+`}[1m])`, "{{instance}} {{device}}")
	add("Received by port", "timeseries", "Bps", `rate(node_infiniband_port_data_received_bytes_total{`+h+`}[1m])`, "{{instance}} {{device}}")
	add("Waiting for credits", "timeseries", "none", `rate(node_infiniband_port_transmit_wait_total{`+h+`}[5m])`, "{{instance}} {{device}}")
	add("Retransmissions", "timeseries", "pps", `rate(node_infiniband_packet_sequence_errors_total{`+h+`}[5m]) + rate(node_infiniband_local_ack_timeout_errors_total{`+h+`}[5m])`, "{{instance}} {{device}}")
	add("Links lost in a day", "timeseries", "none", `increase(node_infiniband_link_downed_total{`+h+`}[1d])`, "{{instance}} {{device}}")
	add("GPU utilisation", "timeseries", "percent", `DCGM_FI_DEV_GPU_UTIL{`+h+`}`, "{{instance}} {{gpu}}")
	add("GPU power", "timeseries", "watt", `DCGM_FI_DEV_POWER_USAGE{`+h+`}`, "{{instance}} {{gpu}}")
	add("Xids in a day", "timeseries", "none", `increase(weft_xid_total{`+h+`}[1d])`, "{{instance}} {{xid}}")
	add("Ranks by host", "timeseries", "none", `count by(instance, job_name) (label_replace(weft_rank_info{`+h+`}, "job_name", "$1", "exported_job", "(.*)"))`, "{{instance}} {{job_name}}")
	add("PCIe width against the maximum", "timeseries", "percentunit", `weft_pcie_link_width{`+h+`} / weft_pcie_link_width_max > 0`, "{{instance}} {{addr}}")
	return json.MarshalIndent(map[string]any{
		"title": "weft: cluster", "uid": "weft-cluster", "schemaVersion": 39, "refresh": "30s", "time": map[string]string{"from": "now-3h", "to": "now"}, "panels": panels, "tags": []string{"weft"},
		"templating": map[string]any{"list": []map[string]any{
			{"name": "source", "type": "datasource", "query": "prometheus", "label": "data source"},
			{"name": "host", "type": "query", "datasource": source, "query": "label_values(weft_agent_info, instance)", "includeAll": true, "multi": true, "current": map[string]any{"text": "All", "value": "$__all"}},
		}},
	}, "", " ")
}
