package doctor_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// symptom is a signal with its healthy neighbour: the same with the one thing that
// matters taken away.
type symptom struct {
	n       string // number in the list of symptoms
	id      string // the finding, "" for signals that must stay silent
	sick    map[string]string
	healthy map[string]string
	subject string // must be in the subject
	cause   string // must be in the cause
}

func file(text string) map[string]string { return map[string]string{"job.log": text} }

func with(j ncclJob, more ...string) map[string]string {
	f := file(j.text())
	for i := 0; i+1 < len(more); i += 2 {
		f[more[i]] = more[i+1]
	}
	return f
}

func wc(status int, peer, rest string) string {
	return fmt.Sprintf("WARN: transport/net_ib.cc:1295@ NET/IB: Got completion from peer %s<44321> with status=%d opcode=32698 len=0 vendor err %s",
		peer, status, rest)
}

const (
	ibActive = "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n\t\tBase lid: 3\n\t\tSM lid: 1\n\t\tLink layer: InfiniBand\n"
	topoNV   = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\tPIX\t0-31\t0\nGPU1\tNV18\t X \tPIX\t0-31\t0\nNIC0\tPIX\tPIX\t X \t\t\n\nLegend:\n\n  NIC0: mlx5_0\n"
	smiSpin  = `<?xml version="1.0" ?><nvidia_smi_log><gpu id="00000000:1B:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name><fb_memory_usage><total>81559 MiB</total><used>30000 MiB</used></fb_memory_usage><utilization><gpu_util>100 %</gpu_util></utilization><gpu_power_readings><power_draw>140.00 W</power_draw><current_power_limit>700.00 W</current_power_limit></gpu_power_readings></gpu></nvidia_smi_log>`
	smiFull  = `<?xml version="1.0" ?><nvidia_smi_log><gpu id="00000000:1B:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name><fb_memory_usage><total>81559 MiB</total><used>79000 MiB</used></fb_memory_usage><utilization><gpu_util>10 %</gpu_util></utilization></gpu></nvidia_smi_log>`
	smiCalm  = `<?xml version="1.0" ?><nvidia_smi_log><gpu id="00000000:1B:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name><fb_memory_usage><total>81559 MiB</total><used>30000 MiB</used></fb_memory_usage><utilization><gpu_util>100 %</gpu_util></utilization><gpu_power_readings><power_draw>640.00 W</power_draw><current_power_limit>700.00 W</current_power_limit></gpu_power_readings></gpu></nvidia_smi_log>`
	geForce  = `<?xml version="1.0" ?><nvidia_smi_log><gpu id="00000000:1B:00.0"><product_name>NVIDIA GeForce RTX 4090</product_name></gpu></nvidia_smi_log>`
	acsOn    = "17:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)\n\tCapabilities: [148 v1] Access Control Services\n\t\tACSCap:\tSrcValid+ TransBlk+\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n1b:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)\n\tCapabilities: [60] Express (v2) Endpoint, MSI 00\n"
)

var acsOff = strings.ReplaceAll(acsOn, "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+",
	"SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd-")

