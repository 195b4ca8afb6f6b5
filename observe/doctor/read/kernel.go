package read

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// The kernel log, as dmesg prints it (seconds since start, or times), as the
// journal does, as JSON lines of the journal, and as /dev/kmsg gives it.

var (
	kXid     = regexp.MustCompile(`Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?:[^)]*)\): (\d+)(?:, (.*))?`)
	kFallen  = regexp.MustCompile(`(?:GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]{7,})?:?.*)?fallen off the bus`)
	kTheGPU  = regexp.MustCompile(`NVRM: The NVIDIA GPU (?:PCI:)?([0-9a-fA-F:.]{7,})`)
	kLost    = regexp.MustCompile(`NVRM: .*\[(NV_ERR_GPU_IS_LOST|NV_ERR_RESET_REQUIRED)\]|NVRM: GPU ([0-9a-fA-F:.]{7,}): (RmInitAdapter failed!.*)|Unable to determine the device handle for GPU ?([0-9a-fA-F:.]{7,}): (.*)|GPU is lost\. ? ?Reboot|ERROR_GPU_IS_LOST`)
	kAPI     = regexp.MustCompile(`NVRM: API mismatch: ?(.*)|Driver/library version mismatch`)
	kAfter   = regexp.MustCompile(`caused by previous Xid (\d+)`)
	kRDMA    = regexp.MustCompile(`infiniband (\S+): (.*[Ff]ailed.*)`)
	kSlot    = regexp.MustCompile(`([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d): pciehp: Slot\(\S+\): (Link Down|Card not present)`)
	kStorage = regexp.MustCompile(`nfs: server (\S+) not responding|CIFS: .*[Ss]erver (\S+) has not responded|Lustre(?:Error)?: .*Connection to (\S+) .*was lost|ceph: mds(\S+) hung`)
	kSXid    = regexp.MustCompile(`(nvidia-nvswitch\d+): SXid \((?:PCI:)?([^)]+)\): (\d+),? ?(Fatal|Non-fatal)?,? ?(.*)`)
	kPanic   = regexp.MustCompile(`Kernel panic - not syncing.*|BUG: unable to handle .*|BUG: soft lockup.*|(?:NMI )?[Ww]atchdog.*hard LOCKUP.*|general protection fault.*|kernel BUG at .*`)
	kMCE     = regexp.MustCompile(`\[Hardware Error\]: (?:Uncorrected|Machine check|CPU \d+: Machine Check)|EDAC .*: \d+ UE |Uncorrected hardware memory error`)
	kFabric  = regexp.MustCompile(`detected NVSwitch (non-fatal|fatal) error (\d+) .*pci bus id ([0-9a-fA-F:.]+)(.*)`)
	kAER     = regexp.MustCompile(`(\S+) ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d): (?:AER: )?PCIe Bus Error: severity=([^,]+)`)
	kAERMsg  = regexp.MustCompile(`AER: (?:Multiple )?(Corrected|Uncorrected \((?:Non-)?Fatal\)|Correctable|Uncorrectable|Uncorrected|Fatal|Non-Fatal)(?: error)?(?: message)?(?: received)?:?(?: from)? ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)`)
	kDPC     = regexp.MustCompile(`([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d): (?:DPC|pcieport.*DPC): (?:containment event|unmasked uncorrectable)`)
	kMLX     = regexp.MustCompile(`mlx5_core ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)(?: ([A-Za-z][\w.-]*))?(?: \([^)]*\))?: (.*)`)
	kSeg     = regexp.MustCompile(`(\S+)\[(\d+)\]: segfault at .* in (libnccl\S*)\[`)
	kOOM     = regexp.MustCompile(`(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (\d+) \(([^)]*)\)`)
	kOOMD    = regexp.MustCompile(`(?:^|\s)(\S+) systemd-oomd\[\d+\]: Killed (\S+) due to (memory pressure|memory used|swap used)`)
	kHung    = regexp.MustCompile(`task (\S+):(\d+) blocked for more than (\d+) seconds`)
	kIOMMU   = regexp.MustCompile(`DMAR: \[DMA (?:Read|Write)[^\]]*\] Request device \[([0-9a-f:.]+)\]|AMD-Vi: Event logged \[IO_PAGE_FAULT.*?device=([0-9a-f:.]+)`)
	kNVLink5 = regexp.MustCompile(`(\w+) (Fatal|Nonfatal|Non-fatal) XC(\d) i(\d+) Link (-?\d+) \((0x[0-9a-fA-F]+) (0x[0-9a-fA-F]+)`)
	kAMD     = regexp.MustCompile(`amdgpu (?:([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d): )?.*?(GPU reset begin|ring \S+ timeout|uncorrectable hardware errors[\w ]*|Fatal error during GPU init|GPU mode\d reset|page fault.*)`)
	kSEL     = regexp.MustCompile(`\| (Power Supply [^|]*|Temperature [^|]*|Memory [^|]*|Fan [^|]*|Processor [^|]*|Critical Interrupt [^|]*)\| ((?:Power Supply AC lost|Failure detected|Upper (?:Critical|Non-recoverable) going high|Lower (?:Critical|Non-recoverable) going low|Uncorrectable ECC|IERR|Thermal Trip|Bus (?:Fatal|Uncorrectable) [Ee]rror)[^|]*)(?:\| Asserted|$)`)
	kXidPID  = regexp.MustCompile(`pid='?(\d+)'?`)
	bootSecs = regexp.MustCompile(`^\s*\[\s*(\d+\.\d+)\]`)
	kmsgHead = regexp.MustCompile(`^\d+,\d+,(\d+),[^;]*;(.*)`)
	kubeNode = regexp.MustCompile(`\snode/([\w.-]+)\s`) // an event of Kubernetes
	journal  = regexp.MustCompile(`(?:^|\s)(\S+) kernel(?:\[\d+\])?: `)
	kService = regexp.MustCompile(`(?:^|\s)(\S+) (?:(?:nv|nvidia)-fabricmanager[\w.-]*\[\d+\]: (.*(?i:fail|error).*)|systemd\[\d+\]: (nvidia-fabricmanager\.service: (?:Failed with result|Main process exited|Control process exited).*|Failed to start .*fabric ?manager.*))`)
)

