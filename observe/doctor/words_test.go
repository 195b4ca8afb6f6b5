package doctor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// The same trouble has other words in other versions of NCCL and its plugins.
func TestWordsOfVersions(t *testing.T) {
	for _, c := range []struct{ id, msg string }{
		{"collective-mismatch", "Mismatched collective detected, please check your collective calls at and around rank 1."}, // 2.4 to 2.7
		{"collective-mismatch", "NET/IB : peer 10.0.0.2<4> collective mismatch error local size 4096 remote 8192 addr 1 rkey 2 seq 3/4"},
		{"collective-mismatch", "NET/Socket : peer 10.0.0.2<4> message truncated : receiving 4096 bytes instead of 2048"},
		{"ib-pair-unreachable", "NET/IBP:Got completion from peer 10.0.0.2<36315> with status=12 opcode=32698 len=32696 vendor err 129 (Send)"},
		{"ib-pair-unreachable", "NET/IB : Got completion with error 12, opcode 1, len 21938, vendor err 129"},
		{"ib-pair-unreachable",
			"NET/IB: Got completion from peer 10.0.0.2<3> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 localGid fe80::1 remoteGids fe80::2 hca mlx5_0"},
		{"gpudirect-acs",
			"NET/IB : Got completion from peer fe80::966d:ae03:8b:df78%ib0<53249> with error 4, opcode 32564, len 32564, vendor err 81 (Send)"},
		{"connect-refused", "Call to connect timeout : Connection refused"},
		{"connect-refused", "Call to connect failed : No route to host"},
		{"connect-refused", "Net : Connect to 10.0.0.2<54263> failed : No route to host"},
		{"connect-refused", "socketPollConnect: exceeded timeouts (20000)"},
		{"connect-refused", "ncclOsSocketPollConnect to 10.0.0.2<4000> failed with error Connection refused"},
		{"connect-refused",
			"socketPollConnect: connect to 10.0.0.2<4000> returned Connection refused, exceeded error retry count after 35 attempts"},
		{"peer-closed", "Net : Call to recv from 10.0.0.2<4000> failed : Connection reset by peer"},
		{"peer-closed", "socketProgressOpt: Call to recv from 10.0.0.2<4000> failed : Broken pipe"},
		{"no-interface", "NET/Socket : no interface found"},
		{"comm-id-subnet", "Net : No interface found in the same subnet as remote address 10.0.0.2<0>"},
		{"unique-id-empty", "Net : connecting to address <> with family 0 is neither AF_INET(2) nor AF_INET6(10)"},
		{"topologies-differ", "Error : ring 3 does not contain rank 5"},
		{"topology-search-failed", "Could not create rings, falling back on simple ring"},
		{"nic-count-differs", "NET/IB : Local mergedDev mlx5_0+mlx5_1 has a different number of devices=2 as remote mlx5_0 1"},
		{"nic-count-differs", "Rank 3 requires NIC 1 but that NIC is not available for rank 1"},
		{"p2p-forced", "failed to open CUDA IPC handle : 11 invalid argument"},
		{"p2p-forced", "cudaIpcGetMemHandle failed : operation not supported"},
		{"imex-missing",
			"MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration (/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue."},
		{"versions-differ",
			"The application was compiled with too old version of NCCL. It was compiled with NCCL version 20000, but is running with NCCL library version 22907."},
		{"nvml-error", "Failed to open libnvidia-ml.so.1"},
		{"link-flap", "NET/IB: ncclIbResiliencyHandle: Device 1 marked as failed. (Send comm=0x55)"},
	} {
		r := diagnose(t, with(ncclJob{more: one(1, "WARN: "+c.msg)}))
		if f := found(r, c.id); f == nil || found(r, "nccl-error") != nil {
			t.Errorf("%q: found %v, not %s", c.msg, ids(r, doctor.Info), c.id)
		}
	}
	// What older versions warn of in a job that runs well.
	for _, msg := range []string{"User asked for a minimum of 32 channels, limiting to 16",
		"CollNet currently only supports up to 8 GPUs per node", "Could not find real path of /sys/class/net/lo/device",
		"No NVML device handle. Skipping nvlink detection.", "commReclaim: comm 0x55 (rank = 1) in abort, error 6"} {
		if r := diagnose(t, with(ncclJob{more: one(1, "WARN: "+msg)})); len(ids(r, doctor.Warning)) > 0 {
			t.Errorf("%q: found %v", msg, ids(r, doctor.Warning))
		}
	}
}

