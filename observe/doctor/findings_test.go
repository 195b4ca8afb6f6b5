package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// smi is nvidia-smi -q -x of GPUs, each with further elements.
func smi(gpus ...string) string {
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" ?><nvidia_smi_log>`)
	for i, g := range gpus {
		fmt.Fprintf(&b, "\n<gpu id=\"00000000:%02X:00.0\"><product_name>NVIDIA H100 80GB HBM3</product_name>%s</gpu>", 0x1b+i, g)
	}
	return b.String() + "\n</nvidia_smi_log>"
}

func smiClock(mhz int) string {
	return fmt.Sprintf("<performance_state>P0</performance_state><utilization><gpu_util>98 %%</gpu_util></utilization><clocks><sm_clock>%d MHz</sm_clock></clocks>",
		mhz)
}

func dmesg(lines ...string) string {
	var b strings.Builder
	for i, l := range lines {
		fmt.Fprintf(&b, "[ %d.300000] %s\n", 1812+i, l)
	}
	return b.String()
}

func perfquery(pairs ...any) string {
	s := "# Port extended counters: Lid 7 port 1\n"
	for i := 0; i+1 < len(pairs); i += 2 {
		s += fmt.Sprintf("%s:..........%v\n", pairs[i], pairs[i+1])
	}
	return s
}

func ethtool(pairs ...any) string {
	s := "NIC statistics:\n"
	for i := 0; i+1 < len(pairs); i += 2 {
		s += fmt.Sprintf("     %s: %v\n", pairs[i], pairs[i+1])
	}
	return s
}

func nvlink(links ...string) string {
	s := "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1234abcd-0000-0000-0000-000000000000)\n"
	for i, l := range links {
		s += fmt.Sprintf("\t Link %d: %s\n", i, l)
	}
	return s
}

func addresses(list ...string) string { // name state mtu prefix
	var out []string
	for _, l := range list {
		f := strings.Fields(l)
		ip, bits, _ := strings.Cut(f[3], "/")
		out = append(out, fmt.Sprintf(`{"ifname":%q,"operstate":%q,"mtu":%s,"addr_info":[{"family":"inet","local":%q,"prefixlen":%s}]}`,
			f[0], f[1], f[2], ip, bits))
	}
	return "[" + strings.Join(out, ",\n") + "]"
}

func ibPort(name, state, phys, rate, sm string) string {
	return fmt.Sprintf("CA '%s'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: %s\n\t\tPhysical state: %s\n\t\tRate: %s\n\t\tBase lid: 3\n\t\tSM lid: %s\n\t\tLink layer: InfiniBand\n",
		name, state, phys, rate, sm)
}

func busRecords(fall bool) string {
	var b strings.Builder
	for seq := range 120 {
		bus := 400.0 + float64(seq%3)
		if fall && seq >= 88 {
			bus = 180
		}
		fmt.Fprintf(&b,
			`{"header":{"id":"0xab","rank":0,"n_ranks":4},"metadata":{"hostname":"n0","pid":40},"coll_perf":{"coll":"AllReduce","coll_sn":%d,"coll_msg_size_bytes":8388608,"coll_exec_time_us":100,"coll_busbw_gbs":%g}}`+
				"\n", seq, bus)
	}
	return b.String()
}

func bench(wrong int) string {
	return fmt.Sprintf("# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 1 minBytes 8 maxBytes 8\n#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n     1048576        262144     float     sum      -1    74.78   14.02   24.54      %d    76.17   13.77   24.09      0\n",
		wrong)
}

