// Package manifest checks Kubernetes manifests in tests: every field must be one that its kind has, and
// what names something must name something that is there. An API server says more; none runs here.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// fields are those of an object: nil for a plain value, free for any value, fields for an object, or list for a list of such.
type fields map[string]any

type list struct{ of any }

type free struct{}

var (
	meta = fields{"name": nil, "namespace": nil, "labels": free{}, "annotations": free{}}

	probe = fields{"httpGet": fields{"path": nil, "port": nil}, "tcpSocket": fields{"port": nil}, "exec": fields{"command": free{}},
		"periodSeconds": nil, "failureThreshold": nil, "initialDelaySeconds": nil}

	container = fields{"name": nil, "image": nil, "command": free{}, "args": free{}, "workingDir": nil,
		"env": list{fields{"name": nil, "value": nil,
			"valueFrom": fields{"fieldRef": fields{"fieldPath": nil}, "secretKeyRef": fields{"name": nil, "key": nil},
				"configMapKeyRef": fields{"name": nil, "key": nil}}}},
		"ports":     list{fields{"name": nil, "containerPort": nil, "protocol": nil}},
		"resources": fields{"requests": free{}, "limits": free{}, "claims": list{fields{"name": nil}}}, "readinessProbe": probe,
		"livenessProbe": probe,
		"volumeMounts":  list{fields{"name": nil, "mountPath": nil, "readOnly": nil, "subPath": nil}},
		"securityContext": fields{"readOnlyRootFilesystem": nil, "allowPrivilegeEscalation": nil, "privileged": nil, "runAsUser": nil,
			"runAsNonRoot": nil, "capabilities": fields{"add": free{}, "drop": free{}}},
	}
	podSpec = fields{"hostNetwork": nil, "hostPID": nil, "hostIPC": nil, "restartPolicy": nil, "subdomain": nil, "serviceAccountName": nil,
		"terminationGracePeriodSeconds": nil, "nodeSelector": free{}, "dnsPolicy": nil,
		"tolerations": list{fields{"operator": nil, "key": nil, "effect": nil, "value": nil}}, "containers": list{container},
		"initContainers":  list{container},
		"resourceClaims":  list{fields{"name": nil, "resourceClaimTemplateName": nil}},
		"securityContext": fields{"fsGroup": nil, "runAsUser": nil, "runAsGroup": nil, "runAsNonRoot": nil},
		"volumes": list{fields{"name": nil, "hostPath": fields{"path": nil, "type": nil},
			"emptyDir": fields{"medium": nil, "sizeLimit": nil}, "configMap": fields{"name": nil}, "secret": fields{"secretName": nil}}},
	}
	pod      = fields{"metadata": meta, "spec": podSpec}
	selector = fields{"matchLabels": free{}}
	job      = fields{"parallelism": nil, "completions": nil, "completionMode": nil, "backoffLimit": nil, "activeDeadlineSeconds": nil,
		"template": pod}

	kinds = map[string]fields{
		"v1 Node": {"metadata": meta},
		"v1 Service": {"metadata": meta, "spec": fields{"clusterIP": nil, "selector": free{}, "publishNotReadyAddresses": nil,
			"ports": list{fields{"name": nil, "port": nil, "targetPort": nil}}}},
		"v1 ConfigMap": {"metadata": meta, "data": free{}},
		"apps/v1 DaemonSet": {"metadata": meta, "spec": fields{"selector": selector, "template": pod,
			"updateStrategy": fields{"type": nil, "rollingUpdate": fields{"maxUnavailable": nil}}}},
		"apps/v1 StatefulSet": {"metadata": meta, "spec": fields{"serviceName": nil, "replicas": nil, "podManagementPolicy": nil,
			"selector": selector, "template": pod,
			"volumeClaimTemplates": list{fields{"metadata": meta,
				"spec": fields{"accessModes": free{}, "storageClassName": nil, "resources": fields{"requests": free{}}}}}}},
		"batch/v1 Job":                    {"metadata": meta, "spec": job},
		"kueue.x-k8s.io/v1beta2 Topology": {"metadata": meta, "spec": fields{"levels": list{fields{"nodeLabel": nil}}}},
		"kueue.x-k8s.io/v1beta2 ResourceFlavor": {"metadata": meta,
			"spec": fields{"nodeLabels": free{}, "topologyName": nil, "nodeTaints": free{}, "tolerations": free{}}},
		"k8s.cni.cncf.io/v1 NetworkAttachmentDefinition": {"metadata": meta, "spec": fields{"config": nil}},
		"kueue.x-k8s.io/v1beta2 ClusterQueue": {"metadata": meta,
			"spec": fields{"namespaceSelector": free{}, "resourceGroups": list{fields{"coveredResources": free{},
				"flavors": list{fields{"name": nil, "resources": list{fields{"name": nil, "nominalQuota": nil}}}}}}}},
		"kueue.x-k8s.io/v1beta2 LocalQueue": {"metadata": meta, "spec": fields{"clusterQueue": nil}},
		"resource.nvidia.com/v1beta1 ComputeDomain": {"metadata": meta,
			"spec": fields{"numNodes": nil, "channel": fields{"resourceClaimTemplate": fields{"name": nil}}}},
		"nv-ipam.nvidia.com/v1alpha1 CIDRPool": {"metadata": meta,
			"spec": fields{"cidr": nil, "gatewayIndex": nil, "perNodeNetworkPrefix": nil, "exclusions": free{}, "nodeSelector": free{},
				"staticAllocations": list{fields{"nodeName": nil, "prefix": nil, "gateway": nil}}}},
		"jobset.x-k8s.io/v1alpha2 JobSet": {"metadata": meta,
			"spec": fields{"replicatedJobs": list{fields{"name": nil, "replicas": nil, "template": fields{"metadata": meta, "spec": job}}},
				"network":       fields{"enableDNSHostnames": nil, "subdomain": nil, "publishNotReadyAddresses": nil},
				"successPolicy": fields{"operator": nil, "targetReplicatedJobs": free{}},
				"failurePolicy": fields{"maxRestarts": nil}, "suspend": nil, "ttlSecondsAfterFinished": nil,
				"startupPolicy": fields{"startupPolicyOrder": nil}}},
	}

	nameForm  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	labelForm = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
)