func symptoms() []symptom {
	ok := with(ncclJob{})
	timed := ncclJob{times: true}
	fail := func(msg string) map[string]string { return with(ncclJob{more: one(1, "WARN: "+msg)}) }
	socket := func(j ncclJob) ncclJob { j.net = "Socket"; return j }
	env := func(kv ...string) map[string]string { return with(ncclJob{env: all(kv...)}) }
	kernel := func(msg string) map[string]string {
		return map[string]string{"dmesg.n0.txt": "[  812.300000] " + msg + "\n"}
	}
	quiet := map[string]string{"dmesg.n0.txt": "[    1.000000] Linux version 6.8.0\n[  100.0] mlx5_core 0000:17:00.0 ens1np0: Link up\n"}
	twoJobsSerial := func() string {
		a := ncclJob{hosts: 1, net: "Socket"}.text()
		return a + strings.NewReplacer(":400", ":700", "0x5ca1ab1e", "0xbeef0001").Replace(a)
	}()
	mixed := func() string { // two processes, each with a job of its own, at the same time
		var b strings.Builder
		for _, l := range []string{
			"n0:11:12 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xaa - Init START",
			"n1:21:22 [0] NCCL INFO comm 0x2 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xbb - Init START",
			"n0:11:12 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xaa - Init COMPLETE",
			"n1:21:22 [0] NCCL INFO comm 0x2 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xbb - Init COMPLETE"} {
			b.WriteString(l + "\n")
		}
		return b.String()
	}()
	starts := func(n, gap int) string {
		var b strings.Builder
		for i := range n {
			sec := i * gap
			for _, w := range []string{"START", "COMPLETE"} {
				fmt.Fprintf(&b,
					"[2025-03-01 %02d:%02d:%02d] n0:11:12 [0] NCCL INFO comm 0x%x rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x%x - Init %s\n",
					8+sec/3600, sec/60%60, sec%60, 0x100+i, 0x9000+i, w)
			}
		}
		return b.String()
	}
	inspector := func(keep func(seq int) bool) string {
		var b strings.Builder
		for seq := range 200 {
			for r := range 4 {
				if keep(seq) {
					fmt.Fprintf(&b,
						`{"header":{"id":"0xab","rank":%d,"n_ranks":4,"nnodes":1},"metadata":{"hostname":"n0","pid":%d},"coll_perf":{"coll":"AllReduce","coll_sn":%d,"coll_msg_size_bytes":1048576,"coll_exec_time_us":100,"coll_busbw_gbs":200}}`+
							"\n", r, 40+r, seq)
				}
			}
		}
		return b.String()
	}
	watchdog := func(seqs ...int) string {
		var b strings.Builder
		for r, s := range seqs {
			fmt.Fprintf(&b,
				"[rank%d]:[E1016 12:00:00.123 ProcessGroupNCCL.cpp:616] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600054 milliseconds before timing out.\n",
				r, r, s)
		}
		return b.String()
	}
	nvls := func(code int) string {
		return fmt.Sprintf("WARN: Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error %d 'x'. Usually caused by a system configuration",
			code)
	}
	return []symptom{
		{"1", "ib-pair-unreachable",
			with(ncclJob{times: true, more: one(1, wc(12, "10.0.0.2", "129 (Send) localGid fe80::1 remoteGids fe80::2 hca mlx5_1"))}), with(timed),
			"n0 - n1", ""},
		{"2", "link-flap", with(ncclJob{times: true, more: func(h, r int) []string {
			switch r {
			case 1:
				return []string{wc(12, "10.0.0.2", "129")}
			case 2:
				return []string{"WARN: NET/IB : mlx5_1:1 Got async event : port error"}
			}
			return nil
		}, moreAt: 900}), with(timed), "n1:mlx5_1", ""},
		{"3", "peer-died", with(ncclJob{hosts: 4, more: func(h, r int) []string {
			if h != 2 {
				return []string{wc(12, "10.0.0.3", "129")}
			}
			return nil
		}}), with(ncclJob{hosts: 4}), "n2", ""},
		{"4", "lossy-path", with(ncclJob{times: true, moreAt: 4000, more: one(1, wc(12, "10.0.0.2", "129"))}), with(timed), "n0 - n1", ""},
		{"5", "gpudirect-acs", with(ncclJob{more: one(1, wc(4, "10.0.0.2", "81"))}), ok, "n0", ""},
		{"6", "", with(ncclJob{more: one(1, wc(5, "10.0.0.2", "249"))}), ok, "", ""},
		{"7", "remote-invalid-request",
			with(ncclJob{more: one(1, wc(9, "10.0.0.2", "138"),
				"WARN: NET/IB : mlx5_0:1 Got async event : local access violation work queue error")}),
			ok, "n0", ""},
		{"8", "remote-access-error", with(ncclJob{more: one(1, wc(10, "10.0.0.2", "136"))}), ok, "n0", ""},
		{"9", "receiver-not-ready", with(ncclJob{more: one(1, wc(13, "10.0.0.2", "135"))}), ok, "n0", ""},
		{"10", "nic-firmware", with(ncclJob{more: one(1, "WARN: NET/IB : mlx5_0:1 async fatal event: local catastrophic error")}), ok,
			"n0:mlx5_0", ""},
		{"12", "qp-timeout",
			fail("Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_1:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.1.0.1, remote GID ::ffff:10.2.0.1"),
			ok, "n0:mlx5_1", ""},
		{"13", "gid-unreachable", fail("Call to ibv_modify_qp failed with error Network is unreachable"), ok, "n0", ""},
		{"14", "gid-index-wrong", fail("Call to ibv_modify_qp failed with error Invalid argument"), ok, "n0", ""},
		{"15", "gid-no-netdev", fail("Call to ibv_modify_qp failed with 19 No such device, on dev mlx5_0:1, curr state INIT, next state RTR"), ok,
			"n0", ""},
		{"16", "gid-index-set", env("NCCL_IB_GID_INDEX=3"), with(ncclJob{version: "2.18.3", env: all("NCCL_IB_GID_INDEX=3")}), "n0", ""},
		{"17", "gid-changed", fail("NET/IB : mlx5_0:1 GID table changed"), ok, "n0", ""},
		{"18", "memlock", fail("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"), ok, "n0", ""},
		{"19", "nic-keys-exhausted",
			kernel("mlx5_core 0000:17:00.0: mlx5_cmd_out_err:808:(pid 88): CREATE_MKEY(0x200) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x59c8a4), err(-12)"),
			quiet, "n0:0000:17:00.0", ""},
		{"20", "verbs-memory", fail("Call to ibv_create_cq failed with error Cannot allocate memory"), ok, "n0", ""},
		{"21", "verbs-device-missing", fail("NET/IB : Unable to open device mlx5_3"), ok, "n0:mlx5_3", ""},
		{"22", "nic-count-differs",
			with(ncclJob{version: "2.30.7", early: all("Detected mixed local Net device counts across ranks (min 1, max 2)")}),
			with(ncclJob{version: "2.30.7"}), "n0", ""},
		{"22b", "nic-count-differs", with(ncclJob{hosts: 3, list: func(h int) string {
			if h == 1 {
				return " [0]mlx5_0:1/IB"
			}
			return " [0]mlx5_0:1/IB [1]mlx5_1:1/IB"
		}}), with(ncclJob{hosts: 3}), "n1", ""},
		{"23", "tcp-fallback", with(socket(ncclJob{}), "ibstat.n0.txt", ibActive), with(socket(ncclJob{hosts: 1}), "ibstat.n0.txt", ibActive),
			"n0", ""},
		{"24", "tcp-no-library", with(socket(ncclJob{early: all("Failed to open libibverbs.so[.1]")}), "ibstat.n0.txt", ibActive),
			with(socket(ncclJob{hosts: 1, early: all("Failed to open libibverbs.so[.1]")})), "n0", ""},
		{"25", "tcp-no-device", with(socket(ncclJob{early: all("NET/IB : No device found.")}), "ibstat.n0.txt", ibActive),
			with(socket(ncclJob{early: all("NET/IB : No device found.")})), "n0", ""},
		{"26", "tcp-no-provider", with(socket(ncclJob{early: all("NET/OFI Failed to get providers: No eligible providers were found")})),
			with(ncclJob{}), "n0", ""},
		{"27", "ib-list-empty", with(ncclJob{list: func(int) string { return "" }}), ok, "n0", ""},
		{"28", "network-not-found", fail("Error: network FastNet not found."), ok, "n0", ""},
		{"29", "", ok, ok, "", ""},
		{"30", "plugin-mismatch",
			with(ncclJob{version: "2.21.5", early: all("NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
				"NET/Plugin: Failed to find ncclNetPlugin_v7 symbol.", "NET/Plugin: Failed to find ncclNetPlugin_v6 symbol.",
				"NET/Plugin: Failed to find ncclNetPlugin_v5 symbol.")}),
			with(ncclJob{version: "2.21.5", early: all("NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
				"NET/Plugin: Failed to find ncclNetPlugin_v7 symbol.", "NET/Plugin: Failed to find ncclNetPlugin_v6 symbol.",
				"NET/Plugin: Loaded net plugin AWS Libfabric (v5)")}), "n0", ""},
		{"31", "plugin-old-no-pxn", with(ncclJob{early: all("PXN Disabled as plugin is v4")}), ok, "n0", ""},
		{"32", "networks-differ", with(ncclJob{network: func(h, _ int) string { return []string{"IB", "Socket"}[h] }}), ok, "", "IB, Socket"},
		{"33", "ib-roce-mixed", with(ncclJob{list: func(int) string { return " [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE" }}),
			with(ncclJob{list: func(int) string { return " [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE" }}), "n0", ""},
		{"34", "bootstrap-virtual-interface",
			with(ncclJob{noDone: true, noVia: true, ifName: func(h int) string { return []string{"eth0", "docker0"}[h] },
				address: func(h int) string { return []string{"10.0.0.1", "172.17.0.1"}[h] }}), ok, "n1:docker0", ""},
		{"35", "bootstrap-subnets-differ",
			with(ncclJob{hosts: 3, noDone: true, noVia: true, ifName: func(h int) string { return []string{"eth0", "eth0", "ens9"}[h] },
				address: func(h int) string { return []string{"10.0.0.1", "10.0.0.2", "192.168.7.3"}[h] }}), with(ncclJob{hosts: 3}), "n2:ens9", ""},
		{"36", "bootstrap-link-local", with(ncclJob{address: func(h int) string { return fmt.Sprintf("fe80::%d%%eth0", h+1) }}), ok, "n0", ""},
		{"37", "no-interface", fail("Bootstrap : no socket interface found"), ok, "n0", ""},
		{"37a", "comm-id-subnet",
			with(ncclJob{env: all("NCCL_COMM_ID=192.168.0.91:27030"),
				more: one(1, "WARN: Net : No interface found in the same subnet as remote address 192.168.0.91<27030>",
					"WARN: NET/Socket : No usable listening interface found")}), ok, "n0", "NCCL_SOCKET_IFNAME is not asked"},
		{"37b", "no-interface", fail("no device found matching eth9, verify NCCL_OOB_NET_IFNAME"), ok, "n0", ""},
		{"38", "connect-refused",
			with(ncclJob{noDone: true, noVia: true, early: one(1,
				"WARN: socketStartConnect: Connect to 10.0.0.1<41001> failed : Connection refused")}),
			ok, "n0", ""},
		{"39", "connect-abort",
			with(ncclJob{version: "2.20.5", more: one(1,
				"WARN: socketStartConnect: Connect to 10.0.0.2<41001> failed : Software caused connection abort")}),
			with(ncclJob{version: "2.20.5"}), "n0 - n1", ""},
		{"40", "foreign-client",
			with(ncclJob{noDone: true,
				early: one(1, "WARN: socketFinalizeAccept from 10.9.9.9<5555>: wrong magic 0x74656d2f20544547 != 0x1234567890abcdef")}),
			ok, "n0", "GET /met"},
		{"41", "stale-process", with(ncclJob{more: one(1, "WARN: socketFinalizeAccept: wrong type 3 != 4")}), ok, "n0", ""},
		{"42", "ports-exhausted", fail("Call to bind failed : Address already in use"), ok, "n0", ""},
		{"43", "leftovers", with(ncclJob{times: true, hosts: 1}, "b.log",
			"[2025-03-01 10:01:00] n0:9000:9001 [0] NCCL INFO comm 0x9 rank 0 nRanks 2 cudaDev 0 busId 1b000 - Destroy COMPLETE\n\n[2025-03-01 10:01:20] n0:9100:9101 [0] misc/socket.cc:1 NCCL WARN Call to bind failed : Address already in use\n"),
			with(ncclJob{times: true, hosts: 1}), "n0", ""},
		{"44", "open-files", fail("Call to socket failed : Too many open files"), ok, "n0", ""},
		{"45", "rank-twice", fail("Bootstrap Root : rank 3 of 4 ranks has already checked in"), ok, "3", ""},
		{"46", "world-size-differs", fail("Bootstrap Root : mismatch in rank count from procs 4 : 8"), ok, "n0", ""},
		{"47", "peer-closed", fail("socketProgress: Connection closed by remote peer n1.lab<41001>"), ok, "n1", ""},
		{"48", "shm-full", fail("Error: failed to extend /dev/shm/nccl-AbC123 to 9637892 bytes, error: No space left on device (28)"), ok,
			"n0", ""},
		{"49", "shm-register",
			with(ncclJob{more: one(1, "WARN: Error while creating shared memory segment /dev/shm/nccl-AbC123 (size 4194304)",
				"WARN: transport/shm.cc:1@ Cuda failure 1 'invalid argument'")}), ok, "n0", ""},
		{"50", "cumem-no-p2p", fail("transport/shm.cc:590@ Cuda failure 217 'peer access is not supported between these two devices'"), ok,
			"n0", ""},
		{"51", "p2p-forced", fail("transport/p2p.cc:44@ Cuda failure 'peer access is not supported between these two devices'"), ok, "n0", ""},
		{"52", "", with(ncclJob{hosts: 1, intra: "SHM/direct/direct", early: all("Could not enable P2P between dev 0(=1b000) and dev 1(=1c000)")},
			"smi.n0.xml", geForce), ok, "", ""},
		{"53", "nvlink-unused", with(ncclJob{hosts: 1, intra: "SHM/direct/direct"}, "topo.n0.txt", topoNV),
			with(ncclJob{hosts: 1}, "topo.n0.txt", topoNV), "n0", ""},
		{"54", "nvlink-p2p-broken",
			fail("P2P is disabled between NVLINK connected GPUs 0 and 1. This should not be the case given their connectivity, and is probably due to a hardware issue."),
			ok, "n0", ""},
		{"55", "p2p-writes-lost", with(ncclJob{}, "smi.n0.xml", smiSpin, "lspci.n0.txt", acsOn),
			with(ncclJob{}, "smi.n0.xml", smiCalm, "lspci.n0.txt", acsOff), "n0", ""},
		{"56", "nvls-fabric", with(ncclJob{more: one(1, nvls(401))}), ok, "n0", ""},
		{"57", "nvls-invalid", fail("transport/nvls.cc:254@ Cuda failure 1 'invalid argument'"), ok, "n0", ""},
		{"58", "fabric-manager-down", fail("init.cc:1@ Cuda failure 802 'system not yet initialized'"), ok, "n0", ""},
		{"59", "imex-missing", fail("transport/p2p.cc:290@ Cuda failure 800 'operation not permitted'"), ok, "n0", ""},
		{"60", "nvlink-fabric-degraded", with(ncclJob{early: func(h, r int) []string {
			return []string{fmt.Sprintf("MNNVL busId 0x1b000 fabric UUID 7f.1 cliqueId 0x1 state 3 healthMask 0x%d", []int{5, 5, 5, 9}[r])}
		}}), with(ncclJob{early: all("MNNVL busId 0x1b000 fabric UUID 7f.1 cliqueId 0x1 state 3 healthMask 0x5")}), "n1", ""},
		{"61", "gpu-shared", fail("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"), ok, "0-1", ""},
		{"62", "gpu-memory-full", fail("Failed to CUDA calloc async 6291456 bytes"), ok, "n0", ""},
		{"63", "gdr-off", with(ncclJob{gdr: func(h, _ int) bool { return h == 0 }}), ok, "n1", ""},
		{"63b", "gdr-off", with(ncclJob{gdr: func(int, int) bool { return false }}, "topo.n0.txt", topoNV),
			with(ncclJob{}, "topo.n0.txt", topoNV), "n0", ""},
		{"64", "gdr-one-side", with(ncclJob{gpus: 4, hosts: 3, gdr: func(h, r int) bool { return !(h == 1 && r == 4) }}),
			with(ncclJob{gpus: 4, hosts: 3}), "n1", ""},
		{"65", "rails-unused", with(ncclJob{hosts: 3, nic: func(h, r int, _ bool) int {
			return 0
		}}), with(ncclJob{hosts: 3}), "n0:mlx5_1", ""},
		{"66", "cross-rail", with(ncclJob{nic: func(h, _ int, _ bool) int { return h }}), ok, "n0:mlx5_0 - n1:mlx5_1", ""},
		{"67", "hca-name-wrong", with(ncclJob{env: all("NCCL_IB_HCA=mlx5_0,mlx5_7")}), with(ncclJob{env: all("NCCL_IB_HCA=mlx5_0,mlx5_1")}),
			"n0:mlx5_7", ""},
		{"68", "channels-differ", with(ncclJob{channels: func(_, r int) string {
			if r == 3 {
				return "1 coll channels, 1 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer"
			}
			return "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer"
		}}), ok, "3", ""},
		{"69", "env-differs",
			with(ncclJob{env: func(h, _ int) []string { return []string{fmt.Sprintf("NCCL_ALGO=%s", []string{"Ring", "Tree"}[h])} }}),
			env("NCCL_ALGO=Ring"), "", "NCCL_ALGO"},
		{"69b", "env-differs", // most ranks have it empty
			with(ncclJob{hosts: 3, env: func(h, _ int) []string { return []string{"NCCL_ALGO=" + []string{"", "", "Tree"}[h]} }}),
			env("NCCL_ALGO=Ring"), "n2", `"Tree" on some ranks and "" on others`},
		{"70", "collective-mismatch", fail("NET/IB : req 0/2 tag 3 peer 10.0.0.2<4> collective mismatch error, local size 4096 remote size 8192"),
			ok, "n0", ""},
		{"71", "init-order", fail("Message truncated : received 256 bytes instead of 4"), ok, "n0", ""},
		{"72", "versions-differ", with(ncclJob{versionOf: func(h, _ int) string { return []string{"2.27.3", "2.26.2"}[h] }}), ok, "",
			"2.26.2, 2.27.3"},
		{"72b", "versions-differ", fail("Mismatched NCCL version detected : rank 0 version 22703 rank 1 version 22602"), ok, "0-1", ""},
		{"73", "library-twice", with(ncclJob{version: "2.27.3"}, "pip.txt", "torch==2.8.0\nnvidia-nccl-cu12==2.21.5\n"),
			with(ncclJob{version: "2.27.3"}, "pip.txt", "torch==2.8.0\nnvidia-nccl-cu12==2.27.3\n"), "", "2.21.5"},
		{"74", "affinity-empty",
			with(ncclJob{version: "2.28.9", early: one(1,
				"ncclTopoGetCpuAffinity: Affinity for GPU 1 is empty, ignoring. (GPU affinity = 0-31 ; CPU affinity = 64-127).")}),
			with(ncclJob{version: "2.28.9"}), "n0", ""},
		{"75", "affinity-one-core", strings2(ncclJob{}, "Setting affinity for GPU %d to ffff,ffffffff", "Setting affinity for GPU %d to 1"), ok,
			"n0", ""},
		{"76", "host-identity-split", with(ncclJob{shape: func(int, int) string { return "nNodes 4 localRanks 1" }}), ok, "n0", ""},
		{"77", "cumem-host-blocked",
			with(ncclJob{early: all("cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based implementation.")}), ok,
			"n0", ""},
		{"78", "stack-unlimited",
			with(ncclJob{version: "2.28.9", early: all("Stack size limit (unlimited) is unsafe; will use 8192 KB for new threads")}),
			with(ncclJob{version: "2.28.9"}), "n0", ""},
		{"79", "init-slow-bootstrap",
			with(ncclJob{early: nil,
				more: all("Init timings - ncclCommInitRank: rank 0 nranks 4 total 95.10 (kernels 0.20, alloc 0.10, bootstrap 90.00, allgathers 0.01, topo 0.05, graphs 0.00, connections 0.10, rest 0.00)")}),
			with(ncclJob{more: all("Init timings - ncclCommInitRank: rank 0 nranks 4 total 2.10 (kernels 0.20, alloc 0.10, bootstrap 1.00, allgathers 0.01, topo 0.05, graphs 0.00, connections 0.10, rest 0.00)")}),
			"", ""},
		{"80", "init-slow-topology",
			with(ncclJob{more: all("Init timings: rank 0 nranks 4 total 95.10 (kernels 0.20, bootstrap 1.00, allgathers 0.01, topo 80.05, graphs 10.00, connections 0.10, rest 0.00)")}),
			ok, "", ""},
		{"81", "communicators-in-loop", file(starts(60, 30)), file(starts(4, 400)), "n0", ""},
		{"82", "topology-search-failed", with(ncclJob{early: all("Could not find a path for pattern 4, falling back to simple order")}), ok,
			"n0", ""},
		{"83", "debug-word-unknown", file("export NCCL_DEBUG=debug\nexport NCCL_IB_TIMEOUT=22\n"),
			file("export NCCL_DEBUG=INFO\nexport NCCL_IB_TIMEOUT=22\n"), "", ""},
		{"84", "debug-file-shared", file("export NCCL_DEBUG_FILE=/tmp/nccl.log\n"), file("export NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log\n"), "", ""},
		{"85", "variable-unknown", with(ncclJob{env: all("NCCL_LL_THRESHOLD=1")}), env("NCCL_IB_TIMEOUT=22"), "", "NCCL_LL_THRESHOLD"},
		{"85b", "variable-unknown", file("export NCCL_IB_TIMOUT=22\n"), file("export NCCL_IB_TIMEOUT=22\nexport NCCL_FASTRAK_CTRL_DEV=eth0\n"),
			"", "NCCL_IB_TIMEOUT is meant?"},
		{"86", "workaround-left-on", env("NCCL_P2P_DISABLE=1"), env("NCCL_P2P_DISABLE=0"), "n0", ""},
		{"87", "gloo-backend", file("[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"),
			file("[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n" + ncclJob{}.text()), "", ""},
		{"88", "error-not-polled", with(ncclJob{more: one(1, wc(4, "10.0.0.2", "81"))}, "smi.n0.xml", smiSpin),
			with(ncclJob{}, "smi.n0.xml", smiCalm), "n0", ""},
		{"89", "ras-query-crash", with(ncclJob{version: "2.26.2"}, "dmesg.n0.txt",
			"[9.1] pt_main_thread[4001]: segfault at 7f79 ip 00 sp 00 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]\n",
			"ras.txt", "Job summary\n===========\n\nCommunicators... (0.00s)\n"), with(ncclJob{version: "2.26.2"}), "n0", ""},
		{"90", "ras-thread-crash", with(ncclJob{version: "2.27.7"}, "dmesg.n0.txt",
			"[9.1] pt_main_thread[4001]: segfault at 7f79 ip 00 sp 00 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]\n"),
			with(ncclJob{version: "2.27.7"}), "n0", ""},
		{"91", "inspector-dropped", file(inspector(func(s int) bool { return s%2 == 0 })), file(inspector(func(int) bool { return true })),
			"", "%"},
		{"92", "watchdog-same-place", file(watchdog(77, 77, 77)), file("[rank0]: all is well\n"), "0-2", "#77"},
		{"93", "watchdog-desync", file(watchdog(77, 78, 78)), file(watchdog(78, 78, 78)), "", "rank 0"},
		{"94", "gpu-failed", with(ncclJob{hosts: 3, more: func(h, r int) []string {
			if h != 2 {
				return []string{"WARN: socketProgress: Connection closed by remote peer 10.0.0.3<4>"}
			}
			return nil
		}}, "dmesg.n2.txt", "[9000.5] NVRM: Xid (PCI:0000:1b:00): 79, pid=4004, name=python, GPU has fallen off the bus.\n"),
			with(ncclJob{hosts: 3}, "dmesg.n2.txt", "[9000.5] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54\n"), "n2", "Xid 79"},
		{"95", "peermem-context",
			kernel("nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"), quiet, "n0", ""},
		{"96", "nic-power",
			kernel("mlx5_core 0000:5c:00.0: mlx5_pcie_event:301:(pid 268269): Detected insufficient power on the PCIe slot (27W)."), quiet,
			"0000:5c:00.0", ""},
		{"97", "nic-heat", kernel("mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature"), quiet,
			"0000:5c:00.0", ""},
		{"98", "nccl-crash",
			kernel("pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]"),
			quiet, "n0", ""},
		{"99", "bootstrap-loopback",
			with(ncclJob{version: "2.29.7", env: all("NCCL_COMM_ID=10.0.0.1:5000"), ifName: func(int) string { return "lo" },
				address: func(int) string { return "127.0.0.1" }}),
			with(ncclJob{version: "2.29.7", hosts: 1, env: all("NCCL_COMM_ID=10.0.0.1:5000"), ifName: func(int) string { return "lo" },
				address: func(int) string { return "127.0.0.1" }}), "n0", "inverted"},
		{"100", "unique-id-empty", fail("ncclSocketInit: connecting to address <> with family 0 is neither AF_INET(2) nor AF_INET6(10)"), ok,
			"n0", ""},
		{"101", "nvls-leak", with(ncclJob{more: one(1, nvls(2))}), ok, "n0", ""},
		{"102", "lazy-communicator", with(ncclJob{more: one(1, "WARN: Failed to CUDA calloc async 6291456 bytes")}, "smi.n0.xml", smiFull),
			with(ncclJob{}, "smi.n0.xml", smiFull), "n0", ""},
		{"103", "shm-name-garbage", fail("Error while creating shared memory segment /dev/shm/nccl-\x01\x02\x03 (size 0)"), ok, "n0", ""},
		{"104", "verbs-permission", fail("NET/IB : Unable to open device mlx5_3, errno 2 (ENOENT)"), ok, "n0:mlx5_3", ""},
		{"105", "never-joined", file(mixed), file(twoJobsSerial), "n0", ""},
		{"106", "topologies-differ", fail("Error : ring 0 does not loop back to start (3 != 0)"), ok, "n0", ""},
		{"107", "gpu-hidden", fail("nvmlDeviceGetHandleByPciBusId(0000:1b:00.0) failed: Not Found"), ok, "n0", ""},
	}
}

