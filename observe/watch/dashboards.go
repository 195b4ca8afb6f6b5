package watch

import (
	"encoding/json"
	"fmt"
)

type panel struct {
	Title   string           `json:"title"`
	Type    string           `json:"type"`
	GridPos map[string]int   `json:"gridPos"`
	Targets []map[string]any `json:"targets"`
	Field   map[string]any   `json:"fieldConfig"`
	Source  map[string]any   `json:"datasource"`
	ID      int              `json:"id"`
}

// graph is a panel of a dashboard. Tables show the last values.
type graph struct{ title, kind, unit, expr, legend string }

const (
	ofHost = `instance=~"$host"`
	ofJob  = `exported_job=~"$job"`
)

// boards are the dashboards by name: for the cluster at a glance, for one job, for one host.
var boards = map[string][]graph{
	"cluster": {
		{"Open incidents", "table", "none", `weft_watch_incident > 0`, "{{severity}} {{kind}} {{exported_job}}"},
		{"Incidents opened in an hour, by kind", "timeseries", "none", `sum by(kind) (increase(weft_watch_incidents_opened_total[1h]))`,
			"{{kind}}"},
		{"Hosts that report, and silent ones", "timeseries", "none", `weft_watch_hosts or weft_watch_hosts_silent`, "{{__name__}}"},
		{"Jobs and ranks", "timeseries", "none", `weft_watch_jobs or weft_watch_ranks`, "{{__name__}}"},
		{"Jobs in which nothing ends", "timeseries", "s", `topk(10, weft_watch_job_quiet_seconds)`, "{{exported_job}}"},
		{"Ranks that others wait for most", "timeseries", "percentunit", `topk(10, weft_watch_late_ratio)`,
			"{{exported_job}} rank {{rank}} {{host}}"},
		{"Checks that are bad", "table", "none", `weft_health_state >= 2`, "{{instance}} {{device}} {{check}}"},
		{"Age of samples", "timeseries", "s", `topk(10, weft_agent_sample_age_seconds)`, "{{instance}}"},
		{"Sent by host", "timeseries", "Bps", `sum by(instance) (rate(node_infiniband_port_data_transmitted_bytes_total[1m]))`, "{{instance}}"},
		{"Links lost in a day", "timeseries", "none", `increase(node_infiniband_link_downed_total[1d]) > 0`, "{{instance}} {{device}}"},
		{"Xids in a day", "timeseries", "none", `increase(weft_xid_total[1d]) > 0`, "{{instance}} {{xid}}"},
	},
	"job": {
		{"Open incidents", "table", "none", `weft_watch_incident{` + ofJob + `} > 0`, "{{severity}} {{kind}} {{exported_job}}"},
		{"Since an operation last ended", "timeseries", "s", `weft_watch_job_quiet_seconds{` + ofJob + `}`, "{{exported_job}}"},
		{"Time that others wait for a rank", "timeseries", "percentunit", `weft_watch_late_ratio{` + ofJob + `}`,
			"{{exported_job}} rank {{rank}} {{host}}"},
		{"How late a rank is when it comes last", "timeseries", "s", `weft_watch_late_seconds{` + ofJob + `}`,
			"{{exported_job}} rank {{rank}} {{host}}"},
		{"Collectives", "timeseries", "s", `weft_watch_collective_seconds{` + ofJob + `}`, "{{exported_job}} {{op}} {{bytes}}"},
		{"Collectives against their prediction", "timeseries", "none", `weft_watch_collective_predicted_ratio{` + ofJob + `} > 0`,
			"{{exported_job}} {{op}} {{bytes}}"},
		{"Collectives against their baseline", "timeseries", "none", `weft_watch_collective_baseline_ratio{` + ofJob + `} > 0`,
			"{{exported_job}} {{op}} {{bytes}}"},
		{"Ranks by host", "timeseries", "none", `count by(instance, exported_job) (weft_rank_info{` + ofJob + `})`,
			"{{instance}} {{exported_job}}"},
	},
	"host": {
		{"Checks that are bad", "table", "none", `weft_health_state{` + ofHost + `} >= 2`, "{{instance}} {{device}} {{check}}"},
		{"Age of samples", "timeseries", "s", `weft_agent_sample_age_seconds{` + ofHost + `}`, "{{instance}}"},
		{"Sent by port", "timeseries", "Bps", `rate(node_infiniband_port_data_transmitted_bytes_total{` + ofHost + `}[1m])`,
			"{{instance}} {{device}}"},
		{"Received by port", "timeseries", "Bps", `rate(node_infiniband_port_data_received_bytes_total{` + ofHost + `}[1m])`,
			"{{instance}} {{device}}"},
		{"Waiting for credits", "timeseries", "none", `rate(node_infiniband_port_transmit_wait_total{` + ofHost + `}[5m])`,
			"{{instance}} {{device}}"},
		{"Retransmissions", "timeseries", "pps", `rate(node_infiniband_packet_sequence_errors_total{` + ofHost +
			`}[5m]) + rate(node_infiniband_local_ack_timeout_errors_total{` + ofHost + `}[5m])`, "{{instance}} {{device}}"},
		{"Links lost in a day", "timeseries", "none", `increase(node_infiniband_link_downed_total{` + ofHost + `}[1d])`,
			"{{instance}} {{device}}"},
		{"GPU utilisation", "timeseries", "percent", `DCGM_FI_DEV_GPU_UTIL{` + ofHost + `}`, "{{instance}} {{gpu}}"},
		{"GPU power", "timeseries", "watt", `DCGM_FI_DEV_POWER_USAGE{` + ofHost + `}`, "{{instance}} {{gpu}}"},
		{"Xids in a day", "timeseries", "none", `increase(weft_xid_total{` + ofHost + `}[1d])`, "{{instance}} {{xid}}"},
		{"PCIe width against the maximum", "timeseries", "percentunit", `weft_pcie_link_width{` + ofHost + `} / weft_pcie_link_width_max > 0`,
			"{{instance}} {{addr}}"},
		{"Ranks", "timeseries", "none", `count by(instance, exported_job) (weft_rank_info{` + ofHost + `})`, "{{instance}} {{exported_job}}"},
	},
}

