package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
	"github.com/weft-fabric/weft/move/kvcache/directory"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/weft-fabric/weft/run/transport/auth"
)

// kvServe is a cache that serves, as its flags say.
type kvServe struct {
	o                                                                                              kvcache.Options
	listen, advertise, memory, block, slab, store, pack, policy, tenants, chain, etcd, prefix, tls string
	peers                                                                                          []string
}

func newKVServe() *cobra.Command {
	s := kvServe{o: kvcache.DefaultOptions()}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Keep and share KV cache blocks: memory, then disk, then an object store",
		Long: `Store KV cache blocks for the workers of a serving engine. Blocks go to memory, then to a slab file (--disk) and,
packed, to an object store (--store). Every worker finds what any other stored. The slab keeps its blocks over restarts
and crashes, by an index in FILE.index; memory starts empty. Blocks with a wrong checksum are dropped, never served. If the
disk fails or fills up, the service goes on in memory.

Caches listed with --peer exchange what they have and authenticate by WEFT_TOKEN. With --etcd caches find each other and
each other's blocks in an etcd; each needs its own --name.
--tenants FILE is a JSON list of {"name", "token", "salt", "quota"}: each tenant has its own memory, of bytes or a size
like "8MiB", and finds only its own blocks. WEFT_TOKEN is then the caches' secret, and no tenant may have it. Without --tenants there is one tenant
with the token WEFT_TOKEN, which is required at addresses that others can reach.
--tls DIR serves HTTPS with the folder's cert.pem and key.pem. A client certificate of ca.pem with the URI
spiffe://DOMAIN/tenant/NAME, or .../tenant/NAME/agent/AGENT, stands in for that tenant's token. Clients set WEFT_KV_TLS
to a folder of their own. Transfers between hosts are encrypted, too.

The protocol is HTTP: docs/reference/kv.md. Go clients with an agent, and caches among themselves, use transfers
(docs/how-to/transfers.md). /metrics is for Prometheus.`,
		Example: `  weft kv serve --memory 4GiB --block 2MiB
  weft kv serve --memory 4GiB --disk /mnt/nvme/slab --disk-size 200GiB --store s3://bucket/kv
  weft kv serve --listen 10.0.0.1:7080 --peer 10.0.0.2:7080
  weft kv serve --listen 10.0.0.1:7080 --name a --etcd 10.0.0.9:2379`,
		Args: cobra.NoArgs,
		RunE: s.run,
	}
	host, _ := os.Hostname()
	f := cmd.Flags()
	f.StringVar(&s.listen, "listen", "127.0.0.1:7080", "`ADDRESS` to serve at")
	f.StringVar(&s.advertise, "advertise", "",
		"`ADDRESS` at which other caches reach this one, for --etcd; default: that of --listen, or of the interface towards etcd")
	f.StringVar(&s.o.Name, "name", host, "`NAME` of this cache")
	f.StringVar(&s.memory, "memory", "256MiB", "`SIZE` of the memory for blocks")
	f.StringVar(&s.block, "block", "1MiB", "largest `SIZE` of a block")
	f.StringVar(&s.o.Disk, "disk", "", "`FILE` for blocks evicted from memory, on a fast disk; kept over restarts with FILE.index")
	f.StringVar(&s.slab, "disk-size", "1GiB", "`SIZE` of that file")
	f.StringVar(&s.store, "store", "", "`DIR` or s3://BUCKET/PREFIX for packs of blocks")
	f.StringVar(&s.pack, "pack", "4MiB", "`SIZE` of a pack, at least")
	f.StringVar(&s.policy, "policy", string(kv.LRU), "which block leaves first: lru, lfu, arc, cost")
	f.StringVar(&s.tenants, "tenants", "", "`FILE` with tenants as JSON")
	f.StringVar(&s.tls, "tls", "", "`DIR` with ca.pem, cert.pem and key.pem: serve HTTPS, and take client certificates of tenants")
	f.StringVar(&s.chain, "chain", "", "`PRINT` of the clients' hash chain; default: the first client's")
	f.StringArrayVar(&s.peers, "peer", nil, "`ADDRESS` of another cache; repeatable")
	f.StringVar(&s.etcd, "etcd", "", "`HOST:PORT,...` of an etcd in which caches find one another and who has which block")
	f.StringVar(&s.prefix, "prefix", "/weft/kv", "`KEY` in etcd for the entries of caches")
	f.IntVar(&s.o.Dirty, "dirty", s.o.Dirty, "most `BLOCKS` waiting for disk and store")
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions([]string{"lru", "lfu", "arc", "cost"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (s *kvServe) run(cmd *cobra.Command, _ []string) error {
	if err := s.sizes(cmd); err != nil {
		return err
	}
	host, err := s.addresses()
	if err != nil {
		return err
	}
	if s.store != "" {
		if s.o.Store, err = blob.Open(s.store); err != nil {
			return fmt.Errorf("--store: %w", err)
		}
		defer s.o.Store.Close()
	}
	token := os.Getenv("WEFT_TOKEN")
	if s.o.Tenants, err = s.readTenants(token); err != nil {
		return err
	}
	if err := auth.CheckToken(token, host, false); err != nil {
		return err
	}
	s.o.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	var server, between *tls.Config
	if s.tls != "" {
		if server, s.o.TLS, err = kvcache.Certificates(s.tls); err == nil {
			between, err = auth.Certificates(s.tls, "")
		}
		if err != nil {
			return fmt.Errorf("--tls: %w", err)
		}
	}
	end, err := s.agents(host, token, between)
	if err != nil {
		return finding{err}
	}
	defer end()
	cache, err := kvcache.New(s.o)
	if err != nil {
		return err
	}
	defer cache.Close()
	l, err := net.Listen("tcp", s.listen)
	if err != nil {
		return finding{fmt.Errorf("--listen %s: %w", s.listen, err)}
	}
	defer l.Close()
	at := l.Addr().String()
	if server != nil {
		l = tls.NewListener(l, server)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.awaitStore(ctx, cmd.ErrOrStderr()); err != nil {
		return err
	}
	for _, p := range s.peers {
		cache.Follow(p, token)
	}
	if s.etcd != "" {
		leave, err := s.join(ctx, cmd.ErrOrStderr(), cache, at, token)
		if err != nil {
			return err
		}
		defer leave()
	}
	return s.answer(ctx, cmd.OutOrStdout(), kvcache.NewServer(cache, token, s.chain).Handler(), l)
}

// agents starts the agent of other caches, and one for each of several tenants, under its own token.
func (s *kvServe) agents(host, token string, between *tls.Config) (end func(), err error) {
	var all []*xfer.Agent
	end = func() {
		for _, a := range all {
			a.Close()
		}
	}
	start := func(name, token string) *xfer.Agent {
		if err != nil {
			return nil
		}
		var a *xfer.Agent
		if a, err = xfer.New(xfer.Config{Name: name, Listen: []string{net.JoinHostPort(host, "0")}, Token: token, TLS: between}); err == nil {
			all = append(all, a)
		}
		return a
	}
	s.o.Agent = start("kv "+s.o.Name, token)
	if s.tenants != "" {
		s.o.Agents = map[string]*xfer.Agent{}
		for _, t := range s.o.Tenants {
			s.o.Agents[t.Name] = start("kv "+s.o.Name+" for "+t.Name, t.Token)
		}
	}
	if err != nil {
		end()
	}
	return end, err
}

// chainForm is nothing, or what kv.Chain's Print gives: whose hashes, tokens per block, and the start of the chain.
var chainForm = regexp.MustCompile(`^((vllm|sglang)/[1-9][0-9]*/[0-9a-f]{16})?$`)

// sizes reads the flags of sizes and habits, and refuses those that say nothing.
func (s *kvServe) sizes(cmd *cobra.Command) (err error) {
	for _, f := range []struct {
		name, text string
		to         *int64
	}{{"--memory", s.memory, &s.o.Memory}, {"--block", s.block, &s.o.Block}, {"--disk-size", s.slab, &s.o.Slab},
		{"--pack", s.pack, &s.o.Pack}} {
		n, err := unit.ParseBytes(f.text)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if n == 0 {
			return fmt.Errorf("%s is 0; want more", f.name)
		}
		*f.to = int64(n)
	}
	for _, f := range []struct {
		name, needs string
		there       bool
	}{{"disk-size", "disk", s.o.Disk != ""}, {"pack", "store", s.store != ""}, {"prefix", "etcd", s.etcd != ""},
		{"advertise", "etcd", s.etcd != ""}} {
		if cmd.Flags().Changed(f.name) && !f.there {
			return fmt.Errorf("--%s needs --%s", f.name, f.needs)
		}
	}
	if s.o.Dirty < 1 {
		return fmt.Errorf("--dirty %d: want at least 1 block", s.o.Dirty)
	}
	if !chainForm.MatchString(s.chain) {
		return fmt.Errorf("--chain %q: want what kv.Chain's Print gives, like vllm/16/0123456789abcdef", s.chain)
	}
	if s.o.Policy, err = kv.ParsePolicy(s.policy); err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	return nil
}

// addresses checks those that were given, and returns the host of --listen.
func (s *kvServe) addresses() (host string, err error) {
	if host, err = hostPort(s.listen, 0); err != nil {
		return "", fmt.Errorf("--listen %w", err)
	}
	for _, p := range s.peers {
		if _, err := hostPort(p, 1); err != nil {
			return "", fmt.Errorf("--peer %w", err)
		}
	}
	if s.advertise != "" {
		if _, err := hostPort(s.advertise, 1); err != nil {
			return "", fmt.Errorf("--advertise %w", err)
		}
	}
	if s.etcd != "" {
		if err := checkEtcd(s.etcd); err != nil {
			return "", err
		}
		if s.o.Name == "" || strings.Trim(s.prefix, "/") == "" {
			return "", fmt.Errorf("--name %q, --prefix %q: a cache in an etcd needs both", s.o.Name, s.prefix)
		}
	}
	return host, nil
}

// readTenants reads --tenants; without it there is one, with the cache's own token.
func (s *kvServe) readTenants(token string) (list []kvcache.Tenant, err error) {
	if s.tenants == "" {
		return []kvcache.Tenant{{Name: "default", Token: token, Quota: s.o.Memory}}, nil
	}
	if list, err = readTenantFile(s.tenants); err != nil {
		return nil, err
	}
	if token == "" {
		return nil,
			errors.New("--tenants without WEFT_TOKEN: anybody could speak as another cache and read every tenant's blocks; set WEFT_TOKEN to a secret that the caches have and no tenant has")
	}
	for _, t := range list {
		if t.Token == token {
			return nil, fmt.Errorf("--tenants %s: the token of %s is WEFT_TOKEN, which is for caches alone: give it one of its own",
				s.tenants, t.Name)
		}
	}
	return list, nil
}

// readTenantFile reads a file of --tenants.
func readTenantFile(file string) (list []kvcache.Tenant, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--tenants: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var written []struct {
		Name, Token, Salt string
		Quota             quota
	}
	if err := d.Decode(&written); err != nil || len(written) == 0 {
		if err == nil {
			err = errors.New("it lists no tenants")
		}
		return nil,
			fmt.Errorf("--tenants %s: %w; want [{\"name\": \"a\", \"token\": \"...\", \"quota\": \"8MiB\"}], with \"salt\" where names are to be mixed with something else",
				file, err)
	}
	for _, t := range written {
		if t.Token == "" {
			return nil, fmt.Errorf("--tenants %s: %s has no token", file, t.Name)
		}
		list = append(list, kvcache.Tenant{Name: t.Name, Token: t.Token, Salt: t.Salt, Quota: int64(t.Quota)})
	}
	return list, nil
}

// quota is a tenant's memory as its file has it: a number of bytes, or a size like "8MiB".
type quota int64

// UnmarshalJSON reads either.
func (q *quota) UnmarshalJSON(text []byte) error {
	var size string
	if json.Unmarshal(text, &size) != nil {
		return json.Unmarshal(text, (*int64)(q))
	}
	n, err := unit.ParseBytes(size)
	if err != nil {
		return fmt.Errorf("quota: %w", err)
	}
	*q = quota(n)
	return nil
}

// awaitStore waits until the object store answers.
func (s *kvServe) awaitStore(ctx context.Context, w io.Writer) error {
	if s.o.Store == nil {
		return nil
	}
	err := await(ctx, w, "the store "+s.store, func(ctx context.Context) error {
		if err := s.o.Store.Read(ctx, "kv/0", make([]byte, 1), 0); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	if err != nil {
		return finding{fmt.Errorf("--store %s: %w", s.store, err)}
	}
	return nil
}

// join enters the directory in etcd, under the address that others reach this cache at; leave ends that.
func (s *kvServe) join(ctx context.Context, w io.Writer, cache *kvcache.Cache, listens, token string) (leave func(), err error) {
	c, err := etcdAt(s.etcd)
	if err != nil {
		return nil, err
	}
	var d *directory.Directory
	at := s.advertise
	if at == "" {
		at = reachable(listens, c.Endpoints()[0])
	}
	err = await(ctx, w, "the etcd at "+s.etcd, func(ctx context.Context) (err error) {
		if d, err = directory.Join(ctx, c, s.prefix, s.o.Name, at, token, cache, s.o.Log); errors.Is(err, context.DeadlineExceeded) {
			err = errors.Join(err, unreached(c.Endpoints()))
		}
		return err
	})
	if err != nil {
		c.Close()
		return nil, finding{fmt.Errorf("--etcd %s: %w", s.etcd, err)}
	}
	return func() { d.Close(); c.Close() }, nil
}

// answer serves until ctx is over.
func (s *kvServe) answer(ctx context.Context, w io.Writer, handler http.Handler, l net.Listener) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10}
	// Calls that are under way have three seconds, then their connections are closed: after that nobody reads the cache's memory.
	over := make(chan struct{})
	go func() {
		defer close(over)
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if server.Shutdown(end) != nil {
			server.Close()
		}
	}()
	scheme := "http"
	if s.tls != "" {
		scheme = "https"
	}
	fmt.Fprintf(w, "kv cache %s: %s://%s, %d blocks of %v in memory", s.o.Name, scheme, l.Addr(), s.o.Memory/s.o.Block, unit.Bytes(s.o.Block))
	if s.o.Disk != "" {
		fmt.Fprintf(w, ", %v at %s", unit.Bytes(s.o.Slab), s.o.Disk)
	}
	if s.o.Store != nil {
		fmt.Fprintf(w, ", packs in %s", s.store)
	}
	fmt.Fprintln(w)
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return finding{err}
	}
	<-over
	return nil
}

// hostPort gives the host of HOST:PORT; ports are from least on.
func hostPort(at string, least int) (string, error) {
	host, port, err := net.SplitHostPort(at)
	n, bad := strconv.Atoi(port)
	if err != nil || bad != nil || n < least || n > 65535 {
		return "", fmt.Errorf("%q: want HOST:PORT with a port from %d to 65535", at, least)
	}
	return host, nil
}

// reachable is the address at which others reach a listener: where that is of all interfaces, with the one towards them.
func reachable(listen, them string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return listen
	}
	if _, rest, ok := strings.Cut(them, "://"); ok {
		them = rest
	}
	c, err := net.Dial("udp", them) // which sends nothing
	if err != nil {
		return listen
	}
	defer c.Close()
	if host, _, err = net.SplitHostPort(c.LocalAddr().String()); err != nil {
		return listen
	}
	return net.JoinHostPort(host, port)
}

// awaitTime is how long a server waits for what it needs.
const awaitTime = 10 * time.Second

// await does what needs somebody else's answer. If that takes longer than a moment it says what it waits for, and it gives up after
// awaitTime.
func await(ctx context.Context, w io.Writer, what string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTime)
	defer cancel()
	t := time.AfterFunc(300*time.Millisecond, func() { fmt.Fprintf(w, "waiting for %s, %s at most\n", what, awaitTime) })
	err := do(ctx)
	t.Stop()
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s did not answer within %s: %w", what, awaitTime, err)
	}
	return err
}

