package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
)

// torchFlags are flags of torchrun that have no other name here. Each may also be set
// by its PET_ variable.
type torchFlags struct {
	logDir, redirects, tee, role, conf, localAddr string
	interval                                      float64
	module, noPython                              bool

	settle time.Duration // of --rdzv-conf last_call_timeout
	file   map[int]int   // by local rank: streams that go to a file, 1 and 2; -1 stands for all
	both   map[int]int   // that go there and to the terminal
	set    *pflag.FlagSet
}

func (t *torchFlags) bind(f *pflag.FlagSet) {
	t.set = f
	f.StringVar(&t.logDir, "log-dir", "", "`DIR` for the output of each rank, as in torchrun: DIR/JOB_TIME/attempt_N/LOCAL_RANK/stdout.log")
	f.StringVarP(&t.redirects, "redirects", "r", "0",
		"`STREAMS` that go to --log-dir instead of the terminal: 0 none, 1 stdout, 2 stderr, 3 both; or 0:3,1:2 by local rank")
	f.StringVarP(&t.tee, "tee", "t", "0", "`STREAMS` that go to --log-dir and to the terminal, as for --redirects")
	f.StringVar(&t.role, "role", "default", "`NAME` of the role, for ROLE_NAME")
	f.Float64Var(&t.interval, "monitor-interval", 0.1,
		"accepted from torchrun's command lines: the end of a rank is seen at once, whatever it is; `SECONDS`")
	f.StringVar(&t.conf, "rdzv-conf", "",
		"`KEY=VALUE,...` of the rendezvous, as in torchrun: last_call_timeout=SECONDS, join_timeout=SECONDS, timeout=SECONDS")
	f.StringVar(&t.localAddr, "local-addr", "", "`ADDRESS` at which other nodes reach this one; default: detected")
	f.BoolVarP(&t.module, "module", "m", false, "COMMAND is a Python module: python -m COMMAND")
	f.BoolVar(&t.noPython, "no-python", false, "COMMAND is a program and no Python script, whatever its name")
}

// names of the flags, for their variables.
var torchNames = []string{"log-dir", "redirects", "tee", "role", "monitor-interval", "rdzv-conf", "local-addr", "module", "no-python"}

func (t *torchFlags) given(f *pflag.FlagSet) bool {
	for _, name := range torchNames {
		if f.Changed(name) {
			return true
		}
	}
	return false
}

// complete reads the variables that stand for flags, and what flags mean.
func (t *torchFlags) complete(env func(string) string) (err error) {
	for _, name := range torchNames {
		v := "PET_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		if text := env(v); text != "" && !t.set.Changed(name) {
			if err := t.set.Set(name, text); err != nil {
				return fmt.Errorf("%s=%q: %w", v, text, err)
			}
		}
	}
	if t.file, err = streams(t.redirects); err != nil {
		return fmt.Errorf("--redirects %q: %w", t.redirects, err)
	}
	if t.both, err = streams(t.tee); err != nil {
		return fmt.Errorf("--tee %q: %w", t.tee, err)
	}
	t.settle = 2 * time.Second
	if t.conf == "" {
		return nil
	}
	return t.readConf()
}

// readConf takes those settings of torchrun's rendezvous that mean something here.
func (t *torchFlags) readConf() error {
	for pair := range strings.SplitSeq(t.conf, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		s, bad := strconv.ParseFloat(value, 64)
		switch key {
		case "last_call_timeout", "join_timeout", "timeout":
			if bad != nil || s <= 0 {
				return fmt.Errorf("--rdzv-conf %s=%s; want a number of seconds above 0", key, value)
			}
			d := time.Duration(s * float64(time.Second))
			if key == "last_call_timeout" {
				t.settle = d
			} else if !t.set.Changed("coord-timeout") {
				if err := t.set.Set("coord-timeout", d.String()); err != nil {
					return err
				}
			}
		default:
			return fmt.Errorf("--rdzv-conf %s; known are last_call_timeout, join_timeout and timeout: leave it out, as nothing here depends on it",
				key)
		}
	}
	return nil
}

