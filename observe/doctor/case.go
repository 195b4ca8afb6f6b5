package doctor

// Case is everything that was read, as plain values. Readers append to it.
type Case struct {
	Files     []File
	Lines     []Line      // of NCCL, PyTorch and Gloo
	Dumps     []Dump      // flight records of PyTorch or weft
	RAS       []RAS       // answers of NCCL's RAS
	Perf      []Perf      // operations that NCCL Inspector measured
	Bench     []Bench     // rows of nccl-tests
	Kernel    []Kernel    // what the kernel said of GPUs, NICs and PCIe
	GPUs      []GPU       // nvidia-smi -q -x, nvlink
	Paths     []Matrix    // nvidia-smi topo -m
	Ports     []Port      // InfiniBand and RoCE ports
	Ether     []Ether     // ethtool -S
	PCI       []PCI       // lspci -vvv, /sys
	Addresses []Address   // ip -j
	Cables    []Cable     // ibnetdiscover, iblinkinfo
	Switches  []Switch    // ibswinfo
	Host      []HostState // limits and settings of a live host
	Processes []Process   // of jobs on a live host
}

// Line is one line of a log that a reader understood.
type Line struct {
	At     Evidence
	Kind   string // a row of the reader's table, or "" for a WARN of unknown text
	Warn   bool   // printed as WARN or as an error
	Host   string
	PID    int
	TID    int
	Dev    int     // the thread's CUDA device, -1 unknown; not the rank
	Rank   int     // as the launcher's prefix or PyTorch says, -1 unknown
	Time   float64 // seconds since 1970 by the clock of the host, 0 unknown
	Source string  // file of NCCL's source that a WARN names
	Msg    string
	F      map[string]string // the fields of the kind
}

// Dump is the unfinished and recent operations of a rank.
type Dump struct {
	File      string
	Rank      int // -1 unknown; found from the groups then
	NameRank  int // what the file's name says, -1 nothing
	Version   string
	NCCL      string
	Groups    []Group
	Entries   []Op
	Truncated bool
	Idle      bool // its status says that everything that was issued was finished
}

// Group is a process group with its members, world ranks in the order of the group.
type Group struct {
	ID            int // pg_id, -1 unknown
	Name, Desc    string
	Ranks         []int
	LastEnqueued  int64 // -1 unknown
	LastCompleted int64
	HasStatus     bool

	key string // groupKey of it: see newWorld
}

// Op is one operation of a rank.
type Op struct {
	Record   int64 // order on this rank
	Group    string
	Desc     string
	GroupID  int
	Seq      int64 // of collectives, or of point-to-point operations, of the group
	P2P      bool
	Name     string // all_reduce, send 0->3
	From, To int    // of P2P: ranks inside the group, -1
	Sizes    string // inputs, outputs and types, for comparing
	State    string
	Done     bool
	Created  int64 // ns
	Timeout  int64 // ms
	Frame    string
}

// RAS is one answer of NCCL's RAS.
type RAS struct {
	File    string
	Version string
	Time    string
	Comms   []RASComm
	Dead    []RASProcess // processes that the text form lists
	Timeout int
}

// RASComm is a communicator as RAS sees it.
type RASComm struct {
	Hash    string
	Size    int
	Ranks   []RASRank
	Missing []RASRank
	Top     map[string]int64 // the highest count of each operation, also of ranks that are not listed
	Text    []Evidence       // sections of the text form
}

// RASRank is a rank as RAS sees it.
type RASRank struct {
	Rank         int
	Host         string
	PID          int
	Dev          int
	InitState    int
	AsyncError   int
	Abort        bool
	Counts       map[string]int64
	Unresponsive bool
	Dead         bool
	Line         int
}

// RASProcess is a process that RAS does not reach.
type RASProcess struct {
	At   Evidence
	PID  int
	Host string
	GPU  string
	Dead bool
}

// Perf is one operation that NCCL Inspector measured.
type Perf struct {
	At     Evidence
	Comm   string
	Rank   int
	N      int
	Host   string
	PID    int
	Op     string
	Seq    int64
	Bytes  int64
	Micros float64
	Bus    float64 // GB/s
	Peer   int     // of P2P, -1
	Source string
	Drops  int64 // records that the plugin says it lost
}

// Bench is a row of nccl-tests.
type Bench struct {
	At     Evidence
	Op     string
	Ranks  int
	Size   int64
	Type   string
	Micros float64
	Alg    float64
	Bus    float64
	Wrong  int64 // -1 not checked
	Table  int   // which table of the file
	Place  string
	Device string // the NIC of a test between two, "" for others
}

