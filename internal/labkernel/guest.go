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
	if err := enter(strings.Contains(string(command), "/tmp/")); err != nil {
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

type mount struct{ from, to, kind, options string }

// mounts lists the machine's files, which the guest cannot change, and what it writes to, in memory.
func mounts(keep bool) []mount {
	list := []mount{{"host", "/host", "9p", "trans=virtio,version=9p2000.L,msize=512000,cache=loose"}, {"proc", "/host/proc", "proc", ""},
		{"sys", "/host/sys", "sysfs", ""}}
	for _, dir := range []string{"run", "tmp", "var/tmp", "var/log", "mnt"} {
		if dir != "tmp" || !keep {
			list = append(list, mount{dir, "/host/" + dir, "tmpfs", ""})
		}
	}
	return list
}

// enter makes the machine's files the guest's root. keep leaves /tmp as it is, because the command is there.
func enter(keep bool) error {
	for _, m := range mounts(keep) {
		flags := uintptr(0)
		if m.kind == "9p" {
			flags = unix.MS_RDONLY
		}
		if err := unix.Mount(m.from, m.to, m.kind, flags, m.options); err != nil {
			return fmt.Errorf("%s: %w", m.to, err)
		}
	}
	for _, move := range [][2]string{{"/dev", "/host/dev"}, {"/host", "/"}} { // the root of the mount namespace, too: labs enter it anew
		if err := os.Chdir("/host"); err != nil {
			return err
		}
		if err := unix.Mount(move[0], move[1], "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("%s: %w", move[0], err)
		}
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
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
