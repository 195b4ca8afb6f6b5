package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/spell"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/format"
)

// maxInput is the largest file any verb reads: a 131,072-GPU cluster in the
// json dialect is 250 MB.
const maxInput = 1 << 30

// presetFlags are the parameters of presets: --su for the one everybody asks
// for, --set for any.
type presetFlags struct {
	su    int
	set   []string
	flags *pflag.FlagSet
}

func (p *presetFlags) register(cmd *cobra.Command) {
	p.flags = cmd.Flags()
	cmd.Flags().IntVar(&p.su, "su", 1, "scalable units, for the SuperPOD presets")
	cmd.Flags().StringArrayVar(&p.set, "set", nil, "parameter of a preset, `NAME=NUMBER`; repeatable")
}

// params reads --su and --set. Which names a preset has is checked when it is built.
func (p *presetFlags) params() (map[string]int, error) {
	m := map[string]int{}
	if p.flags != nil && p.flags.Changed("su") {
		if p.su < 1 {
			return nil, fmt.Errorf("--su is %d; it must be at least 1", p.su)
		}
		m["su"] = p.su
	}
	for _, s := range p.set {
		name, value, ok := strings.Cut(s, "=")
		n, err := strconv.Atoi(value)
		if !ok || err != nil {
			return nil, fmt.Errorf("--set %q: want NAME=NUMBER, like --set hosts=64", s)
		}
		m[name] = n
	}
	return m, nil
}

// stateLinks gives links without a stated rate the class that --link names, and
// asks for it where there are such links and no --link.
func stateLinks(c *cluster.Cluster, gen string) error {
	n := c.Graph.Unstated()
	switch {
	case n == 0 && gen != "":
		return fmt.Errorf("--link %s: all links of %s have a rate already", gen, c.Name)
	case n == 0:
		return nil
	case gen == "":
		return fmt.Errorf("%s does not state the rate of %s; say it with --link, such as --link ndr or --link 400gbe", c.Name, count(n, "link"))
	}
	link, err := c.Catalog.Link(gen)
	if err != nil {
		return fmt.Errorf("--link: %w", err)
	}
	if !link.Kind.Network() {
		return fmt.Errorf("--link %s is %s; links between hosts are InfiniBand or Ethernet", gen, link.Kind)
	}
	c.Graph = c.Graph.WithClass(link.Class(0))
	return nil
}

// readInput reads a file, or standard input for "-".
func readInput(cmd *cobra.Command, path string) ([]byte, error) {
	in := cmd.InOrStdin()
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.IsDir() {
			return nil, fmt.Errorf("%s is a folder; give a file in it", path)
		}
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(data) > maxInput {
		return nil, fmt.Errorf("%s is larger than %d MiB", path, maxInput>>20)
	}
	return data, nil
}

// loadPreset makes a preset of a name for which there is no file. One with a dot or a slash was meant for a file.
func loadPreset(cmd *cobra.Command, name string, params map[string]int) (*cluster.Cluster, error) {
	if strings.ContainsAny(name, "/.") {
		return nil, noFile(name)
	}
	if err := isCollective(cmd, name); err != nil {
		return nil, err
	}
	c, err := cluster.Preset(name, params)
	if !errors.Is(err, build.ErrNoPreset) {
		return c, err
	}
	if path := filepath.Join("examples", name+".yaml"); isFile(path) {
		return nil, fmt.Errorf("%q is no file here and no preset; did you mean %s?", name, path)
	}
	return nil, fmt.Errorf("%q is no file here: %w", name, err)
}

// noFile says that there is no such file, and which one of its folder may be meant.
func noFile(path string) error {
	dir, name := filepath.Split(path)
	entries, err := os.ReadDir(cmp.Or(dir, "."))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no file %q; there is no folder %s", path, dir)
	}
	var known []string
	for _, e := range entries {
		known = append(known, e.Name())
	}
	if near := spell.Nearest(name, known); near != "" {
		return fmt.Errorf("no file %q; did you mean %s?", path, filepath.Join(dir, near))
	}
	return fmt.Errorf("no file %q", path)
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir()
}

// loadTarget loads the cluster that is meant, or one host of a kind, if that is given.
func loadTarget(cmd *cobra.Command, name, kind string, p presetFlags) (*cluster.Cluster, error) {
	if kind == "" {
		return loadCluster(cmd, name, p)
	}
	c, err := loadCluster(cmd, kind, p)
	if err == nil || !strings.Contains(err.Error(), "unknown preset") {
		return c, err
	}
	if _, unknown := build.HostBox(catalog.Default(), kind); unknown != nil {
		err = unknown
	}
	return nil, fmt.Errorf("--host: %w", err)
}

// loadCluster finds what CLUSTER means: a file that exists, else a preset.
func loadCluster(cmd *cobra.Command, arg string, p presetFlags) (*cluster.Cluster, error) {
	params, err := p.params()
	if err != nil {
		return nil, err
	}
	if arg != "-" {
		if _, err := os.Stat(arg); errors.Is(err, fs.ErrNotExist) {
			return loadPreset(cmd, arg, params)
		}
	}
	if len(params) > 0 {
		return nil, fmt.Errorf("%s is a file; --su and --set belong to presets", arg)
	}
	data, err := readInput(cmd, arg)
	if err != nil {
		return nil, err
	}
	if d, ok := format.Detect(data); ok && d.Decode != nil {
		g, err := decode(d, arg, data)
		if err != nil {
			return nil, err
		}
		return &cluster.Cluster{Name: base(arg), Graph: g, Catalog: catalog.Default(), Network: cluster.DefaultNetwork()}, nil
	}
	return cluster.Parse(arg, data, func(path string) ([]byte, error) {
		return readInput(cmd, filepath.Join(filepath.Dir(arg), path))
	})
}

// decode reads a topology. Dialects that do not name what they describe give the
// same graph whatever the file is called: a host is n0.
func decode(d format.Dialect, path string, data []byte) (*topo.Graph, error) {
	name := "imported"
	if d.Name == "nccl-xml" || d.Name == "nvidia-smi" {
		name = "n0"
	}
	g, err := d.Decode(name, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return g, nil
}

// base names a cluster after its file.
func base(path string) string {
	if path == "-" {
		return "stdin"
	}
	return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
}

// clusterNames completes CLUSTER with the presets; the shell adds files.
func clusterNames(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	for _, p := range cluster.Presets() {
		names = append(names, cobra.CompletionWithDesc(p.Name, p.Summary))
	}
	return names, cobra.ShellCompDirectiveDefault
}

// output writes to a file, through a temporary name so that a failure loses
// nothing, or to standard output for "" and "-".
func output(cmd *cobra.Command, path string, write func(io.Writer) error) error {
	if path == "" || path == "-" {
		return write(cmd.OutOrStdout())
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, cause(err))
	}
	defer os.Remove(tmp.Name())
	if err := write(tmp); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Chmod(0o644); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s\n", path)
	return nil
}

// cause is an error of the system without the name of the file that it was met with.
func cause(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}