// variables are what a dashboard lets people choose, by its name.
var variables = map[string][2]string{
	"job":  {"job", "label_values(weft_watch_job_quiet_seconds, exported_job)"},
	"host": {"host", "label_values(weft_agent_info, instance)"},
}

// Dashboards writes dashboards for Grafana 9 and later, by name: cluster, job and host. They keep to the fields of
// Grafana's published schema.
func Dashboards() (map[string][]byte, error) {
	out := map[string][]byte{}
	for name, list := range boards {
		b, err := dashboard(name, list)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[name] = b
	}
	return out, nil
}

// dashboard writes a Grafana dashboard, two graphs in a row. The data source is a variable, so that it can be imported
// anywhere.
func dashboard(name string, list []graph) ([]byte, error) {
	source := map[string]any{"type": "prometheus", "uid": "${source}"}
	var panels []panel
	for i, g := range list {
		target := map[string]any{"expr": g.expr, "legendFormat": g.legend, "refId": "A", "datasource": source}
		if g.kind == "table" {
			target["instant"], target["format"] = true, "table"
		}
		panels = append(panels, panel{Title: g.title, Type: g.kind, ID: i + 1, Source: source,
			GridPos: map[string]int{"x": i % 2 * 12, "y": i / 2 * 8, "w": 12, "h": 8},
			Targets: []map[string]any{target}, Field: map[string]any{"defaults": map[string]any{"unit": g.unit}, "overrides": []any{}}})
	}
	choices := []map[string]any{{"name": "source", "type": "datasource", "query": "prometheus", "label": "data source"}}
	if v, ok := variables[name]; ok {
		choices = append(choices, map[string]any{"name": v[0], "type": "query", "datasource": source, "query": v[1], "includeAll": true,
			"multi": true, "refresh": 2,
			"current": map[string]any{"text": "All", "value": "$__all"}})
	}
	links := []map[string]any{{"title": "weft", "type": "dashboards", "tags": []string{"weft"}, "asDropdown": false, "includeVars": true,
		"keepTime": true, "targetBlank": false, "icon": "external link", "tooltip": "", "url": ""}}
	return json.MarshalIndent(map[string]any{
		"title": "weft: " + name, "uid": "weft-" + name, "schemaVersion": 39, "refresh": "30s",
		"time": map[string]string{"from": "now-3h", "to": "now"}, "panels": panels, "tags": []string{"weft"}, "links": links,
		"annotations": map[string]any{"list": []map[string]any{
			{"builtIn": 1, "name": "Annotations & Alerts", "type": "dashboard", "enable": true, "hide": true, "iconColor": "rgba(0, 211, 255, 1)",
				"datasource": map[string]any{"type": "grafana", "uid": "-- Grafana --"}},
		}},
		"templating": map[string]any{"list": choices},
	}, "", " ")
}
