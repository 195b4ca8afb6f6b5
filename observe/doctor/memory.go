package doctor

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// size in PyTorch's messages: 2.50 GiB, 20.00 MiB, 512 bytes.
const memorySize = `([\d.]+) (bytes|KiB|MiB|GiB)`

var (
	memoryTried    = regexp.MustCompile(`[Tt]ried to allocate ` + memorySize)
	memoryHeld     = regexp.MustCompile(memorySize + ` is reserved by PyTorch but unallocated`)
	memoryOldHeld  = regexp.MustCompile(memorySize + ` already allocated; .*?` + memorySize + ` reserved in total by PyTorch`)
	memoryTotal    = regexp.MustCompile(`total capaci?ty of ` + memorySize + ` of which ` + memorySize + ` is free`)
	memoryThis     = regexp.MustCompile(`this process has ` + memorySize + ` memory in use`)
	memoryOfOthers = regexp.MustCompile(`Process (\d+) has ` + memorySize + ` memory in use`)
)

// memoryUse is what PyTorch says of a GPU's memory that ran out, in bytes.
type memoryUse struct {
	tried  float64 // was asked for
	held   float64 // by PyTorch, in no tensor
	others float64 // of other processes
}

// readMemoryUse reads PyTorch's message about memory that ran out: what was tried, what this process holds and what
// others hold. Both wordings are known.
func readMemoryUse(msg string) (u memoryUse, ok bool) {
	tried := memorySizes(memoryTried, msg)
	if tried == nil {
		return u, false
	}
	u.tried = tried[0]
	if s := memorySizes(memoryHeld, msg); s != nil {
		u.held = s[0]
	} else if s := memorySizes(memoryOldHeld, msg); s != nil {
		u.held = s[1] - s[0]
	}
	total, this := memorySizes(memoryTotal, msg), memorySizes(memoryThis, msg)
	// In a container PyTorch does not see its own process; what it prints for it then is nonsense.
	if total != nil && this != nil && this[0] < total[0] {
		u.others = total[0] - total[1] - this[0]
	}
	return u, true
}

// outOfMemory reads from PyTorch's message what took the memory: fragments, another process, or the program itself. Both are
// empty where the message has no figures.
func outOfMemory(msg string) (cause, fix string) {
	u, ok := readMemoryUse(msg)
	if !ok {
		return "", ""
	}
	switch {
	case u.held >= u.tried:
		return fmt.Sprintf("fragmentation: PyTorch holds %s that are in no tensor, more than the %s it asked for, but not in one piece",
			gib(u.held), gib(u.tried)), "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; keep the sizes of tensors the same from step to step"
	case u.others >= u.tried:
		who := ""
		if m := memoryOfOthers.FindStringSubmatch(msg); m != nil {
			who = ", one of them " + m[1]
		}
		return fmt.Sprintf("other processes have %s of this GPU%s; %s were asked for", gib(u.others), who, gib(u.tried)),
			"end what is left of other jobs on the GPU (nvidia-smi), or give every rank a GPU of its own"
	case u.held > 0:
		return fmt.Sprintf("model or batch: %s were asked for, and only %s lie unused in PyTorch's cache", gib(u.tried), gib(u.held)),
			"smaller batch, recompute activations, or more GPUs for the model; 'weft plan' says what fits"
	}
	return "", ""
}

// memorySizes are the sizes that a pattern finds, in bytes; nil if it does not match.
func memorySizes(re *regexp.Regexp, msg string) (sizes []float64) {
	m := re.FindStringSubmatch(msg)
	for i := 1; i+1 < len(m); i += 2 {
		v, err := strconv.ParseFloat(m[i], 64)
		if err != nil {
			return nil
		}
		sizes = append(sizes, v*map[string]float64{"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[m[i+1]])
	}
	return sizes
}

func gib(bytes float64) string {
	if bytes < 1<<30 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", bytes/(1<<20)), ".0") + " MiB"
	}
	return fmt.Sprintf("%.2f GiB", bytes/(1<<30))
}
