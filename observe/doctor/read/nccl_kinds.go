package read

import "github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"

// ncclKind is a sentence that NCCL prints: what it must contain, and its grammar on
// the text behind "NCCL INFO ". The grammars hold for the versions named, 2.3.5
// to 2.30.7 where none are; text follows the network plugin's version, so the
// content decides and never the version.
type ncclKind struct {
	id      string
	needles []string // one of these is in the text
	re      *regexp.Regexp
}

// The order matters: a text is of the first kind that fits.
var ncclKinds = []ncclKind{
	{"subnet_none", []string{"nterface found"},
		regexp.MustCompile(`^(?:Net : )?No interface found in the same subnet as remote address (?P<addr>\S+)|^(?:NET/Socket : |Bootstrap : )?No usable listening interface found`)}, // 2.4.8 to 2.30.7
	{"bootstrap_none", []string{"nterface found"},
		regexp.MustCompile(`^Bootstrap ?: no socket interface found|^NET/Socket : no interface found`)}, // 2.4.8 to 2.30.7
	{"root_twice", []string{"already checked in"},
		regexp.MustCompile(`^Bootstrap Root : rank (?P<rank>\d+) of (?P<n>\d+) ranks has already checked in`)}, // 2.3.7 to 2.30.7
	{"root_mismatch", []string{"Bootstrap Root : mismatch"},
		regexp.MustCompile(`^Bootstrap Root : mismatch in (?:rank count from procs|info from procs)`)},
	{"boot_timings", []string{"Bootstrap timings"},
		regexp.MustCompile(`^Bootstrap timings total (?P<total>[\d.]+) \(create (?P<create>[\d.]+), send (?P<send>[\d.]+), recv (?P<recv>[\d.]+), ring (?P<ring>[\d.]+), delay (?P<delay>[\d.]+)\)`)}, // 2.23.4 to 2.30.7
	{"plugin_loaded", []string{"Loaded net plugin"},
		regexp.MustCompile(`^NET/Plugin: Loaded net plugin (?P<name>.+?) \(v(?P<v>\d+)\)`)}, // 2.13.4 to 2.30.7
	{"plugin_fail", []string{"NET/Plugin: Failed"},
		regexp.MustCompile(`^NET/Plugin: Failed to (?:find|initialize)`)}, // 2.4.2 to 2.27.7
	{"modify_qp", []string{"ibv_modify_qp"},
		regexp.MustCompile(`^Call to ibv_modify_qp failed(?: with)? (?:error )?(?:(?P<errno>\d+) )?(?P<msg>.+)`)},
	{"nvls_bind", []string{"Failed to bind NVLink"},
		regexp.MustCompile(`^Failed to bind NVLink SHARP \(NVLS\) Multicast memory of size (?P<b>\d+) : CUDA error (?P<code>\d+)`)}, // 2.27.3 to 2.30.7
	{"files", []string{"Too many open files"}, regexp.MustCompile(`.*Too many open files`)},
	{"version", []string{"NCCL version"}, regexp.MustCompile(`^NCCL version (?P<ver>\d+\.\d+\.\d+)(?P<suffix>[^+\s]*)\+cuda(?P<cuda>\S*)`)},
	{"driver", []string{"cudaDriverVersion"},
		regexp.MustCompile(`^cudaDriverVersion (?P<drv>\d+)`)}, // 2.13.4 to 2.30.7
	{"ver_mismatch", []string{"Mismatched NCCL version"},
		regexp.MustCompile(`^Mismatched NCCL version detected : rank (?P<a>\d+) version (?P<va>\d+) rank (?P<b>\d+) version (?P<vb>\d+)`)}, // 2.23.4 to 2.30.7
	{"ras_ver_mismatch", []string{"NCCL version mismatch with remote"},
		regexp.MustCompile(`^NCCL version mismatch with remote peer (?P<peer>\S+) \(local: (?P<va>[\w.]+), remote (?P<vb>[\w.]+)\)`)}, // 2.24.3 to 2.30.7
	{"bootstrap_if", []string{"Bootstrap"},
		regexp.MustCompile(`^Bootstrap ?: ?Using ?(?:\[0\])?(?P<if>[^:\s\[\]]+):(?P<addr>\S+)`)}, // 2.4.8 to 2.30.7
	{"oob_none", []string{"no device found"},
		regexp.MustCompile(`^no device found (?:matching|after excluding) (?P<spec>\S+), verify NCCL_OOB_NET_IFNAME|^no device found matching NCCL_OOB_NET_IFNAME=(?P<spec2>\S+), ignoring`)}, // 2.23.4 to 2.30.7
	{"init_start", []string{"Init START"},
		regexp.MustCompile(`^(?:\[Rank \d+\] )?(?:(?P<fn>nccl\w+) )?comm (?P<comm>0x\w+) rank (?P<rank>\d+) nranks (?P<n>\d+) cudaDev (?P<dev>\d+)(?: nvmlDev (?P<nvml>\d+))?(?: busId (?P<bus>\w+))?(?: commId (?P<cid>0x\w+))?(?P<rest>.*?) ?- Init START`)}, // 2.18.3 to 2.30.7
	{"init_done", []string{"Init COMPLETE"},
		regexp.MustCompile(`^(?:\[Rank \d+\] )?(?:(?P<fn>nccl\w+) )?comm (?P<comm>0x\w+) rank (?P<rank>\d+) nranks (?P<n>\d+)(?: cudaDev (?P<dev>\d+))?(?: nvmlDev (?P<nvml>\d+))?(?: busId (?P<bus>\w+))?(?: commId (?P<cid>0x\w+))?(?P<rest>.*?) ?- Init COMPLETE`)}, // 2.4.2 to 2.30.7
	{"comm_end", []string{"COMPLETE", "START"},
		regexp.MustCompile(`^(?:\[Rank \d+\] )?comm (?P<comm>0x\w+) rank (?P<rank>\d+) n[rR]anks (?P<n>\d+) cudaDev (?P<dev>\d+) busId (?P<bus>\w+) - (?P<what>Abort|Destroy|Revoke|Finalize)\w* (?P<st>START|COMPLETE)`)}, // 2.12.7 to 2.30.7
	{"init_timings", []string{"Init timings"},
		regexp.MustCompile(`^Init timings(?: - \S+)?: rank (?P<rank>\d+) nranks (?P<n>\d+) total (?P<total>[\d.]+) \(kernels (?P<k>[\d.]+),(?: alloc (?P<alloc>[\d.]+),)? bootstrap (?P<boot>[\d.]+), allgathers (?P<ag>[\d.]+), topo (?P<topo>[\d.]+), graphs (?P<graphs>[\d.]+), connections (?P<conn>[\d.]+), rest (?P<rest>[\d.]+)\)`)}, // 2.22.3 to 2.30.7
	{"local_shape", []string{"localRanks"},
		regexp.MustCompile(`^comm (?P<comm>0x\w+) rank (?P<rank>\d+) nRanks (?P<n>\d+) nNodes (?P<nodes>\d+) localRanks (?P<lr>\d+) localRank (?P<l>\d+) MNNVL (?P<mn>\d+)`)}, // 2.20.3 to 2.30.7
	{"env", []string{"environment to"}, regexp.MustCompile(`^(?P<var>NCCL_\w+) set (?:by|from) environment to (?P<val>.*?)\.?$`)},
	{"env_hca", []string{" set to "},
		regexp.MustCompile(`^(?P<var>NCCL_IB_HCA|NCCL_SOCKET_IFNAME|NCCL_OOB_NET_IFNAME) set to (?P<val>.+)`)}, // 2.6.4 to 2.30.7
	{"env_reset", []string{"Comm config"},
		regexp.MustCompile(`^Comm config (?P<f>\w+) reset to (?P<v>.+)`)}, // 2.28.7 to 2.30.7
	{"plugin_none", []string{"NET/Plugin"},
		regexp.MustCompile(`^NET/Plugin ?: (?:dlerror=.*)?(?:No plugin found|Could not find).*`)}, // 2.4.2 to 2.30.7
	{"ib_using", []string{"NET/IB : Using"},
		regexp.MustCompile(`^NET/IB\w* ?: ?Using(?P<list>(?: \[\d+\]\S+)*)\s*(?P<ro>\[RO\])?\s*;? ?(?:OOB (?P<if>[^:\s]+):(?P<addr>\S+))?`)}, // 2.4.2 to 2.30.7
	{"ib_none", []string{"NET/IB : No device"},
		regexp.MustCompile(`^NET/IB\w* ?: ?No device found`)}, // 2.4.2 to 2.30.7
	{"ib_noip", []string{"NET/IB : No IP"}, regexp.MustCompile(`^NET/IB\w* ?: ?No IP interface found\.`)},
	{"ib_open", []string{"Unable to open device"}, regexp.MustCompile(`^NET/IB\w* ?: ?Unable to open device (?P<dev>\S+)(?P<rest>.*)`)},
	{"ib_query", []string{"Unable to query"}, regexp.MustCompile(`^NET/IB\w* ?: ?Unable to query (?:device|port\w*) (?P<dev>\S+)`)},
	{"ib_dev", []string{"provider="},
		regexp.MustCompile(`^NET/IB: \[(?P<i>\d+)\] (?P<dev>[^:]+):(?P<uv>[^:]+):(?P<port>\d+)/(?P<ll>\w+) provider=(?P<prov>\S+) speed=(?P<mbps>\d+) context=\S+ pciPath=(?P<pci>\S+) ar=(?P<ar>\d+)`)}, // 2.27.3 to 2.30.7
	{"ib_vdev", []string{"Made virtual device"},
		regexp.MustCompile(`^NET/IB\w* ?: ?Made virtual device \[(?P<i>\d+)\] name=(?P<name>\S+) speed=(?P<mbps>\d+) ndevs=(?P<n>\d+)`)}, // 2.24.3 to 2.30.7
	{"ib_nolib", []string{"libibverbs", "Count not open"}, regexp.MustCompile(`^Failed to open libibverbs\.so\[\.1\]|^Count not open \S+`)},
	{"gdr_dev", []string{"GPU Direct RDMA"},
		regexp.MustCompile(`^NET/\S+ : GPU Direct RDMA (?P<st>Enabled|Disabled) for HCA (?P<i>\d+) .(?P<dev>[^\s']+).`)}, // 2.5.6 to 2.30.7
	{"gdr_pair", []string{"GPU Direct RDMA"},
		regexp.MustCompile(`^(?:NET/\S+ : )?GPU Direct RDMA (?P<st>Enabled|Disabled) for (?:GPU )?.*`)}, // 2.3.5 to 2.29.7
	{"sock_using", []string{"NET/Socket : Using"},
		regexp.MustCompile(`^NET/Socket : Using(?P<list>.*)`)}, // 2.4.2 to 2.30.7
	{"network", []string{"Using network"},
		regexp.MustCompile(`^Using network (?P<net>\S.*)`)}, // 2.6.4 to 2.30.7
	{"net_missing", []string{"not found", "any NET plugin"},
		regexp.MustCompile(`^Error: network (?P<net>.+?) not found\.?|^Failed to initialize any NET plugin`)}, // 2.10.3 to 2.30.7
	{"dmabuf", []string{"DMA-BUF is available"},
		regexp.MustCompile(`^DMA-BUF is available on GPU device (?P<dev>\d+)`)}, // 2.13.4 to 2.30.7
	{"mixed_nics", []string{"Detected mixed local", "different number of devices", "requires NIC"},
		regexp.MustCompile(`^NET/IB\w* ?: ?Local mergedDev\S* .*has a different number of devices|^NET/IB\w* ?: ?Local mergedDev\S* has a different number|^Rank \d+ requires NIC \w+ but that NIC is not available|^Detected mixed local (?P<k>Net|CollNet) device counts across ranks \(min (?P<min>\d+), max (?P<max>\d+)\)`)}, // 2.30.3 to 2.30.7
	{"rank_nics", []string{"Net devices"},
		regexp.MustCompile(`^Rank (?P<rank>\d+): (?P<n>\d+) Net devices`)}, // 2.30.3 to 2.30.7
	{"mnnvl", []string{"MNNVL busId"},
		regexp.MustCompile(`^MNNVL busId (?P<bus>0x\w+) fabric UUID (?P<u>\S+) cliqueId (?P<c>0x\w+) state (?P<st>\d+) healthMask (?P<hm>0x\w+)`)}, // 2.20.3 to 2.30.7
	{"affinity", []string{"Setting affinity"},
		regexp.MustCompile(`^Setting affinity for GPU (?P<g>\d+) to (?P<mask>[0-9a-fx,]+)`)}, // 2.4.2 to 2.27.7
	{"ring_list", []string{"Channel "},
		regexp.MustCompile(`^Channel (?P<c>\d+)(?:/(?P<n>\d+))? :(?P<list>[ \d]+)(?P<cut>\.\.\.)?\s*$`)}, // 2.4.2 to 2.30.7
	{"affinity2", []string{"ncclTopoGetCpuAffinity"},
		regexp.MustCompile(`^ncclTopoGetCpuAffinity: Affinity for GPU (?P<g>\d+) is (?P<set>[\d,-]+|empty, ignoring)\. \(GPU affinity = (?P<gpu>[\d,-]*)(?: ; CPU affinity = (?P<cpu>[\d,-]*))?\)`)}, // 2.28.3 to 2.30.7
	{"net_init", []string{"NET plugin"},
		regexp.MustCompile(`^(?P<what>Initialized|Assigned|Failed to initialize) NET plugin (?P<name>\S+)(?: to comm)?`)}, // 2.27.3 to 2.30.7
	{"ring_me", []string{"Ring "},
		regexp.MustCompile(`^Ring (?P<c>\d+) : (?P<prev>-?\d+) -> (?P<me>-?\d+) -> (?P<next>-?\d+)`)}, // 2.10.3 to 2.30.7
	{"trees", []string{"Trees"},
		regexp.MustCompile(`^Trees(?P<list>.*)`)}, // 2.4.2 to 2.30.7
	{"tree", []string{"Tree "},
		regexp.MustCompile(`^Tree (?P<c>\d+) : (?P<up>-?\d+) -> (?P<me>-?\d+) -> (?P<d>\S+)`)}, // 2.8.3 to 2.30.7
	{"ch_p2p", []string{"via P2P"},
		regexp.MustCompile(`^(?:Ring|Channel) (?P<c>\d+)(?:/(?P<cc>\d+))? : (?P<a>\d+)(?:\[(?P<ai>\w+)\])? -> (?P<b>\d+)(?:\[(?P<bi>\w+)\])? via P2P/(?P<kind>.+)`)},
	{"ch_shm", []string{"via SHM", "via direct shared"},
		regexp.MustCompile(`^(?:Ring|Channel) (?P<c>\d+)(?:/(?P<cc>\d+))? : (?P<a>\d+)(?:\[(?P<ai>\w+)\])? -> (?P<b>\d+)(?:\[(?P<bi>\w+)\])? via (?:SHM/?|direct shared memory)`)},
	{"ch_net", []string{"via NET/"},
		regexp.MustCompile(`^(?:Ring|Channel) (?P<c>\d+)(?:/(?P<cc>\d+))? : (?P<a>\d+)(?:\[(?P<ai>\w+)\])? -> (?P<b>\d+)(?:\[(?P<bi>\w+)\])? \[(?P<dir>send|receive)\] via NET/(?P<net>[^/]+)/(?P<dev>\d+)(?:\((?P<proxy>\d+)\))?(?P<sfx>.*)`)}, // 2.4.2 to 2.30.7
	{"ch_coll", []string{"via COLLNET"},
		regexp.MustCompile(`^(?:Coll|CollNet) (?P<c>\d+)(?:/(?P<cc>\d+))? : (?P<me>\d+) \[(?P<dir>send|receive)\] via COLLNET/(?P<net>[^/]+)/(?P<dev>\d+)`)}, // 2.6.4 to 2.30.7
	{"rings_up", []string{"Connected all rings"},
		regexp.MustCompile(`^Connected all rings(?:, use ring PXN (?P<pxn>\d+) GDR (?P<gdr>\d+))?`)}, // 2.8.3 to 2.30.7
	{"trees_up", []string{"Connected all trees"},
		regexp.MustCompile(`^Connected all trees`)}, // 2.8.3 to 2.30.7
	{"nvls_up", []string{"Connected NVLS tree"},
		regexp.MustCompile(`^Connected NVLS tree`)}, // 2.18.1 to 2.30.7
	{"channels", []string{"coll channels"},
		regexp.MustCompile(`^(?P<coll>\d+) coll channels,(?: (?P<cn>\d+) collnet channels,)?(?: (?P<nv>\d+) nvls channels,)? (?P<p2p>\d+) p2p channels, (?P<pp>\d+) p2p channels per peer`)}, // 2.7.3 to 2.30.7
	{"p2p_off", []string{"Could not enable P2P"},
		regexp.MustCompile(`^Could not enable P2P between dev (?P<i>\d+)\(=(?P<bi>\w+)\) and dev (?P<j>\d+)\(=(?P<bj>\w+)\)`)}, // 2.6.4 to 2.30.7
	{"p2p_off_conn", []string{"P2P is disabled between connected"},
		regexp.MustCompile(`^P2P is disabled between connected GPUs (?P<i>\d+) and (?P<j>\d+)`)}, // 2.12.7 to 2.30.7
	{"p2p_off_nvl", []string{"P2P is disabled between NVLINK"},
		regexp.MustCompile(`^P2P is disabled between NVLINK connected GPUs (?P<i>\d+) and (?P<j>\d+)`)}, // 2.12.7 to 2.30.7
	{"ring_broken", []string{"does not loop back", "does not contain rank"},
		regexp.MustCompile(`^Error : ring (?P<ring>\d+) does not (?:loop back to start \((?P<a>-?\d+) != (?P<b>-?\d+)\)|contain rank)`)},
	{"nvml_fail", []string{"nvml", "nvidia-ml", "NVML failure"},
		regexp.MustCompile(`^(?P<fn>nvml\w+)\((?P<i>[^)]*)\) failed: (?P<why>.*)|^Failed to open libnvidia-ml|^NVML failure`)},
	{"dup_gpu", []string{"Duplicate GPU", "same GPU"},
		regexp.MustCompile(`^Duplicate GPU detected : rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device (?P<bus>\w+)|^Multiple [Rr]anks (?:are using|detected using) the same GPU`)}, // 2.5.6 to 2.30.7
	{"ib_wc", []string{"Got completion"},
		regexp.MustCompile(`^NET/IB\w* ?: ?Got completion (?:from peer (?P<peer>\S+) )?with (?:error|status)[ =](?:[A-Za-z_]\w*\()?(?P<status>\d+)\)?,?(?P<rest>.*)`)},
	{"ib_async", []string{"async"},
		regexp.MustCompile(`^NET/IB\w* ?: ?(?:(?P<dev>[^\s:]+):(?P<port>\d+) )?(?:Got async (?:error )?event ?: ?|async fatal event(?: on \w+[^:]*)?: ?|Got non-fatal async event ?: ?)(?P<ev>.+)`)},
	{"ib_gid_change", []string{"GID table changed"},
		regexp.MustCompile(`^NET/IB\w* ?: ?(?P<dev>\S+):(?P<port>\d+) GID table changed`)}, // 2.28.3 to 2.30.7
	{"ib_speed", []string{"speed change detected"},
		regexp.MustCompile(`^NET/IB\w* ?: ?(?P<dev>\S+):(?P<port>\d+) speed change detected: (?P<a>\d+) -> (?P<b>\S+) Mbps`)}, // 2.30.7 to 2.30.7
	{"ib_mixed", []string{"incompatible", "link_layer"},
		regexp.MustCompile(`^NET/IB\w* ?: ?(?:Attempted to (?:connect|merge) incompatible devices|Remote \S+ device is incompatible|Can.t (?:connect|merge) net devices with different link_layer|Trying to merge multiple devices together with different link_layer)`)}, // 2.20.3 to 2.30.7
	{"ib_rail", []string{"mismatched physical devices"},
		regexp.MustCompile(`^NET/IB\w* ?: ?There are mismatched physical devices between local \((?P<l>[^)]*)\) and remote \((?P<r>[^)]*)\)`)}, // 2.24.3 to 2.30.7
	{"verbs_fail", []string{"ibv_"}, regexp.MustCompile(`^(?:Call to )?(?P<fn>ibv_\w+)(?:\(\))? failed(?: with error (?P<msg>.+))?`)},
	{"coll_mismatch", []string{"collective mismatch", "incorrect receive info", "runcated", "Mismatched collective"},
		regexp.MustCompile(`^Mismatched collective detected(?:.* around rank (?P<rank>\d+))?|^NET/IB\w* ?: ?(?:req \d+/\d+ tag \w+ )?(?:peer \S+ )?(?:collective mismatch error|posted incorrect receive info)|^Message truncated : received|^NET/Socket : (?:peer \S+ )?message truncated`)},
	{"connect_retry", []string{"retrying"},
		regexp.MustCompile(`^(?:\S+ connect (?:to \S+ )?returned (?P<msg>.+?), retrying|Call to connect returned (?P<m2>.+), retrying)`)}, // 2.4.2 to 2.30.7
	{"connect_fail", []string{"onnect to", "exceeded ", "Call to connect"},
		regexp.MustCompile(`^(?:\w+: )?(?:Net : )?[cC]onnect to (?P<peer>\S+) (?:failed : (?P<msg>.+)|returned (?P<m2>.*))|^\w*PollConnect to (?P<peer3>\S+) failed with error (?P<m3>.*)|^Call to connect (?:timeout|failed) ?: (?P<m4>.*)|^socket\w+Connect: exceeded (?P<m5>retries|timeouts)|^\S+: connect returned (?P<m6>.+), exceeded`)}, // 2.3.7 to 2.30.7
	{"peer_closed", []string{"closed by remote peer", "Call to recv", "Call to send"},
		regexp.MustCompile(`^(?:\w+: |Net : )?(?:Connection closed by remote peer ?|Call to (?:recv|send)(?: from| to)? ?)(?P<peer>\S*)`)},
	{"bad_magic", []string{"socketFinalizeAccept"},
		regexp.MustCompile(`^socketFinalizeAccept(?: from (?P<peer>\S+?):?)?:? (?P<what>wrong magic|didn.t receive a valid magic|socket magic mismatch|wrong type|wrong socket type|handshake receive|peer \S+ closed)(?P<rest>.*)`)}, // 2.16.2 to 2.30.7
	{"bind_fail", []string{"Call to bind failed"}, regexp.MustCompile(`^Call to bind failed ?: (?P<msg>.+)`)},
	{"sock_fail", []string{"Socket creation failed", "Call to socket", "Call to listen", "Call to setsockopt", "Call to getsockname"},
		regexp.MustCompile(`^(?:Net : )?Socket creation failed ?: (?P<msg>.+)|^Call to (?:socket|listen|setsockopt|getsockname)\w* failed ?(?:: |with error )(?P<m2>.+)`)},
	{"shm_fail", []string{"shared memory", "shm", "failed to extend", "failed to create"},
		regexp.MustCompile(`^(?:Error: failed to (?:extend|create) (?P<path>.*)|Error while (?:creating|attaching to) shared memory segment (?P<path2>.*)|Error : shm_open failed|shm_open failed.*|Call to (?:posix_fallocate|ftruncate|shm_open|mmap) failed.*)`)},
	{"cuda_fail", []string{"Cuda failure", "HIP failure"},
		regexp.MustCompile(`^(?:ncclUnhandledCudaError: )?(?:Cuda|HIP) failure (?:(?P<code>\d+) )?'?(?P<msg>[^']+)'?`)},
	{"oom", []string{"Failed to"},
		regexp.MustCompile(`^Failed to (?:(?:CUDA|cuda) )?(?:calloc|malloc|host alloc|alloc)\w*.*? (?P<b>\d+) bytes`)},
	{"proxy_fail", []string{"[Proxy Service"},
		regexp.MustCompile(`^\[Proxy Service (?P<p>\d+)\] Failed to execute operation (?P<op>\w+) from rank (?P<rank>\d+), retcode (?P<rc>\d+)`)}, // 2.12.7 to 2.30.7
	{"bt", []string{" -> "},
		regexp.MustCompile(`^(?P<file>\S+):(?P<line>\d+)(?: \((?P<func>\w+)\))? -> (?P<rc>\d+)(?: \((?P<err>[^)]*)\))?(?: \[(?P<thr>[^\]]+)\])?$`)},
	{"ras_sock", []string{"RAS client listening"},
		regexp.MustCompile(`^RAS client listening socket at (?P<addr>\S+)`)}, // 2.24.3 to 2.30.7
	{"ras_nosock", []string{"RAS failed to establish"},
		regexp.MustCompile(`^RAS failed to establish a client listening socket at (?P<addr>\S+)`)}, // 2.24.3 to 2.30.7
	{"ras_dead", []string{"RAS declaring"},
		regexp.MustCompile(`^RAS declaring peer (?P<peer>\S+) as DEAD`)}, // 2.24.3 to 2.30.7
	{"coll", []string{"opCount"},
		regexp.MustCompile(`^(?P<fn>\w+): opCount (?P<op>[0-9a-f]+) sendbuff \S+ recvbuff \S+ (?:acc \S+ )?count (?P<cnt>\d+) datatype (?P<dt>\w+) op (?P<redop>\w+) root (?P<root>-?\d+) comm (?P<comm>0x\w+)(?: \[nranks=(?P<n>\d+)\])?`)}, // 2.3.7 to 2.30.7
	{"tuning", []string{"Bytes -> Algo"},
		regexp.MustCompile(`^(?:(?P<fn>\w+): )?(?P<b>\d+) Bytes -> Algo (?P<algo>\w+) proto (?P<proto>\w+) (?:time (?P<t>[\d.]+)|channel\{Lo\.\.Hi\}=\{(?P<lo>\d+)\.\.(?P<hi>\d+)\})`)}, // 2.5.6 to 2.30.7
	{"system", []string{"=== System"},
		regexp.MustCompile(`^=== System : max(?:Bw|Width) (?P<max>[\d.]+)(?: total(?:Bw|Width) (?P<tot>[\d.]+))?`)}, // 2.5.6 to 2.30.7
	{"pattern", []string{"Pattern "},
		regexp.MustCompile(`^Pattern (?P<p>\d+), crossNic (?P<x>\d+), nChannels (?P<n>\d+), (?:bw|speed) (?P<bi>[\d.]+)/(?P<bo>[\d.]+), type (?P<ti>\w+)/(?P<to>\w+), sameChannels (?P<s>\d+)`)}, // 2.6.4 to 2.30.7
	{"no_path", []string{"Could not find a path", "Could not create rings"},
		regexp.MustCompile(`^Could not find a path for pattern (?P<p>\d+), falling back to simple order|^Could not create rings, falling back`)}, // 2.5.6 to 2.30.7
	{"stack", []string{"Stack size limit"},
		regexp.MustCompile(`^Stack size limit \((?P<s>\S+)\) is unsafe`)}, // 2.28.3 to 2.30.7
	{"cumem_host", []string{"cuMem host allocations"},
		regexp.MustCompile(`^cuMem host allocations do not appear to be working`)}, // 2.26.3 to 2.30.7
	{"async_err", []string{"ncclCommSetAsyncError", "ncclAsyncJobComplete", "commReclaim", "commDestroySync", "fatal error (detected",
		"abort state", "was revoked", "rogressing operation", "while polling for opId", "Proxy Call to rank", "ncclProxy",
		"Could not receive type", "proxy resource error"},
		regexp.MustCompile(`^ncclAsyncJobComplete: job|^commReclaim: |^commDestroySync: |^communicator encountered a fatal error|^Comm 0x\w+ is in abort state|communicator was revoked|^\[Service thread\] (?:Error encountered progressing|Could not receive type)|^Socket recv failed while polling|^Proxy Call to rank|^ncclProxy\w+ call to|^ncclProxyStop: |^ncclCommSetAsyncError: error comm (?P<comm>0x\w+) sets state (?P<st>\d+)`)}, // 2.14.3 to 2.30.7
	{"too_old", []string{"NCCL library"},
		regexp.MustCompile(`^The application was compiled with too old version of NCCL|^NCCL library (?:version )?is (?:too old|not backwards compatible)`)}, // 2.29.2 to 2.30.7
	{"driver_old", []string{"CUDA Driver version found"},
		regexp.MustCompile(`^CUDA Driver version found is (?P<v>\d+)\. Minimum requirement is (?P<m>\d+)`)}, // 2.13.4 to 2.30.7
	{"ib_recover", []string{"ort recovery", "marked as failed", "failed devices"},
		regexp.MustCompile(`^NET/IB\w*: \S+: (?:Device \d+ marked as failed|Fatal error\. Detected \d+ failed devices).*|^NET/IB: \S+: (?:Starting port recovery|Port recovery (?:succeeded|failed)).*`)}, // 2.30.3 to 2.30.7
	{"ofi_none", []string{"OFI"}, regexp.MustCompile(`^NET/OFI (?:.*(?:[Nn]o (?:eligible )?providers?|No provider|fi_getinfo).*)`)},
	{"ofi_fail", []string{"OFI"},
		regexp.MustCompile(`^NET/OFI (?:Request \S* ?completed with error|.*completed with error|Couldn.t open|Creating new endpoint .* failed|Unable to (?:post|register|connect))(?P<rest>.*)`)},
	{"pxn_old", []string{"PXN Disabled"}, regexp.MustCompile(`^PXN Disabled as plugin is v(?P<v>\d+)`)},
	{"family", []string{"neither AF_INET"},
		regexp.MustCompile(`^(?:ncclSocketInit|Net|Error) ?: (?:connecting to )?address .*family (?P<f>-?\d+) is neither AF_INET`)},
	{"ipc_fail", []string{"IPC handle", "peer with device", "cudaIpc", "hipIpc"},
		regexp.MustCompile(`failed to open CUDA IPC handle|failed to get CUDA IPC handle|^failed to peer with device|(?:cuda|hip)Ipc\w+ failed`)}, // 2.3.7 to 2.30.7
	{"imex", []string{"MNNVL"},
		regexp.MustCompile(`^MNNVL \(cliqueSize \d+\) is available but not (?:supported|working) on this system`)}, // 2.25.1 to 2.30.7
}
