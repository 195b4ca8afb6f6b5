package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/weft-fabric/weft/move/xfer"
)

// fio is the disk by fio: the same block, eight at once, past the page cache.
func fio(ctx context.Context, c *Config, block int64, batch int, total int64) other {
	o := other{name: "fio"}
	path, err := exec.LookPath("fio")
	if err != nil {
		o.Why = "fio is not installed; on Debian: apt-get install fio"
		return o
	}
	rw, sync := "read", "0"
	if c.Op == xfer.Write {
		rw, sync = "write", "1"
	}
	direct := "1"
	if c.Buffered {
		direct = "0"
	}
	o.run = func(iters int) (time.Duration, error) {
		bytes := min(total, block*int64(batch)*int64(iters))
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, path, "--name=weft", "--filename="+filepath.Join(c.Dir, "fio"), "--rw="+rw,
			fmt.Sprintf("--bs=%d", min(block, 1<<20)),
			fmt.Sprintf("--size=%d", bytes), fmt.Sprintf("--io_size=%d", block*int64(batch)*int64(iters)), "--ioengine=io_uring", "--iodepth=8",
			"--direct="+direct, "--end_fsync="+sync, "--output-format=json").Output()
		if err != nil {
			return 0, fmt.Errorf("fio: %w", err)
		}
		var r struct {
			Jobs []struct {
				Read, Write struct {
					Bytes   float64 `json:"io_bytes"`
					Runtime float64 `json:"runtime"` // milliseconds
				}
			}
		}
		if err := json.Unmarshal(out, &r); err != nil || len(r.Jobs) != 1 {
			return 0, fmt.Errorf("fio: its output could not be read: %w", err)
		}
		x := r.Jobs[0].Read
		if c.Op == xfer.Write {
			x = r.Jobs[0].Write
		}
		if x.Bytes == 0 || x.Runtime == 0 {
			return 0, fmt.Errorf("fio: it moved nothing in a time it can measure; ask for more bytes")
		}
		return time.Duration(x.Runtime * 1e6 * float64(block*int64(batch)*int64(iters)) / x.Bytes), nil
	}
	return o
}