// strings2 replaces a sentence of every rank.
func strings2(j ncclJob, old, new string) map[string]string {
	text := j.text()
	for g := range 8 {
		text = strings.ReplaceAll(text, fmt.Sprintf(old, g), fmt.Sprintf(new, g))
	}
	return file(text)
}

// check holds a symptom against both its files.
func (s symptom) check(t *testing.T) {
	t.Helper()
	r := diagnose(t, s.sick)
	if s.id == "" {
		if got := ids(r, doctor.Warning); len(got) > 0 {
			t.Errorf("found %v, where nothing is to be found", got)
		}
	} else if f := found(r, s.id); f == nil {
		t.Errorf("found %v (%s), not %s", ids(r, doctor.Info), r.Verdict, s.id)
	} else {
		if !strings.Contains(f.Subject.String(), s.subject) {
			t.Errorf("the subject is %q, not %q", f.Subject, s.subject)
		}
		if !strings.Contains(f.Cause, s.cause) {
			t.Errorf("the cause is %q, not %q", f.Cause, s.cause)
		}
		if len(f.Evidence) == 0 {
			t.Error("no evidence")
		}
	}
	if s.id == "" {
		return
	}
	if h := diagnose(t, s.healthy); found(h, s.id) != nil {
		t.Errorf("its healthy neighbour has it, too: %+v", found(h, s.id))
	}
}

