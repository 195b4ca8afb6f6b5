package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Entry is a row of the catalogue: something that doctor can find.
type Entry struct {
	ID         string   `json:"id"`
	Layer      string   `json:"layer"`
	Severity   Severity `json:"severity"`
	Confidence float64  `json:"confidence"`
	Title      string   `json:"title"`
	Signal     string   `json:"signal"` // what it is seen by
	Cause      string   `json:"cause"`
	Fix        string   `json:"fix"`
	Confirm    string   `json:"confirm,omitempty"`
	Guard      string   `json:"guard,omitempty"` // what looks like it and is not
}

// Layers from the job down to the wire.
var Layers = []string{"job", "nccl", "container", "host", "gpu", "pcie", "nvlink", "nic", "fabric", "performance"}

// Catalogue is everything that doctor knows, in the order of layers. Confidence is
// how often the signal has meant the cause in reports whose cause became known.
var Catalogue = []Entry{
	// RDMA connections that fail.
	{"ib-pair-unreachable", "nic", Critical, 0.85, "two NICs cannot exchange RDMA", "completion status 12 within a minute of init, always the same pair", "wrong GID, VLAN or route, filtered UDP 4791, or rails that are not connected", "test the pair with ib_write_bw; fix GID or route; NCCL_CROSS_NIC=0 on isolated rails", "ib_write_bw between the two NICs fails as well", "the peer's process must be alive"},
	{"link-flap", "fabric", Critical, 0.95, "a link went down during the job", "completion status 12 and a port error on one side within a minute", "the link of the side that printed the port error: cable, optic or port", "replace cable or optic of that port; drain the host", "link_downed of that port rose", "several ports of one leaf at once: the switch, not a cable"},
	{"peer-died", "job", Critical, 0.90, "one host died first, the others lost their peer", "completion status 12, or connections closed, on several ranks that name one peer", "process, GPU or host of that peer died", "look at that host: Xid, out-of-memory killer, exit code; ignore the others", "its log ends before the others complain", ""},
	{"lossy-path", "fabric", Critical, 0.60, "packets are lost on one path", "completion status 12 during the run, one pair, no port error", "loss or a black hole on the path, one member of ECMP, or NCCL_IB_TIMEOUT too small (0.5 s before 2.14, 7.5 s to 2.22, 30 s after)", "trace the path; raise NCCL_IB_TIMEOUT to 22 only to confirm", "local_ack_timeout_err of the sender grows", ""},
	{"gpudirect-acs", "pcie", Critical, 0.85, "GPUDirect RDMA is broken by ACS or IOMMU", "completion status 4", "PCIe switches send peer-to-peer traffic to the root", "disable ACS on bridges (not in virtual machines)", "it runs with NCCL_NET_GDR_LEVEL=0", ""},
	{"remote-invalid-request", "nic", Critical, 0.60, "the remote NIC refused a request", "completion status 9, with local access violation on the other side", "GPUDirect mapping, relaxed ordering or network plugin differ between the sides", "same NCCL and plugin on both; try NCCL_IB_PCI_RELAXED_ORDERING=0; check ACS", "plugins of both hosts differ", ""},
	{"remote-access-error", "nic", Critical, 0.60, "remote memory was not accessible", "completion status 10 or 11", "memory was deregistered, the GPU fell off, or the program is wrong", "look for an Xid on the remote host", "", ""},
	{"receiver-not-ready", "host", Critical, 0.70, "a receiver was not ready for too long", "completion status 13", "processor or proxy thread of the receiver is starved", "check processor affinity and load of the remote rank", "", ""},
	{"nic-firmware", "nic", Critical, 0.85, "a NIC's firmware crashed", "completion status 19 or 21, local catastrophic error, or the kernel says that its health is compromised", "NIC firmware or hardware", "reset or replace the NIC; update firmware", "kernel log of mlx5_core", ""},
	{"completion-error", "nic", Critical, 0.60, "an RDMA operation failed", "a completion error of another status", "see the status", "read the status in the verbs manual (ibv_poll_cq)", "", "status 5 alone is a consequence"},
	{"qp-timeout", "fabric", Critical, 0.85, "a connection between rails cannot be made", "ibv_modify_qp: timed out (110)", "address resolution fails: isolated rails, missing route or neighbour", "NCCL_CROSS_NIC=0, or connect the rails; check the neighbour table", "ip neigh shows FAILED", ""},
	{"gid-unreachable", "nic", Critical, 0.80, "a GID has no route", "ibv_modify_qp: network is unreachable", "link-local or wrong subnet", "choose a RoCE v2 GID with a routable address; set no index from 2.21 on", "show_gids; ip route get", ""},
	{"gid-index-wrong", "nic", Critical, 0.80, "the GID index is wrong", "ibv_modify_qp: invalid argument", "wrong NCCL_IB_GID_INDEX, RoCE v1 and v2 mixed, or a port that is down", "unset the variable from 2.21 on; show_gids on older ones", "show_gids on both hosts", "on InfiniBand it has another reason"},
	{"gid-no-netdev", "container", Critical, 0.85, "a GID's interface is not in this namespace", "ibv_modify_qp: no such device", "the GID belongs to a network device that the container does not see", "put the RoCE interface into the pod, or use RDMA namespaces (rdma system set netns exclusive)", "", ""},
	{"gid-index-set", "nccl", Warning, 0.70, "NCCL_IB_GID_INDEX is set although NCCL chooses by itself", "the variable, NCCL 2.21 or later", "hand tuning that was left over; it breaks when the table changes", "unset it; use NCCL_IB_ROCE_VERSION_NUM or NCCL_IB_ADDR_FAMILY if needed", "", "some clouds still need it"},
	{"gid-changed", "host", Critical, 0.85, "an address moved under a running job", "GID table changed", "an address was assigned again (DHCP, an operator)", "pin addresses; restart the job", "", ""},
	{"memlock", "host", Critical, 0.95, "locked memory is limited", "ibv_reg_mr: cannot allocate memory, or the limit of a process", "the limit of locked memory is too low", "ulimit -l unlimited, for the launcher and its service as well; --ulimit memlock=-1 in containers", "grep 'locked memory' /proc/PID/limits", ""},
	{"nic-keys-exhausted", "nic", Critical, 0.80, "a NIC's memory keys are used up", "mlx5: CREATE_MKEY, limits exceeded", "a leak, or a huge registration cache", "restart jobs; limit registration caches", "", ""},
	{"verbs-memory", "host", Critical, 0.80, "queues cannot be made", "ibv_create_cq or ibv_create_qp: cannot allocate memory", "limit of locked memory, or resources of the NIC", "ulimit -l unlimited; count queue pairs: ranks x channels x NCCL_IB_QPS_PER_CONNECTION", "", ""},
	{"verbs-device-missing", "container", Critical, 0.95, "an RDMA device cannot be opened", "Unable to open device, of a device that /sys shows", "/dev/infiniband/uverbsN is missing or not permitted in the container", "expose the devices and IPC_LOCK; compare ls /dev/infiniband with ls /sys/class/infiniband", "", ""},
	{"verbs-permission", "container", Critical, 0.85, "an RDMA device file is there but not permitted", "Unable to open device with ENOENT", "a refusal of the device cgroup or the file's mode is reported as missing", "check the device cgroup and the mode of /dev/infiniband/uverbsN, not only that it exists", "", ""},
	{"nic-count-differs", "job", Critical, 0.90, "ranks see different numbers of NICs", "mixed local Net device counts, or devices that open on some ranks only", "a NIC is missing on some hosts; NCCL goes on by default and may hang", "fix the device; NCCL_IGNORE_NET_MISMATCH=0 fails early", "", "hosts that are meant to differ"},
	// Which network carries the data.
	{"tcp-fallback", "nccl", Critical, 0.98, "the job runs over TCP although there is RDMA", "network Socket while the host or another rank has an active RDMA port", "silent fallback", "find the reason among the next lines; NCCL_NET=IB fails instead of falling back", "Using network Socket; no NET/IB on via lines", "single-host jobs; clouds without RDMA"},
	{"tcp-no-library", "container", Critical, 0.95, "libibverbs is not in the image", "network Socket and Failed to open libibverbs", "user-space part of RDMA missing", "install rdma-core (libibverbs1, ibverbs-providers)", "", ""},
	{"tcp-no-device", "container", Critical, 0.90, "NCCL found no RDMA device", "network Socket and NET/IB : No device found, while RDMA is there", "NCCL_IB_HCA excludes all, NCCL_IB_DISABLE=1, or no /dev/infiniband", "check the variables first, then ls /dev/infiniband", "", ""},
	{"tcp-no-provider", "host", Critical, 0.90, "libfabric found no provider", "network Socket and NET/OFI no provider", "EFA device or libfabric missing", "install the EFA stack; allow the security group to itself", "fi_info -p efa", ""},
	{"ib-list-empty", "host", Critical, 0.99, "NET/IB uses an empty list of devices", "NET/IB : Using with nothing behind it (2.24 and later)", "no usable device although the line says Using", "treat as no device: NCCL_IB_HCA, /dev/infiniband, port states", "", ""},
	{"network-not-found", "nccl", Critical, 0.98, "the network that was asked for is not there", "network X not found", "NCCL_NET names a plugin that is not installed", "fix NCCL_NET or the plugin's path (LD_LIBRARY_PATH, NCCL_NET_PLUGIN)", "", ""},
	{"plugin-mismatch", "nccl", Warning, 0.70, "a network plugin does not fit this NCCL", "every version of the plugin's interface fails, then the internal one is used", "plugin too old or too new", "match the plugin to NCCL", "", "a chain that ends in Loaded is fine"},
	{"plugin-old-no-pxn", "nccl", Warning, 0.95, "an old plugin disables PXN", "PXN Disabled as plugin is v4", "old network plugin: eight times as many connections", "update the plugin", "", ""},
	{"networks-differ", "job", Critical, 0.97, "ranks of one communicator use different networks", "different names behind Using network", "hosts have different software", "same image everywhere", "", ""},
	{"ib-roce-mixed", "nccl", Warning, 0.90, "InfiniBand and RoCE NICs are mixed", "/IB and /RoCE in one list, or incompatible devices", "NCCL_IB_HCA lets both through", "NCCL_IB_HCA with the devices of one kind", "", "a management port beside the fabric is usual: exclude it"},
	// Bootstrap.
	{"bootstrap-virtual-interface", "host", Warning, 0.85, "the bootstrap uses a virtual interface", "Bootstrap on docker, veth, cni, virbr, a tunnel, 172.17 or 169.254", "interfaces are taken by order", "NCCL_SOCKET_IFNAME=<management interface>", "peers cannot ping that address", "an address that all peers reach is only untidy"},
	{"bootstrap-subnets-differ", "job", Warning, 0.80, "hosts use different subnets for the bootstrap", "interface name and subnet differ between hosts", "interfaces are taken by order", "NCCL_SOCKET_IFNAME with the same name or prefix everywhere", "", "routed fabrics"},
	{"bootstrap-link-local", "host", Warning, 0.80, "the bootstrap uses an IPv6 link-local address", "Bootstrap on fe80::", "link-local addresses need a scope that peers do not know", "NCCL_SOCKET_FAMILY=AF_INET, or name the interface", "", ""},
	{"bootstrap-loopback", "nccl", Critical, 0.95, "the bootstrap uses loopback in a job of several hosts", "Bootstrap on lo; NCCL 2.29.2 to 2.29.7 with NCCL_COMM_ID", "in these versions the comparison of IPv4 subnets is inverted: the matching interface is rejected", "NCCL 2.30.3 or later, or no NCCL_COMM_ID", "", "jobs on one host use lo rightly"},
	{"no-interface", "host", Critical, 0.98, "no interface matches the filter", "no socket interface found, or no device found matching", "NCCL_SOCKET_IFNAME or NCCL_OOB_NET_IFNAME matches nothing on this host", "check names on every host; = means exact, ^ excludes", "ip -br address", ""},
	{"comm-id-subnet", "job", Critical, 0.85, "no interface is in the subnet of NCCL_COMM_ID", "No interface found in the same subnet as remote address, then No usable listening interface found", "NCCL_COMM_ID is set, and this host has no address in the subnet of the one that it names: hosts in routed subnets, a container with a bridge of its own, or a wrong address; NCCL_SOCKET_IFNAME is not asked then", "unset NCCL_COMM_ID and let the launcher pass the unique id (torchrun, MPI), which works across subnets; or name an address in a subnet that all hosts share; --network host for containers", "ip -br address: no prefix holds that address", "a name that the filter does not match says no socket interface found"},
	{"connect-refused", "host", Critical, 0.85, "a peer cannot be connected", "no route to host, or connection refused, again and again", "firewall or wrong interface", "open the ephemeral ports; choose the interface", "nc -z PEER PORT", ""},
	{"connect-abort", "nccl", Critical, 0.70, "a refused connection is hidden by a retry bug", "Software caused connection abort before 2.24", "NCCL before 2.24 retries on a dead socket", "NCCL 2.24 or later; look for a crash of the peer and its listen queue", "", ""},
	{"foreign-client", "host", Warning, 0.90, "something else connects to NCCL's port", "wrong magic", "a scanner or scraper; the eight bytes of the magic are its first text", "exclude the port range from it; NCCL 2.30 or later", "", "once and without a hang it is harmless"},
	{"stale-process", "host", Critical, 0.80, "a process of an earlier job answers", "wrong type of socket", "a process survived the last job", "end what is left over; wait between jobs", "", ""},
	{"ports-exhausted", "host", Critical, 0.90, "ports are used up", "bind: address already in use", "ephemeral ports exhausted", "widen net.ipv4.ip_local_port_range; keep PXN on; fewer channels", "ss -s", "two jobs on one host"},
	{"ports-narrow", "host", Warning, 0.85, "the range of ports is narrow for this job", "(hosts-1) x GPUs x channels x 2 x GPUs connections a host against ip_local_port_range", "all-to-all opens a connection a channel and peer", "widen net.ipv4.ip_local_port_range; keep PXN on", "", ""},
	{"leftovers", "host", Critical, 0.70, "a run fails on what the last one left", "bind or shared memory fails right after another job ended on the host", "sockets in TIME_WAIT and files in /dev/shm are not yet cleaned", "wait, remove /dev/shm/nccl-*, raise limits", "", ""},
	{"open-files", "host", Critical, 0.90, "too many open files", "Too many open files", "limit of open files, or communicators that are never destroyed", "ulimit -n 65536; destroy communicators", "ls /proc/PID/fd | wc -l", ""},
	{"rank-twice", "job", Critical, 0.95, "two processes claim one rank", "rank has already checked in", "the launcher gave RANK twice, or a process of an earlier try is alive", "fix the launcher", "", ""},
	{"world-size-differs", "job", Critical, 0.95, "processes disagree on the number of ranks", "mismatch in rank count", "WORLD_SIZE differs", "fix the launcher", "", ""},
	{"unique-id-empty", "job", Critical, 0.65, "the unique id was never filled", "address family is neither AF_INET nor AF_INET6", "the root rank failed before it, often because its NCCL_SOCKET_IFNAME matches nothing", "read the root rank's log first", "", "corrupted memory looks the same"},
	{"peer-closed", "job", Warning, 0.95, "a peer closed its connection", "closed by remote peer and nothing else on this host", "a consequence: the peer ended first", "go to the named peer", "", ""},
	{"socket-error", "host", Warning, 0.50, "NCCL's own connections fail", "warnings of sockets of another kind", "see the line", "see the line", "", ""},
	// Memory and containers.
	{"shm-full", "container", Critical, 0.97, "/dev/shm is too small", "shared memory cannot be extended: no space left", "containers get 64 MB", "--shm-size=1g or more; an emptyDir with medium: Memory", "df /dev/shm", ""},
	{"shm-register", "host", Critical, 0.60, "shared memory cannot be registered", "shared memory fails with CUDA invalid argument while there is space", "driver or container refuses cudaHostRegister", "update the driver; NCCL_SHM_DISABLE=1 to confirm", "", ""},
	{"shm-name-garbage", "host", Critical, 0.75, "a NUMA node has no memory", "a shared memory error that names an unprintable file of size 0", "a cuMem descriptor is read as a file's name", "populate all memory channels, or NCCL_CUMEM_HOST_ENABLE=0", "", ""},
	{"cumem-no-p2p", "host", Critical, 0.85, "cuMem host memory cannot be shared", "CUDA failure 217 in shm.cc", "cuMem host sharing without P2P (2.27)", "NCCL_CUMEM_HOST_ENABLE=0", "", ""},
	{"cumem-host-blocked", "container", Info, 0.80, "NUMA calls are blocked in the container", "cuMem host allocations do not appear to be working", "seccomp blocks them; NCCL uses /dev/shm instead", "capability SYS_NICE, or NCCL_CUMEM_HOST_ENABLE=0", "", ""},
	{"stack-unlimited", "host", Warning, 0.80, "the stack limit is unlimited", "Stack size limit is unsafe", "ulimit -s unlimited makes every thread's stack huge", "ulimit -s 8192", "", ""},
	{"gpu-memory-full", "gpu", Critical, 0.85, "GPU memory is full when NCCL needs a little", "an allocation of few MB fails", "NCCL connects lazily when the model has taken everything, or there are many communicators", "leave 1 to 2 GB free; fewer communicators; smaller NCCL_BUFFSIZE", "nvidia-smi: memory", ""},
	{"lazy-communicator", "job", Critical, 0.75, "a communicator is made at the peak of memory", "allocation fails or the job hangs at the first step with GPU memory above 90%", "communicators are made at first use; the time limit of collectives does not cover it", "one small all-reduce a group before training", "", ""},
	{"gpu-memory-nearly-full", "gpu", Warning, 0.60, "GPU memory is nearly full", "more than 97% used", "NCCL's buffers may not fit any more", "leave 1 to 2 GB free", "", ""},
	{"host-out-of-memory", "host", Critical, 0.95, "the kernel killed a process for memory", "Out of memory: Killed process", "host memory, or the limit of the container", "fewer data loader workers, larger limit; the rank that died is the cause, not the ones that complain", "", ""},
	{"host-lost", "host", Critical, 0.95, "the scheduler lost a host", "Slurm: Node failure on; Kubernetes: NodeNotReady", "the host crashed, lost power or its network, or its daemon hangs", "look at that host: power, kernel log, its BMC; start the job again without it", "scontrol show node HOST; kubectl describe node HOST", ""},
	{"process-died", "job", Critical, 0.90, "a process of the job died", "exit code of the launcher", "see the exit code: -9 is a kill (often memory), -11 a crash, 1 an exception", "read that rank's own log", "", ""},
	{"cuda-out-of-memory", "gpu", Critical, 0.90, "the program ran out of GPU memory", "CUDA out of memory", "model, batch or fragmentation", "smaller batch; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "", ""},
	{"loss-not-finite", "job", Warning, 0.80, "the loss is not a number", "nan or inf where a log prints the loss", "an overflow, a bad batch, a learning rate too high, or data that a GPU or a link corrupted", "go back to the checkpoint before it and leave that batch out; if it comes back on the same host, test its GPUs (dcgmi diag)", "the same batch on another host", "scaled losses overflow now and then: steps are skipped"},
	// GPUs, NVLink, PCIe.
	{"gpu-failed", "gpu", Critical, 0.95, "a GPU failed", "a fatal Xid in the kernel log", "see the Xid", "drain the host; see the Xid", "", "Xid 45, and 43 and 94 after another, are consequences"},
	{"driver-mismatch", "host", Critical, 0.95, "driver and library of the GPU have different versions", "API mismatch, or Driver/library version mismatch", "the driver was updated and the module of the old one is still loaded, or a container brings its own libcuda", "reboot the host, or unload and load nvidia's modules; in containers mount the host's libraries", "cat /proc/driver/nvidia/version against the version of libcuda.so", ""},
	{"gpu-access-fault", "gpu", Critical, 0.80, "a kernel on a GPU used memory that is not mapped", "Memory access fault by GPU node-N, of AMD's runtime", "a bug of the program or of a library (out of bounds, a buffer that was freed), or memory of a peer that this GPU cannot reach", "AMD_SERIALIZE_KERNEL=3 names the kernel; if it is one of RCCL, NCCL_P2P_DISABLE=1 shows whether it is the path to a peer; kernel log of amdgpu", "dmesg: page fault of the same process", "the processes that abort after it follow from it"},
	{"gpu-fault", "gpu", Warning, 0.80, "a GPU reported an error", "an Xid that does not take the GPU down", "see the Xid", "see the Xid", "", "Xid 13 and 31 are usually the program's"},
	{"gpu-event", "gpu", Info, 0.80, "a GPU reported an event", "an Xid that only informs", "see the Xid", "none", "", ""},
	{"nvswitch-failed", "nvlink", Critical, 0.90, "an NVSwitch reported an error", "a fatal SXid", "NVSwitch or a link to it", "reset the baseboard; replace on repeat", "", "Xid 74 on GPUs may be the consequence"},
	{"fabric-manager-errors", "nvlink", Warning, 0.60, "the fabric manager reports errors", "lines of level ERROR in its log", "see the line; NVLink or multicast may not work", "nvidia-smi -q: Fabric; restart it while no GPU is in use; reset GPUs and NVSwitches", "", ""},
	{"nvswitch-event", "nvlink", Warning, 0.70, "an NVSwitch reported an error it survived", "a non-fatal SXid", "NVSwitch or a link to it", "watch; reset the baseboard when idle", "", ""},
	{"cuda-error", "gpu", Critical, 0.50, "a CUDA call failed", "Cuda failure of another kind", "see the error; the first of a host counts, others follow", "see the error", "", ""},
	{"p2p-forced", "gpu", Critical, 0.80, "P2P is forced on GPUs that cannot", "peer access is not supported, or opening a peer's memory fails", "NCCL_P2P_LEVEL=SYS or a container without all GPUs", "unset NCCL_P2P_LEVEL; NCCL_P2P_DISABLE=1", "", ""},
	{"nvlink-unused", "nvlink", Critical, 0.85, "NVLink is there but not used", "shared memory or network between GPUs that nvidia-smi topo connects by NVLink", "NCCL_P2P_DISABLE, fabric manager, IOMMU, or a container without all GPUs", "check the variable, fabric manager, iommu=pt, ACS", "", ""},
	{"nvlink-p2p-broken", "nvlink", Critical, 0.85, "P2P is disabled between GPUs on NVLink", "P2P is disabled between NVLINK connected GPUs", "an NVLink or the fabric is faulty", "nvidia-smi nvlink -s and -e; reset; Xid 74", "", ""},
	{"p2p-refused", "pcie", Warning, 0.60, "CUDA refuses P2P between GPUs", "Could not enable P2P", "IOMMU, ACS, or the product has none", "nothing for consumer GPUs; else iommu=pt and ACS off", "", "consumer GPUs have no P2P: that is normal"},
	{"p2p-writes-lost", "pcie", Critical, 0.70, "P2P writes are lost", "hang at the first collective, GPUs at 100% and little power, P2P paths, ACS on", "ACS or IOMMU redirect P2P", "disable ACS and IOMMU, or NCCL_P2P_DISABLE=1", "it runs with NCCL_P2P_DISABLE=1", ""},
	{"nvls-fabric", "nvlink", Critical, 0.90, "NVLink SHARP cannot be set up", "binding of multicast memory fails with CUDA error 401", "fabric manager, IMEX or NVSwitch state", "restart fabric manager with a reset of the GPUs, or reboot; NCCL_NVLS_ENABLE=0 runs now", "", ""},
	{"nvls-leak", "nvlink", Critical, 0.80, "multicast objects are used up", "binding of multicast memory fails with CUDA error 2", "communicators that were never destroyed hold them", "destroy process groups; count Init START less Destroy COMPLETE", "", ""},
	{"nvls-invalid", "nvlink", Critical, 0.90, "fabric manager was restarted under the GPUs", "invalid argument in nvls.cc", "fabric manager restarted while GPUs were in use", "reboot, or stop it, reset the GPUs, start it", "", ""},
	{"fabric-manager-down", "nvlink", Critical, 0.95, "fabric manager does not run", "CUDA failure 802", "not started, not ready, or another version than the driver", "enable nvidia-fabricmanager, in the driver's version", "systemctl status nvidia-fabricmanager", ""},
	{"imex-missing", "container", Critical, 0.90, "no IMEX channel", "CUDA failure 800 in p2p.cc on a multi-node NVLink system", "the container has no access to an IMEX channel", "expose /dev/nvidia-caps-imex-channels/channel0", "", ""},
	{"nvlink-fabric-degraded", "nvlink", Warning, 0.75, "a GPU's NVLink fabric differs from the others", "health mask unlike the majority, zero UUID, or a fabric state that is not Completed", "degraded or unregistered NVLink fabric", "nvidia-imex-ctl -N; fabric manager; service of the tray", "", "the mask's meaning is not public: it is only compared"},
	{"gpu-shared", "job", Critical, 0.98, "two ranks use one GPU", "Duplicate GPU detected", "no set_device, or CUDA_VISIBLE_DEVICES", "choose the device by local rank", "", ""},
	{"nvlink-inactive", "nvlink", Critical, 0.90, "NVLinks are inactive", "nvidia-smi nvlink -s: inactive, or fewer links than other GPUs of the model", "links lost", "reset; fabric manager; replace on repeat", "", "MIG; PCIe cards without bridge"},
	{"nvlink-errors", "nvlink", Warning, 0.80, "an NVLink has errors", "replay, recovery or CRC errors", "signal quality of a link", "watch; reset; replace when it grows", "read it twice", ""},
	{"pcie-degraded", "pcie", Critical, 0.85, "a PCIe link is narrower or slower than it could be", "width below the maximum, or speed below it on a NIC", "seating, riser, BIOS", "reseat; check BIOS; replace", "lspci -vvv: LnkSta against LnkCap", "GPUs lower the speed when idle: width counts, or speed under load"},
	{"pcie-errors", "pcie", Critical, 0.85, "PCIe reports uncorrectable errors", "AER: uncorrected, fatal", "PCIe failure", "drain; reseat", "", ""},
	{"pcie-noise", "pcie", Warning, 0.60, "PCIe corrects many errors", "AER: corrected, again and again", "signal quality", "reseat; riser", "", "a few are normal"},
	{"pcie-replays", "pcie", Warning, 0.60, "a GPU's PCIe link replays", "replay counter", "signal quality", "reseat; riser", "read it twice: more than 8 a minute", ""},
	{"acs-enabled", "pcie", Warning, 0.70, "ACS is on at PCIe switches", "ACSCtl: SrcValid+ on a bridge", "P2P and GPUDirect go through the root complex or fail", "disable ACS on bare metal (setpci ECAP_ACS+6.w=0 or BIOS)", "", "virtual machines need ACS"},
	{"iommu-fault", "pcie", Warning, 0.70, "the IOMMU refused a transfer", "DMAR or AMD-Vi fault", "IOMMU translation is on for a device that does peer-to-peer", "iommu=pt", "", ""},
	{"ecc-errors", "gpu", Warning, 0.80, "a GPU has uncorrectable memory errors", "volatile uncorrectable errors", "memory of the GPU", "reset when idle; field diagnostic on repeat", "", ""},
	{"row-remap-failed", "gpu", Critical, 0.95, "row remapping failed", "remapping failure", "spare rows are used up", "field diagnostic, then replace", "", ""},
	{"row-remap-pending", "gpu", Warning, 0.90, "a row remapping waits for a reset", "remapping pending", "a bad row was found", "reset the GPU when idle", "", ""},
	{"gpu-throttled", "gpu", Warning, 0.85, "a GPU lowers its clocks", "thermal or hardware slowdown, or power brake, is active", "cooling or power supply", "cooling; power supply; replace", "", "software power cap is normal at full load"},
	{"gpu-hot", "gpu", Warning, 0.80, "a GPU is close to its temperature limit", "temperature within 5 degrees of the slowdown limit", "cooling", "cooling", "", ""},
	{"gpu-slow-clock", "gpu", Warning, 0.60, "a GPU under load runs slower than its peers", "clock below 0.9 of the median of its model, under load", "throttling", "power and cooling", "", "idle GPUs clock down"},
	{"gpu-spinning", "gpu", Critical, 0.70, "GPUs spin in a collective that does not end", "100% utilisation at less than 40% of the power limit", "a hang: kernels wait for data", "find out who is late: flight recorder, RAS", "", "a moment of it is normal"},
	// NCCL's paths and settings.
	{"gdr-off", "nic", Critical, 0.90, "GPUDirect RDMA is off", "via NET without GDRDMA on a host while others have it, or GPU and NIC are close", "nvidia-peermem is not loaded and no DMA-BUF, or ACS", "modprobe nvidia-peermem, or the open driver with DMA-BUF", "lsmod | grep peermem", "GPUs far from their NIC: staging may be the better choice"},
	{"gdr-one-side", "nic", Critical, 0.95, "GPUDirect RDMA works on one side only", "GDRDMA on the send or the receive side only", "module missing on one host", "modprobe nvidia-peermem on that host", "", ""},
	{"rails-unused", "nic", Critical, 0.80, "some NICs of a host carry nothing", "fewer NICs on via lines than the host or the majority of hosts has", "NCCL_IB_HCA, topology file, or a rail is down", "check names of NCCL_IB_HCA a host; NCCL_TOPO_FILE; port states", "", "needs the logs of all local ranks"},
	{"cross-rail", "nic", Warning, 0.70, "traffic crosses rails", "the two ends of a channel use NICs of different index", "order of ranks or NICs differs between hosts", "same order on all hosts; NCCL_CROSS_NIC=0", "", "rails that meet at spines: only slower"},
	{"hca-name-wrong", "nic", Critical, 0.90, "NCCL_IB_HCA names devices that are not there", "names in the variable that the host does not have", "the list was copied from another kind of host", "a prefix, or a list a host", "ls /sys/class/infiniband", ""},
	{"channels-differ", "job", Critical, 0.90, "ranks have different numbers of channels", "the channels line differs inside a communicator", "variables, NIC count or GPU model differ", "compare variables and NET/IB : Using", "", ""},
	{"env-differs", "job", Warning, 0.85, "ranks have different NCCL variables", "values differ between ranks", "configuration reached some hosts only", "make them equal", "", "NCCL_IB_HCA may differ by host"},
	{"collective-mismatch", "job", Critical, 0.85, "ranks run different collectives", "collective mismatch, message truncated", "sizes, algorithms or variables differ, or calls are in another order", "compare variables first, then COLL lines", "NCCL_DEBUG_SUBSYS=COLL", ""},
	{"init-order", "job", Critical, 0.80, "communicators are made in different order", "message truncated : 256 bytes instead of 4", "ranks are in different steps of init", "same order of communicator creation on all ranks", "", ""},
	{"versions-differ", "job", Critical, 0.98, "ranks run different NCCL libraries", "versions differ, or Mismatched NCCL version", "two libraries", "list every mapped libnccl with its hash: grep libnccl /proc/PID/maps", "", "up to 2.21 only rank 0 prints its version: others are unknown, not equal"},
	{"library-twice", "host", Warning, 0.90, "the package says another NCCL than the one that runs", "version of the installed package against the version that was printed", "two packages install the same path; the last wins", "hash the mapped file; remove one package", "", ""},
	{"driver-too-old", "host", Critical, 0.95, "the driver is too old", "CUDA Driver version found is below the minimum", "driver", "update the driver", "", ""},
	{"affinity-empty", "host", Warning, 0.90, "a rank may not run near its GPU", "affinity is empty, or one processor", "the launcher bound the process outside the GPU's NUMA node", "bind by NUMA node; NCCL_IGNORE_CPU_AFFINITY=1", "taskset -cp PID", ""},
	{"affinity-one-core", "host", Critical, 0.95, "all local ranks share one core", "the same single processor for all ranks of a host", "mpirun binds to cores by default", "--bind-to none or numa", "", ""},
	{"host-identity-split", "container", Critical, 0.85, "ranks of one host do not see one another", "as many nodes as ranks on a shared host, or NET between ranks of one host", "each container has its own host identity: P2P and shared memory are lost", "share hostname and ipc namespace, or the same NCCL_HOSTID", "", "one GPU a host"},
	{"gpu-hidden", "container", Critical, 0.85, "containers of one host see different GPUs", "nvmlDeviceGetHandleByPciBusId: Not Found", "containers share a host identity but not their GPUs", "a different NCCL_HOSTID a container, or expose all GPUs", "", ""},
	{"nvml-error", "gpu", Warning, 0.60, "NVML refused a call", "an NVML call failed", "driver or permission", "nvidia-smi; check that driver and library have one version", "", ""},
	{"topologies-differ", "job", Critical, 0.70, "ranks computed different rings", "ring does not loop back", "ranks see different topologies: host identity, visible devices, topology files; unreadable PCI speed before 2.20", "compare variables and topology dumps between ranks; update", "", ""},
	{"topology-search-failed", "host", Warning, 0.75, "NCCL found no good rings", "falling back to simple order", "virtual PCI tree, or degraded PCIe", "provide a topology file; fix the width", "", ""},
	{"init-slow-bootstrap", "job", Warning, 0.80, "init waits for a late rank", "init above a minute, most of it bootstrap", "a late rank, name service, or an overloaded root", "the smallest recv of the bootstrap timings is the late rank", "", ""},
	{"init-slow-topology", "host", Warning, 0.60, "init spends its time in topology", "init above a minute, most of it topo and graphs", "slow PCI or NVML, or a huge graph search", "update; keep a topology file", "", ""},
	{"communicators-in-loop", "job", Warning, 0.85, "communicators are made again and again", "more than one Init START a minute after ten minutes", "groups are made every step", "make groups once and use them again", "", "elastic restarts"},
	{"communicators-leaked", "job", Warning, 0.70, "communicators are never destroyed", "many more Init than Destroy", "groups are dropped, not destroyed", "destroy process groups", "", ""},
	{"debug-word-unknown", "nccl", Warning, 0.99, "NCCL_DEBUG has a word that NCCL does not know", "the variable", "logging is silently off", "VERSION, WARN, INFO or TRACE", "", ""},
	{"debug-file-shared", "nccl", Warning, 0.99, "all ranks write one log file", "NCCL_DEBUG_FILE without %h and %p", "ranks truncate one another's file", "NCCL_DEBUG_FILE=/tmp/nccl.%h.%p", "", ""},
	{"variable-unknown", "nccl", Warning, 0.90, "a variable is unknown to this NCCL", "a name that this version does not read", "a typo, or a variable that was removed: it is ignored", "remove it", "", "plugins have variables of their own"},
	{"workaround-left-on", "nccl", Warning, 0.70, "a workaround is still on", "P2P_DISABLE, SHM_DISABLE, IB_DISABLE, NVLS_ENABLE=0, PXN_DISABLE=1 or NET_GDR_LEVEL=0 in a job of several hosts", "a past problem", "test without it", "", ""},
	{"over-tuned", "nccl", Info, 0.60, "many NCCL variables are set by hand", "eight or more tuning variables", "hand tuning that no longer fits", "remove all and measure; add back what helps", "", ""},
	// What PyTorch and launchers say.
	{"program-error", "job", Critical, 0.85, "the program failed on a rank", "a Python exception that is not about communication", "see the exception; the other ranks wait for a rank that is gone", "mend what the exception says; look at the log of the named rank", "the traceback of that rank", "exceptions that only repeat a failure of NCCL"},
	{"watchdog-stuck", "job", Critical, 0.65, "PyTorch's watchdog itself is stuck", "watchdog got stuck, or Heartbeat monitor timed out, and no collective timed out", "a call of CUDA or NCCL does not return: a communicator that not all ranks make, a thread that holds the GIL, or a GPU that hangs", "py-spy dump --native of the named ranks; see whether all ranks came as far; set TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC higher only to confirm", "the stack of the named rank", ""},
	{"rendezvous-incomplete", "job", Critical, 0.85, "not all processes came to the rendezvous", "clients joined: fewer than expected, or the id of a communicator that its first rank did not make", "processes that did not start, are late, died, or have another address, port or world size", "start all; compare MASTER_ADDR, MASTER_PORT, WORLD_SIZE and --nnodes on all hosts; look at logs of those that are missing", "", ""},
	{"rendezvous-unreachable", "host", Critical, 0.80, "the rendezvous cannot be reached", "client socket has timed out, or RendezvousConnectionError", "wrong address or name, a firewall, or the process that listens there is not running", "from the host that failed: nc -zv ADDRESS PORT; check the name's address, firewall and interface", "nc fails as well", ""},
	{"rendezvous-port-used", "host", Critical, 0.95, "the rendezvous port is in use", "server socket has failed to listen: address already in use", "a process of an earlier job, or a second job on the host", "end what is left (ss -ltnp), or choose another MASTER_PORT", "ss -ltnp shows the listener", ""},
	{"store-lost", "job", Critical, 0.70, "rank 0's store is gone", "TCPStore: connection reset or closed", "the process of rank 0, or its host, ended first", "the log of rank 0; exit code; out-of-memory killer", "", "at the end of a job that was stopped it means nothing"},
	{"gloo-timeout", "job", Critical, 0.60, "a rank waited too long in Gloo", "Timed out waiting for recv or send", "another rank is late, stuck or dead; Gloo carries barriers and objects beside NCCL", "stack of the ranks that did not time out (py-spy dump)", "", ""},
	{"gloo-connect", "host", Critical, 0.75, "Gloo cannot connect the ranks", "connectFullMesh failed, or a host name that is not a local address", "the host name leads to 127.0.0.1 or to an interface that others cannot reach", "GLOO_SOCKET_IFNAME; mend /etc/hosts", "getent hosts $(hostname)", ""},
	{"job-cancelled", "job", Warning, 0.95, "the scheduler ended the job", "slurmstepd: CANCELLED", "time limit, preemption, a failed node, or somebody", "see the reason; more time, or checkpoints", "sacct -j JOB", ""},
	{"nccl-failed", "job", Critical, 0.50, "NCCL failed and the log does not say why", "NCCL error of PyTorch without a line of NCCL", "see the kind of error", "run again with NCCL_DEBUG=INFO and one file a rank", "", ""},
	{"gloo-backend", "job", Warning, 0.80, "the job uses Gloo, not NCCL", "[Gloo] and no NCCL line", "backend gloo for GPU tensors", "init_process_group(\"nccl\")", "", "Gloo beside NCCL is normal"},
	{"error-not-polled", "job", Warning, 0.70, "the program did not notice an error of the network", "a completion error, then GPUs spin", "the proxy thread ended and nobody asks for the error", "a watchdog, or ncclCommGetAsyncError", "", ""},
	{"nccl-error", "nccl", Warning, 0.50, "NCCL warns", "a WARN of unknown text", "see the line", "see the line", "", ""},
	// Verdicts over ranks.
	{"never-arrived", "job", Critical, 0.90, "ranks never arrived", "ranks without an Init START in a communicator that others entered", "not started, or stuck before NCCL", "look at those ranks: launcher, CUDA, exception", "", "their logs may not be among the files"},
	{"stuck-in-bootstrap", "job", Critical, 0.80, "ranks are stuck in the bootstrap", "Init START without an end", "a rank is late or cannot be reached", "look at the rank that started last", "", "the log may be cut"},
	{"stuck-in-connect", "nic", Critical, 0.80, "ranks are stuck making connections", "via lines without Connected all rings", "one end of a pair does not answer", "test the pairs that are named", "", "the log may be cut"},
	{"never-joined", "job", Critical, 0.95, "processes did not join one job", "several communicators with rank 0, each of one host, none larger", "a benchmark built without MPI, or launcher variables missing", "build with MPI=1 (make clean first); check RANK and WORLD_SIZE", "", "groups by host look the same beside a larger one"},
	{"desync", "job", Critical, 0.85, "ranks issued different operations", "COLL lines differ at one place, or a rank is behind", "the program's order of calls differs between ranks", "look at the code path of the ranks named", "", ""},
	{"hang", "job", Critical, 0.95, "the job hangs", "unfinished operations of flight recorder dumps", "see class", "see class", "", ""},
	{"checkpoint-blocks", "job", Critical, 0.85, "a rank saves a checkpoint while the others wait", "the rank that the others wait for began to save a checkpoint and did not say that it was done", "saving takes longer than the time limit of the process group: slow or stuck storage, a large state, or ranks that do not wait for the one that saves", "look at the storage of that path; save asynchronously or on all ranks; a barrier after saving with a longer timeout (init_process_group(timeout=...))", "py-spy dump of that rank shows torch.save or a write", "programs that never say when a save is done"},
	{"watchdog-same-place", "job", Critical, 0.80, "all ranks timed out in one operation", "PyTorch's watchdog, the same sequence number on all ranks", "a slow or dead link or rank inside that operation", "flight recorder dumps; RAS", "", ""},
	{"watchdog-desync", "job", Critical, 0.90, "ranks timed out in different operations", "PyTorch's watchdog, different sequence numbers", "the program is out of step", "compare flight recorder dumps at the first difference", "", ""},
	{"ras-missing", "job", Critical, 0.90, "RAS does not reach ranks", "missing ranks in a RAS report", "process dead or frozen", "look at the named process", "ask again in 60 s: DEAD is final", ""},
	{"ras-behind", "job", Critical, 0.80, "ranks launched fewer operations than the others", "collective counts of a RAS report", "the ranks that are behind hold the others up", "stack of those ranks; ask again after 30 s", "a gap that stays over two reports 30 s apart", "counts can differ for a moment while a job runs"},
	{"ras-error", "job", Critical, 0.85, "a communicator is in an error state", "async error or abort in a RAS report", "see NCCL's log of that rank", "see NCCL's log of that rank", "", ""},
	{"rank-order", "performance", Warning, 0.60, "rings cross hosts more often than needed", "edges between hosts in a ring against the number of hosts", "ranks are not in the order of hosts", "order ranks by host", "", ""},
	{"straggler", "performance", Warning, 0.80, "a rank comes late to collectives", "it waits least: lateness above five deviations and last in 60% of at least 20 operations", "slow processor, GPU or data on that rank", "its clocks, throttle reasons, data loader", "", "compare inside one pipeline stage"},
	{"slow-link", "performance", Warning, 0.70, "one pair of ranks is slow", "a single cell of the delay matrix; more than twice the median", "the path between the two", "ib_write_bw between the two NICs", "", ""},
	{"slow-rank-io", "performance", Warning, 0.70, "all transfers of one rank are slow", "a row or a column of the delay matrix", "NIC, PCIe or host of that rank", "PCIe width and errors of that NIC", "", ""},
	{"bandwidth-dropped", "performance", Warning, 0.70, "collectives became slower than they were", "bus bandwidth below 0.8 of the own median of the same size, 1 MiB and more", "a link or a neighbour", "slow links; port counters", "", ""},
	{"below-prediction", "performance", Warning, 0.70, "measured bandwidth is below what the cluster should give", "nccl-tests or Inspector against the prediction for the cluster file", "see other findings; wrong algorithm or network", "weft explain for the size", "", ""},
	{"results-wrong", "performance", Critical, 0.95, "a benchmark computed wrong results", "#wrong above 0", "memory, link or library corrupts data", "stop using the hosts; bisect by host", "", ""},
	{"inspector-dropped", "performance", Info, 0.95, "NCCL Inspector lost records", "gaps in the sequence, or dump_stats", "its ring was overwritten", "larger NCCL_INSPECTOR_DUMP_COLL_RING_SIZE, shorter interval", "", ""},
	{"nccl-crash", "host", Critical, 0.90, "a process crashed inside NCCL", "segfault in libnccl", "a bug of NCCL, or corrupted memory", "version and core dump", "", ""},
	{"ras-query-crash", "host", Critical, 0.90, "a RAS query crashed ranks", "segfault in libnccl of 2.24 to 2.29.1 with RAS in use", "2.24 to 2.26 crash when asked during init, versions before 2.29.2 when a rank is missing", "ask only in JSON, 2.29.2 or later, not within 60 s of an Init START; NCCL_RAS_ENABLE=0", "", ""},
	{"ras-thread-crash", "host", Critical, 0.85, "NCCL's RAS thread crashed", "segfault in libnccl 2.27.7 without a query", "use after free in 2.27.7", "update, or NCCL_RAS_ENABLE=0", "", ""},
	// Kernel and host.
	{"peermem-context", "host", Info, 0.60, "nvidia-peermem complains of a dead process", "invalid context", "a callback after the process ended", "update the driver", "", ""},
	{"nic-power", "nic", Warning, 0.90, "a NIC has too little power", "mlx5: insufficient power on the PCIe slot", "slot power", "BIOS or another slot", "", ""},
	{"nic-heat", "nic", Warning, 0.90, "an optic or a NIC is hot", "mlx5: high temperature", "airflow", "airflow", "", ""},
	{"nic-driver-error", "nic", Warning, 0.60, "the driver of an RDMA device reports an error", "infiniband DEVICE: ... failed", "see the line: a command that the device refused", "firmware and driver of the device; limits of the instance", "", "a job that was killed leaves such lines as well"},
	{"storage-stalled", "host", Warning, 0.70, "a file system does not answer", "nfs: server not responding, or its kin of Lustre, CIFS and Ceph", "the file server or the way to it; ranks that load data or write a checkpoint stop there, and the others wait for them", "look at the file server; move the checkpoint", "cat /proc/PID/stack of a rank that stands still", "a line \"server OK\" soon after"},
	{"nic-cable", "fabric", Critical, 0.85, "a cable or module is faulty", "mlx5: port module event, cable error", "cable or optic", "reseat or replace it", "", ""},
	{"cable-unplugged", "fabric", Critical, 0.85, "a cable or module was pulled out", "mlx5: port module event, Cable unplugged, and not plugged in again", "somebody pulled it, or it does not sit", "plug it in; reseat or replace it", "mlxlink -d DEVICE -m", "ports that never had a cable say so when the host starts"},
	{"nic-link-down", "fabric", Warning, 0.70, "a NIC lost its link", "mlx5: Link down", "cable, optic, switch port, or maintenance", "cable; switch port", "", "once at start is normal"},
	{"host-crashed", "host", Critical, 0.95, "the kernel of a host crashed", "panic, oops or lockup in the kernel log", "a driver, the hardware, or somebody asked for it (sysrq)", "read the lines after it; drain the host; firmware and driver versions", "", ""},
	{"host-hardware", "host", Critical, 0.90, "a host reports broken hardware", "machine check or uncorrected memory error", "memory, processor or board", "drain the host; ras-mc-ctl --errors; replace the part", "", ""},
	{"task-blocked", "host", Warning, 0.70, "a process is stuck in the kernel", "blocked for more than 120 seconds", "storage or driver", "storage first: NFS, Lustre", "", ""},
	{"port-disabled", "fabric", Info, 0.90, "a port is switched off", "ibstat: physical state Disabled", "switched off by the administrator, or by a subnet manager that isolated it", "ibportstate LID PORT enable, or mlxlink -d DEVICE --port_state UP, if it should be used", "", ""},
	{"port-down", "fabric", Critical, 0.85, "a port is not active", "state of a port while others of the host or the fleet are active", "cable, switch port, or no subnet manager (Init, Armed)", "reseat or replace the cable; check the subnet manager if it is in Init", "", "ports without a cable on all hosts; management ports"},
	{"port-slow", "fabric", Critical, 0.85, "a port runs below the rate of its peers", "rate or width below the majority of ports of its role, or below what both ends could", "a lane or a speed was lost", "reseat; clean the fibre; replace", "", "a port that is down reports a default rate"},
	{"no-subnet-manager", "fabric", Critical, 0.90, "no subnet manager", "SM lid is 0 on an InfiniBand port", "subnet manager not running", "start it or fail over", "sminfo", "Ethernet has none"},
	{"ib-tool-failed", "nic", Warning, 0.70, "an InfiniBand tool stopped half-way", "ibpanic", "a device that cannot be read", "look at the device that comes next in /sys/class/infiniband", "", ""},
	{"port-errors", "fabric", Warning, 0.60, "a port counted errors", "error counters above the limits of infiniband-diags, or above ten times the other ports", "cable, optic or port; remote physical errors: one hop up", "read again after a minute: a rate decides; then the cable", "two readings a minute apart", "totals since the counters were cleared; symbol errors are normal above zero on HDR and later"},
	{"port-errors-few", "fabric", Info, 0.50, "a port counted a few errors", "error counters that are not zero, below the limits of infiniband-diags", "a moment of trouble at some time since the counters were cleared", "read again after a minute: if they grow, the cable", "two readings a minute apart", "counters that were never cleared"},
	{"port-unhealthy", "fabric", Critical, 0.85, "the subnet manager holds a port to be ill", "its list of unhealthy ports", "the link flaps, or its node does not answer", "clean or replace the cable of the named ports; then mark them healthy again", "", "entries of the past stay until they are cleared"},
	{"switch-hardware", "fabric", Warning, 0.90, "a switch has a fault of its own", "ibswinfo: fans, power supplies or temperature", "a fan or a power supply failed, or air does not flow", "replace the part; watch the temperature", "", ""},
	{"pair-slow", "performance", Warning, 0.75, "a test between two NICs is slower than the port", "perftest against the rate of the port: below 80%", "PCIe width, a wrong NUMA node, or a lossy path", "lspci -vvv of the NIC; run the test from the NIC's own NUMA node", "the same test with another peer", ""},
	{"port-errors-growing", "fabric", Critical, 0.85, "a port's errors grow", "two readings of one port", "cable, optic or port", "clean or replace the cable", "", ""},
	{"port-congested", "fabric", Warning, 0.60, "a port waits for credits more than its peers", "xmit_wait ten times that of other ports", "a slow receiver behind it", "find the slow receiver", "", "ticks differ by device"},
	{"rdma-retries", "nic", Warning, 0.60, "RDMA retransmits", "retransmission counters above one in 10,000 packets", "loss on the path", "find the loss: discards, ECN, PFC", "two readings", "adaptive routing makes out of sequence normal"},
	{"rdma-retries-exceeded", "nic", Warning, 0.60, "RDMA gave up connections", "req_transport_retries_exceeded", "a path or a peer was gone", "join with NCCL's log", "", "normal when a job is killed"},
	{"cnp-ignored", "nic", Critical, 0.80, "a NIC ignores congestion notifications", "rp_cnp_ignored", "DCQCN is off on this NIC", "enable ECN for the RoCE priority", "", ""},
	{"pause-wrong-priority", "nic", Warning, 0.60, "pause frames on several priorities", "rx_prioN_pause on more than one priority", "the RoCE priority differs between host and switch", "one priority everywhere", "", ""},
	{"lossless-drops", "nic", Critical, 0.70, "packets are dropped on the RoCE priority", "rx_prioN_discards on the priority that carries RoCE", "PFC headroom", "buffer and headroom of the switch and the NIC", "", "lossy designs: a ratio of 1e-6 counts"},
	{"pause-storm", "nic", Critical, 0.85, "a NIC stopped the network", "tx_pause_storm_error_events", "host or NIC hung: pause was switched off, drops follow", "reset or replace the NIC", "", ""},
	{"nic-drops", "nic", Warning, 0.60, "a NIC drops packets", "discards_phy", "no buffer: PCIe or PFC", "PCIe width; PFC", "two readings", ""},
	{"ber-high", "fabric", Warning, 0.85, "a link has bit errors", "effective BER above 1e-15 or raw BER above 1e-6", "cable or optic", "clean or replace it", "", "15E-255 means none seen"},
	{"cable-degraded", "fabric", Critical, 0.85, "a cable of the fabric runs below its speed", "iblinkinfo: could be; or narrower than the others of its kind", "a lane or speed was lost", "reseat or replace the cable", "", ""},
	{"nics-one-subnet", "host", Warning, 0.75, "several NICs are in one IP subnet", "addresses of RDMA interfaces in one prefix", "the kernel answers ARP for one NIC on another", "a subnet a rail, or arp_ignore=1 and arp_announce=2 with policy routes", "ip -br address", ""},
	{"address-twice", "host", Critical, 0.90, "one IP address is on several interfaces", "ip -j: the same address on several interfaces of a host", "a configuration that was copied: answers leave by one interface and come back by another, connections hang or are reset", "an address for each interface; a bond if they are meant to be one", "ip -br address", "unnumbered interfaces share a /32 on purpose"},
	{"interface-down", "host", Warning, 0.60, "a rail's interface is down", "state DOWN while others of its name are UP", "cable or configuration", "ip link set up; cable", "", ""},
	{"mtu-differs", "host", Warning, 0.70, "interfaces of one kind have different MTU", "MTU differs", "configuration", "one MTU", "", ""},
	{"verbs-count", "container", Warning, 0.80, "fewer verbs devices than RDMA devices", "/dev/infiniband against /sys/class/infiniband", "the container got some of them", "expose all devices", "", ""},
	{"peermem-missing", "host", Warning, 0.70, "nvidia-peermem is not loaded", "/proc/modules on an RDMA host with NVIDIA GPUs", "GPUDirect RDMA needs it, or DMA-BUF", "modprobe nvidia-peermem", "", "the open driver with DMA-BUF does not need it"},
	{"shm-small", "container", Warning, 0.85, "/dev/shm is small", "less than 64 MiB free", "containers get 64 MB", "--shm-size=1g or more", "", ""},
}

var byID = func() map[string]*Entry {
	m := map[string]*Entry{}
	for i := range Catalogue {
		m[Catalogue[i].ID] = &Catalogue[i]
	}
	return m
}()

// Explain gives the catalogue's entry of an id.
func Explain(id string) (*Entry, error) {
	if e := byID[id]; e != nil {
		return e, nil
	}
	var near []string
	for _, e := range Catalogue {
		if id != "" && (strings.Contains(e.ID, id) || strings.Contains(id, strings.SplitN(e.ID, "-", 2)[0])) {
			near = append(near, e.ID)
		}
	}
	slices.Sort(near)
	if len(near) > 0 {
		return nil, fmt.Errorf("no finding %q; similar: %s", id, few(near))
	}
	return nil, fmt.Errorf("no finding %q; 'weft doctor --list' has all %d", id, len(Catalogue))
}
