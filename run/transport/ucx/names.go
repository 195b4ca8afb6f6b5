package ucx

import (
	"fmt"
	"slices"
	"strings"
)

// known are UCX's names of transports that a machine may have, and of sets of them.
var known = strings.Fields(`self tcp sysv posix cma knem xpmem rc_verbs rc_mlx5 ud_verbs ud_mlx5 dc_mlx5 gga_mlx5 srd cuda_copy cuda_ipc gdr_copy
	rocm_copy rocm_ipc ze_copy ze_ipc ugni_rdma ugni_smsg ugni_udt`)

var sets = strings.Fields("all mm sm shm ib rc rc_v rc_x ud ud_v ud_x dc dc_x cuda rocm ze ugni")

// plain is a name without the marks that UCX_TLS knows: ^ for all but these, \ for the name as it stands, :aux for how to connect.
func plain(name string) string {
	name, _, _ = strings.Cut(strings.TrimLeft(name, `^\`), ":")
	return name
}

// Check refuses names that are no transports of UCX, neither here nor on any machine that has other hardware.
func Check(list []string) error {
	here, failed := Available()
	for _, name := range list {
		if n := plain(name); slices.Contains(known, n) || slices.Contains(sets, n) || slices.Contains(here, n) {
			continue
		}
		has := "here it has " + strings.Join(here, ", ")
		if failed != nil {
			has = failed.Error()
		}
		return fmt.Errorf("UCX has no transport %q; %s; on other machines also %s; %s stand for several",
			name, has, strings.Join(others(here), ", "), strings.Join(sets, ", "))
	}
	return nil
}

// others are the transports that are not here.
func others(here []string) []string {
	return slices.DeleteFunc(slices.Clone(known), func(n string) bool { return slices.Contains(here, n) })
}

// missing is the error of a transport that is demanded and not there.
func missing(list, here []string) error {
	for _, name := range list {
		if n := plain(name); n == name && !slices.Contains(sets, n) && !slices.Contains(here, n) {
			return fmt.Errorf("ucx: there is no transport %q on this machine; UCX has %s here", name, strings.Join(here, ", "))
		}
	}
	return nil
}

// parseResources reads the transports out of what ucp_context_print_info prints:
//
//	#      resource 1  :  md 1  dev 1  flags -- tcp/lo
func parseResources(text string) (list []string) {
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "resource") {
			continue
		}
		f := strings.Fields(line)
		if name, _, ok := strings.Cut(f[len(f)-1], "/"); ok && name != "" && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}