// findings are signals outside of the list of symptoms, each with its healthy neighbour.
func findings() []symptom {
	f := func(name, text string) map[string]string { return map[string]string{name: text} }
	smiF := func(g ...string) map[string]string { return f("smi.n0.xml", smi(g...)) }
	k := func(lines ...string) map[string]string { return f("dmesg.n0.txt", dmesg(lines...)) }
	eth := func(p ...any) map[string]string { return f("ethtool.n0.ens1np0.txt", ethtool(p...)) }
	warn := func(msg string) map[string]string { return with(ncclJob{more: one(1, "WARN: "+msg)}) }
	ok := with(ncclJob{})
	quiet := k("mlx5_core 0000:17:00.0 ens1np0: Link up")
	ring := func(order []int) map[string]string { // one ring over ranks in an order
		var b strings.Builder
		for _, r := range order {
			h := r / 2
			fmt.Fprintf(&b,
				"n%d:%d:%d [%d] NCCL INFO ncclCommInitRank comm 0x55%04x rank %d nranks 8 cudaDev %d nvmlDev %d busId %x000 commId 0x77 - Init START\n",
				h, 4000+r, 4100+r, r%2, r, r, r%2, r%2, 0x1b+r%2)
		}
		for i, r := range order {
			h, next := r/2, order[(i+1)%len(order)]
			if next/2 == h {
				fmt.Fprintf(&b, "n%d:%d:%d [%d] NCCL INFO Channel 00/0 : %d[%d] -> %d[%d] via P2P/CUMEM\n",
					h, 4000+r, 4100+r, r%2, r, r%2, next, next%2)
				continue
			}
			fmt.Fprintf(&b, "n%d:%d:%d [%d] NCCL INFO Channel 00/0 : %d[%d] -> %d[%d] [send] via NET/IB/0/GDRDMA\n",
				h, 4000+r, 4100+r, r%2, r, r%2, next, next%2)
			fmt.Fprintf(&b, "n%d:%d:%d [%d] NCCL INFO Channel 00/0 : %d[%d] -> %d[%d] [receive] via NET/IB/0/GDRDMA\n",
				next/2, 4000+next, 4100+next, next%2, r, r%2, next, next%2)
		}
		for _, r := range order {
			h := r / 2
			fmt.Fprintf(&b,
				"n%d:%d:%d [%d] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\nn%d:%d:%d [%d] NCCL INFO ncclCommInitRank comm 0x55%04x rank %d nranks 8 cudaDev %d nvmlDev %d busId %x000 commId 0x77 - Init COMPLETE\n",
				h, 4000+r, 4100+r, r%2, h, 4000+r, 4100+r, r%2, r, r, r%2, r%2, 0x1b+r%2)
		}
		return file(b.String())
	}
	var many []string
	for range 12 {
		many = append(many, "pcieport 0000:17:00.0: AER: Corrected error message received from 0000:17:00.0")
	}
	tuned := []string{"NCCL_ALGO=Ring", "NCCL_PROTO=Simple", "NCCL_MIN_NCHANNELS=16", "NCCL_MAX_NCHANNELS=32", "NCCL_BUFFSIZE=8388608",
		"NCCL_NTHREADS=512", "NCCL_IB_QPS_PER_CONNECTION=4", "NCCL_IB_TC=106", "NCCL_NSOCKS_PERTHREAD=4", "NCCL_SOCKET_NTHREADS=4"}
	linkinfo := func(more string) map[string]string {
		s := "Switch: 0x0002c902004b0918 leaf1:\n"
		for i := 1; i <= 10; i++ {
			s += fmt.Sprintf("           3   %2d[  ] ==( 4X 53.125 Gbps Active/  LinkUp)==>      %d    1[  ] \"n%d mlx5_0\" ( %s)\n",
				i, 20+i, i, map[bool]string{true: more, false: ""}[i == 4])
		}
		return f("iblinkinfo.txt", s)
	}
	remote := func(lines string) map[string]string {
		return file("Root Cause (first observed failure):\n" + lines)
	}
	memory := func(figures string) map[string]string {
		return file("torch.OutOfMemoryError: CUDA out of memory. " + figures + "\n")
	}
	return []symptom{
		{"", "completion-error", warn("NET/IB : Got completion from peer 10.0.0.2<4> with status=2 opcode=0 len=0 vendor err 1 (Send)"), ok,
			"n0", ""},
		{"", "socket-error", warn("Call to bind failed : Permission denied"), ok, "n0", ""},
		{"", "cuda-error", warn("enqueue.cc:1@ Cuda failure 700 'an illegal memory access was encountered'"), ok, "n0", "illegal memory access"},
		{"", "nccl-error", warn("Something that nobody has seen before"), ok, "n0", ""},
		{"", "driver-too-old", warn("CUDA Driver version found is 470. Minimum requirement is 525"), ok, "n0", ""},
		{"", "over-tuned", with(ncclJob{env: all(tuned...)}), with(ncclJob{env: all(tuned[:3]...)}), "", ""},
		{"", "rank-order", ring([]int{0, 2, 4, 6, 1, 3, 5, 7}), ring([]int{0, 1, 2, 3, 4, 5, 6, 7}), "n0", "8 times"},
		{"", "p2p-refused", with(ncclJob{hosts: 1, early: all("Could not enable P2P between dev 0(=1b000) and dev 1(=1c000)")}, "smi.n0.xml",
			smi("", "")), with(ncclJob{hosts: 1}, "smi.n0.xml", smi("", "")), "n0", ""},
		{"", "cuda-out-of-memory", file("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"),
			file("[rank3]: step 10 loss 2.1\n"), "", "model, batch or fragmentation"},
		{"", "cuda-out-of-memory", memory("Tried to allocate 2.50 GiB. GPU 3 has a total capacty of 79.15 GiB of which 1.12 GiB is free. " +
			"Including non-PyTorch memory, this process has 78.02 GiB memory in use. Of the allocated memory 60.11 GiB is allocated by " +
			"PyTorch, and 16.40 GiB is reserved by PyTorch but unallocated."), ok, "", "fragmentation: PyTorch holds 16.40 GiB"},
		{"", "cuda-out-of-memory", memory("Tried to allocate 20.00 MiB (GPU 0; 11.17 GiB total capacity; 9.29 GiB already allocated; " +
			"4.31 MiB free; 10.60 GiB reserved in total by PyTorch)"), ok, "", "fragmentation: PyTorch holds 1.31 GiB"},
		{"", "cuda-out-of-memory", memory("Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.02 GiB is free. " +
			"Process 4103 has 38.00 GiB memory in use. Including non-PyTorch memory, this process has 40.08 GiB memory in use. Of the " +
			"allocated memory 39.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated."), ok, "",
			"other processes have 38.00 GiB of this GPU, one of them 4103"},
		{"", "cuda-out-of-memory", memory("Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.02 GiB is free. " +
			"Process 9 has 78.08 GiB memory in use. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the " +
			"allocated memory 76.00 GiB is allocated by PyTorch, and 512.50 MiB is reserved by PyTorch but unallocated."), ok, "",
			"model or batch: 2.32 GiB were asked for, and only 512.5 MiB"},
		{"", "process-died", remote("E1016 12:00:00 failed (exitcode: -9) local_rank: 3 (pid: 4242) of binary: /usr/bin/python3\n"),
			remote("I1016 12:00:00 all done\n"), "", ""},
		{"", "process-died", file(torchTable("gpu-07.cluster", 4, -9)), file("Failures:\n  <NO_OTHER_FAILURES>\n"), "rank 4, host gpu-07",
			"signal 9"},
		{"", "process-died", file("srun: error: node07: task 5: Segmentation fault (core dumped)\nsrun: error: node03: tasks 0-3: Terminated\n"),
			file("srun: job 4711 has been allocated resources\n"), "host node07", "signal 11"},
		{"", "process-died", file("prterun noticed that process rank 3 with PID 1234 on node n2 exited on signal 7 (Bus error).\n"),
			file("all done\n"), "rank 3, host n2", "signal 7"},
		{"", "program-error",
			file("[rank3]: Traceback (most recent call last):\n[rank3]:   File \"t.py\", line 1, in <module>\n[rank3]: FileNotFoundError: [Errno 2] No such file: 'shard-17.tar'\n" +
				timedOut(0, 41, "ALLREDUCE", 8) + timedOut(1, 41, "ALLREDUCE", 8)),
			file("Traceback (most recent call last):\n  File \"t.py\", line 1\nConnectionError: try again\n"), "rank 3", "FileNotFoundError"},
		{"", "watchdog-stuck",
			file("[rank9]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! Process will be terminated after dumping debug info.\n"),
			file("[rank9]:[W ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] using GPU 1 to perform barrier\n"), "rank 9", ""},
		{"", "rendezvous-incomplete",
			file("torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 14/16 clients joined.\n"),
			file("all clients are there\n"), "", "14 of 16"},
		{"", "rendezvous-unreachable",
			file("[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to (10.2.0.1, 29500).\n"),
			file("[W socket.cpp:697] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).\n"),
			"10.2.0.1:29500", ""},
		{"", "rendezvous-port-used",
			file("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, code: -98, name: EADDRINUSE, message: address already in use\n"),
			file("listening at 29500\n"), "", ""},
		{"", "gloo-timeout",
			file("[rank2]: RuntimeError: [third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete\n"),
			file("[Gloo] Rank 2 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7\nNCCL version 2.21.5+cuda12.4\n"),
			"rank 2", ""},
		{"", "gloo-connect", file("RuntimeError: Gloo connectFullMesh failed with [third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\n"),
			file("[Gloo] Rank 2 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7\n"), "", ""},
		{"", "job-cancelled", file("slurmstepd: error: *** JOB 4711 ON node03 CANCELLED AT 2024-05-01T10:11:12 DUE TO TIME LIMIT ***\n"),
			file("slurmstepd: error: couldn't chdir to /root: going to /tmp instead\n"), "", "time limit"},
		{"", "job-cancelled",
			file("slurmstepd: error: *** STEP 4711.0 ON node03 CANCELLED AT 2024-05-01T10:11:12 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"),
			file("done\n"), "", "node failure"},
		{"", "host-lost",
			file("srun: error: Node failure on gpu0147\nslurmstepd: error: *** STEP 881234.0 ON gpu0101 CANCELLED AT 2026-11-02T03:14:15 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\nsrun: error: gpu0102: tasks 8-15: Terminated\nsrun: error: gpu0147: tasks 376-383: Killed\n"),
			file("srun: job 4711 has been allocated resources\n"), "host gpu0147", "power"},
		{"", "host-lost", file("[2026-11-02T03:14:15.001] error: Nodes gpu0147 not responding, setting DOWN\n"),
			file("[2026-11-02T03:14:15.001] error: Nodes gpu0147 not responding\n"), "gpu0147", ""},
		{"", "host-lost", file("2m  Normal  NodeNotReady  node/gpu-22  Node gpu-22 status is now: NodeNotReady\n"),
			file("2m  Normal  NodeReady  node/gpu-22  Node gpu-22 status is now: NodeReady\n"), "gpu-22", ""},
		{"", "loss-not-finite", file("step 1201 loss nan grad_norm nan tokens/s 41100\n"),
			file("step 1201 loss 2.1 grad_norm 0.8 nanoseconds 12\n"), "", "overflow"},
		{"", "loss-not-finite", file("[rank3]: {'loss': nan, 'learning_rate': 1e-4}\n"), file("[rank3]: {'loss': 1.0, 'info': 'nan check on'}\n"),
			"rank 3", ""},
		{"", "loss-not-finite",
			file("[rank37]: AssertionError: Rank 37, node gpu-b04, device 5, iteration 1235: Unexpected result nan (message='found NaN in local grad norm for bucket #0')\n"),
			file(" lm loss: 2.3E+00 | number of nan iterations:   0 |\n"), "rank 37, host gpu-b04, device gpu-b04:gpu5", "before they were added"},
		{"", "rendezvous-incomplete",
			file("jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0. Timed out task names:\n/job:jax_worker/replica:0/task:5\n/job:jax_worker/replica:0/task:3\n"),
			file("/job:jax_worker/replica:0/task:5 is there\n"), "ranks 3,5", ""},
		{"", "gpu-failed", k("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!"), k("amdgpu 0000:c1:00.0: amdgpu: SMU is initialized successfully!"),
			"n0:0000:c1:00.0", "reset"},
		{"", "gpu-fault",
			k("amdgpu 0000:c1:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770, for process python pid 77)"), quiet,
			"n0:0000:c1:00.0", "page fault"},
		{"", "host-hardware", file("   1 | 11/12/2026 | 03:10:01 | Power Supply #0x51 | Power Supply AC lost | Asserted\n"),
			file("   1 | 11/12/2026 | 03:10:01 | Power Supply #0x51 | Presence detected | Asserted\n"), "", "AC lost"},
		{"", "host-out-of-memory",
			file("(raylet, ip=10.2.0.7) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: abc, IP: 10.2.0.7) over the last time period.\n"),
			file("(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed at node (ID: abc, IP: 10.2.0.7)\n"),
			"10.2.0.7", ""},
		{"", "process-died", file("[rank9]: RuntimeError: DataLoader worker (pid(s) 9912) exited unexpectedly\n"),
			file("DataLoader worker (pid 9912) started\n"), "rank 9", "data loader"},
		{"", "cuda-error",
			file("[rank14]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled cuda error, NCCL version 2.21.5\n[rank14]: Cuda failure 700 'an illegal memory access was encountered'\n"),
			file("[rank14]: no failure\n"), "rank 14", ""},
		{"", "host-out-of-memory",
			file("9m  Warning  OOMKilling  node/gpu-22  Memory cgroup out of memory: Killed process 88213 (python3) total-vm:9kB, anon-rss:5kB\n"),
			file("ok\n"), "gpu-22", ""},
		{"", "nccl-failed",
			file("RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1269, unhandled system error, NCCL version 2.14.3\n"),
			file("RuntimeError: no\n"), "", "unhandled system error"},
		{"", "gpu-shared",
			file("[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n[rank1]: Last error:\n[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000\n"),
			file("[rank1]: Last error:\n[rank1]: none\n"), "ranks 0-1", ""},
		{"", "peer-closed",
			file("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer n7.cluster<32926>\n"),
			file("done\n"), "n7", ""},
		{"", "collective-mismatch",
			file("RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=31, OpType=ALLREDUCE, TensorShape=[10]), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=31, OpType=ALLREDUCE, TensorShape=[12]).\n"),
			file("done\n"), "ranks 0-1", "ALLREDUCE of [10] #31"},
		{"", "gpu-failed", file("[rank6]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n" + timedOut(0, 41, "ALLREDUCE", 8)),
			file("done\n"), "rank 6", "uncorrectable"},
		{"", "host-out-of-memory",
			file("slurmstepd: error: Detected 1 oom_kill event in StepId=113.0. Some of the step tasks have been OOM Killed.\nsrun: error: n61: task 0: Out Of Memory\n"),
			file("done\n"), "n61", ""},
		{"", "shm-full",
			file("RuntimeError: DataLoader worker (pid 1234) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.\n"),
			file("done\n"), "", ""},
		{"", "host-out-of-memory", k("Out of memory: Killed process 4001 (python3) total-vm:1kB, anon-rss:1kB"), quiet, "n0", ""},
		{"", "gpu-failed", k("NVRM: GPU at PCI:0000:9b:00: GPU-7b\n", "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."), quiet, "n0",
			"Xid 79"},
		{"", "gpu-failed", k("NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:26b5) installed in this system has",
			"NVRM: fallen off the bus and is not responding to commands."), quiet, "n0:0000:b3:00.0", "Xid 79"},
		{"", "gpu-failed",
			k("NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2874"),
			quiet, "n0", "needs a reset"},
		{"", "gpu-failed",
			k("NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from rmStatus"),
			quiet, "n0", "lost"},
		{"", "gpu-failed", k("NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x26:0xffff:1290)"), quiet, "n0:0000:41:00.0", "cannot start"},
		{"", "gpu-failed", file("Unable to determine the device handle for GPU0000:41:00.0: Unknown Error\n"), file("ok\n"),
			"0000:41:00.0", "lost"},
		{"", "gpu-failed", k("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 79"), quiet,
			"n0:0000:dc:00", "Xid 79"},
		{"", "driver-mismatch", k("NVRM: API mismatch: the client has the version 535.129.03, but"), quiet, "n0", "535.129.03"},
		{"", "driver-mismatch", file("Failed to initialize NVML: Driver/library version mismatch\n"), file("ok\n"), "", ""},
		{"", "nic-driver-error", k("infiniband efa_0: Failed to process command ALLOC_PD (opcode 14) comp_status 1 err -12"), quiet, "n0:efa_0",
			"no memory"},
		{"", "pcie-errors", k("pcieport 0000:16:01.0: pciehp: Slot(23): Link Down"), quiet, "0000:16:01.0", ""},
		{"", "storage-stalled", k("nfs: server fs1 not responding, still trying"), quiet, "fs1", ""},
		{"", "storage-stalled",
			k("Lustre: work-OST0003-osc: Connection to work-OST0003 (at 10.1.0.9@o2ib) was lost; in progress operations using this service will wait"),
			quiet, "work-OST0003", ""},
		{"", "socket-error", warn("Net : Socket creation failed : Address family not supported by protocol"), ok, "n0", "IPv6"},
		{"", "cuda-error",
			file("n1: Test CUDA failure common.cu:1007 'CUDA-capable device(s) is/are busy or unavailable'\n .. n1 pid 812: Test failure common.cu:891\n"),
			file("ok\n"), "n1", "busy"},
		{"", "cuda-error",
			file("[rank3]: Traceback (most recent call last):\n[rank3]:   File \"t.py\", line 1, in <module>\n[rank3]: RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n"),
			file("ok\n"), "rank 3", "busy"},
		{"", "nccl-failed",
			file("UV: Test NCCL failure /x/rccl-tests/common.cu.cpp:1291 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '\n"),
			file("ok\n"), "", "unhandled cuda error"},
		{"", "nccl-failed",
			file("INTERNAL: external/xla/xla/service/gpu/nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled system error (run with NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be unrelated) 'socketTryAccept: Accept failed: Bad file descriptor'.\n"),
			file("ok\n"), "", "unhandled system error"},
		{"", "nccl-failed",
			file("run time error: NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL library. Multi-GPU collectives will not work.. Last NCCL warning(error) log entry (may be unrelated) 'x'.\n"),
			file("ok\n"), "", "libnccl was not found"},
		{"", "nccl-failed", file("ExternalError: NCCL error(2), unhandled system error. (at /paddle/x.cc:129)\n"), file("ok\n"), "",
			"unhandled system error"},
		{"", "nccl-failed", file("[1,0]<stderr>:horovod.common.exceptions.HorovodInternalError: ncclCommInitRank failed: unhandled cuda error\n"),
			file("ok\n"), "", "unhandled cuda error"},
		{"", "gpu-memory-full",
			file("NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error (run with NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry (may be unrelated) 'Cuda failure 2 'out of memory''.; current tracing scope: all-reduce-start.285\n"),
			file("ok\n"), "", ""},
		{"", "hang", file("[1,0]<stderr>:Stalled ops:HorovodBroadcast_dense_1_bias_0 [missing ranks: 1, 3]\n"), file("ok\n"), "ranks 1,3", ""},
		{"", "hang",
			file("[W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be reduced\nStalled ranks:\n0: [grads/AddN_102, \ngrads/AddN_103 ...]\n2: [grads/AddN_102 ...]\n"),
			file("0: [a]\n"), "ranks 0,2", ""},
		{"", "process-died", file("NCCL version 2.21.5+cuda12.4\nSegmentation fault (core dumped)\n"), file("ok\n"), "", "signal 11"},
		{"", "process-died", file("[0]<stderr>:bash: line 1:  3635 Aborted                 (core dumped) HOROVOD_RANK=0 python train.py\n"),
			file("ok\n"), "", "signal 6"},
		{"", "process-died", file("./run.sh: line 7:  4411 Killed                  python train.py\n"), file("Killed by nobody\n"), "",
			"signal 9"},
		{"", "process-died", file("[n7:186363] *** Process received signal ***\n[n7:186363] Signal: Segmentation fault (11)\n"), file("ok\n"),
			"n7", "signal 11"},
		{"", "process-died", file("free(): corrupted unsorted chunks\n"), file("ok\n"), "", "heap"},
		{"", "process-died", file("Fatal Python error: Segmentation fault\n"), file("ok\n"), "", "signal 11"},
		{"", "process-died", file("=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 31 RUNNING AT n2\n=   EXIT CODE: 139\n"),
			file("=   EXIT CODE: 0\n"), "", "signal 11"},
		{"", "process-died", file("MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n"), file("ok\n"),
			"rank 5", ""},
		{"", "process-died",
			file("ERROR 05-22 10:26:17 [multiproc_executor.py:146] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n"),
			file("ok\n"), "", "its own lines"},
		{"", "rank-twice",
			file("initializing ddp: GLOBAL_RANK: 0, MEMBER: 1/4\ninitializing ddp: GLOBAL_RANK: 0, MEMBER: 1/4\ninitializing ddp: GLOBAL_RANK: 1, MEMBER: 2/4\n"),
			file("initializing ddp: GLOBAL_RANK: 0, MEMBER: 1/2\ninitializing ddp: GLOBAL_RANK: 1, MEMBER: 2/2\ninitializing ddp: GLOBAL_RANK: 0, MEMBER: 1/2\n"),
			"rank 0", "NODE_RANK"},
		{"", "peermem-missing", file("cuMemAlloc() of a 262144 bytes GPU buffer\nCouldn't allocate MR with error=93\n"),
			file("allocated GPU buffer address at 1\n"), "", "nvidia-peermem"},
		{"", "memlock", file("Couldn't allocate MR\nfailed to create mr\n"), file("ok\n"), "", ""},
		{"", "process-died", file("ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"), file("ok\n"), "",
			"without a word"},
		{"", "process-died", file("  Process name: [[52222,1],1]\n  Exit code:    139\n"), file("  Exit code:    0\n"), "", "signal 11"},
		{"", "store-lost",
			file("[rank3]:[W socket.cpp:464] [c10d] recvValue failed on SocketImpl(fd=61, addr=[n2]:44108, remote=[n0]:29500): failed to recv, got 0 bytes\n"),
			file("ok\n"), "rank 3", ""},
		{"", "tcp-fallback", with(ncclJob{net: "Socket", ifName: func(int) string { return "ibp12s0" }}), ok, "n0", ""},
		{"", "connect-abort",
			file("Last error:\nsocketStartConnect: Connect to 169.254.20.10<43369> failed : Software caused connection abort\n"), file("ok\n"), "",
			"wrong interface"},
		{"", "gpu-fault", k("NVRM: Xid (PCI:0000:38:00): 31, pid=99, name=python, MMU Fault"), quiet, "n0:0000:38:00", "Xid 31"},
		{"", "gpu-event", k("NVRM: Xid (PCI:0000:38:00): 43, pid=99, name=python, Ch 00000010"), quiet, "n0:0000:38:00", "Xid 43"},
		{"", "pcie-errors", k("pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error message received from 0000:17:00.0"), quiet,
			"0000:17:00.0", ""},
		{"", "pcie-noise", k(many...), k(many[:2]...), "0000:17:00.0", ""},
		{"", "iommu-fault",
			k("DMAR: [DMA Write NO_PASID] Request device [17:00.0] fault addr 0x1 [fault reason 0x05] PTE Write access is not set"), quiet,
			"17:00.0", ""},
		{"", "nic-cable", k("mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)"), quiet,
			"0000:5c:00.0", ""},
		{"", "nic-link-down", k("mlx5_core 0000:17:00.0 ens1np0: Link down"), quiet, "n0:ens1np0", ""},
		{"", "task-blocked", k("INFO: task python3:4001 blocked for more than 120 seconds."), quiet, "n0", ""},
		{"", "nvlink-inactive", f("nvlink.n0.txt", nvlink("26.562 GB/s", "<inactive>", "26.562 GB/s")),
			f("nvlink.n0.txt", nvlink("26.562 GB/s", "26.562 GB/s", "26.562 GB/s")), "NVLink 1", ""},
		{"", "nvlink-errors", f("nvlink.n0.txt", nvlink("Replay Errors: 7", "Recovery Errors: 2")),
			f("nvlink.n0.txt", nvlink("Replay Errors: 0", "Recovery Errors: 0")), "NVLink", ""},
		{"", "pcie-degraded",
			smiF("<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths></pci_gpu_link_info></pci>"),
			smiF("<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info></pci>"),
			"n0", "x8 of x16"},
		{"", "pcie-replays", smiF("<pci><replay_counter>5000</replay_counter></pci>"), smiF("<pci><replay_counter>0</replay_counter></pci>"),
			"n0", ""},
		{"", "gpu-memory-nearly-full", smiF("<fb_memory_usage><total>81559 MiB</total><used>81000 MiB</used></fb_memory_usage>"),
			smiF("<fb_memory_usage><total>81559 MiB</total><used>61000 MiB</used></fb_memory_usage>"), "n0", ""},
		{"", "ecc-errors", smiF("<ecc_errors><volatile><dram_uncorrectable>3</dram_uncorrectable></volatile></ecc_errors>"),
			smiF("<ecc_errors><volatile><dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>"), "n0", ""},
		{"", "row-remap-failed", smiF("<remapped_rows><remapped_row_failure>Yes</remapped_row_failure></remapped_rows>"),
			smiF("<remapped_rows><remapped_row_failure>No</remapped_row_failure></remapped_rows>"), "n0", ""},
		{"", "row-remap-pending", smiF("<remapped_rows><remapped_row_pending>Yes</remapped_row_pending></remapped_rows>"),
			smiF("<remapped_rows><remapped_row_pending>No</remapped_row_pending></remapped_rows>"), "n0", ""},
		{"", "gpu-throttled",
			smiF("<clocks_event_reasons><clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown></clocks_event_reasons>"),
			smiF("<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle></clocks_event_reasons>"), "n0",
			"hw_thermal_slowdown"},
		{"", "gpu-hot", smiF("<temperature><gpu_temp>86 C</gpu_temp><gpu_temp_slow_threshold>87 C</gpu_temp_slow_threshold></temperature>"),
			smiF("<temperature><gpu_temp>60 C</gpu_temp><gpu_temp_slow_threshold>87 C</gpu_temp_slow_threshold></temperature>"), "n0", ""},
		{"", "gpu-slow-clock", smiF(smiClock(1980), smiClock(1980), smiClock(1980), smiClock(1200)),
			smiF(smiClock(1980), smiClock(1980), smiClock(1980), smiClock(1965)), "1e:00.0", "1200 MHz"},
		{"", "gpu-spinning", f("smi.n0.xml", smiSpin), f("smi.n0.xml", smiCalm), "n0", ""},
		{"", "ras-error",
			file(`{"nccl_version":"2.29.2","communicators_count":1,"communicators":[{"hash":"0xae","size":1,"ranks":[{"rank":0,"host":"10.0.0.1","pid":15,"status":{"init_state":0,"async_error":6,"abort_flag":true},"collective_counts":{"AllReduce":7}}],"missing_ranks":[]}]}`),
			file(`{"nccl_version":"2.29.2","communicators_count":1,"communicators":[{"hash":"0xae","size":1,"ranks":[{"rank":0,"host":"10.0.0.1","pid":15,"status":{"init_state":0,"async_error":0,"abort_flag":false},"collective_counts":{"AllReduce":7}}],"missing_ranks":[]}]}`),
			"0", ""},
		{"", "bandwidth-dropped", file(busRecords(true)), file(busRecords(false)), "", ""},
		{"", "results-wrong", file(bench(3)), file(bench(0)), "", ""},
		{"", "port-down", f("ibstat.n0.txt", ibActive+ibPort("mlx5_1", "Down", "Polling", "10", "0")),
			f("ibstat.n0.txt", ibActive+ibPort("mlx5_1", "Active", "LinkUp", "400", "1")), "n0:mlx5_1", "Polling"},
		{"", "port-slow",
			f("ibstat.n0.txt", ibActive+ibPort("mlx5_1", "Active", "LinkUp", "400", "1")+ibPort("mlx5_2", "Active", "LinkUp", "400",
				"1")+ibPort("mlx5_3", "Active", "LinkUp", "100", "1")), f("ibstat.n0.txt", ibActive+ibPort("mlx5_1", "Active", "LinkUp", "400", "1")),
			"n0:mlx5_3", "100 Gbit/s"},
		{"", "no-subnet-manager", f("ibstat.n0.txt", ibPort("mlx5_0", "Active", "LinkUp", "400", "0")), f("ibstat.n0.txt", ibActive),
			"n0:mlx5_0", ""},
		{"", "port-errors-growing", map[string]string{"perf1.txt": perfquery("PortRcvErrors", 3), "perf2.txt": perfquery("PortRcvErrors", 900)},
			map[string]string{"perf1.txt": perfquery("PortRcvErrors", 0), "perf2.txt": perfquery("PortRcvErrors", 0)}, "lid 7 port 1", ""},
		{"", "rdma-retries", sysTree("out_of_sequence", 50000), sysTree("out_of_sequence", 5), "mlx5_0", ""},
		{"", "rdma-retries-exceeded", sysTree("req_transport_retries_exceeded", 40), sysTree("req_transport_retries_exceeded", 0), "mlx5_0", ""},
		{"", "cnp-ignored", sysTree("rp_cnp_ignored", 4), sysTree("rp_cnp_ignored", 0), "mlx5_0", ""},
		{"", "port-congested", waits(40), waits(1), "lid 9", ""},
		{"", "pause-storm", eth("tx_pause_storm_error_events", 1), eth("tx_pause_storm_error_events", 0), "n0:ens1np0", ""},
		{"", "pause-wrong-priority", eth("rx_prio0_pause", 9, "rx_prio3_pause", 12, "rx_prio3_bytes", 1000000),
			eth("rx_prio0_pause", 0, "rx_prio3_pause", 12, "rx_prio3_bytes", 1000000), "n0:ens1np0", ""},
		{"", "lossless-drops", eth("rx_prio3_bytes", 100000, "rx_prio3_discards", 4), eth("rx_prio3_bytes", 100000, "rx_prio3_discards", 0),
			"n0:ens1np0", ""},
		{"", "nic-drops", eth("rx_packets_phy", 1000000, "rx_discards_phy", 5000), eth("rx_packets_phy", 1000000, "rx_discards_phy", 0),
			"n0:ens1np0", ""},
		{"", "ber-high",
			f("mlxlink.n0.txt",
				"Operational Info\n----------------\nState                           : Active\nPhysical Counters and BER Info\n------------------------------\nEffective Physical BER          : 3E-11\nRaw Physical BER                : 2E-06\n"),
			f("mlxlink.n0.txt",
				"Operational Info\n----------------\nState                           : Active\nPhysical Counters and BER Info\n------------------------------\nEffective Physical BER          : 15E-255\nRaw Physical BER                : 2E-09\n"),
			"", "3e-11"},
		{"", "cable-degraded", linkinfo("Could be 106.25 Gbps"), linkinfo(""), "leaf1:4 - n4 mlx5_0:1", ""},
		{"", "nics-one-subnet", f("ip.n0.json", addresses("ens1 UP 9000 10.1.0.2/16", "ens2 UP 9000 10.1.0.3/16")),
			f("ip.n0.json", addresses("ens1 UP 9000 10.1.0.2/16", "ens2 UP 9000 10.2.0.3/16")), "n0:ens1", "10.1.0.0/16"},
		{"", "interface-down",
			f("ip.n0.json", addresses("ens1 UP 9000 10.1.0.2/16", "ens2 UP 9000 10.2.0.3/16", "ens3 UP 9000 10.3.0.3/16",
				"ens4 DOWN 9000 10.4.0.3/16")), f("ip.n0.json",
				addresses("ens1 UP 9000 10.1.0.2/16", "ens2 UP 9000 10.2.0.3/16", "ens3 UP 9000 10.3.0.3/16", "ens4 UP 9000 10.4.0.3/16")),
			"n0:ens4", ""},
		{"", "mtu-differs",
			f("ip.n0.json", addresses("ens1 UP 9000 10.1.0.2/16", "ens2 UP 9000 10.2.0.3/16", "ens3 UP 9000 10.3.0.3/16",
				"ens4 UP 1500 10.4.0.3/16")), f("ip.n0.json",
				addresses("ens1 UP 9000 10.1.0.2/16", "ens2 UP 9000 10.2.0.3/16", "ens3 UP 9000 10.3.0.3/16", "ens4 UP 9000 10.4.0.3/16")),
			"n0:ens4", ""},
		{"", "mtu-differs", map[string]string{"n0/ip.txt": "2: ens1: <BROADCAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP\n",
			"n1/ip.txt": "2: ens1: <BROADCAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP\n"},
			map[string]string{"n0/ip.txt": "2: ens1: <BROADCAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP\n",
				"n1/ip.txt": "2: ens1: <BROADCAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP\n"}, "hosts n0, n1", "9000 on n0, 1500 on n1"},
		{"", "pod-pending",
			f("pods.json",
				`{"kind":"Pod","metadata":{"name":"w1"},"spec":{},"status":{"phase":"Pending","conditions":[`+
					`{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/9 nodes: 9 Insufficient nvidia.com/gpu."}]}}`),
			f("pods.json",
				`{"kind":"Pod","metadata":{"name":"w1"},"spec":{"nodeName":"n7"},"status":{"phase":"Pending","conditions":[`+
					`{"type":"PodScheduled","status":"True"}]}}`), "host w1",
			"Insufficient nvidia.com/gpu"},
		{"", "pod-evicted",
			f("pods.json",
				`{"kind":"List","items":[{"kind":"Pod","metadata":{"name":"w1"},"spec":{"nodeName":"n7"},"status":{"phase":"Failed","reason":"Evicted","message":"The node was low on resource: memory."}}]}`),
			f("pods.json",
				`{"kind":"List","items":[{"kind":"Pod","metadata":{"name":"w1"},"spec":{"nodeName":"n7"},"status":{"phase":"Running"}}]}`), "host w1",
			"low on resource"},
		{"", "host-out-of-memory",
			f("pods.json",
				`{"kind":"Pod","metadata":{"name":"w2"},"status":{"containerStatuses":[{"lastState":{"terminated":{"exitCode":0,"reason":"OOMKilled","finishedAt":"2026-06-03T14:41:03Z"}}}]}}`),
			f("pods.json",
				`{"kind":"Pod","metadata":{"name":"w2"},"status":{"containerStatuses":[{"state":{"terminated":{"exitCode":0,"reason":"Completed"}}}]}}`),
			"host w2", ""},
		{"", "disk-full", file("[rank2]: OSError: [Errno 28] No space left on device: '/data/ckpt/step9.pt'\n"),
			file("[rank2]: /data has 28 GB of space left on device\n"), "rank 2", "/data/ckpt/step9.pt"},
		{"", "name-lookup", file("[rank1]: socket.gaierror: [Errno -2] Name or service not known\n"), file("[rank1]: resolved master-0\n"),
			"rank 1", ""},
		{"", "gpu-diagnostic-failed", f("diag.n0.txt",
			"| Diagnostic                | Result                |\n| GPU Memory                | Pass - GPUs: 0, 1     |\n|                           | Fail - GPU: 2         |\n"),
			f("diag.n0.txt", "| Diagnostic                | Result                |\n| GPU Memory                | Pass - All            |\n"),
			"n0:gpu2", "GPU Memory"},
		{"", "row-remap-failed", file(`DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="3",UUID="GPU-3",Hostname="n4"} 1` + "\n"),
			file(`DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="3",UUID="GPU-3",Hostname="n4"} 0` + "\n"), "n4", ""},
		{"", "acs-enabled", f("lspci.n0.txt", acsOn), f("lspci.n0.txt", acsOff), "17:00.0", ""},
		{"", "fabric-manager-errors", f("fabricmanager.n0.log",
			"[Oct 31 2023 21:11:20] [ERROR] [tid 527118] failed to find the GPU handle 12 in the multicast team request setup 42.\n"),
			f("fabricmanager.n0.log", "[Oct 31 2023 21:11:20] [INFO] [tid 527118] Received an inband message\n"), "",
			"failed to find the GPU handle"},
		{"", "remote-invalid-request", warn("NET/IB : mlx5_1:1 async fatal event on QP (0x7309dc3bb338): invalid request local work queue error"),
			ok, "mlx5_1", ""},
		{"", "gpu-access-fault",
			file("[rank3]: Memory access fault by GPU node-2 (Agent handle: 0x56468ab3bb50) on address 0x7fe55fb03000. Reason: Page not present or supervisor privilege.\nAborted (core dumped)\n"),
			file("step 3 loss 2.1\n"), "3", "page not present"},
		{"", "cable-unplugged", k("mlx5_core 0000:17:00.0: Port module event: module 0, Cable unplugged"), quiet, "n0:0000:17:00.0", ""},
		{"", "port-disabled", f("ibstat.n0.txt", ibActive+ibPort("mlx5_1", "Down", "Disabled", "10", "0")), f("ibstat.n0.txt", ibActive),
			"n0:mlx5_1", ""},
		{"", "address-twice", f("ip.n0.json", addresses("ens1 UP 9000 10.1.0.2/16", "ens2 UP 9000 10.1.0.2/16", "ens3 UP 9000 10.1.0.2/16")),
			f("ip.n0.json", addresses("ens1 UP 9000 10.1.0.2/16", "ens2 UP 9000 10.2.0.3/16")), "n0:ens3", "10.1.0.2 is on 3 interfaces"},
		{"", "checkpoint-blocks", eight(0, "Saving checkpoint to /ckpt/1800\n"), eight(-1, ""), "0", "longer than the time limit"},
		{"", "nvswitch-failed", k("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 28 LTSSM Fault Up"), quiet, "0000:c1:00.0",
			"SXid 20034"},
	}
}

