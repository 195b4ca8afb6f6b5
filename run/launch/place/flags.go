package place

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Limits. MaxProc is that of a launcher, which has three descriptors and two
// threads for each rank; the others are far above every cluster there is.
const (
	MaxProc     = 4096
	MaxNodes    = 1 << 20
	MaxRestarts = 1 << 20
	maxSize     = MaxProc * MaxNodes
)

// Opt is a whole number that may not have been given.
type Opt struct {
	Given bool
	N     int
}

// Some is a number that was given.
func Some(n int) Opt { return Opt{Given: true, N: n} }

// or is the number, or another one.
func (o Opt) or(other int) int {
	if o.Given {
		return o.N
	}
	return other
}

// Set, String and Type make a flag of it.
func (o *Opt) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return errors.New("want a whole number")
	}
	*o = Some(n)
	return nil
}

// String is the number, "" if none was given.
func (o Opt) String() string {
	if !o.Given {
		return ""
	}
	return strconv.Itoa(o.N)
}

// Type is the kind of flag.
func (Opt) Type() string { return "int" }

// Flags are the flags of an elastic launcher. The zero value is a command line
// without any.
type Flags struct {
	Nodes       string // "2", or "1:4" for at least one and at most four
	NProc       string // ranks on each node: a number, "auto", "cpu" or "gpu"
	NodeRank    Opt    // this node's number
	Endpoint    string // --rdzv-endpoint, host[:port]
	ID          string // --rdzv-id
	Backend     string // --rdzv-backend
	MaxRestarts Opt
	Standalone  bool
	Min, Max    Opt    // ranks
	Coord       string // etcd://host:2379[,host2:2379]
	Ckpt        string
	Job         string
}

// Given says whether anything was.
func (f Flags) Given() bool { return f != Flags{} }

// aliases are torchrun's names of flags that are shorter here.
var aliases = map[string]string{"nnodes": "nodes", "nproc-per-node": "nproc"}

// Bind registers the flags. Underscores may stand for dashes in all flags of the
// set, and torchrun's names for those here.
func (f *Flags) Bind(fs *pflag.FlagSet) {
	before := fs.GetNormalizeFunc()
	fs.SetNormalizeFunc(func(fs *pflag.FlagSet, name string) pflag.NormalizedName {
		name = strings.ReplaceAll(name, "_", "-")
		if ours, ok := aliases[name]; ok {
			name = ours
		}
		return before(fs, name)
	})
	fs.StringVar(&f.Nodes, "nodes", "", "`COUNT` of nodes, or MIN:MAX; also --nnodes; default: the scheduler's, or 1")
	fs.StringVar(&f.NProc, "nproc", "", "`COUNT` of ranks on each node, auto, cpu or gpu; also --nproc-per-node; default: 1")
	fs.Var(&f.NodeRank, "node-rank", "`NUMBER` of this node; default: the scheduler's")
	fs.Var(&f.Min, "min", "least `RANKS` to train with; default: all of them")
	fs.Var(&f.Max, "max", "most `RANKS` to train with; default: all of them")
	fs.StringVar(&f.Coord, "coord", "", "etcd `ADDRESS` where nodes meet, like etcd://host:2379,host2:2379; default: the first node's own")
	fs.StringVar(&f.Ckpt, "ckpt", "", "`DIR` of checkpoints, or s3://bucket/prefix")
	fs.StringVar(&f.Job, "job", "", "`NAME` under which nodes meet; default: the scheduler's id of the job")
	fs.Var(&f.MaxRestarts, "max-restarts", fmt.Sprintf("how often a node's ranks are restarted, `TIMES`; default: %d", DefaultRestarts))
	fs.StringVar(&f.Endpoint, "rdzv-endpoint", "", "`HOST:PORT` where the first node's coordinator is reached")
	fs.StringVar(&f.ID, "rdzv-id", "", "`NAME` under which nodes meet, as in torchrun; like --job")
	fs.StringVar(&f.Backend, "rdzv-backend", "", "`KIND` of rendezvous, as in torchrun: "+strings.Join(backends, ", "))
	fs.BoolVar(&f.Standalone, "standalone", false, "one node with a coordinator of its own, whatever the environment says")
}

// backends are the kinds of rendezvous that torchrun knows.
var backends = []string{"c10d", "static", "etcd", "etcd-v2"}

func checkBackend(s string) error {
	for _, b := range backends {
		if s == b {
			return nil
		}
	}
	return fmt.Errorf("unknown; known are %s; leave it out for a coordinator in the first node, or give --coord etcd://host:%d for one that runs already",
		strings.Join(backends, ", "), EtcdPort)
}

// parseNodes reads "2" or "1:4".
func parseNodes(s string) (lo, hi int, err error) {
	a, b, ranged := strings.Cut(s, ":")
	if !ranged {
		b = a
	}
	lo, errA := strconv.Atoi(strings.TrimSpace(a))
	hi, errB := strconv.Atoi(strings.TrimSpace(b))
	switch {
	case errA != nil || errB != nil || lo < 1 || hi < 1 || lo > MaxNodes || hi > MaxNodes:
		return 0, 0, fmt.Errorf("want a count of nodes from 1 to %d, or the least and the most, like 1:4", MaxNodes)
	case lo > hi:
		return 0, 0, fmt.Errorf("at least %d and at most %d; turn them round: %d:%d", lo, hi, hi, lo)
	}
	return lo, hi, nil
}

// parseProc reads the count of ranks of a node; a word is 0.
func parseProc(s string) (int, error) {
	switch s {
	case "auto", "cpu", "gpu":
		return 0, nil
	case "xpu":
		return 0, errors.New("devices of this kind are not counted; give the number")
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > MaxProc {
		return 0, fmt.Errorf("want a count of ranks from 1 to %d, or auto, cpu or gpu", MaxProc)
	}
	return n, nil
}
