package read

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

func readAll(t testing.TB, name, text string) *doctor.Case {
	t.Helper()
	c := &doctor.Case{}
	if err := File(c, name, "", strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	Finish(c)
	return c
}

// Pickles that name or call anything are refused, and nothing of them is used.
func TestPickleRefusesCalls(t *testing.T) {
	for what, b := range map[string]string{
		"GLOBAL and REDUCE": "\x80\x02cos\nsystem\nX\x06\x00\x00\x00rm -rf\x85R.",
		"STACK_GLOBAL":      "\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.",
		"INST":              "(S'ls'\nios\nsystem\n.",
		"BUILD":             "\x80\x02}}b.",
		"NEWOBJ":            "\x80\x02))\x81.",
		"persistent id":     "\x80\x02Pid\n.",
		"extension":         "\x80\x02\x82\x01.",
	} {
		if _, err := unpickle([]byte(b)); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v", what, err)
		}
		if b[0] == 0x80 {
			c := readAll(t, "x", b)
			if len(c.Dumps) != 0 || len(c.Files[0].Notes) == 0 {
				t.Errorf("%s: dumps %v, notes %v", what, c.Dumps, c.Files[0].Notes)
			}
		}
	}
	for what, b := range map[string]string{
		"empty stack": "\x80\x02.", "no mark": "\x80\x02]e.", "memo": "\x80\x02h\x07.", "list of dict": "\x80\x02](}u.",
		"length": "\x80\x02X\xff\xff\xff\x7f", "depth": "\x80\x02" + strings.Repeat("(", maxPickleDepth+2),
		"protocol 9": "\x80\x09.", "key": "\x80\x02}]K\x01s.",
	} {
		if _, err := unpickle([]byte(b)); err == nil {
			t.Errorf("%s was taken", what)
		}
	}
}

// The JSON form says the same as the pickle: times 0, status as text.
func TestFlightRecorderJSON(t *testing.T) {
	text := `{"version": "2.10", "comm_lib_version": "2.28.3", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
 "pg_status": {"0": {"last_enqueued_collective": "7", "last_started_collective": "-1", "last_completed_collective": "6"}},
 "entries": [{"record_id": 6, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 7, "p2p_seq_id": 0, "op_id": 7, "profiling_name": "nccl:all_reduce", "time_created_ns": 1758610505947105656, "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "state": "scheduled", "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0, "retired": false, "timeout_ms": 600000, "is_p2p": false},
 {"record_id": 7, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 7, "p2p_seq_id": 3, "profiling_name": "nccl:recv 1<-0", "state": "scheduled", "is_p2p": true}]}`
	d := readAll(t, "fr_1.json", text).Dumps
	if len(d) != 1 || d[0].NCCL != "2.28.3" || d[0].NameRank != 1 || len(d[0].Entries) != 2 {
		t.Fatalf("%+v", d)
	}
	if g := d[0].Groups[0]; !slices.Equal(g.Ranks, []int{0, 1}) || g.LastEnqueued != 7 || g.LastCompleted != 6 || d[0].Idle {
		t.Errorf("%+v", g)
	}
	if e := d[0].Entries[0]; e.Done || e.Seq != 7 || e.Created != 1758610505947105656 || e.Name != "all_reduce" {
		t.Errorf("%+v", e)
	}
	if e := d[0].Entries[1]; !e.P2P || e.From != 0 || e.To != 1 || e.Seq != 3 {
		t.Errorf("%+v", e)
	}
	for i := range len(text) {
		c := readAll(t, "fr_1.json", text[:i]) // cut anywhere: what is there, or a note
		if len(c.Dumps) == 0 && len(c.Files[0].Notes) == 0 && i > 0 {
			t.Errorf("cut at %d: no dump and no note", i)
		}
	}
}

