// Command debroot unpacks packages of another Debian release, with everything that they depend on, into a folder, without installing
// them. `make verdicts` runs other releases of slurmctld from such folders:
//
//	go run ./internal/debroot trixie /tmp/slurm-24.11 slurmctld slurm-client
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: debroot RELEASE FOLDER PACKAGE...")
		os.Exit(2)
	}
	if err := unpack(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "debroot:", err)
		os.Exit(1)
	}
}

// pack is what the mirror's index says of a package.
type pack struct {
	file  string
	needs []string
}

func run(commands [][]string) error {
	for _, args := range commands {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// mergeUsr makes /bin and the like links into /usr, as packages of today expect them.
func mergeUsr(folder string) error {
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(folder, "usr", dir), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+dir, filepath.Join(folder, dir)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return nil
}

// unpack brings packages and what they need, unless the folder is complete.
func unpack(release, folder string, packages []string) error {
	done := filepath.Join(folder, ".complete")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	mirror, err := mirrorOf()
	if err != nil {
		return err
	}
	index, err := exec.Command("sh", "-c", "wget -q -O - "+mirror+"dists/"+release+"/main/binary-amd64/Packages.xz | xz -dc").Output()
	if err != nil || len(index) == 0 {
		return errors.Join(fmt.Errorf("%s has no index of %s", mirror, release), err)
	}
	known := read(index)
	if err := mergeUsr(folder); err != nil {
		return err
	}
	seen := map[string]bool{}
	for queue := packages; len(queue) > 0; queue = queue[1:] {
		p, ok := known[queue[0]]
		if !ok || seen[p.file] {
			continue // a virtual package: programs that need it say so when they start
		}
		seen[p.file] = true
		queue = append(queue, p.needs...)
		deb := filepath.Join(folder, "one.deb")
		if err := run([][]string{{"wget", "-q", "-O", deb, mirror + p.file}, {"dpkg", "-x", deb, folder}, {"rm", deb}}); err != nil {
			return err
		}
	}
	return os.WriteFile(done, nil, 0o644)
}

// mirrorOf is where this machine's own packages come from: the first of apt's sources.
func mirrorOf() (string, error) {
	list, err := exec.Command("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").Output()
	for _, uri := range strings.Fields(string(list)) {
		if !strings.Contains(uri, "security") { // which has updates alone
			return uri, nil
		}
	}
	return "", errors.Join(errors.New("apt-get names no source of packages; run apt-get update on a Debian machine"), err)
}

// read takes in the mirror's index. Of alternatives the first counts.
func read(index []byte) map[string]pack {
	known := map[string]pack{}
	name, p := "", pack{}
	lines := bufio.NewScanner(bytes.NewReader(index))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "Package":
			name, p = value, pack{}
		case "Filename":
			p.file = value
		case "Depends", "Pre-Depends":
			for _, one := range strings.Split(value, ", ") {
				first, _, _ := strings.Cut(one, " ")
				first, _, _ = strings.Cut(first, ":")
				p.needs = append(p.needs, first)
			}
		case "":
			known[name] = p
		}
	}
	return known
}