// Kernel is a line of a kernel log.
type Kernel struct {
	At     Evidence
	Kind   string // xid, sxid, aer, mlx5, ...
	Host   string
	Time   float64 // seconds since 1970, 0 unknown
	Uptime float64 // seconds since the start of the host, 0 unknown
	Device string  // PCI address or interface
	Code   int
	Fatal  bool
	Text   string
	F      map[string]string
}

// GPU is one GPU of nvidia-smi. Numbers that the tool does not give are -1.
type GPU struct {
	At          Evidence
	Host        string
	Index       int
	Name, UUID  string
	Bus         string
	MemUsed     int64 // bytes
	MemTotal    int64
	Util        float64 // percent
	Power, Cap  float64 // watts
	Temp        float64
	TempSlow    float64
	ClockSM     float64
	ClockSMMax  float64
	Throttle    []string // active reasons, without idle and software power cap
	PCIeGen     int
	PCIeGenMax  int
	Width       int
	WidthMax    int
	Replays     int64
	RemapFail   bool
	RemapWait   bool
	RemapRows   int64
	ECC         int64 // volatile, uncorrectable
	FabricState string
	FabricCode  string
	Clique      string
	ClusterUUID string
	Links       []NVLink
	Perf        string
	MIG         bool
}

// NVLink is one link of a GPU.
type NVLink struct {
	At     Evidence
	Index  int
	GBps   float64 // 0 inactive
	Active bool
	Down   bool // the tool says that it is there and down
	Errors map[string]int64
}

// Matrix is nvidia-smi topo -m: how GPUs and NICs are connected.
type Matrix struct {
	At    Evidence
	Host  string
	Names []string             // columns: GPU0, NIC0, mlx5_0
	Cell  map[[2]string]string // NV18, PIX, PXB, PHB, NODE, SYS
	NICs  map[string]string    // NIC0 -> mlx5_0
}

// Port is a port of an InfiniBand or RoCE adapter, or of a switch.
type Port struct {
	At       Evidence
	Host     string
	Device   string
	Port     int
	GUID     string
	LID      int
	SMLID    int // -1 unknown
	Layer    string
	State    string  // Active, Down, Init, Armed
	Phys     string  // LinkUp, Polling, Disabled
	Rate     float64 // Gbit/s
	Width    int     // lanes
	WidthMax int
	Counters map[string]uint64 // by the names of /sys
	Switch   bool
	Name     string // of a switch
	RawBER   float64
	EffBER   float64 // 0 none seen
	Problem  string  // what the tool itself complains of
	Sample   int     // which of several readings of one port this is
}

// Ether is the counters of an interface.
type Ether struct {
	At       Evidence
	Host     string
	Device   string
	Counters map[string]uint64
}

// PCI is a PCIe device.
type PCI struct {
	At       Evidence
	Host     string
	Addr     string
	Class    string
	Name     string
	Bridge   bool
	Type     string // Root Port, Upstream Port, Downstream Port, Endpoint
	Speed    float64
	SpeedMax float64
	Width    int
	WidthMax int
	ACS      string // the control line, "" none
	Driver   string
	Errors   []string // DevSta and UESta flags that are set
	AER      map[string]int64
}

// Address is an interface with its addresses.
type Address struct {
	At       Evidence
	Host     string
	Name     string
	State    string
	MTU      int
	Prefixes []string // 10.0.0.1/24
}

// Cable is a link of a fabric.
type Cable struct {
	At           Evidence
	A, B         string // names
	APort, BPort int
	ASwitch      bool
	BSwitch      bool
	Width        int
	Speed        string
	WidthMax     int    // what iblinkinfo says could be
	SpeedMax     string // what iblinkinfo says could be
	State        string
	Problem      string // what a subnet manager holds against it
}

// Switch is the state of a switch itself.
type Switch struct {
	At         Evidence
	Name, GUID string
	Problems   []Evidence // fans, power supplies, temperature
}

// HostState is what a live host says of itself. -1 is unknown.
type HostState struct {
	At         Evidence
	Host       string
	MemLock    int64 // bytes; unlimited is 1<<63-1
	ShmFree    int64
	ShmSize    int64
	PortLow    int
	PortHigh   int
	OpenFiles  int64
	Verbs      int  // /dev/infiniband/uverbs*
	RDMA       int  // /sys/class/infiniband/*
	PeerMem    bool // nvidia_peermem is loaded
	NVIDIA     bool // the driver is loaded
	Container  bool
	Env        map[string]string
	StackBytes int64
}

// Process is a process of a job on a live host.
type Process struct {
	At      Evidence
	Host    string
	PID     int
	Rank    int
	Local   int
	World   int
	Job     string
	CPUs    []int // allowed
	MemLock int64
	Files   int64
	FilesUp int64
	Library string // the mapped libnccl
	Hash    string
	Env     map[string]string
}