func TestKernelLog(t *testing.T) {
	c := readAll(t, "dmesg.node07.txt", `[    0.000000] Linux version 6.8
[12345.678901] NVRM: Xid (PCI:0000:9b:00): 79, pid=2024380, name=python, GPU has fallen off the bus.
[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s
kern  :warn  : 2025-01-21T04:41:44,285060+00:00 NVRM: Xid (0000:03:00): 45, Ch 00000010
Feb 23 16:24:19 gpu12 kernel: NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.
6,3964,206764307,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
{"__REALTIME_TIMESTAMP":"1740327858000000","_HOSTNAME":"gpu13.lab","MESSAGE":"NVRM: Xid (PCI:0000:4f:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x004505c6 0x00000000 0x0 0x0)"}
[1.0] mlx5_core 0000:17:00.0 ens1f0np0: Link down
[2.0] pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0
[3.0] mlx5_core 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)
[4.0] Out of memory: Killed process 4242 (python) total-vm:1kB
`)
	type want struct {
		kind, host, dev string
		code            int
		fatal           bool
	}
	for i, w := range []want{
		{"xid", "node07", "0000:9b:00", 79, false}, {"xid", "node07", "0000:9b:00", 119, false}, {"xid", "node07", "0000:03:00", 45, false},
		{"xid", "gpu12", "0000:1b:00.0", 79, false},
		{"sxid", "node07", "nvidia-nvswitch3 0000:c1:00.0", 20034, true}, {"xid", "gpu13", "0000:4f:00", 149, false},
		{"nic_down", "node07", "0000:17:00.0", -1, false},
		{"aer", "node07", "0000:17:00.0", -1, true}, {"aer", "node07", "0000:17:00.0", -1, false}, {"oom_kill", "node07", "", -1, false},
	} {
		if i >= len(c.Kernel) {
			t.Fatalf("%d lines were understood, not %d", len(c.Kernel), i+1)
		}
		k := c.Kernel[i]
		if (want{k.Kind, k.Host, k.Device, k.Code, k.Fatal}) != w {
			t.Errorf("line %d: %+v, not %+v", i, k, w)
		}
	}
	if k := c.Kernel[0]; k.Uptime != 12345.678901 || k.At.Line != 2 {
		t.Errorf("%+v", k)
	}
	if k := c.Kernel[5]; k.F["unit"] != "NETIR_LINK_EVT" || k.F["link"] != "03" || k.Time != 1740327858 {
		t.Errorf("%+v", k)
	}
}