// Every symptom fires on its signal and is silent on its healthy neighbour.
func TestSymptoms(t *testing.T) {
	seen := map[string]bool{"11": true} // TestOpcodesMeanNothing
	for _, s := range symptoms() {
		seen[strings.TrimRight(s.n, "b")] = true
		t.Run(s.n+"-"+s.id, func(t *testing.T) {
			s.check(t)
		})
	}
	for i := 1; i <= 107; i++ {
		if !seen[fmt.Sprint(i)] {
			t.Errorf("symptom %d has no test", i)
		}
	}
}

// Symptom 11: opcode and length of a completion error are not filled in. Whatever they are,
// the verdict is the same.
func TestOpcodesMeanNothing(t *testing.T) {
	var first string
	for _, garbage := range []string{"opcode=0 len=0", "opcode=32698 len=32696", "opcode=129 len=65536"} {
		msg := strings.Replace(wc(12, "10.0.0.2", "129 (Send)"), "opcode=32698 len=0", garbage, 1)
		r := diagnose(t, with(ncclJob{more: one(1, msg)}))
		if first == "" {
			first = r.Verdict
		}
		if r.Verdict != first || strings.Contains(r.Verdict, "opcode") {
			t.Errorf("%s: %s", garbage, r.Verdict)
		}
	}
}

