package agent

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/run/lives"
)

// folder is a watch folder. It is held open: a container that ended takes its view of
// the file system with it, and what its launcher wrote last is still to be read.
type folder struct {
	root  *os.Root
	used  time.Time         // when a rank was last seen to use it
	files map[string]int64  // how far launchers' files were read
	jobs  map[string]string // under which name the ranks of a launcher's file are told
}

// fileID tells files apart, whatever paths lead to them.
type fileID struct{ device, inode uint64 }

// visit remembers a folder that a rank uses.
func (p *pulse) visit(path string) {
	st, err := os.Stat(path)
	if err != nil || !st.IsDir() {
		return
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	id := fileID{uint64(sys.Dev), sys.Ino}
	f := p.folders[id]
	if f == nil {
		root, err := os.OpenRoot(path)
		if err != nil {
			return
		}
		f = &folder{root: root, files: map[string]int64{}, jobs: map[string]string{}}
		p.folders[id] = f
	}
	f.used = time.Now()
}

// liveFile names the file of a rank. Where the kernel does not tell the namespace of its
// process, the one file that this boot has of the number will do.
func (p *pulse) liveFile(x *process, dir string) string {
	if x.space != "" {
		return lives.Live(x.space, x.nspid)
	}
	boot, _, _ := strings.Cut(lives.SpaceOf(p.root+"/proc", "self"), "_")
	if list, _ := filepath.Glob(filepath.Join(dir, "live-"+boot+"_*-"+strconv.Itoa(x.nspid)+".json")); len(list) == 1 {
		return filepath.Base(list[0])
	}
	return lives.Live("unknown", x.nspid)
}

// launchesKept is how many lines of launchers wait at most for a server that is not reached.
const launchesKept = 1 << 16

// launchers reads what launchers of this host wrote since the last look. Folders may be
// shared: files of other hosts are their agents' to read.
func (p *pulse) launchers(c *Config) {
	boot, _, _ := strings.Cut(lives.SpaceOf(p.root+"/proc", "self"), "_")
	known := map[string]*process{} // by space and number there
	for _, x := range p.known {
		if x.rank {
			known[x.space+"/"+strconv.Itoa(x.nspid)] = x
		}
	}
	for id, f := range p.folders {
		if time.Since(f.used) > remembered {
			_ = f.root.Close()
			delete(p.folders, id)
			continue
		}
		d, err := f.root.Open(".")
		if err != nil {
			continue
		}
		names, _ := d.Readdirnames(-1)
		_ = d.Close()
		for _, name := range names {
			if space, pid, ok := lives.Launcher(name); ok && strings.HasPrefix(space, boot) {
				p.launcher(c, f, name, space, pid, known)
			}
		}
	}
	if n := len(p.launches) - launchesKept; n > 0 {
		p.launches = p.launches[n:]
	}
}

// launcher reads the new lines of one launcher. A file of a run that was over before this
// agent looked is left alone.
func (p *pulse) launcher(c *Config, f *folder, name, space string, pid int, known map[string]*process) {
	at, seen := f.files[name]
	if at < 0 {
		return
	}
	file, err := f.root.Open(name)
	if err != nil {
		return
	}
	defer file.Close()
	if _, err := file.Seek(at, io.SeekStart); err != nil {
		return
	}
	b, err := io.ReadAll(io.LimitReader(file, biggest))
	end := bytes.LastIndexByte(b, '\n')
	if err != nil || end < 0 {
		return
	}
	var list []watch.Launch
	running := seen || p.runs(space, pid)
	for line := range bytes.Lines(b[:end+1]) {
		var r lives.Record
		if json.Unmarshal(line, &r) != nil {
			continue
		}
		l := watch.Launch{Event: r.Event, At: r.At, Job: r.Job, Rank: r.Rank, Size: r.Size, Host: r.Host, PID: r.PID, Code: r.Code,
			Signal: r.Signal, Asked: r.Asked, How: r.How}
		if len(r.Last) > 0 {
			l.Why, l.Said = words(c.Host, strings.Join(r.Last, "\n")+"\n")
		}
		x := known[space+"/"+strconv.Itoa(r.PID)]
		switch {
		case x != nil: // its operations were told under this name
			x.launched = true
			l.Job, l.Host, l.PID, running = x.Job, c.Host, x.PID, true
			if c.Ranks == nil { // else the owner's own number of it counts
				l.Rank = x.Rank
			}
			f.jobs[name] = x.Job
		case r.Event == lives.Over && f.jobs[name] != "":
			l.Job = f.jobs[name]
		case c.Ranks != nil: // its owner does not name it
			continue
		case r.PID != 0:
			l.Host = c.Host
		}
		list = append(list, l)
	}
	if f.files[name] = at + int64(end) + 1; !running {
		f.files[name] = -1
		return
	}
	p.launches = append(p.launches, list...)
}

// runs tells whether a launcher still runs, as far as its number can be told from here.
func (p *pulse) runs(space string, pid int) bool {
	_, err := os.Stat(p.root + "/proc/" + strconv.Itoa(pid))
	return err == nil && lives.SpaceOf(p.root+"/proc", strconv.Itoa(pid)) == space
}