// The text of RAS lists small groups. Where those are ahead, the others are behind.
func TestRASNamesThoseBehind(t *testing.T) {
	text := func(groups string) map[string]string {
		return map[string]string{"ras.txt": "NCCL version 2.26.2 compiled with CUDA 12.6\n\nCommunicators... (0.00s)\n=============\n\nGroup     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    #  in group  per comm  per node  per comm  in group\n    0         1         4         8        32        32   RUNNING  MISMATCH\n\nWarnings\n========\n\n#0-0 (fa93) MISMATCH\n" +
			groups}
	}
	rank := func(r int) string {
		return fmt.Sprintf("  Rank %d -- GPU %d managed by process %d on node 10.1.0.%d\n", r, r%8, 1000+r, r/8)
	}
	for _, c := range []struct{ what, groups, subject string }{
		{"two are ahead",
			"  Communicator ranks have different AllGather operation counts\n  30 ranks have launched up to operation 640\n  2 ranks have launched up to operation 641\n" +
				rank(12) + rank(13), "ranks 0-11,14-31"},
		{"two are behind",
			"  Communicator ranks have different AllGather operation counts\n  30 ranks have launched up to operation 641\n  2 ranks have launched up to operation 640\n" +
				rank(12) + rank(13), "ranks 12-13, host 10.1.0.1"},
		{"in two operations",
			"  Communicator ranks have different AllGather operation counts\n  31 ranks have launched up to operation 641\n  1 rank has launched up to operation 640\n" +
				rank(5) +
				"  Communicator ranks have different AllReduce operation counts\n  31 ranks have launched up to operation 9\n  1 rank has launched up to operation 7\n" +
				rank(5), "rank 5, host 10.1.0.0"},
		{"cut in the middle",
			"  Communicator ranks have different collective operation counts\n  26 ranks have launched up to operation 6650\n  6 ranks have launched up to operation 6649\n" +
				rank(3), "rank 3, host 10.1.0.0"},
	} {
		r := diagnose(t, text(c.groups))
		if f := found(r, "ras-behind"); f == nil || f.Subject.String() != c.subject {
			t.Errorf("%s: %v %+v", c.what, ids(r, doctor.Info), f)
		}
	}
	if r := diagnose(t, text("")); len(ids(r, doctor.Info)) > 0 {
		t.Errorf("no ranks listed: %v", ids(r, doctor.Info))
	}
	r := diagnose(t,
		map[string]string{"mon.txt": "RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...\n[2025-12-19 13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1\n"})
	if f := found(r, "ras-missing"); f == nil || f.Subject.Hosts[0] != "172.16.64.245" {
		t.Errorf("monitor: %v", r.Findings)
	}
}