// Symptom 6: what was flushed follows from what failed first, and is no finding of its own.
func TestFlushedFollows(t *testing.T) {
	r := diagnose(t, with(ncclJob{more: one(1, wc(12, "10.0.0.2", "129 (Send)"), wc(5, "10.0.0.2", "249 (Send)"))}))
	f := found(r, "ib-pair-unreachable")
	if f == nil || !strings.Contains(strings.Join(f.Consequences, " "), "status 5") || len(ids(r, doctor.Warning)) != 1 {
		t.Errorf("%v %+v", ids(r, doctor.Info), f)
	}
}

// Verdicts over ranks, and their healthy neighbours.
func TestCrossRankVerdicts(t *testing.T) {
	coll := func(r, k, count int) string {
		return fmt.Sprintf("AllReduce: opCount %x sendbuff 0x1 recvbuff 0x2 count %d datatype 7 op 0 root 0 comm 0x55%04x [nranks=6] stream 0x3",
			k, count, r)
	}
	calls := func(n func(r int) int, size func(r, k int) int) func(h, r int) []string {
		return func(_, r int) []string {
			var out []string
			for k := range n(r) {
				out = append(out, coll(r, k, size(r, k)))
			}
			return out
		}
	}
	same := func(int, int) int { return 1024 }
	for _, x := range []struct {
		id       string
		job      ncclJob
		culprits string
		class    string
	}{
		{"desync", ncclJob{hosts: 3, more: calls(func(int) int { return 20 }, func(r, k int) int {
			if r == 4 && k == 17 {
				return 2048
			}
			return 1024
		})}, "[4]", "mismatch"},
		{"desync", ncclJob{hosts: 3, more: calls(func(r int) int {
			if r == 2 {
				return 11
			}
			return 20
		}, same)}, "[2]", "behind"},
		{"never-arrived", ncclJob{hosts: 3, noDone: true, noVia: true, noStart: func(_, r int) bool { return r == 5 }}, "", ""},
		{"stuck-in-bootstrap", ncclJob{hosts: 3, noDone: true, noVia: true}, "", ""},
		{"stuck-in-connect", ncclJob{hosts: 3, noDone: true}, "", ""},
	} {
		r := diagnose(t, file(x.job.text()))
		if found(r, x.id) == nil {
			t.Errorf("%s: found %v", x.id, ids(r, doctor.Info))
			continue
		}
		if x.class != "" && (r.Hang == nil || r.Hang.Class != x.class || fmt.Sprint(r.Hang.Culprits) != x.culprits) {
			t.Errorf("%s: %+v", x.id, r.Hang)
		}
		if x.id == "never-arrived" && found(r, x.id).Subject.String() != "rank 5, host n2" {
			t.Errorf("%s: %s", x.id, found(r, x.id).Subject)
		}
	}
	// All ranks in step, and a log of ranks one after the other that was cut.
	j := ncclJob{hosts: 3, more: calls(func(int) int { return 20 }, same)}
	if r := diagnose(t, file(j.text())); r.Hang != nil || len(ids(r, doctor.Warning)) > 0 {
		t.Errorf("in step: %+v %v", r.Hang, ids(r, doctor.Warning))
	}
	var serial strings.Builder
	for rank := range 6 {
		for l := range strings.Lines(j.text()) {
			if strings.Contains(l, fmt.Sprintf(":%d:", 4000+rank)) {
				serial.WriteString(l)
			}
		}
	}
	lines := strings.SplitAfter(serial.String(), "\n")
	if r := diagnose(t, file(strings.Join(lines[:len(lines)-8], ""))); r.Hang != nil {
		t.Errorf("a cut log is taken for a hang: %+v", r.Hang)
	}
}