// Check reads the documents of a file and says what is wrong with each, and how many there are.
func Check(data []byte) (documents int, err error) {
	var errs []error
	services := map[string]bool{}
	var sets []map[string]any
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc map[string]any
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return documents, err
		}
		if len(doc) == 0 {
			continue
		}
		documents++
		name := fmt.Sprintf("%v %v", doc["apiVersion"], doc["kind"])
		known, ok := kinds[name]
		if !ok {
			errs = append(errs, fmt.Errorf("document %d: unknown kind %s", documents, name))
			continue
		}
		body := maps.Clone(doc)
		delete(body, "apiVersion")
		delete(body, "kind")
		c := &checker{at: name}
		c.walk("", body, known)
		c.sense(doc)
		errs = append(errs, c.errs...)
		switch doc["kind"] {
		case "Service":
			services[text(dig(doc, "metadata", "name"))] = true
		case "StatefulSet":
			sets = append(sets, doc)
		}
	}
	for _, s := range sets {
		if n := text(dig(s, "spec", "serviceName")); !services[n] {
			errs = append(errs, fmt.Errorf("StatefulSet: no Service %q in the file", n))
		}
	}
	return documents, errors.Join(errs...)
}

type checker struct {
	at   string
	errs []error
}

func (c *checker) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("%s: %s", c.at, fmt.Sprintf(format, args...)))
}

