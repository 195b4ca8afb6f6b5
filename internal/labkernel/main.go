//go:build linux

// Command labkernel runs a command as root in an emulated kernel that has what this machine's may lack: bonds, VRFs and
// bridges with VLANs. A lab with bonded hosts runs in it:
//
//	go run ./internal/labkernel -- './weft lab up examples/eslag.yaml --hosts plain --no-lldp'
//
// It takes QEMU and Debian's kernel from the packages of this machine's release, unpacks them below -dir without
// installing them, and boots without KVM. The command sees this machine's files, read-only; /run, /tmp, /var/tmp, /var/log and /mnt
// are empty. Its output is printed, and its exit status becomes labkernel's.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// modules are what a lab and the guest's root need; what they depend on is loaded first.
var modules = []string{"virtio_pci", "9p", "9pnet_virtio", "veth", "bridge", "vxlan", "bonding", "vrf", "8021q", "dummy", "tun",
	"crc32c_generic", "nf_tables", "nft_ct", "nft_counter", "sch_netem", "sch_tbf", "nfnetlink", "xfrm_user", "unix_diag", "inet_diag",
	"tcp_diag"}

func main() {
	if os.Getpid() == 1 {
		if err := guest(); err != nil {
			fmt.Println("labkernel: the emulated kernel did not start:", err)
		}
		powerOff()
	}
	home, _ := os.UserCacheDir()
	dir := flag.String("dir", filepath.Join(home, "weft-labkernel"), "`DIR` for QEMU and the kernel, half a gigabyte")
	memory := flag.Int("memory", 1536, "megabytes of the emulated machine")
	flag.Parse()
	code, err := host(*dir, *memory, strings.Join(flag.Args(), " "))
	if err != nil {
		fmt.Fprintln(os.Stderr, "labkernel:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// host boots the kernel, and gives the exit status of the command.
func host(dir string, memory int, command string) (int, error) {
	if command == "" {
		return 0, errors.New("no command; write one behind --")
	}
	if err := unpack(dir); err != nil {
		return 0, err
	}
	kernels, err := filepath.Glob(filepath.Join(dir, "root/boot/vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return 0, fmt.Errorf("%d kernels below %s/root/boot; remove %s and run again", len(kernels), dir, dir)
	}
	image := filepath.Join(dir, "initrd")
	if err := initrd(image, dir, strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-"), command); err != nil {
		return 0, err
	}
	root := filepath.Join(dir, "root")
	cmd := exec.Command(filepath.Join(root, "usr/bin/qemu-system-x86_64"), "-L", filepath.Join(root, "usr/share/qemu"), "-L",
		filepath.Join(root, "usr/share/seabios"), "-machine", "q35", "-cpu", "max",
		"-m", strconv.Itoa(memory), "-smp", "1", "-accel", "tcg,thread=single", "-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio",
		"-net", "none",
		"-kernel", kernels[0], "-initrd", image, "-append", "console=ttyS0 quiet panic=-1 rdinit=/init",
		"-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(root, "usr/lib/x86_64-linux-gnu")+":"+
		filepath.Join(root, "lib/x86_64-linux-gnu"))
	code := -1
	cmd.Stderr = os.Stderr
	out := &status{code: &code}
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("qemu: %w", err)
	}
	out.flush()
	if code < 0 {
		return 0, errors.New("the emulated kernel ended before the command did")
	}
	return code, nil
}

// ended is the line in which the guest tells the command's exit status.
const ended = "labkernel: the command ended with "

// status passes output on, without the line that ends it.
type status struct {
	code *int
	line []byte
}

func (s *status) Write(data []byte) (int, error) {
	for _, b := range data {
		if s.line = append(s.line, b); b == '\n' {
			s.flush()
		}
	}
	return len(data), nil
}

func (s *status) flush() {
	if rest, ok := strings.CutPrefix(strings.TrimSpace(string(s.line)), ended); ok {
		*s.code, _ = strconv.Atoi(rest)
	} else {
		os.Stdout.Write(bytes.ReplaceAll(s.line, []byte("\r"), nil))
	}
	s.line = s.line[:0]
}

var address = regexp.MustCompile(`(?m)^'([^']+)' (\S+) `)

// unpack brings the packages, once.
func unpack(dir string) error {
	done := filepath.Join(dir, "complete")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	list, err := exec.Command("apt-get", "-o", "Debug::NoLocking=1", "--print-uris", "--no-install-recommends", "install", "qemu-system-x86",
		"linux-image-amd64").Output()
	if err != nil {
		return fmt.Errorf("apt-get --print-uris: %w; the packages come from a Debian mirror", err)
	}
	for _, m := range address.FindAllStringSubmatch(string(list), -1) {
		if strings.Contains(m[2], "systemd") || strings.Contains(m[2], "udev") {
			continue // newer ones of what is installed
		}
		file := filepath.Join(dir, m[2])
		for _, args := range [][]string{{"wget", "-q", "-O", file, m[1]}, {"dpkg", "-x", file, root}, {"rm", file}} {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
			}
		}
	}
	if err := depmod(root); err != nil {
		return err
	}
	return os.WriteFile(done, nil, 0o644)
}

// depmod lists the modules of the kernels below root. kmod is depmod when it is called so.
func depmod(root string) error {
	cmd := exec.Command(filepath.Join(root, "bin/kmod"), "-b", root)
	cmd.Args[0] = "depmod"
	releases, _ := filepath.Glob(filepath.Join(root, "lib/modules/*"))
	for _, r := range releases {
		cmd.Args = append(cmd.Args, filepath.Base(r))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("depmod: %w: %s", err, out)
	}
	return nil
}

// initrd writes the first files of the guest: this program, the command and the modules in the order in which they are loaded.
func initrd(image, dir, release, command string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	base := filepath.Join(dir, "root/lib/modules", release)
	order, err := loadOrder(base)
	if err != nil {
		return err
	}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	archive(z, "init", 0o100755, program)
	archive(z, "command", 0o100644, fmt.Appendf(nil, "cd %q && %s", here, command))
	archive(z, "mods", 0o040755, nil)
	var names []string
	for _, path := range order {
		data, err := os.ReadFile(filepath.Join(base, path))
		if err != nil {
			return err
		}
		names = append(names, filepath.Base(path))
		archive(z, "mods/"+filepath.Base(path), 0o100644, data)
	}
	archive(z, "order", 0o100644, []byte(strings.Join(names, "\n")))
	archive(z, "TRAILER!!!", 0, nil)
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(image, b.Bytes(), 0o644)
}

// loadOrder lists modules with what they depend on before them, by modules.dep.
func loadOrder(base string) (order []string, err error) {
	data, err := os.ReadFile(filepath.Join(base, "modules.dep"))
	if err != nil {
		return nil, err
	}
	needs := map[string][]string{}
	for line := range strings.Lines(string(data)) {
		path, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		needs[path] = strings.Fields(rest)
	}
	for _, m := range modules {
		for path, before := range needs {
			if strings.TrimSuffix(filepath.Base(path), ".ko") != m {
				continue
			}
			slices.Reverse(before) // modules.dep has the deepest last
			for _, x := range append(before, path) {
				if !slices.Contains(order, x) {
					order = append(order, x)
				}
			}
		}
	}
	return order, nil
}

// archive adds a file in the form that kernels read (cpio, newc).
func archive(w io.Writer, name string, mode int, data []byte) {
	pad := func(n int) { _, _ = w.Write(make([]byte, (4-n%4)%4)) }
	fmt.Fprintf(w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	pad(110 + len(name) + 1)
	_, _ = w.Write(data)
	pad(len(data))
}