// kernelLine reads one line of a kernel log, wherever it stands.
func (s *scan) kernelLine(n int, text string) bool {
	k := doctor.Kernel{At: s.at(n, text), Host: s.host, Code: -1, F: map[string]string{}}
	body := kernelHead(&k, text)
	if !s.gpuEvent(&k, body) && !pcieEvent(&k, body) && !nicEvent(&k, body) && !hostEvent(&k, body) {
		return false
	}
	s.addKernel(k)
	return true
}

// journalEntry reads a line of journalctl -o json; its times are in microseconds.
func journalEntry(k *doctor.Kernel, d *pdict) (body string) {
	if h := d.text("_HOSTNAME"); h != "" {
		k.Host, _, _ = strings.Cut(h, ".")
	}
	k.Time = d.float("__REALTIME_TIMESTAMP") / 1e6
	return d.text("MESSAGE")
}

// kernelHead reads the host and the time of a line, and returns the rest.
func kernelHead(k *doctor.Kernel, text string) (body string) {
	body = text
	if strings.HasPrefix(text, "{") && strings.Contains(text, `"MESSAGE"`) {
		v, _ := parseJSON([]byte(text))
		if d, _ := v.(*pdict); d != nil {
			body = journalEntry(k, d)
		}
	} else if m := kmsgHead.FindStringSubmatch(text); m != nil {
		us, _ := strconv.ParseFloat(m[1], 64)
		k.Uptime, body = us/1e6, m[2]
	} else if m := bootSecs.FindStringSubmatch(text); m != nil {
		k.Uptime, _ = strconv.ParseFloat(m[1], 64)
	} else {
		k.Time = clock(text)
	}
	if m := journal.FindStringSubmatch(body); m != nil && !strings.ContainsAny(m[1], "[]()") {
		k.Host, _, _ = strings.Cut(m[1], ".")
	}
	if m := kubeNode.FindStringSubmatch(body); m != nil && k.Host == "" {
		k.Host, _, _ = strings.Cut(m[1], ".")
	}
	return body
}