func TestInfiniBandTools(t *testing.T) {
	c := readAll(t, "n3/ibstat.txt",
		"CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n\t\tBase lid: 42\n\t\tSM lid: 1\n\t\tLink layer: InfiniBand\nCA 'mlx5_1'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tRate: 10\nibpanic: [88] main: stat of IB device 'mlx5_2' failed: No such file or directory\n")
	if len(c.Ports) != 3 || c.Ports[0].Rate != 400 || c.Ports[0].SMLID != 1 || c.Ports[0].Host != "n3" || c.Ports[2].State != "Down" &&
		c.Ports[1].State != "Down" {
		t.Errorf("ibstat: %+v", c.Ports)
	}
	c = readAll(t, "x",
		"Infiniband device 'mlx5_0' port 1 status:\n\tdefault gid:\t fe80::1\n\tbase lid:\t 0x3\n\tsm lid:\t\t 0x1\n\tstate:\t\t 4: ACTIVE\n\tphys state:\t 5: LinkUp\n\trate:\t\t 400 Gb/sec (4X NDR)\n\tlink_layer:\t InfiniBand\n")
	if p := c.Ports[0]; p.State != "Active" || p.Phys != "LinkUp" || p.Rate != 400 || p.Width != 4 || p.Layer != "InfiniBand" {
		t.Errorf("ibstatus: %+v", p)
	}
	c = readAll(t, "x",
		"# Port extended counters: Lid 17 port 3 (CapMask: 0x5300)\nPortSelect:......................3\nPortXmitData:....................36298026860928\nSymbolErrorCounter:..............12\nLinkDownedCounter:...............2\n")
	if p := c.Ports[0]; p.LID != 17 || p.Port != 3 || p.Counters["port_xmit_data"] != 36298026860928 || p.Counters["symbol_error"] != 12 ||
		p.Counters["link_downed"] != 2 {
		t.Errorf("perfquery: %+v", p)
	}
	c = readAll(t, "x",
		"CA: n0 mlx5_0:\n      0x0002c9030000a001      3    1[  ] ==( 4X      53.125 Gbps Active/  LinkUp)==>       1   17[  ] \"leaf1\" ( )\nSwitch: 0xe41d2d0300aa leaf1:\n           1   17[  ] ==( 1X      53.125 Gbps Active/  LinkUp)==>       3    1[  ] \"n0 mlx5_0\" ( Could be 4X)\n           1   18[  ] ==(                Down/ Polling)==>             [  ] \"\" ( )\n")
	if len(c.Cables) != 3 || c.Cables[0].Width != 4 || c.Cables[0].B != "leaf1" || c.Cables[1].WidthMax != 4 || !c.Cables[1].ASwitch {
		t.Errorf("iblinkinfo: %+v", c.Cables)
	}
	c = readAll(t, "x",
		"SW  1719 10 0x7cfe9003009ce5b0 4x EDR - CA   134  1 0x7cfe9003003b4bde ( 'leaf1' - 'o1 HCA-1' )\nSW  2052 37 0x506b4b03005c2740 4x ???                                    'leaf2'\n")
	if len(c.Cables) != 1 || c.Cables[0].APort != 10 || c.Cables[0].B != "o1 HCA-1" || c.Cables[0].Speed != "EDR" {
		t.Errorf("ibnetdiscover -p: %+v", c.Cables)
	}
	c = readAll(t, "x",
		"vendid=0x2c9\nswitchguid=0xe41d(e41d)\nSwitch\t36 \"S-e41d\"\t\t# \"leaf1\" enhanced port 0 lid 2 lmc 0\n[1]\t\"H-7cfe\"[1](7cfe) \t\t# \"n0 mlx5_0\" lid 3 4xHDR\n")
	if len(c.Cables) != 1 || c.Cables[0].B != "n0 mlx5_0" || c.Cables[0].Width != 4 || c.Cables[0].Speed != "HDR" {
		t.Errorf("ibnetdiscover: %+v", c.Cables)
	}
	c = readAll(t, "x",
		"-----\nPort=1 Lid=0x0011 GUID=0xe41d2d0300aa Device=54000 Port Name=leaf1/P1\n-----\nlink_down_counter=0x03\nsymbol_error_counter=0x0a\nport_xmit_wait=0x00ff\n")
	if p := c.Ports[0]; p.Counters["link_downed"] != 3 || p.Counters["symbol_error"] != 10 || p.LID != 17 || p.Device != "leaf1/P1" {
		t.Errorf("ibdiagnet: %+v", p)
	}
	c = readAll(t, "x",
		"Operational Info\n----------------\nState                           : Active\nPhysical state                  : LinkUp\nSpeed                           : IB-NDR\nWidth                           : 4x\n\nPhysical Counters and BER Info\n------------------------------\nEffective Physical BER          : 15E-255\nRaw Physical BER                : 3E-08\nLink Down Counter               : 1\n")
	if p := c.Ports[0]; p.EffBER != 0 || p.RawBER != 3e-8 || p.Width != 4 || p.Layer != "InfiniBand" || p.Counters["link_downed"] != 1 {
		t.Errorf("mlxlink: %+v", p)
	}
	c = readAll(t, "x/ethtool.ens1f0np0", "NIC statistics:\n     rx_packets: 100\n     rx_prio3_pause: 7\n")
	if e := c.Ether[0]; e.Counters["rx_prio3_pause"] != 7 || e.Device != "ens1f0np0" {
		t.Errorf("ethtool: %+v", e)
	}
	c = readAll(t, "x", "n1: CA 'mlx5_0'\nn1: \tPort 1:\nn1: \t\tState: Active\nn2: CA 'mlx5_0'\nn2: \tPort 1:\nn2: \t\tState: Down\n")
	if len(c.Ports) != 2 || c.Ports[0].Host != "n1" || c.Ports[1].Host != "n2" || c.Ports[1].State != "Down" {
		t.Errorf("pdsh: %+v", c.Ports)
	}
}