// torchTable is what torchrun prints of the first failure.
func torchTable(host string, rank, code int) string {
	return fmt.Sprintf("train.py FAILED\n------\nFailures:\n[1]:\n  time      : 2026-09-07_13:03:29\n  host      : other\n  rank      : 2 (local_rank: 2)\n  exitcode  : -15 (pid: 91)\n  error_file: <N/A>\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-09-07_13:02:58\n  host      : %s\n  rank      : %d (local_rank: 0)\n  exitcode  : %d (pid: 14750)\n  error_file: <N/A>\n",
		host, rank, code)
}

func timedOut(rank, seq int, op string, numel int) string {
	return fmt.Sprintf("[rank%d]:[E1119 13:21:12.5 ProcessGroupNCCL.cpp:616] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%d, OpType=%s, NumelIn=%d, NumelOut=%d, Timeout(ms)=600000) ran for 600002 milliseconds before timing out.\n",
		rank, rank, seq, op, numel, numel)
}

// Causes stand one behind the other: a host that was lost, the process that died with it, and the ranks that waited for
// that one. All of it stands under the first, which is as bad as the worst.
func TestChainsFoldUnderTheirFirstCause(t *testing.T) {
	r := diagnose(t, map[string]string{
		"job.out": "slurmctld: error: Nodes n3 not responding, setting DOWN\nsrun: error: n3: task 3: Killed\n" +
			timedOut(0, 41, "ALLREDUCE", 8) + timedOut(1, 41, "ALLREDUCE", 8) + timedOut(2, 41, "ALLREDUCE", 8),
	})
	if got := ids(r, doctor.Warning); !slices.Equal(got, []string{"host-lost"}) {
		t.Fatalf("%v: %s", got, r.Verdict)
	}
	if f := r.Findings[0]; f.Severity != doctor.Critical || len(f.Consequences) < 2 {
		t.Errorf("%+v", f)
	}
}

