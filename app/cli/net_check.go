package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/lab"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/check"
)

func newNetCollect() *cobra.Command {
	var f planFlags
	var dir, from, rsh string
	var show bool
	cmd := &cobra.Command{
		Use:   "collect [CLUSTER] --print",
		Short: "Show or run the read-only commands whose output 'weft net check' reads",
		Long: `Show the commands whose output 'weft net check' reads. Store each output as
DIR/DEVICE/NAME, with ssh, Ansible or a cron job. --from lab:NAME runs them in a lab
and writes such a folder, --from ssh on the hosts and switches of a cluster file.`,
		Example: `  weft net collect --print
  weft net collect examples/lab.yaml --from ssh:admin -o readings
  weft net collect --from lab:lab -o readings`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if show || from == "" {
				for _, c := range check.Commands() {
					who := "hosts and switches"
					if !c.Host {
						who = "switches" + map[string]string{"frr": " with FRR", "bird": " with BIRD"}[c.Daemon()]
					} else if !c.Switch {
						who = "hosts"
					}
					fmt.Fprintf(cmd.OutOrStdout(), "# %s: keep as DIR/DEVICE/%s\n%s\n", who, c.Name, shellLine(c.Args))
				}
				return nil
			}
			if dir == "" {
				return fmt.Errorf("--from %s needs -o DIR, the folder to write below", from)
			}
			var r check.Readings
			user, remote := sshFrom(from)
			name, inLab := strings.CutPrefix(from, "lab:")
			switch {
			case remote && len(args) == 1:
				p, err := f.load(cmd, args[0])
				if err != nil {
					return err
				}
				if r, err = readSSH(cmd, p, user, strings.Fields(rsh)); err != nil {
					return err
				}
			case remote:
				return fmt.Errorf("--from %s needs CLUSTER, which names the devices", from)
			case inLab:
				var err error
				if r, err = readLab(name); err != nil {
					return finding{err}
				}
			default:
				return fmt.Errorf("--from is %q; it must be lab:NAME, ssh or ssh:USER", from)
			}
			for dev, list := range r {
				if err := os.MkdirAll(filepath.Join(dir, dev), 0o755); err != nil {
					return err
				}
				for name, data := range list {
					if err := os.WriteFile(filepath.Join(dir, dev, name), data, 0o644); err != nil {
						return err
					}
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s below %s\n", count(len(r), "device"), dir)
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&show, "print", false, "show the commands and run nothing")
	cmd.Flags().StringVar(&from, "from", "", "where to run them: `lab:NAME`, ssh or ssh:USER")
	cmd.Flags().StringVar(&rsh, "rsh", "", "`COMMAND` in place of ssh; the device's name and a shell follow it")
	cmd.Flags().StringVarP(&dir, "output", "o", "", "folder to write below: `DIR`")
	return cmd
}

// shellLine writes a command as a shell takes it.
func shellLine(args []string) string {
	var out []string
	for _, a := range args {
		if strings.ContainsAny(a, ` ^$()|*\`) {
			a = "'" + a + "'"
		}
		out = append(out, a)
	}
	return strings.Join(out, " ")
}

// sshFrom reads --from ssh and --from ssh:USER.
func sshFrom(from string) (user string, ok bool) {
	if from == "ssh" {
		return "", true
	}
	return strings.CutPrefix(from, "ssh:")
}

func readLab(name string) (check.Readings, error) {
	i, err := lab.Find(name)
	if err != nil {
		return nil, err
	}
	return i.Collect()
}

// readFolder reads DIR/DEVICE/NAME.
func readFolder(dir string) (check.Readings, error) {
	devices, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := check.Readings{}
	for _, d := range devices {
		if !d.IsDir() {
			continue
		}
		if out[d.Name()], err = readDevice(filepath.Join(dir, d.Name())); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no folder of a device; weft net collect --print says what belongs there", dir)
	}
	return out, nil
}

// readDevice reads the files of one device.
func readDevice(dir string) (map[string][]byte, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		st, err := os.Stat(path)
		if err != nil || st.IsDir() {
			continue
		}
		if st.Size() > maxReading {
			return nil, fmt.Errorf("%s has %d MB; no command of weft net collect prints more than %d", path, st.Size()>>20, maxReading>>20)
		}
		if out[f.Name()], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// maxReading is the largest output of a command that is read.
const maxReading = 64 << 20

// settled is the time between two readings of --settle: sessions that come up again do so within it.
const settled = 3 * time.Second

// netCheck are the flags of weft net check.
type netCheck struct {
	f               planFlags
	from, rsh       string
	settle          time.Duration
	fabric, configs []string
	asJSON, unread  bool
}

func newNetCheck() *cobra.Command {
	var s netCheck
	cmd := &cobra.Command{
		Use:   "check [CLUSTER] --from DIR|ssh|lab:NAME | --fabric FILE | --config FILE",
		Short: "Compare the running hosts and switches with the plan: different, missing, extra or unknown",
		Long: `Compare the state of hosts and switches with a cluster file's plan. Each finding names
the device, the wanted and actual value, the command that showed it, the line of the
cluster file, and a fix. Consequences are listed under their cause; two swapped cables
are one finding. Nothing is changed. After BGP or BFD sessions came up or flapped,
--settle 20s reads again until two readings agree.

--fabric compares an InfiniBand fabric's cables, from the output of ibnetdiscover or
iblinkinfo. Adapters are named by host: "n0 mlx5_0".

--config looks for mistakes in files that somebody wrote, without a cluster file: gres.conf
(Links, AutoDetect), /etc/network/interfaces and netplan (rails in one subnet, missing rules,
MTUs of IP over InfiniBand, active-backup bonds).

Exit code 1 if anything differs from the plan.`,
		Example: `  weft net check examples/lab.yaml --from lab:lab
  weft net check examples/lab.yaml --from lab:lab --settle 20s
  weft net check examples/lab.yaml --from readings --json
  weft net check examples/lab.yaml --from ssh:admin
  weft net check examples/superpod-h100.yaml --fabric ibnetdiscover.txt
  weft net check --config /etc/slurm/gres.conf,/etc/network/interfaces`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
		RunE:              s.run,
	}
	s.f.register(cmd)
	cmd.Flags().StringVar(&s.from, "from", "", "readings: `DIR` with a folder a device, ssh or ssh:USER, or lab:NAME")
	cmd.Flags().StringVar(&s.rsh, "rsh", "", "`COMMAND` in place of ssh; the device's name and a shell follow it")
	cmd.Flags().DurationVar(&s.settle, "settle", 0, "where something differs, read again for up to this `TIME`, until two readings agree")
	cmd.Flags().StringSliceVar(&s.configs, "config", nil, "`FILE` to look for mistakes in: gres.conf, interfaces, netplan, nccl.conf")
	cmd.Flags().StringSliceVar(&s.fabric, "fabric", nil, "`FILE` with what ibnetdiscover or iblinkinfo printed")
	cmd.Flags().BoolVar(&s.asJSON, "json", false, "print as JSON")
	cmd.Flags().BoolVar(&s.unread, "allow-unknown", false, "do not fail for what could not be read")
	return cmd
}

func (s *netCheck) run(cmd *cobra.Command, args []string) error {
	if len(s.configs) > 0 {
		return s.files(cmd, args)
	}
	if len(args) == 0 {
		return fmt.Errorf("a cluster file is missing; --config alone needs none")
	}
	p, err := s.f.load(cmd, args[0])
	if err != nil {
		return err
	}
	if len(s.fabric) > 0 && s.from == "" {
		found, err := fabricDrift(p.Graph, s.fabric)
		if err != nil {
			return err
		}
		return tellDrift(cmd, args[0], p.Name+" fabric", found, s.asJSON, s.unread)
	}
	if strings.HasPrefix(s.from, "lab:") {
		p = p.Rendered("frr") // as the lab is
	}
	found, devices, err := s.compare(cmd, p)
	if err != nil {
		return err
	}
	return tellDrift(cmd, args[0], fmt.Sprintf("%s: %s read", p.Name, count(devices, "device")), found, s.asJSON, s.unread)
}

// files looks for mistakes in configuration files, each by itself.
func (s *netCheck) files(cmd *cobra.Command, args []string) error {
	if len(args) > 0 || s.from != "" || len(s.fabric) > 0 {
		return fmt.Errorf("--config reads files by themselves; leave CLUSTER, --from and --fabric out")
	}
	var found []check.Finding
	for _, name := range s.configs {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		list, err := check.Config(name, "", data)
		if err != nil {
			return err
		}
		found = append(found, list...)
	}
	return tellDrift(cmd, "", strings.Join(s.configs, ", ")+": read", found, s.asJSON, s.unread)
}

// read reads the devices from wherever --from says.
func (s *netCheck) read(cmd *cobra.Command, p *network.Plan) (check.Readings, error) {
	if name, ok := strings.CutPrefix(s.from, "lab:"); ok {
		return readLab(name)
	}
	if user, ok := sshFrom(s.from); ok {
		return readSSH(cmd, p, user, strings.Fields(s.rsh))
	}
	if s.settle > 0 {
		return nil, fmt.Errorf("--settle %v reads again, and what lies in a folder does not change: it is for --from ssh and lab:NAME", s.settle)
	}
	if s.from != "" {
		return readFolder(s.from)
	}
	return nil, fmt.Errorf("--from is missing: a folder with readings, ssh, or lab:NAME; or --fabric with the output of ibnetdiscover")
}

// compare reads the devices and compares them with the plan. While something differs it reads again, until --settle is
// over or two readings agree: routes and neighbours take a while after a change.
func (s *netCheck) compare(cmd *cobra.Command, p *network.Plan) (found []check.Finding, devices int, err error) {
	r, err := s.read(cmd, p)
	if err != nil {
		return nil, 0, err
	}
	found = check.Compare(p, r)
	for end := time.Now().Add(s.settle); len(found) > 0 && time.Now().Before(end); {
		select {
		case <-cmd.Context().Done():
			return nil, 0, cmd.Context().Err()
		case <-time.After(settled):
		}
		before := found
		if r, err = s.read(cmd, p); err != nil {
			return nil, 0, err
		}
		if found = check.Compare(p, r); reflect.DeepEqual(before, found) {
			break
		}
	}
	if len(s.fabric) == 0 {
		return found, len(r), nil
	}
	more, err := fabricDrift(p.Graph, s.fabric)
	return append(found, more...), len(r), err
}

// tellDrift prints what differs; it is a finding if anything does.
func tellDrift(cmd *cobra.Command, file, head string, found []check.Finding, asJSON, unread bool) error {
	bad := 0
	for _, x := range found {
		if x.State != check.Unknown || !unread {
			bad++
		}
	}
	if asJSON {
		if found == nil {
			found = []check.Finding{}
		}
		if err := printJSON(cmd.OutOrStdout(), found); err != nil {
			return err
		}
	} else {
		printDrift(cmd, file, head, found)
	}
	if bad > 0 {
		return finding{fmt.Errorf("%s not as planned", count(bad, "thing"))}
	}
	return nil
}

func printDrift(cmd *cobra.Command, file, head string, found []check.Finding) {
	w := cmd.OutOrStdout()
	if len(found) == 0 {
		fmt.Fprintf(w, "%s, all as planned\n", head)
		return
	}
	for _, x := range found {
		printDifference(w, file, x)
	}
}

// printDifference prints what differs on a device, and which line of the cluster's file wants it otherwise.
func printDifference(w io.Writer, file string, x check.Finding) {
	device := x.Device
	if x.Line > 0 && x.Intent == "" { // of the file itself
		device = fmt.Sprintf("%s:%d", x.Device, x.Line)
	}
	fmt.Fprintf(w, "%-8s%s %s: %s\n", x.State, device, x.Part, x.What)
	if x.Want != "" {
		fmt.Fprintf(w, "        want  %s\n", x.Want)
	}
	if x.Got != "" {
		fmt.Fprintf(w, "        got   %s\n", x.Got)
	}
	if x.Command != "" {
		fmt.Fprintf(w, "        by    %s\n", x.Command)
	}
	if x.Intent != "" {
		at := "the default of " + x.Intent
		if x.Line > 0 {
			at = fmt.Sprintf("%s:%d %s", file, x.Line, x.Intent)
		}
		fmt.Fprintf(w, "        plan  %s\n", at)
	}
	fmt.Fprintf(w, "        fix   %s\n", x.Fix)
	for _, c := range x.Consequences {
		fmt.Fprintf(w, "        so    %s\n", c)
	}
}