func TestHostTools(t *testing.T) {
	smi := `<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<gpu id="00000000:1B:00.0">
		<product_name>NVIDIA H100 80GB HBM3</product_name>
		<uuid>GPU-1</uuid>
		<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen><link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths></pci_gpu_link_info><replay_counter>0</replay_counter></pci>
		<fabric><state>Completed</state><status>Success</status></fabric>
		<clocks_event_reasons><clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle><clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap></clocks_event_reasons>
		<ecc_errors><volatile><dram_uncorrectable>2</dram_uncorrectable><sram_correctable>9</sram_correctable></volatile></ecc_errors>
		<remapped_rows><remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
	</gpu>
	<gpu id="00000000:43:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name></gpu>
</nvidia_smi_log>`
	c := readAll(t, "x", smi)
	if len(c.GPUs) != 2 {
		t.Fatalf("%d GPUs", len(c.GPUs))
	}
	if g := c.GPUs[0]; g.Width != 8 || g.WidthMax != 16 || !slices.Equal(g.Throttle, []string{"hw_thermal_slowdown"}) || g.ECC != 2 ||
		!g.RemapWait || g.RemapFail || g.At.Line != 4 {
		t.Errorf("%+v", g)
	}
	if c := readAll(t, "x", smi[:len(smi)*2/3]); len(c.GPUs) != 1 || len(c.Files[0].Notes) == 0 {
		t.Errorf("cut XML: %d GPUs, %v", len(c.GPUs), c.Files[0].Notes)
	}
	c = readAll(t, "x",
		"GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-6)\n\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s\n")
	if l := c.GPUs[0].Links; len(l) != 2 || !l[0].Active || l[1].Active || l[1].At.Line != 3 {
		t.Errorf("nvlink -s: %+v", l)
	}
	c = readAll(t, "x",
		"GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5)\n\t Link 0: Replay Errors: 3\n\t Link 0: Recovery Errors: 0\n\t Link 0: CRC Errors: 0\n")
	if l := c.GPUs[0].Links; len(l) != 1 || l[0].Errors["replay"] != 3 {
		t.Errorf("nvlink -e: %+v", l)
	}
	c = readAll(t, "x",
		"17:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n\tCapabilities: [60] Express (v2) Endpoint, MSI 00\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n\t\tLnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)\n")
	if p := c.PCI[0]; p.Width != 8 || p.WidthMax != 16 || p.SpeedMax != 32 || p.Type != "Endpoint" {
		t.Errorf("lspci: %+v", p)
	}
	c = readAll(t, "x",
		`[{"ifindex":2,"ifname":"eth0","mtu":9000,"operstate":"UP","addr_info":[{"family":"inet","local":"10.0.0.1","prefixlen":24}]}]`)
	if a := c.Addresses[0]; a.Name != "eth0" || a.MTU != 9000 || !slices.Equal(a.Prefixes, []string{"10.0.0.1/24"}) {
		t.Errorf("ip -j: %+v", a)
	}
	c = &doctor.Case{}
	for name, val := range map[string]string{"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "counters/link_downed": "3",
		"hw_counters/out_of_sequence": "9", "counters/VL15_dropped": "N/A (no PMA)"} {
		File(c, "node2/sys/class/infiniband/mlx5_0/ports/1/"+name, "", strings.NewReader(val+"\n"))
	}
	Finish(c)
	if p := c.Ports; len(p) != 1 || p[0].State != "Active" || p[0].Rate != 400 || p[0].Counters["link_downed"] != 3 ||
		p[0].Counters["out_of_sequence"] != 9 || p[0].Host != "node2" {
		t.Errorf("/sys: %+v", p)
	}
}