// Tools of fabrics and hosts, ill and well.
func TestFabricTools(t *testing.T) {
	swinfo := func(fan string) string {
		return "=================\nSwitchIB Mellanox\n=================\npart number        | MSB7790-ES2F\nproduct name       | Scorpion\nGUID               | 0x1c34da0300010540\nfirmware version   | 11.2008.2102\n-----\nPSU0 status        | OK\n     DC power      | OK\n     fan status    | " +
			fan + "\ntemperature (C)    | 45\nfan#1 (rpm)        | 8493\n"
	}
	diagnet := func(n string) string {
		return "-----\nPort=2 Lid=0x0599 GUID=0x0011223344550001 Device=54000 Port Name=leaf1/P2\n-----\nlink_error_recovery_counter_extended=" +
			n + "\nport_rcv_errors_extended=0x0\n"
	}
	bw := func(mb string) string {
		return "---------\n                    RDMA_Write BW Test\n Dual-port       : OFF\t\tDevice         : mlx5_0\n#bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      1000           " +
			mb + "            " + mb + "              0.33\n"
	}
	fm := func(level, text string) string {
		return "[Feb 25 2025 13:59:45] [INFO] [tid 1808] multicast group 0 is freed.\n[Feb 27 2025 15:10:02] [" + level + "] [tid 12727] " +
			text + "\n"
	}
	for _, c := range []struct{ id, sick, well, subject string }{
		{"switch-hardware", swinfo("ERROR"), swinfo("OK"), "0x1c34da0300010540"},
		{"port-errors", diagnet("0x000000000000000a"), diagnet("0x0000000000000000"), "leaf1/P2 port 2"},
		{"port-errors-few", diagnet("0x0000000000000002"), diagnet("0x0000000000000000"), "leaf1/P2 port 2"},
		{"port-errors-few", "# PortRcvErrorDetails counters: Lid 1719 port 1\nPortBufferOverrunErrors:.........3\n",
			"# PortRcvErrorDetails counters: Lid 1719 port 1\nPortBufferOverrunErrors:.........0\n", "lid 1719 port 1"},
		{"port-unhealthy",
			"# NodeGUID, PortNum, NodeDesc, PeerNodeGUID, PeerPortNum,  PeerNodeDesc, {BadCond1}, TimeStamp\n0x0011, 25, \"spine3\", 0x0055, 7, \"leaf38\", {FLAPPING}, Fri Mar 20 01:13:40 2026\n0x0055, 7, \"leaf38\", 0x0011, 25, \"spine3\", {FLAPPING}, Fri Mar 20 01:13:40 2026\n",
			"# NodeGUID, PortNum, NodeDesc, PeerNodeGUID, PeerPortNum,  PeerNodeDesc, {BadCond1}, TimeStamp\n", "link spine3:25 - leaf38:7"},
		{"pair-slow", bw("12000.00"), bw("48000.00"), "mlx5_0"},
		{"nvswitch-event",
			fm("ERROR", "detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61"),
			fm("INFO", "multicast group 1 is allocated."), "00000000:86:00.0"},
		{"nvswitch-failed",
			fm("ERROR", "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61"),
			fm("INFO", "multicast group 1 is allocated."), "00000000:86:00.0"},
		{"ib-tool-failed", ibActive + "ibpanic: [1400444] main: stat of IB device 'mlx5_8' failed: No such file or directory\n",
			ibActive, "mlx5_8"},
		{"host-crashed", "<0>[ 3098.275469] Kernel panic - not syncing: Fatal exception\n", "<6>[ 3098.275469] usb 1-2: Product: ASM107x\n", ""},
		{"host-hardware", "[ 3098.275469] mce: [Hardware Error]: CPU 4: Machine Check: 0 Bank 5\n",
			"[ 3098.275469] mce: CPU0: Thermal monitoring enabled\n", ""},
		{"open-files", "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 VFS: file-max limit 1000000 reached\n",
			"kern  :info  : 2025-01-21T04:41:44,285060+00:00 VFS: Disk quotas\n", ""},
	} {
		files := func(text string) map[string]string {
			f := map[string]string{"x.txt": text}
			if c.id == "pair-slow" {
				f["ibstat.txt"] = ibActive
			}
			return f
		}
		r := diagnose(t, files(c.sick))
		if f := found(r, c.id); f == nil || !strings.Contains(f.Subject.String(), c.subject) {
			t.Errorf("%s: found %v %+v", c.id, ids(r, doctor.Info), f)
		}
		r = diagnose(t, files(c.well))
		if len(ids(r, doctor.Info)) > 0 || r.Files[len(r.Files)-1].Kind == "unknown" {
			t.Errorf("%s: its healthy neighbour has %v, taken for %s", c.id, ids(r, doctor.Info), r.Files[len(r.Files)-1].Kind)
		}
	}
	// A table without a column of reductions.
	r := diagnose(t,
		file("# nThread 1 nGpus 8 minBytes 1 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 validation: 0\n#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n        1024            32   float            88.17    0.01    0.01    N/A    88.98    0.01    0.01    N/A\n"))
	if r.Files[0].Kind != "nccl-tests" {
		t.Errorf("all-to-all is taken for %s", r.Files[0].Kind)
	}
}
