package deliver

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/weft-fabric/weft/observe/watch"
)

func when(at float64) time.Time { return time.Unix(0, int64(at*1e9)).UTC() }

// body is JSON of what is made of strings and numbers.
func body(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // nothing in it can fail
	}
	return b
}

// cut shortens a text to what a receiver takes.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// id names an incident for ever: numbers begin anew with a store.
func id(i watch.Incident) string { return cut(fmt.Sprintf("weft/%d/%.1f", i.ID, i.Began), 255) }

// explain is the address of what a kind of incident means.
func (h *Hook) explain(i watch.Incident) string {
	if h.page == "" {
		return ""
	}
	return h.page + "/explain/" + i.Kind
}

var slackSafe = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// slack is a message of an incoming webhook, in blocks. A section takes 3,000 characters, a header 150.
func (h *Hook) slack(url string, i watch.Incident) message {
	head := strings.ToUpper(i.Severity.String()) + " " + i.Kind
	if i.Job != "" {
		head += " in " + i.Job
	}
	if i.Ended > 0 {
		head = fmt.Sprintf("Over after %.0f s: %s", i.Ended-i.Began, i.Kind)
	}
	text := func(s string) map[string]any {
		return map[string]any{"type": "section", "text": map[string]any{"type": "mrkdwn", "text": cut(s, 3000)}}
	}
	blocks := []map[string]any{
		{"type": "header", "text": map[string]any{"type": "plain_text", "text": cut(head, 150)}},
		text("*" + slackSafe.Replace(cut(i.Verdict, 1000)) + "*"),
	}
	if i.Ended == 0 {
		blocks = append(blocks, text(slackSafe.Replace(cut(i.Cause, 1000))+"\n*Do:* "+slackSafe.Replace(cut(i.Fix, 1000))))
	}
	foot := fmt.Sprintf("#%d, %.0f%% sure, %s", i.ID, 100*i.Confidence, when(i.Began).Format(time.RFC3339))
	if link := h.explain(i); link != "" {
		foot += fmt.Sprintf(" · <%s|what it means> · <%s/|page>", link, h.page)
	}
	blocks = append(blocks, map[string]any{"type": "context", "elements": []map[string]any{{"type": "mrkdwn", "text": foot}}})
	return message{url: url, header: map[string]string{"Content-Type": "application/json"},
		body: body(map[string]any{"text": cut(head+": "+i.Verdict, 3000), "blocks": blocks}),
		confirm: func(text string) error {
			if text != "ok" {
				return fmt.Errorf("%w: Slack answered %.100q", errRefused, text)
			}
			return nil
		}}
}

// pagerDuty is an event of the Events API v2: triggered when an incident opens, resolved under the same key when it ends.
func (h *Hook) pagerDuty(url, key string, i watch.Incident) message {
	e := map[string]any{"routing_key": key, "dedup_key": id(i), "event_action": "trigger", "client": "weft watch"}
	if i.Ended > 0 {
		e["event_action"] = "resolve"
	} else {
		source := strings.Join(i.Subject.Hosts, ",")
		if source == "" {
			source = "weft watch"
		}
		e["payload"] = map[string]any{"summary": cut(i.Verdict, 1024), "source": cut(source, 1024), "severity": i.Severity.String(),
			"timestamp": when(i.Began).Format(time.RFC3339Nano),
			"component": i.Job, "class": i.Kind, "custom_details": map[string]any{"cause": i.Cause, "do": i.Fix, "confidence": i.Confidence,
				"ranks": i.Subject.Ranks, "evidence": evidence(i), "consequences": i.Follows}}
		if link := h.explain(i); link != "" {
			e["client_url"] = h.page + "/"
			e["links"] = []map[string]string{{"href": link, "text": "weft doctor explain " + i.Kind}}
		}
	}
	return message{url: url, header: map[string]string{"Content-Type": "application/json"}, body: body(e)}
}

func evidence(i watch.Incident) (list []string) {
	for _, e := range i.Evidence {
		list = append(list, e.Text)
	}
	return list
}

// severityNumbers are those of OpenTelemetry.
var severityNumbers = map[string]int{"info": 9, "warning": 13, "critical": 17}

// logRecord is a record of OpenTelemetry's logs, in OTLP JSON.
func (h *Hook) logRecord(url string, i watch.Incident) message {
	at, state := i.Began, "open"
	if i.Ended > 0 {
		at, state = i.Ended, "over"
	}
	var attributes []any
	for _, a := range [][2]string{{"event.name", "weft.incident"}, {"weft.id", id(i)}, {"weft.kind", i.Kind}, {"weft.state", state},
		{"weft.job", i.Job}, {"host.name", strings.Join(i.Subject.Hosts, ",")},
		{"weft.ranks", strings.Trim(fmt.Sprint(i.Subject.Ranks), "[]")}, {"weft.cause", i.Cause}, {"weft.fix", i.Fix},
		{"weft.runbook", h.explain(i)}} {
		if a[1] != "" {
			attributes = append(attributes, map[string]any{"key": a[0], "value": map[string]any{"stringValue": a[1]}})
		}
	}
	record := map[string]any{"timeUnixNano": fmt.Sprint(when(at).UnixNano()), "severityNumber": severityNumbers[i.Severity.String()],
		"severityText": i.Severity.String(),
		"body":         map[string]any{"stringValue": i.Verdict}, "attributes": attributes}
	return message{url: url, header: map[string]string{"Content-Type": "application/json"},
		body: body(map[string]any{"resourceLogs": []any{map[string]any{
			"resource": map[string]any{"attributes": []any{map[string]any{"key": "service.name",
				"value": map[string]any{"stringValue": "weft-watch"}}}},
			"scopeLogs": []any{map[string]any{"scope": map[string]any{"name": "github.com/weft-fabric/weft"}, "logRecords": []any{record}}}}}})}
}

// alertmanager is a webhook as Alertmanager sends it, version 4, with one alert.
func (h *Hook) alertmanager(url string, i watch.Incident) message {
	status, end := "firing", time.Time{}
	if i.Ended > 0 {
		status, end = "resolved", when(i.Ended)
	}
	labels := map[string]string{"alertname": "WeftIncident", "kind": i.Kind, "severity": i.Severity.String()}
	if i.Job != "" {
		labels["job"] = i.Job
	}
	if len(i.Subject.Hosts) > 0 {
		labels["host"] = strings.Join(i.Subject.Hosts, ",")
	}
	notes := map[string]string{"summary": i.Verdict, "description": i.Cause, "action": i.Fix, "runbook": "weft doctor explain " + i.Kind}
	if link := h.explain(i); link != "" {
		notes["runbook_url"] = link
	}
	alert := map[string]any{"status": status, "labels": labels, "annotations": notes, "startsAt": when(i.Began), "endsAt": end,
		"generatorURL": h.page, "fingerprint": fmt.Sprintf("%016x", i.ID)}
	return message{url: url, header: map[string]string{"Content-Type": "application/json"}, body: body(map[string]any{
		"version": "4", "groupKey": id(i), "truncatedAlerts": 0, "status": status, "receiver": "weft",
		"groupLabels":  map[string]string{"kind": i.Kind},
		"commonLabels": labels, "commonAnnotations": notes, "externalURL": h.page, "alerts": []any{alert}})}
}
