package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ignored is flags of a verb that one of its modes would ignore. To give one there is wrong use: who typed it would take the answer
// for one that honours it.
type ignored struct {
	verb    string // below weft, like sim train
	flags   string // which would be ignored, with spaces between
	with    string // where one of these holds: a flag that is given, or NAME=VALUE
	without string // or where none of these does
	why     string // and what to do
}

// ignoredFlags is in the order of verbs. Conditions that need more than flags are beside the verb's other checks.
var ignoredFlags = []ignored{
	{"topo build", "json set su", "list", "", "--list shows what is known; leave it out"},
	{"design", "params link textbook actual set su", "search", "", "--search proposes designs of its own; leave it out"},
	{"design", "params textbook actual output", "compare", "", "--compare prints a table alone; leave it out"},
	{"design", "textbook output", "actual", "", "--actual prints the differences alone; leave it out"},
	{"explain", "root", "", "bound", "a root is for --bound; add that, or leave it out"},
	{"explain", "cal nccl-algo nccl-proto nvls collnet emit", "bound", "", "--bound holds for every schedule; leave it out"},
	{"explain", "size op json", "emit", "", "--emit writes all operations and sizes as a table; leave it out"},
	{"explain", "gpus fail slow set su", "links", "", "--links stands instead of a cluster; leave it out"},
	{"plan", "micro", "", "like", "it completes a file of --like; in a --layout say micro="},
	{"plan", "top", "layout like", "", "one layout is priced, nothing is searched for; leave it out"},
	{"plan", "schedules", "layout like", "", "one layout is priced, nothing is searched for; in a --layout say schedule="},
	{"plan", "cal", "factor", "", "--factor stands instead of the fitted one; leave out one of them"},
	{"plan", "json why tokens timeline", "emit", "", "--emit writes a configuration alone; leave it out"},
	{"sim collective", "seed", "", "routing=ecmp routing=flowlet", "adaptive routing has no seed; add --routing ecmp"},
	{"sim collective", "gpus", "place", "", "--place says which GPUs take part; leave it out"},
	{"sim train", "seed", "", "routing=ecmp", "only ECMP has a seed; add --routing ecmp"},
	{"sim train", "mixed", "", "jobs job", "one job is not mixed with others; add --jobs or --job"},
	{"sim train", "fail slow routing json", "traces", "", "--traces writes the step and simulates nothing; give it to 'weft sim trace'"},
	{"sim trace", "seed", "", "routing=ecmp", "only ECMP has a seed; add --routing ecmp"},
	{"sim failures", "store", "", "model", "without --model no size of checkpoints is known; give --stall and --load, or --model"},
	{"sim serve", "users", "rate trace", "", "requests come by --rate or --trace; leave it out"},
	{"sim serve", "rate input output spread", "trace", "", "the requests are those of --trace; leave it out"},
	{"sim serve", "tier", "", "reuse trace", "nothing is in the cache; add --reuse"},
	{"sim serve", "routing", "", "prefill apart", "no KV cache crosses the fabric; add --prefill or --apart"},
	{"sim serve", "apart", "tp", "", "--apart tries layouts, --tp says which; with --tp give --prefill"},
	{"doctor", "cluster fail-on force-ras set su", "list", "", "--list shows what can be found; leave it out"},
	{"agent", "listen interval pulse report tls", "once", "", "--once prints one sample and ends; leave it out"},
	{"agent", "tls", "", "report", "certificates are for --report; add that"},
	{"agent", "set su", "", "cluster", "they are parameters of --cluster; add that"},
	{"watch", "limit", "", "dir", "no history is kept; add --dir"},
	{"watch", "set su", "", "cluster", "they are parameters of --cluster; add that"},
	{"watch replay", "set su", "", "cluster", "they are parameters of --cluster; add that"},
	{"coord", "name", "", "peers", "a name is for one of several; add --peers"},
	{"kv serve", "dirty", "", "disk store", "blocks go to no disk and no store; add --disk or --store"},
	{"bench", "stepfactor", "stepbytes", "", "-i says how sizes go up; leave out one of -i and -f"},
	{"bench", "registered", "plain", "", "--plain is the opposite; leave out one of them"},
	{"bench", "plain registered", "device", "", "buffers are on the GPU; leave it out"},
	{"bench", "bind tls checksum outage explain cluster master-addr",
		"transport=mem", "", "ranks are goroutines of one process; leave it out"},
	{"bench", "checksum outage", "transport=shm", "", "it is for messages over tcp; leave it out"},
	{"bench", "cluster", "compare predict", "", "only ranks on their own take rails from a file; leave it out"},
	{"bench", "cpu", "canonical spread", "", "the table has times alone; leave it out"},
	{"run", "checksum outage", "transport=shm", "", "it is for messages over tcp; leave it out"},
	{"run", "restart", "follow", "", "a program that follows epochs stays; leave out one of them"},
	{"run", "no-python", "module", "", "a module is Python's; leave out one of them"},
	{"up", "contrast", "no-overlap", "", "no step overlaps; leave out one of them"},
	{"up", "schedule", "", "pp", "one stage is no pipeline; add --pp"},
	{"up", "drill-seed", "", "drill", "nothing is broken; add --drill"},
	{"up", "users requests for drill drill-seed check mode",
		"compare", "", "--compare asks --rounds times in every mode, one request after the other; leave it out"},
	{"up", "path rate patience", "mode=recompute prefill=0", "", "no KV cache goes from one worker to another; leave it out"},
	{"up", "mode", "prefill=0", "", "decode workers read the prompts themselves; leave it out"},
}

// refuseIgnored has the verbs refuse flags that they would ignore.
func refuseIgnored(root *cobra.Command) {
	for _, c := range root.Commands() {
		verb := strings.TrimPrefix(c.CommandPath(), "weft ")
		before := c.PreRunE
		c.PreRunE = func(cmd *cobra.Command, args []string) error {
			for _, x := range ignoredFlags {
				if x.verb != verb {
					continue
				}
				if err := x.check(cmd.Flags()); err != nil {
					return err
				}
			}
			if before != nil {
				return before(cmd, args)
			}
			return nil
		}
		refuseIgnored(c)
	}
}

// check says which flag is given and would be ignored.
func (x *ignored) check(flags *pflag.FlagSet) error {
	if x.with != "" && !holds(flags, x.with) || x.without != "" && holds(flags, x.without) {
		return nil
	}
	for _, name := range strings.Fields(x.flags) {
		if f := flags.Lookup(name); f.Changed {
			return fmt.Errorf("--%s %s would change nothing: %s", name, f.Value, x.why)
		}
	}
	return nil
}

// holds says whether one of some conditions does: a flag is given and not off, or it has a value.
func holds(flags *pflag.FlagSet, conditions string) bool {
	for _, c := range strings.Fields(conditions) {
		name, value, compared := strings.Cut(c, "=")
		f := flags.Lookup(name)
		if compared && f.Value.String() == value || !compared && f.Changed && f.Value.String() != "false" {
			return true
		}
	}
	return false
}
