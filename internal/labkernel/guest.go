//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// guest is the first process of the emulated kernel: it loads modules, takes the machine's files as its own, and runs the command.
func guest() error {
	for _, d := range []string{"/dev", "/host"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("dev", "/dev", "devtmpfs", 0, ""); err != nil {
		return fmt.Errorf("/dev: %w", err)
	}
	command, err := os.ReadFile("/command")
	if err != nil {
		return err
	}
	if err := load(); err != nil {
		return err
	}
	if err := unix.Mount("host", "/host", "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=512000,cache=loose"); err != nil {
		return fmt.Errorf("the machine's files: %w", err)
	}
	for _, m := range [][2]string{{"proc", "proc"}, {"sys", "sysfs"}, {"run", "tmpfs"}, {"tmp", "tmpfs"}, {"var/tmp", "tmpfs"}, {"var/log", "tmpfs"}, {"mnt", "tmpfs"}} {
		if m[0] == "tmp" && strings.Contains(string(command), "/tmp/") {
			continue // the command is there
		}
		if err := unix.Mount(m[0], "/host/"+m[0], m[1], 0, ""); err != nil {
			return fmt.Errorf("/%s: %w", m[0], err)
		}
	}
	if err := unix.Mount("/dev", "/host/dev", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("/dev: %w", err)
	}
	if err := unix.Chroot("/host"); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	_ = os.Symlink("/proc/self/fd", "/dev/fd")
	_ = os.Mkdir("/dev/shm", 0o1777)
	_ = unix.Mount("shm", "/dev/shm", "tmpfs", 0, "")
	cmd := exec.Command("/bin/bash", "-c", "ip link set lo up; "+string(command))
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	err = cmd.Run()
	if cmd.ProcessState == nil {
		return err
	}
	fmt.Printf("\n%s%d\n", ended, cmd.ProcessState.ExitCode())
	return nil
}

// load loads the modules in their order.
func load() error {
	order, err := os.ReadFile("/order")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(order)) {
		f, err := os.Open("/mods/" + name)
		if err != nil {
			return err
		}
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
			return fmt.Errorf("%s: %w", name, err)
		}
		f.Close()
	}
	return nil
}

func powerOff() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}