// What PyTorch's watchdog says names who holds the job up.
func TestWatchdogsNameTheCulprit(t *testing.T) {
	state := func(rank, seq, enqueued int, group string) string {
		return fmt.Sprintf("[rank%d]:[E1119 13:21:12.6 ProcessGroupNCCL.cpp:1785] [PG %s Rank %d] Exception (either an error or timeout) detected by watchdog at work: %d, last enqueued NCCL work: %d, last completed NCCL work: %d.\n",
			rank, group, rank, seq, enqueued, seq-1)
	}
	signal := func(rank, from, enqueued int) string {
		return fmt.Sprintf("[rank%d]:[E723 01:58:45.6 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank %d] Received a dump signal due to a collective timeout from  rank %d and we will try our best to dump the debug info. Last enqueued NCCL work: %d, last completed NCCL work: %d.This is most likely\n",
			rank, rank, from, enqueued, enqueued)
	}
	world := "ID 0 PG GUID 0(default_pg)"
	for _, c := range []struct {
		name, text, class string
		culprits          []int
	}{
		{"one is behind", timedOut(0, 41, "ALLREDUCE", 8) + state(0, 41, 43, world) + timedOut(1, 41, "ALLREDUCE", 8) + state(1, 41, 41,
			world) + signal(2, 0, 40), "host", []int{2}},
		{"one calls another operation", timedOut(0, 41, "ALLREDUCE", 8) + timedOut(1, 41, "ALLREDUCE", 8) + timedOut(2, 41, "BROADCAST", 8),
			"mismatch", []int{2}},
		{"one has another size", timedOut(0, 41, "ALLREDUCE", 8) + timedOut(1, 41, "ALLREDUCE", 9) + timedOut(2, 41, "ALLREDUCE", 8), "mismatch",
			[]int{1}},
		{"two groups, each in step", timedOut(0, 41, "ALLREDUCE", 8) + state(0, 41, 43, "1") + timedOut(1, 7, "_ALLGATHER_BASE", 8) + state(1, 7,
			9, "2") + timedOut(2, 7, "_ALLGATHER_BASE", 8) + state(2, 7, 9, "2") + timedOut(3, 41, "ALLREDUCE", 8) + state(3, 41, 43, "1"), "", nil},
		{"PyTorch's barrier", "[rank0]: RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 300000 ms\n", "host", []int{1, 3}},
		{"PyTorch's report",
			"\t - To our best knowledge, ranks [1] are the lagging ranks that caused this timeout. They never joined any collectives\n",
			"host", []int{1}},
	} {
		r := diagnose(t, file(c.text))
		switch {
		case c.culprits == nil:
			if r.Hang != nil || found(r, "watchdog-desync") != nil {
				t.Errorf("%s: %+v %v", c.name, r.Hang, ids(r, doctor.Info))
			}
		case r.Hang == nil || r.Hang.Class != c.class || !slices.Equal(r.Hang.Culprits, c.culprits):
			t.Errorf("%s: %+v %v", c.name, r.Hang, ids(r, doctor.Info))
		}
	}
}

