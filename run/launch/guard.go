package launch

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// guard is a shell that outlives this process should it be killed, and then ends
// the process groups of its ranks: the kernel ends with us only what we started
// ourselves, which may be a script whose programs would go on. It reads which
// groups there are, and acts when its input ends. It is there while ranks are.
var guard struct {
	mu    sync.Mutex
	ranks int
	cmd   *exec.Cmd
	in    *os.File // nil while there is none
}

const guardScript = `trap '' INT TERM HUP QUIT
all=' '
while read -r word group; do
	case $word in
	began) all="$all$group " ;;
	ended) all="${all%% $group *} ${all#* $group }" ;;
	esac
done
for group in $all; do kill -s KILL -- "-$group"; done`

// watchGroup tells the guard of a rank's group. A host without a shell has no guard.
func watchGroup(group int) {
	guard.mu.Lock()
	defer guard.mu.Unlock()
	guard.ranks++
	if guard.in == nil {
		r, w, err := os.Pipe()
		if err != nil {
			return
		}
		defer r.Close()
		cmd := exec.Command("/bin/sh", "-c", guardScript)
		cmd.Stdin, cmd.SysProcAttr = r, &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			w.Close()
			return
		}
		guard.cmd, guard.in = cmd, w
	}
	_, _ = fmt.Fprintln(guard.in, "began", group)
}

// forgetGroup tells it that the group has ended.
func forgetGroup(group int) {
	guard.mu.Lock()
	defer guard.mu.Unlock()
	guard.ranks--
	if guard.in == nil {
		return
	}
	_, _ = fmt.Fprintln(guard.in, "ended", group)
	if guard.ranks == 0 {
		guard.in.Close()
		_ = guard.cmd.Wait()
		guard.in = nil
	}
}
