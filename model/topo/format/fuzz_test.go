package format

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo"
)

// fuzz wants of every input either an error or a graph that comes back the same.
func fuzz(f *testing.F, dialect, folder string, seeds ...string) {
	d, err := Find(dialect)
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	files, _ := filepath.Glob(filepath.Join(fixtures, folder, "*"))
	for _, path := range files {
		if data, err := os.ReadFile(path); err == nil {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := d.Decode("x", data)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := d.Encode(&out, g); err != nil {
			if strings.Contains(err.Error(), "describe") || strings.Contains(err.Error(), "same GUID") || strings.Contains(err.Error(), "no GPU") ||
				strings.Contains(err.Error(), "InfiniBand allows") {
				return // the dialect cannot say it, and says so
			}
			t.Fatal(err)
		}
		again, err := d.Decode("x", out.Bytes())
		if err != nil {
			t.Fatalf("own output: %v\n%q", err, out.String())
		}
		if diff := topo.Diff(g, again); len(diff) > 0 {
			t.Fatalf("%s\n%q", strings.Join(diff, "\n"), out.String())
		}
	})
}

func FuzzNCCLXML(f *testing.F) {
	fuzz(f, "nccl-xml", "nccl-topo", dump)
}

func FuzzNvidiaSMI(f *testing.F) {
	fuzz(f, "nvidia-smi", "nvidia-smi",
		"\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV12\tPXB\t48-63\t3\t\t8\nGPU1\tNV12\t X \tPXB\t48-63\t3\t\t16\nNIC0\tPXB\tPXB\t X \t\t\t\t\n\nNIC Legend:\n\n  NIC0: ibp12s0\n",
		"GPU0 GPU1 mlx5_0\nGPU0 X SYS NODE\nGPU1 SYS X SYS\nmlx5_0 NODE SY")
}

func FuzzIbnetdiscover(f *testing.F) {
	fuzz(f, "ibnetdiscover", "ibnetdiscover", classic)
}

func FuzzIbsim(f *testing.F) {
	fuzz(f, "ibsim", "ibnetdiscover",
		"Switch 8 \"sw 1\"\n[1] \"node1\"[1]\n[2] \"sw2\"[1]\n\nHca 1 \"node1\"\n[1] \"sw 1\"[1] # lid 0 4xHDR\n")
}

func FuzzSlurm(f *testing.F) {
	fuzz(f, "slurm", "slurm", "SwitchName=s0 Nodes=n[0-1] LinkSpeed=9\nSwitchName=s1 Switches=s0\n",
		"BlockName=b Nodes=n[1-2]\nBlockSizes=2\n", topologyYAML)
}

func FuzzJSON(f *testing.F) {
	var out bytes.Buffer
	if g, err := decodeNCCL("x", []byte(dump)); err != nil || encodeJSON(&out, g) != nil {
		f.Fatal(err)
	}
	fuzz(f, "json", "json", out.String())
}

// Ten megabytes of noise of several kinds: each decoder answers within two
// seconds, with the line and what it expected.
func TestNoise(t *testing.T) {
	size := bounded.Times(1<<17, 10<<20)
	r := rand.New(rand.NewPCG(1, 2))
	bytesOf := func(next func() byte) []byte {
		b := make([]byte, size)
		for i := range b {
			b[i] = next()
		}
		return b
	}
	noises := map[string][]byte{
		"any bytes":      bytesOf(func() byte { return byte(r.Uint32()) }),
		"one long line":  bytesOf(func() byte { return 'a' + byte(r.IntN(26)) }),
		"words in lines": bytesOf(func() byte { return "abcdefgh 0123456789\n\t=\"[]<>"[r.IntN(27)] }),
		"zeros":          make([]byte, size),
		"empty lines":    bytes.Repeat([]byte("\n"), size),
		"open tags":      bytes.Repeat([]byte("<system>"), size/8),
		"open brackets":  bytes.Repeat([]byte("["), size),
		"escape codes":   bytes.Repeat([]byte("\x1b[4m"), size/4),
		"comments":       bytes.Repeat([]byte("# GPU0 GPU1\n"), size/12),
	}
	for _, d := range Dialects() {
		if d.Decode == nil {
			continue
		}
		for name, data := range noises {
			start := time.Now()
			_, err := d.Decode("x", data)
			if took := time.Since(start); took > time.Minute { // 10 MB take milliseconds; a minute means that something is quadratic
				t.Errorf("%s took %s for %s", d.Name, took, name)
			}
			if err == nil || !strings.Contains(err.Error(), d.Name+": line ") || len(err.Error()) > 500 {
				t.Errorf("%s on %s: %.600v", d.Name, name, err)
			}
			if name != "open tags" {
				if got, ok := Detect(data); ok {
					t.Errorf("%s was taken for %s", name, got.Name)
				}
			}
		}
	}
}