// gpuEvent knows what drivers and the fabric manager say of GPUs and NVSwitches.
func (s *scan) gpuEvent(k *doctor.Kernel, body string) bool {
	switch {
	case strings.Contains(body, "NVSwitch") && kFabric.MatchString(body):
		m := kFabric.FindStringSubmatch(body)
		k.Kind, k.Device, k.Text = "sxid", "NVSwitch "+strings.ToLower(m[3]), strings.TrimSpace("the fabric manager saw a "+m[1]+" error "+m[4])
		k.Code, _ = strconv.Atoi(m[2])
		k.Fatal = m[1] == "fatal"
	case strings.Contains(body, "] [ERROR] [tid ") || strings.Contains(body, "] [CRITICAL] [tid "):
		_, what, _ := strings.Cut(body, "[tid ")
		_, what, _ = strings.Cut(what, "] ")
		k.Kind, k.Text = "fm_error", what
	case strings.Contains(body, "abricmanager") && kService.MatchString(body):
		m := kService.FindStringSubmatch(body)
		k.Kind, k.Text, k.Fatal = "fm_error", m[2]+m[3], m[3] != ""
		k.Host, _, _ = strings.Cut(m[1], ".")
	case kSXid.MatchString(body):
		m := kSXid.FindStringSubmatch(body)
		k.Kind, k.Device, k.Text = "sxid", m[1]+" "+m[2], m[5]
		k.Code, _ = strconv.Atoi(m[3])
		k.Fatal = m[4] == "Fatal"
	case strings.Contains(body, "Xid (") && kXid.MatchString(body):
		xidLine(k, kXid.FindStringSubmatch(body))
	case strings.Contains(body, "fallen off the bus"):
		k.Kind, k.Code = "xid", 79
		if m := kFallen.FindStringSubmatch(body); m != nil {
			k.Device = strings.ToLower(strings.TrimSuffix(m[1], ":"))
		}
		if k.Device == "" { // a sentence over three lines: the first names the GPU
			k.Device = s.theGPU
		}
		k.Text = "GPU has fallen off the bus"
	case kTheGPU.MatchString(body):
		s.theGPU = strings.ToLower(kTheGPU.FindStringSubmatch(body)[1])
		return false
	case kLost.MatchString(body):
		m := kLost.FindStringSubmatch(body)
		k.Kind, k.Device, k.Text = "gpu_lost", strings.ToLower(m[2]+m[4]), "the driver has lost the GPU"
		if m[1] == "NV_ERR_RESET_REQUIRED" {
			k.Text = "the driver says that the GPU needs a reset"
		} else if m[3] != "" {
			k.Text = "the driver cannot start the GPU: " + m[3]
		}
	case strings.Contains(body, "amdgpu") && kAMD.MatchString(body):
		m := kAMD.FindStringSubmatch(body)
		k.Kind, k.Device, k.Text = "gpu_lost", strings.ToLower(m[1]), "amdgpu: "+m[2]
		if strings.HasPrefix(m[2], "page fault") {
			k.Kind = "gpu_fault"
		}
	case kAPI.MatchString(body):
		k.Kind, k.Text = "driver_mismatch", kAPI.FindStringSubmatch(body)[1]
	}
	return k.Kind != ""
}

// xidLine takes the device, the number and the text of an Xid.
func xidLine(k *doctor.Kernel, m []string) {
	k.Kind, k.Device, k.Text = "xid", strings.ToLower(m[1]), m[3]
	k.Code, _ = strconv.Atoi(m[2])
	if p := kXidPID.FindStringSubmatch(m[3]); p != nil {
		k.F["pid"] = p[1]
	}
	if a := kAfter.FindStringSubmatch(m[3]); a != nil {
		k.F["after"] = a[1]
	}
	if u := kNVLink5.FindStringSubmatch(m[3]); u != nil && k.Code >= 144 && k.Code <= 150 {
		k.F["unit"], k.F["severity"], k.F["link"], k.F["intr"], k.F["status"] = u[1], u[2], u[5], u[6], u[7]
	}
}

// pcieEvent knows errors of PCIe.
func pcieEvent(k *doctor.Kernel, body string) bool {
	switch {
	case kSlot.MatchString(body):
		m := kSlot.FindStringSubmatch(body)
		k.Kind, k.Device, k.Text, k.Fatal = "aer", m[1], "the slot says: "+m[2], true
	case strings.Contains(body, "PCIe Bus Error") && kAER.MatchString(body):
		m := kAER.FindStringSubmatch(body)
		k.Kind, k.Device, k.Text = "aer", m[2], m[3]
		k.Fatal = strings.Contains(m[3], "Uncorrect") || strings.Contains(m[3], "Fatal")
	case strings.Contains(body, "AER: ") && kAERMsg.MatchString(body):
		m := kAERMsg.FindStringSubmatch(body)
		k.Kind, k.Device, k.Text = "aer", m[2], m[1]
		k.Fatal = strings.Contains(m[1], "Uncorrect") || strings.Contains(m[1], "Fatal")
	case kDPC.MatchString(body):
		k.Kind, k.Device, k.Fatal = "aer", kDPC.FindStringSubmatch(body)[1], true
		k.Text = "downstream port containment"
	}
	return k.Kind != ""
}

