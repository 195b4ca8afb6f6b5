package place

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/spf13/pflag"

	"github.com/weft-fabric/weft/internal/bounded"
)

const doc = "../../../docs/how-to/launching.md"

// blocks are the fenced blocks of a language in the document.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	b, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, m := range regexp.MustCompile("(?s)\n```"+language+"\n(.*?)\n```\n").FindAllSubmatch(b, -1) {
		list = append(list, string(m[1])+"\n")
	}
	if len(list) == 0 {
		t.Fatalf("no block of %s in %s", language, doc)
	}
	return list
}

// resolved is the job that the words of a 'weft run' make at a place.
func resolved(t *testing.T, words []string, env string) Job {
	t.Helper()
	var f Flags
	fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.Bind(fs)
	fs.Duration("grace", 0, "")
	fs.String("coord-dir", "", "")
	if len(words) < 3 || words[0] != "weft" || words[1] != "run" {
		t.Fatalf("%q is no weft run", words)
	}
	if err := fs.Parse(words[2:]); err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	if fs.ArgsLenAtDash() != 0 || fs.NArg() == 0 {
		t.Errorf("%q: the program does not stand behind --", words)
	}
	p, err := Recognise(vars(env))
	if err != nil {
		t.Fatal(err)
	}
	j, err := f.Resolve(p, 8)
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	if err := sound(j); err != nil {
		t.Errorf("%q: %v", words, err)
	}
	return j
}

var command = regexp.MustCompile(`weft run .*`)

func TestDocumentedScripts(t *testing.T) {
	byHand := 0
	for _, script := range blocks(t, "bash") {
		check := bounded.Command(t, "bash", "-n")
		check.Stdin = strings.NewReader(script)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("bash: %v: %s\n%s", err, out, script)
		}
		found := command.FindAllString(strings.ReplaceAll(script, "\\\n", " "), -1)
		if len(found) != 1 {
			t.Fatalf("%d commands in\n%s", len(found), script)
		}
		words := strings.Fields(strings.ReplaceAll(strings.ReplaceAll(found[0], `"`, ""), "$SLURM_SUBMIT_DIR", "/home/u"))
		if !strings.HasPrefix(script, "#!") {
			byHand++
			if j := resolved(t, words, ""); j.Nodes != 2 || j.NProc != 4 || j.Max != 8 {
				t.Errorf("%q: %+v", words, j)
			}
			continue
		}
		first := resolved(t, words,
			"SLURM_JOB_ID=17 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=4 SLURM_NODEID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_STEP_NODELIST=n[1-4] SLURM_GPUS_ON_NODE=8")
		if first.Nodes != 4 || first.NProc != 8 || first.Min != 16 || first.Max != 32 || !first.Serve || first.Name != "slurm-17.0" {
			t.Errorf("%q: %+v", words, first)
		}
		for _, line := range strings.Split(script, "\n") {
			if directive, ok := strings.CutPrefix(line, "#SBATCH "); ok && !regexp.MustCompile(`^--[a-z-]+(=\S+)?$`).MatchString(directive) {
				t.Errorf("directive %q", line)
			}
		}
	}
	if byHand != 3 {
		t.Errorf("%d commands by hand, want 3", byHand)
	}
}

// object is what is looked at in a document of Kubernetes.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		ClusterIP      string            `yaml:"clusterIP"`
		Selector       map[string]string `yaml:"selector"`
		CompletionMode string            `yaml:"completionMode"`
		Completions    int
		Parallelism    int
		Template       struct {
			Spec struct {
				Subdomain     string
				RestartPolicy string `yaml:"restartPolicy"`
				Containers    []struct {
					Command      []string
					VolumeMounts []struct{ Name string } `yaml:"volumeMounts"`
				}
				Volumes []struct{ Name string }
			}
		}
	}
}

func TestDocumentedJob(t *testing.T) {
	all := blocks(t, "yaml")
	if len(all) != 1 {
		t.Fatalf("%d blocks", len(all))
	}
	byKind := map[string]object{}
	for d := yaml.NewDecoder(bytes.NewReader([]byte(all[0]))); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		byKind[o.APIVersion+" "+o.Kind] = o
	}
	service, job := byKind["v1 Service"], byKind["batch/v1 Job"]
	name, pods := job.Metadata.Name, job.Spec.Template.Spec
	switch {
	case len(byKind) != 2 || name == "":
		t.Fatalf("%+v", byKind)
	case service.Metadata.Name != name || pods.Subdomain != name || service.Spec.Selector["job-name"] != name ||
		service.Spec.ClusterIP != "None":
		t.Errorf("the Service does not name the pods: %+v", service)
	case job.Spec.CompletionMode != "Indexed" || job.Spec.Parallelism != job.Spec.Completions || len(pods.Containers) != 1:
		t.Errorf("%+v", job)
	case pods.RestartPolicy != "OnFailure" && pods.RestartPolicy != "Never":
		t.Errorf("a Job's pods cannot have restartPolicy %s", pods.RestartPolicy)
	}
	volumes := map[string]bool{}
	for _, v := range pods.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range pods.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("no volume %s", m.Name)
		}
	}
	for _, host := range []string{name + "-0", name + "-1"} {
		index := host[len(host)-1:]
		j := resolved(t, pods.Containers[0].Command, pod+"WEFT_JOB=8a6e HOSTNAME="+host+" JOB_COMPLETION_INDEX="+index)
		if j.Nodes != job.Spec.Completions || j.Coord[0] != name+"-0."+name+":29400" || j.Serve != (index == "0") || j.Name != "8a6e" {
			t.Errorf("%s: %+v", host, j)
		}
	}
}
