package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/run/comm"
)

// linkFlags say how ranks reach one another, as variables that they read.
type linkFlags struct{ transport, require, tls, checksum, outage string }

var (
	transports = []string{"shm", "tcp", "mixed", "ucx"}
	checksums  = []string{"hosts", "all", "none"}
)

// bind adds the flags to a verb that starts ranks.
func (f *linkFlags) bind(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.tls, "tls", "",
		"encrypt traffic between ranks; certificates are derived from the token, or read from `DIR`: ca.pem, cert.pem, key.pem")
	fl.Lookup("tls").NoOptDefVal = "token"
	fl.StringVar(&f.outage, "outage", "", "`TIME` to wait for a rank of another host that no link reaches, or none (default 30s)")
	fl.StringVar(&f.checksum, "checksum", "", "`WHICH` tcp messages have a checksum: hosts (between hosts), all or none (default hosts)")
	_ = cmd.RegisterFlagCompletionFunc("checksum", cobra.FixedCompletions(checksums, cobra.ShellCompDirectiveNoFileComp))
}

// bindTransport adds --transport.
func (f *linkFlags) bindTransport(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.transport, "transport", "",
		"`NAME` of what ranks use: shm, tcp, mixed (shared memory inside hosts, tcp between), ucx or ucx:TRANSPORT,... (by that library); default: the fastest of shm, tcp and mixed")
	_ = cmd.RegisterFlagCompletionFunc("transport", cobra.FixedCompletions(transports, cobra.ShellCompDirectiveNoFileComp))
}

// bindRequire adds --require.
func (f *linkFlags) bindRequire(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.require, "require", "", "`TRANSPORT` that must be what ranks use; another one is an error")
	_ = cmd.RegisterFlagCompletionFunc("require", cobra.FixedCompletions(transports, cobra.ShellCompDirectiveNoFileComp))
}

// apart refuses a folder that stands behind --tls instead of in it: it would be taken for an operation or for the command.
func (f *linkFlags) apart(args []string) error {
	if f.tls != "token" || len(args) == 0 {
		return nil
	}
	if st, err := os.Stat(args[0]); err == nil && st.IsDir() || len(args) > 1 && args[1] == "--" || strings.HasPrefix(args[0], "/") &&
		err != nil {
		return fmt.Errorf("%s stands behind --tls and is not taken for its folder; want --tls=%s, or --tls alone for certificates from the token",
			args[0], args[0])
	}
	return nil
}

// env are the variables that the flags come to.
func (f *linkFlags) env() (list []string, err error) {
	for _, x := range []struct{ flag, variable, name string }{{"transport", "WEFT_TRANSPORT", f.transport},
		{"require", "WEFT_REQUIRE", f.require}} {
		if x.name == "" {
			continue
		}
		if err := checkTransport(x.flag, x.name); err != nil {
			return nil, err
		}
		list = append(list, x.variable+"="+x.name)
	}
	if f.tls != "" {
		list = append(list, "WEFT_TLS="+f.tls)
	}
	if f.checksum != "" {
		if !slices.Contains(checksums, f.checksum) {
			return nil, fmt.Errorf("--checksum %q; known: %s", f.checksum, strings.Join(checksums, ", "))
		}
		list = append(list, "WEFT_CHECKSUM="+f.checksum)
	}
	if f.outage != "" {
		if !outageTime(f.outage) {
			return nil, fmt.Errorf("--outage %q; want a time such as 30s, or none", f.outage)
		}
		list = append(list, "WEFT_OUTAGE="+f.outage)
	}
	return list, nil
}

// checkTransport refuses what is no transport between processes.
func checkTransport(flag, name string) error {
	if err := comm.CheckNamed(name); err != nil {
		return fmt.Errorf("--%s %s: %w", flag, name, err)
	}
	if err := comm.CheckTransport(name); err != nil || name == "mem" {
		return fmt.Errorf("--%s: unknown transport %q; known: %s", flag, name, strings.Join(transports, ", "))
	}
	return nil
}

func outageTime(text string) bool {
	d, err := time.ParseDuration(text)
	return text == "none" || err == nil && d > 0
}