func TestNCCLReports(t *testing.T) {
	c := readAll(t, "x",
		`{"nccl_version":"2.29.2","timestamp":"2025-12-19 13:06:53","communicators_count":1,"communicators":[{"hash":"0xae","secondary_hash":"0xb7:0xb8","size":2,"ranks_count":1,"missing_ranks_count":1,
"ranks":[{"rank":0,"host":"172.16.64.245","pid":15,"cuda_dev":0,"nvml_dev":0,"status":{"init_state":0,"async_error":0,"abort_flag":false},"collective_counts":{"AllReduce":7}}],
"missing_ranks":[{"rank":1,"host":"172.16.64.245","pid":16,"cuda_dev":1,"nvml_dev":1,"status":{"unresponsive":true,"considered_dead":false}}]}],"ras":{"collection_time_sec":0.0,"timeouts_count":2}}`)
	if r := c.RAS; len(r) != 1 || r[0].Timeout != 2 || r[0].Comms[0].Ranks[0].Counts["AllReduce"] != 7 ||
		!r[0].Comms[0].Missing[0].Unresponsive {
		t.Errorf("RAS JSON: %+v", r)
	}
	c = readAll(t, "x",
		"Job summary\n===========\n\nCommunicators... (0.00s)\n=============\n\nGroup     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    #  in group  per comm  per node  per comm  in group\n    0         1         4         8        32        32   RUNNING  MISMATCH\n\nWarnings\n========\n\n#0-0 (27a0) MISMATCH\n  Communicator ranks have different collective operation counts\n  26 ranks have launched up to operation 6650\n  6 ranks have launched up to operation 6649\n  Rank 3 -- GPU 3 managed by process 48 on node 172.16.64.210\n")
	if r := c.RAS; len(r) != 1 || r[0].Comms[0].Size != 32 || r[0].Comms[0].Ranks[0].Rank != 3 ||
		r[0].Comms[0].Ranks[0].Counts["collective"] != 6649 {
		t.Errorf("RAS text: %+v", r)
	}
	c = readAll(t, "x",
		`{"header":{"id":"0x7f","rank":2,"n_ranks":8,"nnodes":1},"metadata":{"hostname":"h1.x","pid":16},"coll_perf":{"coll":"AllReduce","coll_sn":1407,"coll_msg_size_bytes":1048576,"coll_exec_time_us":61,"coll_busbw_gbs":485.1}}`+
			"\n"+
			`{"header":{"id":"0x7f","rank":2,"n_ranks":8},"metadata":{"hostname":"h1"},"p2p_perf":{"p2p":"Send","p2p_sn":4,"p2p_peer":3,"p2p_msg_size_bytes":65536,"p2p_exec_time_us":10}}`+
			"\n{\"header\":{\"id\"")
	if p := c.Perf; len(p) != 2 || p[0].Seq != 1407 || p[0].Host != "h1" || p[1].Peer != 3 || len(c.Files[0].Notes) == 0 {
		t.Errorf("Inspector: %+v %v", p, c.Files[0].Notes)
	}
	old := "# nThread 1 nGpus 8 minBytes 1 maxBytes 8\n#   Rank  7 Pid 112 on localhost device  7 [0x00] A100\n#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\nhost:1:1 [0] NCCL INFO Launch mode Parallel\n     1048576        262144   float     sum    74.78   14.02   24.54  0e+00    76.17   13.77   24.09    N/A\n"
	recent := "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 1 minBytes 8 maxBytes 8 \n#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n[1,0]<stdout>:     1048576        262144     float     sum      -1    74.78   14.02   24.54      0    76.17   13.77   24.09      3\n"
	for what, text := range map[string]string{"old": old, "recent": recent} {
		c = readAll(t, what, text)
		if len(c.Bench) != 2 || c.Bench[0].Size != 1<<20 || c.Bench[0].Bus != 24.54 || c.Bench[1].Bus != 24.09 {
			t.Errorf("%s: %+v", what, c.Bench)
		}
		if what == "recent" && (c.Bench[1].Wrong != 3 || c.Bench[0].Op != "all_reduce") || what == "old" && c.Bench[0].Ranks != 8 {
			t.Errorf("%s: %+v", what, c.Bench)
		}
	}
}

