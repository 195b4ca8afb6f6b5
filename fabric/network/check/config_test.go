package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Files in the form in which guides show them, with and without their mistakes.
const (
	guideGres = `# GPUs of a node
AutoDetect=nvml

NodeName=gpu1

Name=gpu Type=a100 File=/dev/nvidia0 Cores=0-31 \
    Links=1,2,3
Name=gpu Type=a100 File=/dev/nvidia1 Cores=0-31 \
    Links=0,2,3
Name=gpu Type=a100 File=/dev/nvidia2 Cores=32-63 Links=0,1,3
Name=gpu Type=a100 File=/dev/nvidia3 Cores=32-63 Links=0,1,2
`
	rightGres = `AutoDetect=off
NodeName=gpu1 Name=gpu Type=a100 File=/dev/nvidia0 Cores=0-31 Links=-1,4,4,4
NodeName=gpu1 Name=gpu Type=a100 File=/dev/nvidia1 Cores=0-31 Links=4,-1,4,4
NodeName=gpu1 Name=gpu Type=a100 File=/dev/nvidia2 Cores=32-63 Links=4,4,-1,4
NodeName=gpu1 Name=gpu Type=a100 File=/dev/nvidia3 Cores=32-63 Links=4,4,4,-1
`
	guideInterfaces = `auto eth0
iface eth0 inet static
    address 10.0.1.10
    netmask 255.255.0.0
    gateway 10.0.0.1

# the back end
auto eth1
iface eth1 inet static
    address 192.168.1.10
    netmask 255.255.0.0
    mtu 9000
    post-up ip route add 192.168.0.0/16 dev eth1 table 100
    post-up ip rule add from 192.168.1.10 table 100

auto eth2
iface eth2 inet static
    address 192.168.2.10
    netmask 255.255.0.0
    mtu 9000

auto ib0
iface ib0 inet static
    address 172.20.1.10/16
    mtu 9000

auto bond0
iface bond0 inet static
    address 10.1.1.10/16
    bond-slaves eth3 eth4
    bond-mode active-backup
`
	rightInterfaces = `iface eth1 inet static
    address 192.168.1.10
    netmask 255.255.0.0
    post-up sysctl -w net.ipv4.conf.eth1.arp_ignore=1 net.ipv4.conf.eth1.arp_announce=2
    post-up ip rule add from 192.168.1.10 table 100
iface eth2 inet static
    address 192.168.2.10
    netmask 255.255.0.0
    post-up sysctl -w net.ipv4.conf.eth2.arp_ignore=1 net.ipv4.conf.eth2.arp_announce=2
    post-up ip rule add from 192.168.2.10 table 101
iface ib0 inet static
    address 172.20.1.10/16
    mtu 4092
iface bond0 inet static
    bond-mode 802.3ad
`
	guideNetplan = `network:
  version: 2
  ethernets:
    rail0: {addresses: [192.168.1.10/16], mtu: 9000, routing-policy: [{from: 192.168.1.10/32, table: 101, priority: 1010}]}
    rail1: {addresses: [192.168.1.11/16], mtu: 9000}
    ibs1: {addresses: [172.20.0.5/16], mtu: 9000}
  bonds:
    stor: {interfaces: [s0, s1], addresses: [10.1.1.10/16], parameters: {mode: active-backup}}
`
)

func TestConfigFilesOfGuides(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // kinds and parts, in order
	}{
		{"gres", guideGres, []string{"2 auto-detect AutoDetect", "4 stanza NodeName", "6 links /dev/nvidia0", "8 links /dev/nvidia1",
			"10 links /dev/nvidia2", "11 links /dev/nvidia3"}},
		{"gres, right", rightGres, nil},
		{"gres, several files with links", "Name=gpu File=/dev/nvidia[0-3] Links=-1,4,4,4\n", []string{"1 links /dev/nvidia0"}},
		{"interfaces", guideInterfaces, []string{"17 flat-subnet eth2", "17 no-rule eth2", "25 ipoib-mtu ib0", "31 standby bond0"}},
		{"interfaces, right", rightInterfaces, nil},
		{"netplan", guideNetplan, []string{"6 ipoib-mtu ibs1", "5 flat-subnet rail1", "5 no-rule rail1", "8 standby stor"}},
		{"nccl.conf", "# from a guide\nNCCL_SOCKET_IFNAME=ib0\nNCCL_NTHREADS=512\nNCCL_DEBUG=INFO\n",
			[]string{"2 variable NCCL_SOCKET_IFNAME", "3 variable NCCL_NTHREADS"}},
		{"job script", "#!/bin/bash\nexport NCCL_IB_HCA=mlx5_1 NCCL_IB_GID_INDEX=3\nsrun train\n",
			[]string{"2 variable NCCL_IB_HCA", "2 variable NCCL_IB_GID_INDEX"}},
		{"nccl.conf, right", "NCCL_SOCKET_IFNAME==front0\nNCCL_IB_HCA==mlx5_0:1\nNCCL_IB_DISABLE=0\nNCCL_IB_TC=106\n", nil},
	} {
		found, err := Config(c.name, "", []byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, f := range found {
			got = append(got, fmt.Sprintf("%d %s %s", f.Line, f.Kind, f.Part))
			if f.Fix == "" || f.What == "" || f.Want == "" {
				t.Errorf("%s: %+v lacks a word", c.name, f)
			}
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(c.want))
		if !slices.Equal(got, want) {
			t.Errorf("%s: found\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	found, _ := Config("gres", "", []byte(guideGres))
	if want := "Links=-1,N,N,N"; found[2].Want != want {
		t.Errorf("%s is proposed, want %s", found[2].Want, want)
	}
	if _, err := Config("x", "", []byte("hello")); err == nil || !strings.Contains(err.Error(), "gres.conf, interfaces, netplan, nccl.conf") {
		t.Errorf("an unknown file: %v", err)
	}
}

func FuzzConfig(f *testing.F) {
	for _, text := range []string{guideGres, rightGres, guideInterfaces, guideNetplan} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, d := range append([]string{""}, ConfigDialects...) {
			_, _ = Config("f", d, data)
		}
	})
}
