package wait

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
)

// All threads of a process have short time slices once it asked for them, and those that start later. Their niceness stays.
func TestTimeSlice(t *testing.T) {
	const asked = 200 * time.Microsecond
	if os.Getenv("WEFT_TEST_SLICE") == "" { // in a process of its own: slices are inherited
		me := bounded.Command(t, os.Args[0], "-test.run=^TestTimeSlice$", "-test.v")
		me.Env = append(os.Environ(), "WEFT_TEST_SLICE=1")
		out, err := me.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil || before.Runtime == 0 {
		t.Skipf("the system does not tell its time slices: %v", err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 5); err != nil {
		t.Fatal(err)
	}
	TimeSlice(asked)
	after, err := unix.SchedGetAttr(0, 0)
	if err != nil || after.Runtime != uint64(asked) && before.Runtime > uint64(asked) || after.Nice != 5 {
		t.Errorf("slices of %d ns, niceness %d after asking for %s; they were %d before: %v",
			after.Runtime, after.Nice, asked, before.Runtime, err)
	}
	TimeSlice(time.Second)
	if again, err := unix.SchedGetAttr(0, 0); err != nil || again.Runtime != after.Runtime {
		t.Errorf("slices were made longer, from %d to %d ns: %v", after.Runtime, again.Runtime, err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads: %v", len(threads), err)
	}
	for _, th := range threads {
		id, _ := strconv.Atoi(th.Name())
		if a, err := unix.SchedGetAttr(id, 0); err == nil && a.Runtime > uint64(asked) {
			t.Errorf("thread %d has slices of %d ns", id, a.Runtime)
		}
	}
}