// streams reads 3, or 0:3,1:2.
func streams(s string) (map[int]int, error) {
	bad := errors.New("want 0, 1 (stdout), 2 (stderr) or 3 (both), or RANK:STREAMS with commas between, like 0:3,1:2")
	all := map[int]int{}
	for part := range strings.SplitSeq(s, ",") {
		rank, what, one := strings.Cut(strings.TrimSpace(part), ":")
		if !one {
			rank, what = "-1", rank
		}
		r, err1 := strconv.Atoi(rank)
		w, err2 := strconv.Atoi(what)
		if err1 != nil || err2 != nil || w < 0 || w > 3 || r < -1 || one && r < 0 {
			return nil, bad
		}
		all[r] = w
	}
	return all, nil
}

// findPython is the Python of PYTHON_EXEC, as torchrun takes it, or else the first on the path; nothing if there is none.
func findPython() string {
	if python := os.Getenv("PYTHON_EXEC"); python != "" {
		return python
	}
	for _, name := range []string{"python3", "python"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// command puts Python before a module or a script that cannot be run by itself.
func (t *torchFlags) command(args []string) ([]string, error) {
	script := strings.HasSuffix(args[0], ".py") && !t.noPython
	if script {
		if _, err := exec.LookPath(args[0]); err == nil {
			script = false
		}
	}
	if !t.module && !script {
		return args, nil
	}
	python := findPython()
	if python == "" {
		return nil, fmt.Errorf("%s is for Python, and neither python3 nor python is here; set PYTHON_EXEC", args[0])
	}
	if t.module {
		return append([]string{python, "-u", "-m"}, args...), nil
	}
	return append([]string{python, "-u"}, args...), nil
}

// logFile takes a stream of a rank.
type logFile struct {
	*os.File
	also io.Writer // nil if the stream goes to the file alone
}

func (l *logFile) Write(b []byte) (int, error) {
	_, _ = l.File.Write(b) // a full disk does not stop the rank
	if l.also != nil {
		_, _ = l.also.Write(b)
	}
	return len(b), nil
}

// Flush is called at the end of the stream.
func (l *logFile) Flush() {
	l.File.Close()
	if f, ok := l.also.(interface{ Flush() }); ok {
		f.Flush()
	}
}

// logs gives what takes the output of ranks, where some of it goes to files.
func (t *torchFlags) logs(job string, say io.Writer) (func(rank, local int, stdout, stderr io.Writer) (io.Writer, io.Writer), error) {
	any := false
	for _, m := range []map[int]int{t.file, t.both} {
		for _, w := range m {
			any = any || w > 0
		}
	}
	if !any && t.logDir != "" {
		fmt.Fprintf(say, "weft: nothing goes to --log-dir %s; --redirects 3 or --tee 3 says what\n", t.logDir)
	}
	if !any {
		return nil, nil
	}
	dir := t.logDir
	if dir == "" {
		dir = os.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("--log-dir: %w", err)
	}
	root, err := os.MkdirTemp(dir, job+"_"+time.Now().Format("20060102-150405")+"_")
	if err != nil {
		return nil, fmt.Errorf("--log-dir: %w", err)
	}
	fmt.Fprintf(say, "weft: output of ranks in %s\n", root)
	wants := func(m map[int]int, local, stream int) bool {
		w, ok := m[local]
		if !ok {
			w = m[-1]
		}
		return w&stream != 0
	}
	var mu sync.Mutex
	attempts := map[int]int{}
	return func(_, local int, stdout, stderr io.Writer) (io.Writer, io.Writer) {
		mu.Lock()
		n := attempts[local]
		attempts[local]++
		mu.Unlock()
		folder := filepath.Join(root, fmt.Sprintf("attempt_%d", n), strconv.Itoa(local))
		to := [2]io.Writer{stdout, stderr}
		for i, name := range []string{"stdout.log", "stderr.log"} {
			both := wants(t.both, local, i+1)
			if !both && !wants(t.file, local, i+1) {
				continue
			}
			err := os.MkdirAll(folder, 0o755)
			var f *os.File
			if err == nil {
				f, err = os.Create(filepath.Join(folder, name))
			}
			if err != nil { // the stream stays where it is
				fmt.Fprintf(say, "weft: --log-dir: %v\n", err)
				continue
			}
			l := &logFile{File: f}
			if both {
				l.also = to[i]
			}
			to[i] = l
		}
		return to[0], to[1]
	}, nil
}
