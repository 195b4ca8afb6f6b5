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
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/observe/internal/health"
)

// Explain says what a kind of incident or a check of an agent means and what to do; false for other names.
func Explain(id string) (cause, fix string, ok bool) {
	if k, ok := Kinds[id]; ok && k.Cause != "" {
		return k.Cause, k.Fix, true
	}
	for _, r := range health.Rules {
		if r.Metric == id {
			return r.Why, r.Fix, true
		}
	}
	return "", "", false
}

// Rules writes the alerting rules. Each has a waiting time, so that one bad sample wakes nobody, and says which command
// explains it. With the address of a server of weft watch, it also has a link there.
func Rules(url string) string {
	var b strings.Builder
	b.WriteString("# Made by 'weft watch export'. States come from the agents: 0 unknown, 1 good, 2 warn, 3 bad.\ngroups:\n- name: weft\n  rules:\n")
	rule := func(alert, expr, wait, severity, summary, action, explain string) {
		fmt.Fprintf(&b,
			"  - alert: %s\n    expr: %s\n    for: %s\n    labels:\n      severity: %s\n    annotations:\n      summary: %q\n      action: %q\n      runbook: %q\n",
			alert, expr, wait, severity, summary, action, "weft doctor explain "+explain)
		if url != "" {
			fmt.Fprintf(&b, "      runbook_url: %q\n", strings.TrimSuffix(url, "/")+"/explain/"+explain)
		}
	}
	for _, r := range health.Rules {
		name := alertName(r.Metric)
		if r.Bad != 0 || r.Any {
			rule("Weft"+name, fmt.Sprintf(`weft_health_state{check="%s"} == 3`, r.Metric), "30s", "critical",
				"{{ $labels.instance }} {{ $labels.device }}: "+r.Why, r.Fix, r.Metric)
		}
		if r.Warn != 0 {
			rule("Weft"+name+"Warning", fmt.Sprintf(`weft_health_state{check="%s"} == 2`, r.Metric), "2m", "warning",
				"{{ $labels.instance }} {{ $labels.device }}: "+r.Why, r.Fix, r.Metric)
		}
	}
	rule("WeftAgentSilent", `up{job=~".*weft.*"} == 0 or weft_agent_sample_age_seconds > 60`, "2m", "warning",
		"{{ $labels.instance }}: no samples; its health is unknown", "look at the agent; no data is not good data", "agent-silent")
	rule("WeftGPUStalled", `DCGM_FI_DEV_GPU_UTIL >= 99 and on(instance, gpu) DCGM_FI_DEV_POWER_USAGE < 0.4 * weft_gpu_power_limit_watts`,
		"2m", "critical", "{{ $labels.instance }} GPU {{ $labels.gpu }}: busy at little power, a collective that does not end",
		"flight recorder dumps, then weft doctor", "gpu-spinning")
	rule("WeftPortSlow",
		`node_infiniband_rate_bytes_per_second < on(device, port) group_left() quantile by(device, port) (0.5, node_infiniband_rate_bytes_per_second)`,
		"1m", "critical", "{{ $labels.instance }} {{ $labels.device }}: slower than the same port of other hosts",
		"reseat or replace the cable", "port-slow")
	rule("WeftRailImbalance",
		`max by(instance) (rate(node_infiniband_port_data_transmitted_bytes_total[1m])) > 4 * min by(instance) (rate(node_infiniband_port_data_transmitted_bytes_total[1m])) and max by(instance) (rate(node_infiniband_port_data_transmitted_bytes_total[1m])) > 1e9`,
		"2m", "warning", "{{ $labels.instance }}: one rail carries four times another", "NCCL_IB_HCA, topology file, rail cabling",
		"rails-unused")
	rule("WeftWatchCritical", `max by(kind, exported_job) (weft_watch_incident{severity="critical"}) > 0`,
		"10s", "critical", "weft watch: {{ $labels.kind }} in {{ $labels.exported_job }}",
		"weft watch show: the verdict, its evidence and what to do", "{{ $labels.kind }}")
	rule("WeftWatchWarning", `max by(kind, exported_job) (weft_watch_incident{severity="warning"}) > 0`,
		"1m", "warning", "weft watch: {{ $labels.kind }}", "weft watch show: the verdict, its evidence and what to do", "{{ $labels.kind }}")
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
