package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/launch"
)

// service is a real 'weft kv serve' with two tenants, as somebody with a token sees it.
type service struct {
	t       *testing.T
	at      string
	tenants string // the file
}

func serveTenants(t *testing.T) service {
	t.Helper()
	if err := launch.Supported(); err != nil {
		t.Skip(err)
	}
	weft, err := exec.LookPath("weft")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tenants.json")
	if err := os.WriteFile(file,
		[]byte(`[{"name": "alice", "token": "alices-secret", "quota": 65536}, {"name": "mallory", "token": "mallorys-secret", "quota": 65536}]`),
		0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	cmd := exec.CommandContext(ctx, weft, "kv", "serve", "--listen", "127.0.0.1:0", "--memory", "128KiB", "--block", "4KiB", "--name", "c1",
		"--tenants", file)
	cmd.Env = append(os.Environ(), "WEFT_TOKEN=the-caches-secret")
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	at := regexp.MustCompile(`http://([0-9.:]+), `).FindStringSubmatch(line)
	if err != nil || at == nil {
		t.Fatalf("kv serve printed %q, %v", line, err)
	}
	return service{t, at[1], file}
}

// call makes a call by hand: what a program of the attacker's own would send. It gives the status and the body.
func (s service) call(method, path, token string, head any, more ...string) (int, string) {
	s.t.Helper()
	var body bytes.Buffer
	if head != nil {
		text, err := json.Marshal(head)
		if err != nil {
			s.t.Fatal(err)
		}
		_ = binary.Write(&body, binary.LittleEndian, uint32(len(text)))
		body.Write(text)
	}
	r, err := http.NewRequest(method, "http://"+s.at+path, &body)
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(more); i += 2 {
		r.Header.Set(more[i], more[i+1])
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return a.StatusCode, string(text)
}

// attack notes what a tenant tried and what came of it. 'make tenant-attacks' makes a table of these lines.
func attack(t *testing.T, what, result string, args ...any) {
	t.Helper()
	t.Logf("attack | %s | %s", what, fmt.Sprintf(result, args...))
}

// keys names blocks of somebody's text.
func keys(text string, n int) (list []kv.Hash, names []string) {
	for i := range n {
		h := kv.Hash(sha256.Sum256(fmt.Appendf(nil, "%s %d", text, i)))
		list, names = append(list, h), append(names, h.String())
	}
	return list, names
}

type blockHead struct {
	Keys   []string        `json:"keys"`
	From   int             `json:"from"`
	Each   bool            `json:"each,omitempty"`
	Agent  json.RawMessage `json:"agent,omitempty"`
	Region string          `json:"region,omitempty"`
	Pieces [][]int64       `json:"pieces,omitempty"`
}

// agentOf starts an agent of a tenant.
func agentOf(t *testing.T, name, token string, generation uint64) *xfer.Agent {
	t.Helper()
	a, err := xfer.New(xfer.Config{Name: name, Token: token, Generation: generation})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

const (
	alice, mallory, operator = "alices-secret", "mallorys-secret", "the-caches-secret"
	blockBytes               = 4096
)

// pieces are those of blocks that lie one behind the other.
func pieces(n int) (list [][]kvcache.Piece) {
	for i := range n {
		list = append(list, []kvcache.Piece{{Off: int64(i) * blockBytes, Len: blockBytes}})
	}
	return list
}

// secretBlocks are what Alice stored.
func (s service) secretBlocks() ([]kv.Hash, []string, [][]byte) {
	list, names := keys("alice's prompt", 3)
	var data [][]byte
	for i := range list {
		data = append(data, bytes.Repeat([]byte{byte('A' + i)}, blockBytes))
	}
	c := kvcache.Dial(s.at, alice, "")
	defer c.Close()
	if n, err := c.Put(s.t.Context(), list, 0, data); n != 3 || err != nil {
		s.t.Fatal(n, err)
	}
	return list, names, data
}

// A tenant with a token of its own asks for another's blocks in every way there is. It is answered as if they were not there, and each
// time the one whose they are finds them.
func TestTenantsDoNotReachOneAnother(t *testing.T) {
	s := serveTenants(t)
	_, names, data := s.secretBlocks()
	_, nothing := keys("nobody's prompt", 3)
	for _, path := range []string{"/v1/match", "/v1/match each", "/v1/get"} {
		path, each := strings.CutSuffix(path, " each")
		code, got := s.call("POST", path, mallory, blockHead{Keys: names, Each: each})
		none, absent := s.call("POST", path, mallory, blockHead{Keys: nothing, Each: each})
		if code != none || got != absent {
			t.Errorf("%s: another's blocks are answered with %d %q, absent ones with %d %q", path, code, got, none, absent)
		}
		attack(t, "another tenant's names by "+path, "%d, the same %d bytes as for names of nobody", code, len(got))
		if code, got := s.call("POST", path, alice, blockHead{Keys: names, Each: each}); code != 200 || got == absent {
			t.Errorf("%s: Alice has %d %q of her own blocks", path, code, got)
		}
	}
	// By transfers, into own memory.
	for _, x := range []struct {
		who    string
		blocks int
	}{{mallory, 0}, {alice, 3}} {
		a := agentOf(t, "reader of "+x.who, x.who, 0)
		c := kvcache.Dial(s.at, x.who, "")
		defer c.Close()
		list, _ := keys("alice's prompt", 3)
		mem := make([]byte, 3*blockBytes)
		n, _, err := c.GetInto(t.Context(), list, 0, a, mem, pieces(3))
		if n != x.blocks || err != nil || (n == 3) != bytes.Equal(mem, slices.Concat(data...)) {
			t.Errorf("%s: %d blocks, %v", x.who, n, err)
		}
		if x.who == mallory {
			attack(t, "another tenant's names by a transfer into own memory", "%d blocks", n)
		}
	}
	// What is for other caches.
	for _, token := range []string{"", mallory, alice, "guess"} {
		for _, x := range [][2]string{{"GET", "/v1/changes?generation=0&since=0"}, {"POST", "/v1/fetch"}, {"POST", "/v1/push"}} {
			if code, got := s.call(x[0], x[1], token, map[string]string{"tenant": "alice", "key": names[0]}); code != 401 ||
				strings.Contains(got, "alice") {
				t.Errorf("%s with %q: %d %q", x[1], token, code, got)
			} else if token == mallory {
				attack(t, "as another cache, with a tenant's token: "+x[1], "%d", code)
			}
		}
	}
	code, got := s.call("GET", "/v1/changes?generation=0&since=0", operator, nil)
	mixed := regexp.MustCompile(`\+([0-9a-f]{64})`).FindAllStringSubmatch(got, -1)
	if code != 200 || len(mixed) != 3 {
		t.Fatalf("another cache hears %d %q", code, got)
	}
	found := 0
	for _, m := range mixed {
		if code, got := s.call("POST", "/v1/fetch", operator, map[string]string{"tenant": "alice", "key": m[1]}); code == 200 &&
			len(got) == 12+blockBytes {
			found++
		}
		// One tenant's mixed names are nothing to another, at whatever door.
		if code, got := s.call("POST", "/v1/get", mallory, blockHead{Keys: []string{m[1]}}); code != 200 || len(got) > 100 {
			t.Errorf("a mixed name gives %d, %d bytes", code, len(got))
		} else {
			attack(t, "a name as other caches hear it", "%d, no block", code)
		}
	}
	if found != 3 {
		t.Errorf("another cache fetches %d of 3 blocks", found)
	}
	for _, token := range []string{"", "guess", "alice", operator} {
		if code, _ := s.call("POST", "/v1/get", token, blockHead{Keys: names}); code != 401 {
			t.Errorf("token %q: %d, want 401", token, code)
		}
	}
}

// forge makes a description of somebody else's agent look like one's own: all that a token can do.
func forge(t *testing.T, blob []byte, token string) []byte {
	t.Helper()
	at := regexp.MustCompile(`"mac":"[^"]*"`)
	if !at.Match(blob) {
		t.Fatalf("no MAC in %s", blob)
	}
	m := hmac.New(sha256.New, []byte(token))
	m.Write([]byte("weft description\x00"))
	m.Write(at.ReplaceAll(blob, []byte(`"mac":null`)))
	m.Write([]byte("\n"))
	sum, _ := json.Marshal(m.Sum(nil))
	return at.ReplaceAll(blob, append([]byte(`"mac":`), sum...))
}

// Descriptions that were stolen or forged move nothing, and names and generations that a tenant takes are its own affair.
func TestTenantsCannotSpeakForOneAnother(t *testing.T) {
	s := serveTenants(t)
	_, names, data := s.secretBlocks()
	worker := agentOf(t, "worker", alice, 1000)
	mem := bytes.Repeat([]byte{7}, 3*blockBytes)
	r, err := worker.Register("r", xfer.Memory(mem), 0)
	if err != nil {
		t.Fatal(err)
	}
	stolen := worker.Describe(r)
	for what, blob := range map[string][]byte{"stolen": stolen, "forged": forge(t, stolen, mallory)} {
		for _, path := range []string{"/v1/fill", "/v1/drain"} {
			_, own := keys("mallory's", 1)
			c := kvcache.Dial(s.at, mallory, "")
			hash, _ := keys("mallory's", 1)
			if path == "/v1/fill" { // blocks of its own, to be written into Alice's memory
				if n, err := c.Put(t.Context(), hash, 0, [][]byte{bytes.Repeat([]byte{66}, blockBytes)}); n != 1 || err != nil {
					t.Fatal(n, err)
				}
			} else {
				_, own = keys("to be stolen "+what, 1)
			}
			c.Close()
			code, got := s.call("POST", path, mallory, blockHead{Keys: own, Agent: blob, Region: "r", Pieces: [][]int64{{0, blockBytes}}})
			if code != 403 || strings.Contains(got, "alice") {
				t.Errorf("%s with a description that is %s: %d %q", path, what, code, got)
			}
			attack(t, "the description of another tenant's agent, "+what+", by "+path, "%d", code)
			if path == "/v1/drain" {
				if code, got := s.call("POST", "/v1/match", mallory, blockHead{Keys: own}); code != 200 || !strings.Contains(got, `"blocks":0`) {
					t.Errorf("Alice's memory is in the cache of another: %d %q", code, got)
				}
			}
		}
	}
	if bytes.ContainsFunc(mem, func(b rune) bool { return b != 7 }) {
		t.Error("another tenant wrote into Alice's memory")
	}
	// The same description from Alice.
	if code, got := s.call("POST", "/v1/fill", alice,
		blockHead{Keys: names, Agent: stolen, Region: "r",
			Pieces: [][]int64{{0, blockBytes}, {blockBytes, blockBytes}, {2 * blockBytes, blockBytes}}}); code != 200 ||
		!bytes.Equal(mem, slices.Concat(data...)) {
		t.Errorf("Alice's own: %d %q", code, got)
	}
	// Her agents do not let another's in, and let hers in.
	for token, want := range map[string]error{mallory: xfer.ErrToken, alice: nil} {
		if _, err := agentOf(t, "visitor", token, 0).Meet(t.Context(), "worker", worker.Addrs()[0]); !errors.Is(err, want) {
			t.Errorf("an agent with the token %s: %v, want %v", token, err, want)
		} else if token == mallory {
			attack(t, "a connection to another tenant's agent", "refused: another token")
		}
	}
	// Mallory takes the name of Alice's worker, in the last of all generations; Alice's worker and its next life go on.
	squat := agentOf(t, "worker", mallory, math.MaxUint64)
	for i, x := range []struct {
		token string
		agent *xfer.Agent
	}{{mallory, squat}, {alice, worker}, {alice, agentOf(t, "worker", alice, 1001)}, {mallory, squat}} {
		c := kvcache.Dial(s.at, x.token, "")
		defer c.Close()
		hash, _ := keys(fmt.Sprintf("round %d", i), 1)
		if n, err := c.PutFrom(t.Context(), hash, 0, x.agent, make([]byte, blockBytes), pieces(1)); n != 1 || err != nil {
			t.Errorf("round %d: %d, %v", i, n, err)
		}
	}
	attack(t, "the name of another tenant's agent, generation 2^64-1", "both go on")
}

// Chains, figures and room are each tenant's own.
func TestTenantsDoNotSeeOneAnother(t *testing.T) {
	s := serveTenants(t)
	one, two := "vllm/16/0123456789abcdef", "vllm/32/fedcba9876543210"
	_, any := keys("any", 1)
	for _, x := range []struct {
		token, chain string
		want         int
	}{{mallory, one, 200}, {alice, two, 200}, {alice, one, 409}, {mallory, two, 409}, {mallory, one, 200}} {
		if code, got := s.call("POST", "/v1/match", x.token, blockHead{Keys: any}, "Weft-Kv-Chain", x.chain); code != x.want ||
			strings.Contains(got, two) && x.token == mallory && code == 200 {
			t.Errorf("%s with the chain %s: %d %q, want %d", x.token, x.chain, code, got, x.want)
		}
	}
	attack(t, "a hash chain of its own, first", "binds itself alone")
	_, before := s.call("GET", "/metrics", mallory, nil)
	list, names, _ := s.secretBlocks()
	if code, _ := s.call("POST", "/v1/get", alice, blockHead{Keys: names}); code != 200 {
		t.Fatal(code)
	}
	if _, after := s.call("GET", "/metrics", mallory, nil); after != before {
		t.Errorf("figures of Mallory move with what Alice does:\n%s\n%s", before, after)
	}
	for _, path := range []string{"/v1/stat", "/metrics"} {
		for _, token := range []string{"", "guess"} {
			if code, got := s.call("GET", path, token, nil); code != 401 || strings.Contains(got, "alice") {
				t.Errorf("%s with token %q: %d %q", path, token, code, got)
			}
		}
		if code, got := s.call("GET", path, mallory, nil); code != 200 || strings.Contains(got, "alice") || !strings.Contains(got, "mallory") {
			t.Errorf("%s of Mallory: %d %q", path, code, got)
		} else {
			attack(t, path, "%d, its own figures", code)
		}
		if code, got := s.call("GET", path, alice, nil); code != 200 || strings.Contains(got, "mallory") || !strings.Contains(got, "alice") {
			t.Errorf("%s of Alice: %d %q", path, code, got)
		}
		if code, got := s.call("GET", path, operator, nil); code != 200 || !strings.Contains(got, "mallory") || !strings.Contains(got, "alice") {
			t.Errorf("%s of the operator: %d %q", path, code, got)
		}
	}
	// A flood pushes out one's own.
	c := kvcache.Dial(s.at, mallory, "")
	defer c.Close()
	flood, _ := keys("flood", 64)
	for i := range flood {
		if _, err := c.Put(t.Context(), flood[i:i+1], 0, [][]byte{make([]byte, blockBytes)}); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := c.Stat(t.Context()); err != nil || st.Counters.Evicted < 40 || st.Tenants[0].Memory > 16 {
		t.Errorf("Mallory's flood: %+v, %v", st, err)
	}
	own := kvcache.Dial(s.at, alice, "")
	defer own.Close()
	if w, err := own.Match(t.Context(), list); len(w) != 3 || err != nil {
		t.Errorf("after a flood of another Alice has %v, %v", w, err)
	} else {
		attack(t, "a flood of 64 blocks with a quota of 16", "the other tenant has %d of 3 blocks", len(w))
	}
}

// Tokens that are issued open what they are for, and nothing after their time, elsewhere, or for others.
func TestTenantsIssueTokens(t *testing.T) {
	s := serveTenants(t)
	_, names, _ := s.secretBlocks()
	issue := func(args ...string) string {
		code, out, errs := command("", append([]string{"kv", "token", "--tenants", s.tenants}, args...)...)
		if code != 0 {
			t.Fatalf("%v: exit %d: %s", args, code, errs)
		}
		return strings.TrimSpace(out)
	}
	good := issue("--tenant", "alice", "--audience", "c1", "--for", "1m")
	body, mac, _ := strings.Cut(strings.TrimPrefix(good, "weft1."), ".")
	claim := kvcache.Claim{Tenant: "alice", Audience: "c1", Until: time.Now().Add(time.Minute)}
	past := claim
	past.Until = time.Now().Add(-time.Second)
	_, absent := s.call("POST", "/v1/match", alice, blockHead{Keys: names[2:]})
	for what, x := range map[string]struct {
		token string
		code  int
	}{
		"good":                  {good, 200},
		"for another cache":     {issue("--tenant", "alice", "--audience", "c2"), 401},
		"for no cache":          {kvcache.Issue(alice, kvcache.Claim{Tenant: "alice", Until: claim.Until}), 401},
		"over":                  {kvcache.Issue(alice, past), 401},
		"under another's key":   {kvcache.Issue(mallory, claim), 401},
		"under the caches' key": {kvcache.Issue(operator, claim), 401},
		"with another MAC":      {"weft1." + body + "." + strings.ToLower(mac), 401},
		"without a MAC":         {"weft1." + body, 401},
		"cut":                   {good[:len(good)-1], 401},
		"of nobody":             {kvcache.Issue("", kvcache.Claim{Tenant: "bob", Audience: "c1", Until: claim.Until}), 401},
	} {
		code, got := s.call("POST", "/v1/match", x.token, blockHead{Keys: names[2:]})
		if code != x.code || code == 200 && got != absent {
			t.Errorf("a token that is %s: %d %q, want %d", what, code, got, x.code)
		} else if code != 200 {
			attack(t, "a token "+what, "%d", code)
		}
	}
	// One for an agent names the memory of that one.
	worker, other := agentOf(t, "worker", alice, 5), agentOf(t, "other", alice, 5)
	bound := issue("--tenant", "alice", "--audience", "c1", "--agent", "worker", "--generation", "5")
	for a, want := range map[*xfer.Agent]int{worker: 200, other: 403, agentOf(t, "worker", alice, 6): 403} {
		r, err := a.Register("r", xfer.Memory(make([]byte, blockBytes)), 0)
		if err != nil {
			t.Fatal(err)
		}
		if code, got := s.call("POST", "/v1/fill", bound,
			blockHead{Keys: names[:1], Agent: a.Describe(r), Region: "r", Pieces: [][]int64{{0, blockBytes}}}); code != want || code == 200 &&
			!strings.Contains(got, `"blocks":1`) {
			t.Errorf("agent %s: %d %q, want %d", a.ID(), code, got, want)
		} else if code != 200 {
			attack(t, fmt.Sprintf("a token of agent worker, generation 5, with memory of %s, generation %d", a.ID().Name, a.ID().Generation),
				"%d", code)
		}
	}
	for _, line := range []string{"", "--tenant nobody --audience c1", "--tenant alice", "--tenant alice --audience c1 --for 0s"} {
		if code, _, errs := command("", append([]string{"kv", "token", "--tenants", s.tenants}, fields(line)...)...); code != 2 || errs == "" {
			t.Errorf("kv token %s: exit %d, want 2: %s", line, code, errs)
		}
	}
}

// Tenants that are not apart are refused before anything is served.
func TestTenantsThatCannotBeApart(t *testing.T) {
	dir := t.TempDir()
	for i, x := range []struct{ token, tenants, want string }{
		{"", `[{"name": "a", "token": "x", "quota": 2000000}]`, "set WEFT_TOKEN"},
		{"x", `[{"name": "a", "token": "x", "quota": 2000000}]`, "give it one of its own"},
		{"p", `[{"name": "a", "token": "x", "quota": 2000000}, {"name": "b", "token": "x", "quota": 2000000}]`, "the same token"},
		{"p", `[{"name": "a", "token": "x"}]`, "a quota of 0 B, less than a block of 1 MiB: raise it"},
		{"p", `[{"name": "a", "token": "x", "quota": 2000000}, {"name": "b", "token": "y", "salt": "a", "quota": 2000000}]`, "the same salt"},
	} {
		file := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(file, []byte(x.tenants), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := bounded.Within(t, 10*time.Second, "weft", "kv", "serve", "--listen", "127.0.0.1:0", "--tenants", file)
		cmd.Env = append(os.Environ(), "WEFT_TOKEN="+x.token)
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), x.want) {
			t.Errorf("%s with WEFT_TOKEN=%s: %v, %s", x.tenants, x.token, err, out)
		}
	}
}