func (c *checker) walk(path string, v, want any) {
	switch w := want.(type) {
	case free:
	case nil:
		switch v.(type) {
		case map[string]any, []any:
			c.fail("%s holds more than a plain value", path)
		}
	case list:
		items, ok := v.([]any)
		if !ok {
			c.fail("%s is no list", path)
		}
		for i, x := range items {
			c.walk(fmt.Sprintf("%s[%d]", path, i), x, w.of)
		}
	case fields:
		c.object(path, v, w)
	}
}

func (c *checker) object(path string, v any, want fields) {
	object, ok := v.(map[string]any)
	if !ok {
		c.fail("%s is no object", path)
	}
	for k, x := range object {
		inner, known := want[k]
		if !known {
			c.fail("%s has no field %s", strings.TrimPrefix(path, "."), k)
			continue
		}
		c.walk(path+"."+k, x, inner)
	}
}

// dig goes down by keys.
func dig(v any, path ...string) any {
	for _, p := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[p]
	}
	return v
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// sense checks what refers to something.
func (c *checker) sense(doc map[string]any) {
	if n := text(dig(doc, "metadata", "name")); !nameForm.MatchString(n) {
		c.fail("%q is no name", n)
	}
	labels, _ := dig(doc, "metadata", "labels").(map[string]any)
	for k, v := range labels {
		if !labelForm.MatchString(text(v)) {
			c.fail("label %s: %q is no value of a label", k, text(v))
		}
	}
	if doc["kind"] == "NetworkAttachmentDefinition" && !json.Valid([]byte(text(dig(doc, "spec", "config")))) {
		c.fail("spec.config is no JSON")
	}
	match, _ := dig(doc, "spec", "selector", "matchLabels").(map[string]any)
	for k, v := range match {
		if have := dig(doc, "spec", "template", "metadata", "labels", k); text(have) != text(v) {
			c.fail("the selector wants %s=%v, the template has %v", k, v, have)
		}
	}
	c.pods(doc)
}

// pods checks the pods of a workload, those of the jobs of a JobSet too.
func (c *checker) pods(doc map[string]any) {
	specs := []any{dig(doc, "spec", "template", "spec")}
	jobs, _ := dig(doc, "spec", "replicatedJobs").([]any)
	for _, j := range jobs {
		specs = append(specs, dig(j, "template", "spec", "template", "spec"))
	}
	var claims []string
	templates, _ := dig(doc, "spec", "volumeClaimTemplates").([]any)
	for _, v := range templates {
		claims = append(claims, text(dig(v, "metadata", "name")))
	}
	for _, s := range specs {
		if s != nil {
			c.pod(s, claims)
		}
	}
}

func (c *checker) pod(spec any, volumes []string) {
	list, _ := dig(spec, "volumes").([]any)
	for _, v := range list {
		volumes = append(volumes, text(dig(v, "name")))
	}
	containers, _ := dig(spec, "containers").([]any)
	if len(containers) == 0 {
		c.fail("a pod without containers")
	}
	for _, x := range containers {
		c.container(x, volumes)
	}
}

// container checks that what a container mounts and what its probes ask is there.
func (c *checker) container(x any, volumes []string) {
	if text(dig(x, "image")) == "" || text(dig(x, "name")) == "" {
		c.fail("a container without name or image")
	}
	mounts, _ := dig(x, "volumeMounts").([]any)
	for _, m := range mounts {
		if !slices.Contains(volumes, text(dig(m, "name"))) {
			c.fail("the container %v mounts %v, which is no volume", dig(x, "name"), dig(m, "name"))
		}
	}
	var ports []string
	named, _ := dig(x, "ports").([]any)
	for _, p := range named {
		ports = append(ports, text(dig(p, "name")), text(dig(p, "containerPort")))
	}
	for _, probe := range []string{"readinessProbe", "livenessProbe"} {
		for _, way := range []string{"httpGet", "tcpSocket"} {
			if p := text(dig(x, probe, way, "port")); p != "" && !slices.Contains(ports, p) {
				c.fail("%s asks port %s, which the container does not have", probe, p)
			}
		}
	}
}