func sysTree(counter string, v int) map[string]string {
	return map[string]string{
		"n0/sys/class/infiniband/mlx5_0/ports/1/state":                     "4: ACTIVE\n",
		"n0/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets": "1000000\n",
		"n0/sys/class/infiniband/mlx5_0/ports/1/hw_counters/" + counter:    fmt.Sprintln(v),
	}
}

func waits(times int) map[string]string {
	out := map[string]string{}
	for i := range 8 {
		v := 2000000
		if i == 5 {
			v *= times
		}
		out[fmt.Sprintf("perfquery-%d.txt", i)] = fmt.Sprintf("# Port extended counters: Lid %d port 1\nPortXmitWait:..........%d\n", 4+i, v)
	}
	return out
}

// Every finding outside of the list of symptoms fires on its signal and is silent on its
// healthy neighbour.
func TestFindings(t *testing.T) {
	for _, s := range findings() {
		t.Run(s.id, func(t *testing.T) { s.check(t) })
	}
}

// A live host tells of limits and processes.
func TestHostState(t *testing.T) {
	well := doctor.HostState{Host: "n0", RDMA: 2, Verbs: 2, PeerMem: true, NVIDIA: true, MemLock: 1<<63 - 1, ShmSize: 1 << 30,
		ShmFree: 1 << 30, PortLow: 32768, PortHigh: 60999}
	for id, break_ := range map[string]func(*doctor.HostState){
		"verbs-count":     func(h *doctor.HostState) { h.Verbs = 1 },
		"peermem-missing": func(h *doctor.HostState) { h.PeerMem = false },
		"shm-small":       func(h *doctor.HostState) { h.ShmSize, h.ShmFree = 64<<20, 10<<20 },
		"ports-narrow":    func(h *doctor.HostState) { h.PortLow, h.PortHigh = 60000, 61000 },
		"memlock":         func(h *doctor.HostState) { h.MemLock = 64 << 10 },
	} {
		sick := well
		break_(&sick)
		if r := doctor.Diagnose(&doctor.Case{Host: []doctor.HostState{sick}}, doctor.Options{}); found(r, id) == nil ||
			found(r, id).Subject.String() != "host n0" {
			t.Errorf("%s: found %v", id, ids(r, doctor.Info))
		}
	}
	if r := doctor.Diagnose(&doctor.Case{Host: []doctor.HostState{well}}, doctor.Options{}); len(r.Findings) > 0 {
		t.Errorf("a healthy host: %v", ids(r, doctor.Info))
	}
}