// A late rank waits least. The others, who wait for it, must not be blamed.
func TestStragglerIsTheOneThatWaitsLeast(t *testing.T) {
	text := func(late int) string {
		var b strings.Builder
		for seq := range 40 {
			for r := range 8 {
				us := 500 + seq%3*4 + r*2
				if late >= 0 {
					us += 400
				}
				if r == late {
					us -= 400
				}
				fmt.Fprintf(&b,
					`{"header":{"id":"0xab","rank":%d,"n_ranks":8,"nnodes":1},"metadata":{"hostname":"n%d","pid":%d},"coll_perf":{"coll":"AllReduce","coll_sn":%d,"coll_msg_size_bytes":1048576,"coll_exec_time_us":%d,"coll_busbw_gbs":200}}`+
						"\n", r, r/4, 40+r, seq, us)
			}
		}
		return b.String()
	}
	r := diagnose(t, file(text(5)))
	if f := found(r, "straggler"); f == nil || f.Subject.String() != "rank 5, host n1" {
		t.Errorf("%+v", f)
	}
	if r := diagnose(t, file(text(-1))); len(ids(r, doctor.Info)) > 0 {
		t.Errorf("nobody is late: %v", ids(r, doctor.Info))
	}
}

// A slow cell of the delay matrix is a link, a slow row a sender.
func TestDelayMatrix(t *testing.T) {
	text := func(slow func(a, b int) bool) string {
		var b strings.Builder
		for seq := range 5 {
			for x := range 4 {
				for y := range 4 {
					us := 100
					if slow(x, y) {
						us = 350
					}
					if x != y {
						fmt.Fprintf(&b,
							`{"header":{"id":"0xab","rank":%d,"n_ranks":4},"metadata":{"hostname":"n%d"},"p2p_perf":{"p2p":"Send","p2p_sn":%d,"p2p_peer":%d,"p2p_msg_size_bytes":1048576,"p2p_exec_time_us":%d}}`+
								"\n", x, x, seq, y, us)
					}
				}
			}
		}
		return b.String()
	}
	r := diagnose(t, file(text(func(a, b int) bool { return a == 1 && b == 3 })))
	if f := found(r, "slow-link"); f == nil || f.Subject.Links[0] != "rank 1 - rank 3" || found(r, "slow-rank-io") != nil {
		t.Errorf("%+v", r.Findings)
	}
	r = diagnose(t, file(text(func(a, _ int) bool { return a == 2 })))
	if f := found(r, "slow-rank-io"); f == nil || f.Subject.String() != "rank 2, host n2" || found(r, "slow-link") != nil {
		t.Errorf("%+v", r.Findings)
	}
	if r = diagnose(t, file(text(func(int, int) bool { return false }))); len(ids(r, doctor.Warning)) > 0 {
		t.Errorf("%v", ids(r, doctor.Warning))
	}
}

// The same input gives the same bytes.
func TestSameInputSameReport(t *testing.T) {
	all := map[string]string{}
	for _, s := range symptoms() {
		for name, text := range s.sick {
			all[s.n+"/"+name] = text
		}
	}
	first, err := json.Marshal(diagnose(t, all))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if again, _ := json.Marshal(diagnose(t, all)); string(again) != string(first) {
			i := 0
			for i < len(first) && i < len(again) && first[i] == again[i] {
				i++
			}
			t.Fatalf("they differ at byte %d:\n%s\n%s", i, first[max(i-200, 0):min(i+200, len(first))], again[max(i-200, 0):min(i+200, len(again))])
		}
	}
}