// Compressed and cut logs are read as far as they go, and say so.
func TestCompressedAndCut(t *testing.T) {
	text := strings.Repeat("n0:1:2 [0] NCCL INFO Using network IB\n", 5000)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	z.Close()
	c := readAll(t, "x.gz", b.String())
	if len(c.Lines) != 5000 || c.Files[0].Kind != "NCCL log" {
		t.Errorf("%d lines of a %s", len(c.Lines), c.Files[0].Kind)
	}
	if c = readAll(t, "x.gz", b.String()[:b.Len()/2]); len(c.Files[0].Notes) == 0 {
		t.Error("a cut gzip is not noted")
	}
	c = readAll(t, "x", "n0:1:2 [0] NCCL INFO Using network IB\nn0:1:2 [0] NCCL INFO Usi")
	if len(c.Lines) != 1 || len(c.Files[0].Notes) == 0 {
		t.Errorf("%d lines, notes %v", len(c.Lines), c.Files[0].Notes)
	}
	// Two processes that wrote at once.
	c = readAll(t, "x",
		"n1:7:8 [1] NCCL INFO NCCL version 2.22.3+cuda12.4\nn0:1:2 [0] NCCL INFO Using network IBn1:7:8 [1] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\n")
	if len(c.Lines) != 3 || c.Lines[2].Host != "n0" || c.Lines[2].F["net"] != "IB" || c.Lines[1].Host != "n1" ||
		c.Lines[1].Kind != "bootstrap_if" {
		t.Errorf("%+v", c.Lines)
	}
	// The same, and the first was cut: its rest is the next line.
	c = readAll(t, "x",
		"n1:7:8 [1] NCCL INFO NCCL version 2.22.3+cuda12.4\nn0:1:2 [0] NCCL INFO Using network In1:7:8 [1] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\nB\n")
	if len(c.Lines) != 2 {
		t.Errorf("%+v", c.Lines)
	}
}

// noise gives garbage without holding it.
type noise struct {
	left int64
	seed uint64
}

func (n *noise) Read(p []byte) (int, error) {
	if n.left <= 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > n.left {
		p = p[:n.left]
	}
	for i := range p {
		n.seed = n.seed*6364136223846793005 + 1442695040888963407
		p[i] = byte(n.seed >> 56)
	}
	n.left -= int64(len(p))
	return len(p), nil
}

// Garbage of any length is read in bounded memory. A gigabyte is 'make doctor-garbage'.
func TestGarbageInBoundedMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := &doctor.Case{}
	if err := File(c, "noise", "", &noise{left: 8 << 20, seed: 7}); err != nil {
		t.Fatal(err)
	}
	if err := File(c, "zeros", "", io.LimitReader(zeros{}, 8<<20)); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("%d bytes are held after 16 MiB of garbage", grown)
	}
	if c.Files[0].Kind != "unknown" || len(c.Lines) != 0 {
		t.Errorf("%+v, %d lines", c.Files, len(c.Lines))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// corpus is a little of every dialect.
func corpus() []string {
	return []string{
		"n0:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 commId 0x5 - Init COMPLETE\n",
		"[1,3]<stderr>:n0:1:2 [0] transport/net_ib.cc:5 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with error 12, opcode 1, len 0, vendor err 129\n",
		"\x80\x02}(X\x07\x00\x00\x00entries](}(X\x05\x00\x00\x00stateX\x09\x00\x00\x00scheduledueX\x09\x00\x00\x00pg_config}u.",
		`{"entries":[{"state":"scheduled"}],"pg_config":{"0":{"ranks":"[0]"}}}`,
		"NVRM: Xid (PCI:0000:9b:00): 79, x\n", "CA 'a'\n\tPort 1:\n\t\tState: Down\n", "# Port counters: Lid 1 port 1\nSymbolErrorCounter:..1\n",
		"GPU 0: x (UUID: GPU-1)\n\tLink 0: 25 GB/s\n",
		"\tGPU0\tGPU1\nGPU0\tX\tNV4\n", "<nvidia_smi_log><gpu id=\"1\"><uuid>x</uuid></gpu></nvidia_smi_log>",
		"NIC statistics:\n  a: 1\n", "00:01.0 PCI bridge: x\n\tCapabilities: x\n\t\tLnkSta: Speed 8GT/s, Width x8\n",
		`[{"ifname":"eth0"}]`, "Job summary\nCommunicators...\n#0-0 (ab) MISMATCH\n",
		`{"header":{"id":"1","rank":0},"coll_perf":{"coll":"x","coll_sn":1}}` + "\n",
		"# nThread 1\n# algbw busbw\n 1 1 float sum 1.0 1.0 1.0 0 1.0 1.0 1.0 0\n",
		"Port=1 Lid=1 GUID=0x1\na=0x1\n", "==( 4X 1 Gbps Active/ LinkUp)==> 1 1[ ] \"x\" ( )\n",
		"nccl_bus_bandwidth_gbs{node=\"a\"} 1\n",
	}
}

// No input stops the readers or the rules.
func FuzzFile(f *testing.F) {
	for _, s := range corpus() {
		f.Add("job/rank_3.log", s)
		f.Add("sys/class/infiniband/mlx5_0/ports/1/counters/x", s)
	}
	f.Fuzz(func(t *testing.T, name, text string) {
		c := &doctor.Case{}
		if err := File(c, name, "", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		if err := File(c, "other", "n1", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		Finish(c)
		r := doctor.Diagnose(c, doctor.Options{})
		if r.Verdict == "" {
			t.Error("no verdict")
		}
		for _, f := range r.Findings {
			if f.Confidence < 0 || f.Confidence > 1 || f.Title == "" || f.Evidence == nil {
				t.Errorf("%+v", f)
			}
		}
	})
}

// The pickle reader takes any bytes.
func FuzzPickle(f *testing.F) {
	f.Add([]byte("\x80\x02}(X\x01\x00\x00\x00aK\x01u."))
	f.Add([]byte("\x80\x02]q\x00(h\x00e."))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := unpickle(b)
		if d, ok := v.(*pdict); ok && err == nil {
			flight("x", d)
		}
	})
}

// The JSON reader agrees with itself on what it wrote down of a cut text.
func FuzzJSON(f *testing.F) {
	for _, s := range corpus() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, _ := parseJSON([]byte(s))
		_ = fmt.Sprint(print(v))
	})
}