// Every row of the catalogue has a test that finds it and one that does not, and a page.
func TestEveryFindingIsTested(t *testing.T) {
	tested := map[string]string{
		"never-arrived": "TestCrossRankVerdicts", "stuck-in-bootstrap": "TestCrossRankVerdicts", "stuck-in-connect": "TestCrossRankVerdicts",
		"desync":    "TestCrossRankVerdicts",
		"straggler": "TestStragglerIsTheOneThatWaitsLeast", "slow-link": "TestDelayMatrix", "slow-rank-io": "TestDelayMatrix",
		"hang":        "TestHangNamesTheHostThatStopped",
		"ras-missing": "TestRASNamesThoseBehind", "ras-behind": "TestRASNamesThoseBehind",
		"verbs-count": "TestHostState", "peermem-missing": "TestHostState", "shm-small": "TestHostState", "ports-narrow": "TestHostState",
		"port-errors": "TestFabricTools", "port-errors-few": "TestFabricTools", "port-unhealthy": "TestFabricTools",
		"switch-hardware": "TestFabricTools", "pair-slow": "TestFabricTools", "nvswitch-event": "TestFabricTools",
		"ib-tool-failed": "TestFabricTools", "host-crashed": "TestFabricTools", "host-hardware": "TestFabricTools",
		"nvml-error": "TestWordsOfVersions", "below-prediction": "TestBelowPrediction", "communicators-leaked": "TestLeakedCommunicators",
	}
	for _, s := range slices.Concat(symptoms(), findings()) {
		tested[s.id] = "TestSymptoms, TestFindings"
	}
	for _, e := range doctor.Catalogue {
		if tested[e.ID] == "" {
			t.Errorf("%s has no test", e.ID)
		}
		x, err := doctor.Explain(e.ID)
		if err != nil || x.Title == "" || x.Signal == "" || x.Cause == "" || x.Fix == "" || x.Confidence <= 0 || x.Confidence > 1 ||
			!slices.Contains(doctor.Layers, x.Layer) {
			t.Errorf("%s: %v %+v", e.ID, err, x)
		}
	}
}

