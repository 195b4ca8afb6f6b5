package cli

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/move/xfer/measure"
)

// nixlbench are flags that 'xfer bench' has so that command lines of nixlbench can be used.
type nixlbench struct {
	threads, large, targets int
	recreate, direct        bool
	obj                     map[string]*string // flags of the object store
}

// objectFlags are nixlbench's flags of an object store, and the variables that S3 clients read them from.
var objectFlags = []struct{ name, variable, help string }{
	{"obj_bucket_name", "", "the `BUCKET` of objects: the same as --store s3://BUCKET"},
	{"obj_endpoint_override", "AWS_ENDPOINT_URL_S3", "`URL` of the object store"},
	{"obj_region", "AWS_REGION", "`REGION` of the object store"},
	{"obj_access_key", "AWS_ACCESS_KEY_ID",
		"access `KEY` of the object store; other users of this host see it, so rather set AWS_ACCESS_KEY_ID"},
	{"obj_secret_key", "AWS_SECRET_ACCESS_KEY", "secret `KEY` of the object store; rather set AWS_SECRET_ACCESS_KEY"},
	{"obj_session_token", "AWS_SESSION_TOKEN", "session `TOKEN` of the object store"},
	{"obj_scheme", "", "http or https, for an --obj_endpoint_override that names none"},
}

// meaningless are flags of nixlbench that say nothing here, and why.
var meaningless = map[string]string{
	"etcd_endpoints":  "the targets are started here, so nobody needs to meet",
	"runtime_type":    "the targets are started here, so nobody needs to meet",
	"benchmark_group": "the targets are started here, so nobody needs to meet",
	"worker_type":     "transfers are weft's", "mode": "an initiator is a goroutine with memory of its own",
	"device_list": "weft finds the paths itself; --path demands one", "enable_pt": "there is no progress to be made by hand",
	"progress_threads": "there is no progress to be made by hand",
}

// register adds nixlbench's flags. Those that mean nothing here are taken and hidden, so that its command lines work.
func (n *nixlbench) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&n.threads, "num_threads", 1, "requests in flight per initiator")
	f.IntVar(&n.large, "large_blk_iter_ftr", 1, "blocks above 1 MiB are moved this much less often than --num_iter says")
	f.IntVar(&n.targets, "num_target_dev", 0, "targets; as the scheme has it without this")
	f.BoolVar(&n.recreate, "recreate_xfer", false, "prepare lists of descriptors anew for every request")
	f.BoolVar(&n.direct, "storage_enable_direct", false, "files past the page cache, as without --buffered")
	n.obj = map[string]*string{}
	for _, x := range objectFlags {
		n.obj[x.name] = f.String(x.name, "", x.help)
	}
	for name, why := range meaningless {
		if name == "enable_pt" {
			f.Bool(name, false, why)
		} else {
			f.String(name, "", why)
		}
		_ = f.MarkHidden(name) // it was made this moment
	}
}

// endpoint puts the scheme before an object store's address where it has none; nixlbench's is http.
func (n *nixlbench) endpoint() error {
	scheme, end := *n.obj["obj_scheme"], n.obj["obj_endpoint_override"]
	if scheme != "" && scheme != "http" && scheme != "https" {
		return fmt.Errorf("--obj_scheme %q: want http or https", scheme)
	}
	if *end != "" && !strings.Contains(*end, "://") {
		*end = cmp.Or(scheme, "http") + "://" + *end
	}
	return nil
}

// place takes the flags of files and of the object store.
func (n *nixlbench) place(p *xferPlace) error {
	if n.direct && p.buffered {
		return fmt.Errorf("--storage_enable_direct and --buffered: want one of them")
	}
	if b := *n.obj["obj_bucket_name"]; b != "" {
		if p.store != "" {
			return fmt.Errorf("--obj_bucket_name %q and --store %q: want one of them", b, p.store)
		}
		p.store = "s3://" + strings.Trim(b, "/")
	}
	if err := n.endpoint(); err != nil {
		return err
	}
	for _, x := range objectFlags {
		if v := *n.obj[x.name]; v != "" && x.variable != "" {
			if err := os.Setenv(x.variable, v); err != nil {
				return fmt.Errorf("--%s: %w", x.name, err)
			}
		}
	}
	return nil
}

// config takes the others, and says which of those that were given mean nothing.
func (n *nixlbench) config(cmd *cobra.Command, c *measure.Config) error {
	if n.threads < 1 || n.threads > 256 || n.large < 1 {
		return fmt.Errorf("--num_threads %d, --large_blk_iter_ftr %d: want 1 to 256, and at least 1", n.threads, n.large)
	}
	if n.threads > 1 && c.Compare {
		return fmt.Errorf("--compare moves one request at a time, as those it compares with do; leave --num_threads %d out", n.threads)
	}
	switch t := n.targets; {
	case t == 0:
	case t < 0 || t > 256:
		return fmt.Errorf("--num_target_dev %d: want 1 to 256", t)
	case c.Scheme == "onetomany" && (c.Pairs == 1 || c.Pairs == t):
		c.Pairs = t
	case c.Scheme == "onetomany":
		return fmt.Errorf("--num_initiator_dev %d: scheme onetomany has one initiator; --num_target_dev %d are its targets", c.Pairs, t)
	case c.Scheme == "manytoone" && t != 1:
		return fmt.Errorf("--num_target_dev %d: scheme manytoone has one target; --num_initiator_dev are its initiators", t)
	case c.Scheme == "pairwise" && t != c.Pairs:
		return fmt.Errorf("--num_target_dev %d: scheme pairwise has as many as --num_initiator_dev, which is %d", t, c.Pairs)
	}
	c.Threads, c.Large, c.Recreate = n.threads, n.large, n.recreate
	for _, name := range slices.Sorted(maps.Keys(meaningless)) {
		if cmd.Flags().Changed(name) {
			fmt.Fprintf(cmd.ErrOrStderr(), "weft: --%s is not used: %s\n", name, meaningless[name])
		}
	}
	return nil
}
