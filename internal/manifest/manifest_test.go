package manifest

import (
	"strings"
	"testing"
)

const good = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: a, labels: {app: a}}
spec:
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec:
      containers:
        - {name: c, image: i, ports: [{name: web, containerPort: 80}], readinessProbe: {httpGet: {path: /, port: web}}, volumeMounts: [{name: v, mountPath: /v}]}
      volumes: [{name: v, emptyDir: {}}]
`

// TestMistakesAreFound: the checker can say no.
func TestMistakesAreFound(t *testing.T) {
	if n, err := Check([]byte(good)); n != 1 || err != nil {
		t.Fatalf("%d documents, %v", n, err)
	}
	for _, c := range []struct{ from, to, want string }{
		{"selector:", "selectors:", "no field selectors"},
		{"mountPath:", "mountpath:", "no field mountpath"},
		{"{name: v, emptyDir", "{name: w, emptyDir", "which is no volume"},
		{"port: web}}", "port: metrics}}", "does not have"},
		{"kind: DaemonSet", "kind: DaemonSets", "unknown kind"},
		{"matchLabels: {app: a}", "matchLabels: {app: b}", "the selector wants"},
		{"name: a,", "name: A_b,", "is no name"},
		{"image: i, ", "", "without name or image"},
		{"containers:", "containers: 3 #", ""},
	} {
		_, err := Check([]byte(strings.Replace(good, c.from, c.to, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: %v, want %q", c.to, c.from, err, c.want)
		}
	}
	if _, err := Check([]byte("apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\nspec: {serviceName: none, template: {spec: {containers: [{name: c, image: i}]}}}\n")); err == nil ||
		!strings.Contains(err.Error(), `no Service "none"`) {
		t.Errorf("a StatefulSet without its Service: %v", err)
	}
}