// What was measured is held against what is predicted.
func TestBelowPrediction(t *testing.T) {
	for _, c := range []struct {
		bus  float64
		want bool
	}{{24, true}, {95, false}} {
		r := doctor.Diagnose(&doctor.Case{Bench: []doctor.Bench{{Op: "all_reduce", Ranks: 8, Size: 1 << 30, Bus: c.bus, Wrong: 0}}},
			doctor.Options{Expect: []doctor.Expectation{{Op: "all-reduce", Size: 1 << 30, Bus: 100}}})
		if (found(r, "below-prediction") != nil) != c.want {
			t.Errorf("%g GB/s of 100: %v", c.bus, ids(r, doctor.Info))
		}
	}
}

// Communicators that are made and never destroyed.
func TestLeakedCommunicators(t *testing.T) {
	text := func(n int, destroy bool) string {
		var b strings.Builder
		for i := range n {
			for _, w := range []string{"Init START", "Init COMPLETE"} {
				fmt.Fprintf(&b, "n0:11:12 [0] NCCL INFO comm 0x%x rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x%x - %s\n",
					0x100+i, 0x9000+i, w)
			}
			if destroy {
				fmt.Fprintf(&b, "n0:11:12 [0] NCCL INFO comm 0x%x rank 0 nranks 2 cudaDev 0 busId 1b000 - Destroy COMPLETE\n", 0x100+i)
			}
		}
		return b.String()
	}
	if r := diagnose(t, file(text(200, false))); found(r, "communicators-leaked") == nil {
		t.Errorf("200 made, none destroyed: %v", ids(r, doctor.Info))
	}
	if r := diagnose(t, file(text(200, true))); found(r, "communicators-leaked") != nil {
		t.Error("200 made, 200 destroyed: they are said to be leaked")
	}
}