// What a line begins does not keep the reader busy for the rest of a long file.
func TestPatienceEnds(t *testing.T) {
	for _, first := range []string{"# size count type redop root time algbw busbw #wrong",
		"Traceback (most recent call last):", "Failures:", "Last error:"} {
		c := &doctor.Case{Files: []doctor.File{{}}}
		s := &scan{c: c, kinds: map[string]int{}, hosts: map[string]bool{}, note: func(doctor.NoteKind, string, ...any) {}}
		text := first + "\n" + strings.Repeat("x\n", patience+100)
		if _, err := s.log(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		if s.bench.active() || s.torch.open() {
			t.Errorf("%q is still open", first)
		}
	}
}

// NCCL Inspector's records name their rank each, or once for all that follow.
func TestInspectorHeaders(t *testing.T) {
	const head = `"header":{"id":"0x7c1a","rank":3,"n_ranks":8},"metadata":{"hostname":"n1.cluster","pid":4127}`
	record := func(seq int) string {
		return fmt.Sprintf(`"coll_perf":{"coll":"AllReduce","coll_sn":%d,"coll_msg_size_bytes":1048576,"coll_exec_time_us":88,"coll_busbw_gbs":20.8}`,
			seq)
	}
	for name, text := range map[string]string{
		"each":   "{" + head + "," + record(1) + "}\n{" + head + "," + record(2) + "}\n",
		"once":   "{" + head + `,"dump_stats":{"records":2,"dropped":0}}` + "\n{" + record(1) + "}\n{" + record(2) + "}\n",
		"marker": `{"dump_stats":{"records":2,"dropped":0,` + head + "}}\n{" + record(1) + "}\n{" + record(2) + "}\n",
	} {
		c := &doctor.Case{}
		if err := File(c, "inspector.json", "", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		if len(c.Perf) != 2 || c.Perf[1].Rank != 3 || c.Perf[1].Host != "n1" || c.Perf[1].Seq != 2 || c.Perf[1].N != 8 {
			t.Errorf("%s: %+v", name, c.Perf)
		}
	}
}
