package bench

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/comm/device"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/reduce"
)

// Config is what to measure. Default fills in what nccl-tests' users expect.
type Config struct {
	Op         Op          `json:"op"`
	Ranks      int         `json:"ranks"`
	MinBytes   int64       `json:"min_bytes"`   // of the larger buffer
	MaxBytes   int64       `json:"max_bytes"`   //
	StepBytes  int64       `json:"step_bytes"`  // added from size to size, if above 0
	StepFactor float64     `json:"step_factor"` // else multiplied
	Type       reduce.Type `json:"type"`
	Reduce     reduce.Op   `json:"reduce"`
	Root       int         `json:"root"`

	Iters  int `json:"iters"`  // operations of a batch; 0: as many as take 20 ms
	Warmup int `json:"warmup"` // operations before the first batch
	// Fresh makes every call one of a size that was not seen before, by up to a quarter shorter than the row's: what work of varying
	// length pays.
	Fresh   bool `json:"new_sizes,omitempty"`
	Batches int  `json:"batches"` // the median of them counts
	Check   bool `json:"check"`   // verify results

	Transport string    `json:"transport,omitempty"` // shm, tcp, mem, or "" for the fastest that reaches all
	Require   string    `json:"require,omitempty"`
	Floor     unit.Rate `json:"floor,omitempty"`    // least bus bandwidth at the largest size, and of the links
	Buffers   string    `json:"buffers"`            // Registered or Plain
	Device    string    `json:"device,omitempty"`   // where buffers are: "" for the host, CUDA, Soft
	DeviceWay string    `json:"way,omitempty"`      // that must be taken between GPUs: direct, staged, "" for WEFT_CUDA's
	Bind      bool      `json:"bind,omitempty"`     // every rank stays on one processor
	Algo      string    `json:"algo,omitempty"`     // an algorithm by name
	Program   string    `json:"program,omitempty"`  // or the text of a program
	Unproven  bool      `json:"unproven,omitempty"` // which need not be proven
	Predict   bool      `json:"predict,omitempty"`  // tell which programs ran, and what messages took before that, for Predict

	program *sched.Program
}

// Default is all-reduce of floats from 8 B to 64 MiB, doubling.
func Default() Config {
	return Config{
		Op: Op{Collective: sched.AllReduce}, Ranks: 2, MinBytes: 8, MaxBytes: 64 << 20, StepFactor: 2,
		Type: reduce.Float32, Reduce: reduce.Sum, Warmup: 5, Batches: 5, Check: true, Buffers: Registered,
	}
}

// maxSizes bounds the rows of a table.
const maxSizes = 10_000

// Sizes are the bytes of the larger buffer, row by row: whole elements, and for
// collectives of blocks at least one element for each rank.
func (c *Config) Sizes() []int64 {
	if c.Op.Collective == sched.Barrier {
		return []int64{0}
	}
	unit := int64(c.Type.Size())
	if c.Op.Blocks() {
		unit *= int64(c.Ranks)
	}
	var list []int64
	for b := c.MinBytes; b <= c.MaxBytes; {
		if size := max(b/unit, 1) * unit; len(list) == 0 || size > list[len(list)-1] {
			list = append(list, size)
		}
		next := b + c.StepBytes
		if c.StepBytes == 0 {
			next = int64(math.Ceil(float64(b) * c.StepFactor))
		}
		b = max(next, b+1)
	}
	return list
}

// Complete checks what was asked for and finds the program.
func (c *Config) Complete() error {
	if c.Ranks < 1 || c.Ranks > launch.MaxRanks {
		return fmt.Errorf("%d ranks; want 1 to %d", c.Ranks, launch.MaxRanks)
	}
	if err := c.checkSizes(); err != nil {
		return err
	}
	switch {
	case !c.Type.Valid() || !c.Reduce.Valid():
		return fmt.Errorf("type %s, reduction %s", c.Type, c.Reduce)
	case c.Root < 0 || c.Root >= c.Ranks:
		return fmt.Errorf("root %d of %d ranks; want 0 to %d", c.Root, c.Ranks, c.Ranks-1)
	case c.Iters < 0 || c.Warmup < 0 || c.Batches < 1:
		return fmt.Errorf("%d iterations, %d to warm up, %d batches; want none below 0 and a batch", c.Iters, c.Warmup, c.Batches)
	case c.Buffers != Registered && c.Buffers != Plain:
		return fmt.Errorf("buffers %q; want %s or %s", c.Buffers, Registered, Plain)
	}
	if err := c.checkDevice(); err != nil {
		return err
	}
	switch {
	case c.Unproven && c.Program == "":
		return fmt.Errorf("unproven is for a program; algorithms are proven")
	case c.Algo != "" && c.Program != "":
		return fmt.Errorf("an algorithm (%s) and a program; want one of them", c.Algo)
	}
	if c.Op.Reduces() {
		if err := check(c.Type, c.Reduce); err != nil {
			return err
		}
	}
	return c.find()
}