// nicEvent knows what drivers say of NICs.
func nicEvent(k *doctor.Kernel, body string) bool {
	if m := kRDMA.FindStringSubmatch(body); m != nil {
		k.Kind, k.Device, k.Text = "nic_driver", m[1], m[2]
		return true
	}
	if !strings.Contains(body, "mlx5_core") {
		return false
	}
	m := kMLX.FindStringSubmatch(body)
	if m == nil {
		return false
	}
	if k.Kind = mlxKind(strings.ToLower(m[3])); k.Kind == "" {
		return false
	}
	k.Device, k.Text, k.F["if"] = m[1], m[3], m[2]
	return true
}

// mlxWords are symptoms and the words of Mellanox's driver of which a line has one, in lower case. The first row that fits
// counts.
var mlxWords = []struct {
	kind  string
	words []string
}{
	{"nic_power", []string{"insufficient power"}},
	{"nic_heat", []string{"high temperature", "over temperature"}},
	{"nic_unplugged", []string{"cable unplugged"}},
	{"nic_plugged", []string{"cable plugged", "status: plugged and enabled"}},
	{"nic_cable", []string{"port module event[error]", "cable error"}},
	{"nic_keys", []string{"limits exceeded"}},
	{"nic_dead", []string{"health compromised", "assert_var", "fatal error", "firmware fatal", "health_care", "device's health",
		"internal error"}},
}

// mlxKind says which symptom a line of Mellanox's driver is, by its text in lower case.
func mlxKind(t string) string {
	for _, row := range mlxWords {
		if slices.ContainsFunc(row.words, func(w string) bool { return strings.Contains(t, w) }) {
			return row.kind
		}
	}
	switch {
	case strings.Contains(t, "reset requested") && strings.Contains(t, "fw"):
		return "nic_dead"
	case strings.HasPrefix(t, "link down"):
		return "nic_down"
	case strings.HasPrefix(t, "link up"):
		return "nic_up"
	}
	return ""
}

// hostEvent knows the rest: storage, memory, crashes, hardware errors.
func hostEvent(k *doctor.Kernel, body string) bool {
	switch {
	case strings.Contains(body, "systemd-oomd"):
		if m := kOOMD.FindStringSubmatch(body); m != nil {
			k.Kind, k.Host, k.Text = "oom_kill", m[1], "systemd-oomd killed "+m[2]+" for "+m[3]
		}
	case strings.Contains(body, "| ") && kSEL.MatchString(body):
		m := kSEL.FindStringSubmatch(body)
		k.Kind, k.Device, k.Text = "mce", strings.TrimSpace(m[1]), strings.TrimSpace(m[1])+": "+strings.TrimSpace(m[2])
	case kStorage.MatchString(body):
		m := kStorage.FindStringSubmatch(body)
		k.Kind, k.Device, k.Text = "storage", m[1]+m[2]+m[3]+m[4], body
	case strings.Contains(body, "peermem") && strings.Contains(body, "invalid context"):
		k.Kind, k.Text = "peermem", body
	case strings.Contains(body, "segfault"):
		if m := kSeg.FindStringSubmatch(body); m != nil {
			k.Kind, k.Device, k.Text = "nccl_crash", m[3], m[1]+" "+m[2]
			k.F["pid"] = m[2]
		}
	case strings.Contains(body, "ut of memory"):
		if m := kOOM.FindStringSubmatch(body); m != nil {
			k.Kind, k.Text = "oom_kill", m[2]+" "+m[1]
			k.F["pid"] = m[1]
		}
	case kPanic.MatchString(body):
		k.Kind, k.Text = "panic", kPanic.FindString(body)
	case strings.Contains(body, "file-max limit"):
		k.Kind, k.Text = "file_max", body
	case kMCE.MatchString(body):
		k.Kind, k.Text = "mce", body
	case strings.Contains(body, "blocked for more than"):
		if m := kHung.FindStringSubmatch(body); m != nil {
			k.Kind, k.Text = "hung_task", m[1]+" "+m[2]
			k.F["pid"] = m[2]
		}
	case kIOMMU.MatchString(body):
		m := kIOMMU.FindStringSubmatch(body)
		k.Kind, k.Device, k.Text = "iommu", m[1]+m[2], body
	}
	return k.Kind != ""
}
