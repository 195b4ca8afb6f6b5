package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Remote is how a command is started on another host: words of a command line
// in which {host} is the host's name. Where {command} is among them, it becomes
// the whole command as one word for a shell there, and the token goes through
// its standard input rather than its arguments, which other users can list;
// the process ends when that input does. Programs that start a command without a
// shell, such as ip and docker, get "sh -c" before it. Where {command} is not there,
// the command's words follow and the environment is inherited, as with "ip netns exec
// {host}".
type Remote []string

// shellless are programs that start the command in their arguments themselves; others
// hand one word to a shell on the host, as ssh does.
var shellless = []string{"chroot", "crictl", "docker", "env", "ip", "kubectl", "lxc", "nerdctl", "nsenter", "podman", "setpriv", "srun",
	"sudo", "unshare"}

// SSH is the default.
var SSH = Remote{"ssh", "-o", "BatchMode=yes", "{host}", "{command}"}

// ParseRemote splits a template at spaces.
func ParseRemote(s string) (Remote, error) {
	r := Remote(strings.Fields(s))
	if len(r) == 0 {
		return nil, errors.New("empty template; want a command line like 'ssh {host} {command}'")
	}
	return r, r.check()
}

func (r Remote) check() error {
	if len(r) == 0 || strings.Contains(strings.Join(r, " "), "{host}") {
		return nil
	}
	return fmt.Errorf("template %q names no {host}; want one like 'ssh {host} {command}' or 'ip netns exec {host}'", strings.Join(r, " "))
}

// wrap gives the command line, environment and input with which a rank starts on host.
func (r Remote) wrap(host string, command, env []string, token string) (args, environ []string, stdin []byte) {
	if host == "" {
		return command, env, nil
	}
	if len(r) == 0 {
		r = SSH
	}
	whole := false
	for i, w := range r {
		if w == "{command}" {
			whole = true
			if slices.Contains(shellless, filepath.Base(r[0])) && r[i-1] != "-c" {
				args = append(args, "sh", "-c")
			}
			args = append(args, remoteScript(command, remoteEnv(env)))
			continue
		}
		args = append(args, strings.ReplaceAll(w, "{host}", host))
	}
	if whole {
		return args, nil, []byte(token + "\n")
	}
	return append(args, command...), env, nil
}

// secrets do not go through arguments: the token goes through the input, and ranks
// have no business with the coordinator's password.
var secrets = []string{"WEFT_TOKEN", "WEFT_COORD_PASSWORD"}

// remoteEnv is what a shell on another host is told: the rank's place and every
// setting of ours, but no secrets.
func remoteEnv(env []string) []string {
	var list []string
	for _, kv := range append(os.Environ(), env...) {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains(secrets, name) {
			continue
		}
		if strings.HasPrefix(name, "WEFT_") {
			list = append(list, kv)
		}
	}
	for _, kv := range env {
		if !strings.HasPrefix(kv, "WEFT_") {
			list = append(list, kv)
		}
	}
	return list
}

// remoteScript is the command for a POSIX shell. It reads the token, runs the
// command beside a reader of its input, and ends one when the other ends: a
// remote shell whose client was killed closes the input and does nothing else.
func remoteScript(command, env []string) string {
	var b strings.Builder
	b.WriteString("IFS= read -r WEFT_TOKEN; export WEFT_TOKEN; exec 3<&0; env")
	for _, w := range append(append([]string(nil), env...), command...) {
		b.WriteString(" " + quote(w))
	}
	b.WriteString(" 3<&- </dev/null & p=$!; { cat >/dev/null; kill $p; } <&3 2>/dev/null & w=$!; exec 3<&-; wait $p; c=$?; kill $w 2>/dev/null; exit $c")
	return b.String()
}

// quote makes one word of s for a POSIX shell.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