// checkSizes refuses sizes that do not end, or that are too many.
func (c *Config) checkSizes() error {
	switch {
	case c.MinBytes < 0 || c.MaxBytes < c.MinBytes:
		return fmt.Errorf("sizes from %d to %d bytes; want -b at most -e, and neither below 0", c.MinBytes, c.MaxBytes)
	case c.StepBytes < 0 || c.StepBytes == 0 && !(c.StepFactor > 1):
		return fmt.Errorf("steps of %d bytes or by %g; want -i above 0 or -f above 1", c.StepBytes, c.StepFactor)
	case c.StepBytes > 0 && (c.MaxBytes-c.MinBytes)/c.StepBytes >= maxSizes:
		return fmt.Errorf("%d sizes; want at most %d: raise -i", (c.MaxBytes-c.MinBytes)/c.StepBytes+1, maxSizes)
	case c.StepBytes == 0 && c.MinBytes == 0:
		return fmt.Errorf("sizes from 0 multiplied by %g stay 0; want -b above 0, or -i", c.StepFactor)
	}
	return nil
}

// checkDevice checks what concerns GPU memory, which not every operation supports.
func (c *Config) checkDevice() error {
	way := c.DeviceWay == "" || c.DeviceWay == string(device.Direct) || c.DeviceWay == string(device.Staged)
	switch {
	case c.Device == "" && c.DeviceWay == "":
		return nil
	case c.Device != "" && c.Device != CUDA && c.Device != Soft:
		return fmt.Errorf("device %q; want %s, or %s for a GPU in software", c.Device, CUDA, Soft)
	case c.Device != "" && (c.Op.Collective == sched.SendRecv || c.Op.Collective == sched.AllToAll && c.Op.V):
		return fmt.Errorf("%s is not supported on GPU memory", c.Op)
	case c.Device == "" || !way:
		return fmt.Errorf("way %q; want %s or %s, with a device", c.DeviceWay, device.Direct, device.Staged)
	}
	return nil
}

func (c *Config) fromAlgo() (*sched.Program, error) {
	a, err := algo.Find(c.Algo)
	if err != nil {
		return nil, err
	}
	s := algo.Spec{Op: c.Op.Collective, Ranks: c.Ranks}
	if c.Op.Rooted() {
		s.Root = c.Root
	}
	return a.Program(s)
}

// find makes the program that was asked for by name or as a text.
func (c *Config) find() error {
	var err error
	switch {
	case c.Algo != "":
		c.program, err = c.fromAlgo()
	case c.Program != "":
		if c.program, err = sched.Parse(c.Program); err == nil && c.program.Ranks != c.Ranks {
			err = fmt.Errorf("program %s is for %d ranks, not %d", c.program.Name, c.program.Ranks, c.Ranks)
		}
	}
	switch p := c.program; {
	case err != nil || p == nil:
		return err
	case p.Op != c.Op.Collective:
		return fmt.Errorf("program %s does %s, not %s", p.Name, p.Op, c.Op.Collective)
	case p.Switches > 0:
		return fmt.Errorf("program %s needs %d switches that compute, which no transport here has; 'weft sim' has them", p.Name, p.Switches)
	}
	return nil
}

// ErrUnproven is a program that is not proven to be right.
var ErrUnproven = errors.New("not proven, so it does not run")

// prove proves the program that was asked for, unless it may run without.
func (c *Config) prove() error {
	if c.program == nil || c.Unproven {
		return nil
	}
	if _, err := verify.Right(c.program); err != nil {
		return fmt.Errorf("program %s is %w: %w", c.program.Name, ErrUnproven, err)
	}
	return nil
}

// ParseSize reads bytes as nccl-tests does, where K, M and G are powers of 1024,
// or with a unit: 64M, 64MiB, 64MB.
func ParseSize(s string) (int64, error) {
	shift := map[string]uint{"K": 10, "M": 20, "G": 30}
	for suffix, by := range shift {
		if digits, ok := strings.CutSuffix(strings.ToUpper(s), suffix); ok {
			n, err := strconv.ParseInt(digits, 10, 64)
			if err != nil || n < 0 || n > math.MaxInt64>>by {
				break
			}
			return n << by, nil
		}
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 {
		return n, nil
	}
	b, err := unit.ParseBytes(s)
	if err != nil {
		return 0, fmt.Errorf("size %q: want bytes, or a number with K, M, G, KiB, MB and the like", s)
	}
	return int64(b), nil
}