// unreached says of addresses that did not answer why, as far as a connection tells.
func unreached(addresses []string) error {
	var all []error
	for _, at := range addresses {
		if _, rest, ok := strings.Cut(at, "://"); ok {
			at = rest
		}
		c, err := net.DialTimeout("tcp", at, time.Second)
		if err == nil {
			c.Close()
			err = fmt.Errorf("%s takes connections and does not speak etcd's protocol", at)
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

// kvTLS is how clients of caches encrypt, by WEFT_KV_TLS; nil if they do not.
func kvTLS() (*tls.Config, error) {
	dir := os.Getenv("WEFT_KV_TLS")
	if dir == "" {
		return nil, nil
	}
	_, client, err := kvcache.Certificates(dir)
	if err != nil {
		return nil, fmt.Errorf("WEFT_KV_TLS: %w", err)
	}
	return client, nil
}

func printKVStat(out io.Writer, s kvcache.Stat) error {
	w := newTable(out)
	fmt.Fprintf(w, "cache\t%s, up %s, policy %s, blocks of up to %v\n", s.Name, (time.Duration(s.Uptime) * time.Second).String(), s.Policy,
		unit.Bytes(s.Block))
	fmt.Fprintf(w, "memory\t%v\n", unit.Bytes(s.Memory))
	if s.Slab > 0 {
		fmt.Fprintf(w, "disk\t%v, %d blocks written, %d left again\n", unit.Bytes(s.Slab), s.Counters.Written, s.Counters.EvictedOut)
	}
	if s.Store != "" {
		fmt.Fprintf(w, "store\t%s, %d packs written, %d were there\n", s.Store, s.Counters.Packed, s.Counters.Raced)
	}
	if s.Chain != "" {
		fmt.Fprintf(w, "chain\t%s\n", s.Chain)
	}
	if s.Broken != "" {
		fmt.Fprintf(w, "broken\t%s\n", s.Broken)
	}
	for _, t := range s.Tenants {
		fmt.Fprintf(w, "tenant %s\t%d of %d blocks in memory, %d on disk, %d in use\n", t.Name, t.Memory, t.Room, t.Disk, t.InUse)
	}
	for _, p := range s.Peers {
		state := p.Error
		if state == "" {
			state = "heard " + strconv.FormatFloat(p.Heard, 'f', 1, 64) + " s ago"
		}
		fmt.Fprintf(w, "peer %s\t%d blocks, %s\n", strings.TrimSpace(p.Name+" "+p.Address), p.Blocks, state)
	}
	c := s.Counters
	fmt.Fprintf(w, "asked\t%d: memory %d, disk %d, store %d, peers %d, nowhere %d\n", c.Asked, c.Memory, c.Disk, c.Store, c.Peer, c.Missed)
	fmt.Fprintf(w, "stored\t%d, %d were there, %d refused, %d not written behind\n", c.Stored, c.Known, c.Refused, c.Behind)
	fmt.Fprintf(w, "bytes\t%v in, %v out, %v of both by transfers\n", unit.Bytes(c.In), unit.Bytes(c.Out), unit.Bytes(c.Moved))
	fmt.Fprintf(w, "damaged\t%d dropped, %d reads or writes failed\n", c.Damaged, c.Failed)
	return w.Flush()
}

func newKVStat() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stat [ADDRESS]",
		Short: "Show a cache service's tenants, tiers, hits and peers",
		Long: `Print the state of a cache service ('weft kv serve'). If it has a token, set WEFT_TOKEN; if
it serves HTTPS, set WEFT_KV_TLS to a folder with ca.pem, cert.pem and key.pem.`,
		Example: `  weft kv stat 127.0.0.1:7080`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at := "127.0.0.1:7080"
			if len(args) > 0 {
				at = args[0]
			}
			if _, err := hostPort(at, 1); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			over, err := kvTLS()
			if err != nil {
				return err
			}
			client := kvcache.DialTLS(at, os.Getenv("WEFT_TOKEN"), "", over)
			defer client.Close()
			s, err := client.Stat(ctx)
			if err != nil {
				return finding{err}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), s)
			}
			return printKVStat(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
