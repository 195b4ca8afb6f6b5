package coord

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-fabric/weft/run/retry"
)

const (
	// keepAliveTime is how often an idle connection is tried; an answer is due in
	// a second. gRPC does so every 10 s at most, etcd's servers bear one in 5.
	keepAliveTime = 10 * time.Second
	// attempt is how long a request may take before it is made again, for the
	// first time; twice as long for each further time, up to longest. One that a
	// server had passed on to a leader that was then lost is never answered.
	attempt = 500 * time.Millisecond
	longest = 4 * time.Second
	// again is the time between two attempts.
	again = 20 * time.Millisecond
)

// servesKey names the only job of a server.
const servesKey = "/weft/serves"

// Config says which coordinator, which job, and who asks.
type Config struct {
	// Endpoints are host:port of each server of the cluster; see ParseEndpoints.
	Endpoints []string

	// Job is the name under which the processes meet. Jobs of one cluster do not
	// see one another.
	Job string

	// Token is the secret of the job. A server started by Serve with a token is
	// reached under certificates that follow from it. With TLS, User or External
	// set it is only compared with that of the others of the job.
	Token string

	// TLS, User and Password are those of a cluster that others run, and External
	// says that it is one, so that the token does not make the connection.
	TLS            *tls.Config
	User, Password string
	External       bool

	// Detect finds out whether Endpoints speak TLS, and takes them for External if they
	// do not: the address may be that of a coordinator of this program or of any etcd.
	Detect bool

	// Wait is how long Dial tries before it says that nobody answers; 10 s if 0.
	Wait time.Duration

	// TTL is the term of leases, in whole seconds and TTL if 0.
	TTL time.Duration
}

// ParseEndpoints reads etcd://host:2379,host2:2379, or the addresses alone.
func ParseEndpoints(s string) ([]string, error) {
	rest := s
	if scheme, r, ok := strings.Cut(s, "://"); ok {
		if scheme != "etcd" {
			return nil, fmt.Errorf("coord: address %q has scheme %q; known is etcd, as in etcd://host:2379,host2:2379", s, scheme)
		}
		rest = r
	}
	var list []string
	for _, a := range strings.Split(strings.TrimSuffix(rest, "/"), ",") {
		host, port, err := net.SplitHostPort(a)
		if err != nil || host == "" || port == "" || strings.ContainsAny(a, "/?#@ \t\r\n") {
			return nil, fmt.Errorf("coord: %q in address %q is not host:port, as in etcd://host:2379,host2:2379", a, s)
		}
		list = append(list, a)
	}
	return list, nil
}

// Client is a process's connection with the coordinator. It may be used by many
// goroutines at a time, and finds the coordinator again by itself.
type Client struct {
	cfg    Config
	etcd   *clientv3.Client
	prefix string // of the job's keys
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup // of this client; Close waits for them
	heard  atomic.Int64   // when the coordinator last answered, in nanoseconds since 1970
}

// Silence is how long ago the coordinator last answered this client. A client with a
// registered worker asks four times a term.
func (c *Client) Silence() time.Duration { return time.Since(time.Unix(0, c.heard.Load())) }

// External reports whether the coordinator is an etcd that others run.
func (c *Client) External() bool { return c.cfg.External }

// Endpoints are the addresses of the coordinator.
func (c *Client) Endpoints() []string { return c.cfg.Endpoints }

func (c *Client) answered() { c.heard.Store(time.Now().UnixNano()) }

// Dial connects with the coordinator and checks that it has this job's data, of
// this version and under this token; the first of a job writes the record that
// the others compare.
func Dial(ctx context.Context, cfg Config) (*Client, error) {
	if err := checkName("job", cfg.Job); err != nil {
		return nil, err
	}
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("coord: no address of a coordinator; set Endpoints, as in etcd://host:2379")
	}
	if cfg.Wait <= 0 {
		cfg.Wait = 10 * time.Second
	}
	if cfg.TTL <= 0 {
		cfg.TTL = TTL
	}
	if cfg.TTL%time.Second != 0 {
		return nil, fmt.Errorf("coord: a lease of %v; etcd counts whole seconds, the least is %v", cfg.TTL, TTL)
	}
	if err := cfg.secure(ctx); err != nil {
		return nil, err
	}
	scheme := "http://"
	if cfg.TLS != nil {
		scheme = "https://"
	}
	conf := clientv3.Config{
		TLS: cfg.TLS, Logger: zap.NewNop(),
		Username: cfg.User, Password: cfg.Password, DialTimeout: cfg.Wait,
		DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: time.Second, PermitWithoutStream: true,
		// A request is made again here, where its context and its meaning are known.
		MaxUnaryRetries: 1, BackoffWaitBetween: again,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond},
			MinConnectTimeout: time.Second,
		})},
	}
	for _, e := range cfg.Endpoints {
		conf.Endpoints = append(conf.Endpoints, scheme+e)
	}
	life, cancel := context.WithCancel(context.Background())
	conf.Context = life
	c := &Client{cfg: cfg, prefix: "/weft/job/" + cfg.Job + "/", ctx: life, cancel: cancel}
	stop := context.AfterFunc(ctx, cancel)
	began := time.Now()
	if err := c.connect(ctx, conf, stop, began); err != nil {
		return nil, err
	}
	if err := c.greet(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// secure settles how the connection is encrypted: as the configuration says, or by the job's token, unless the server is
// an etcd of somebody else. With Detect that is found out by asking it.
func (cfg *Config) secure(ctx context.Context) error {
	if cfg.TLS != nil || cfg.User != "" || cfg.External {
		return nil
	}
	if cfg.Detect {
		began := time.Now()
		clear, known := inTheClear(ctx, cfg.Endpoints, cfg.Wait)
		if !known {
			return (&Client{cfg: *cfg}).refused(ErrUnreachable, began)
		}
		cfg.External = clear
	}
	if cfg.Token == "" || cfg.External {
		return nil
	}
	var err error
	cfg.TLS, err = tokenTLS(cfg.Token)
	return err
}

// connect makes the client of etcd. stop ends the watch over ctx; if it is too late for that, ctx is over.
func (c *Client) connect(ctx context.Context, conf clientv3.Config, stop func() bool, began time.Time) (err error) {
	c.etcd, err = clientv3.New(conf) // with a user it asks for leave at once, and otherwise does not connect
	if !stop() || err != nil {
		c.cancel()
		if c.etcd != nil {
			c.etcd.Close()
		}
		if err == nil || transient(err) {
			return c.refused(fmt.Errorf("coord: %w: %w", ErrUnreachable, cmp.Or(err, ctx.Err())), began)
		}
		return fmt.Errorf("coord: user %q at %s: %w; correct user and password", c.cfg.User, strings.Join(c.cfg.Endpoints, ","), err)
	}
	return nil
}

// greet makes sure that this is the job's coordinator.
func (c *Client) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Wait)
	defer cancel()
	c.answered() // it has not been asked yet
	began := time.Now()
	mine := format{Version: Format, Job: c.cfg.Job, Proof: proof(c.cfg.Token, c.cfg.Job)}
	value, err := encode("the record of a job", mine, MaxValue)
	if err != nil {
		return err
	}
	var answer *clientv3.TxnResponse
	// A coordinator that is not there yet is waited for. One with another token is not.
	err = c.try(ctx, c.mistrust, func(ctx context.Context) (err error) {
		key := c.prefix + "format"
		answer, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
			clientv3.Compare(clientv3.CreateRevision(servesKey), "=", 0)).
			Then(clientv3.OpPut(key, value)).
			Else(clientv3.OpGet(key), clientv3.OpGet(servesKey)).Commit()
		return err
	})
	if err != nil {
		return c.refused(err, began)
	}
	if answer.Succeeded {
		return nil
	}
	at := strings.Join(c.cfg.Endpoints, ",")
	if kvs := answer.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		f, err := decodeFormat(kvs[0].Value)
		switch {
		case err != nil:
			return fmt.Errorf("%w (of the coordinator at %s: %w)", err, at, ErrVersion)
		case f.Version != Format:
			return fmt.Errorf("coord: %s writes version %d, this program reads and writes %d; use one version of it everywhere: %w",
				at, f.Version, Format, ErrVersion)
		case f.Job != c.cfg.Job:
			return fmt.Errorf("coord: %s serves job %q, asked for is %q; correct the name or the address: %w", at, f.Job, c.cfg.Job, ErrJob)
		}
	}
	kvs := answer.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 { // it serves this job, which has no data yet
		err := c.do(ctx, func(ctx context.Context) error {
			key := c.prefix + "format"
			answer, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
				Then(clientv3.OpPut(key, value)).Else(clientv3.OpGet(key)).Commit()
			return err
		})
		if err != nil {
			return c.refused(err, began)
		}
		if answer.Succeeded {
			return nil
		}
		kvs = answer.Responses[0].GetResponseRange().Kvs
	}
	f, err := decodeFormat(kvs[0].Value)
	switch {
	case err != nil:
		return fmt.Errorf("%w (of job %q at %s: %w)", err, c.cfg.Job, at, ErrVersion)
	case f.Version != Format:
		return fmt.Errorf("coord: job %q at %s has data of version %d, this program reads and writes %d; use one version of it everywhere, or another job name: %w",
			c.cfg.Job, at, f.Version, Format, ErrVersion)
	case f.Job != c.cfg.Job:
		return fmt.Errorf("coord: the keys of job %q at %s hold data of job %q: %w", c.cfg.Job, at, f.Job, ErrJob)
	case f.Proof != mine.Proof:
		return fmt.Errorf("coord: job %q at %s: %w", c.cfg.Job, at, ErrToken)
	}
	return nil
}

// refused says why a first request was not answered, address by address.
func (c *Client) refused(err error, began time.Time) error {
	if !errors.Is(err, ErrUnreachable) {
		return err
	}
	waited := time.Since(began)
	var found []string
	token := false
	for _, e := range c.cfg.Endpoints {
		why, bad := c.probe(e)
		found, token = append(found, e+": "+why), token || bad
	}
	what := fmt.Sprintf("coord: job %q, tried for %.1f s: %s", c.cfg.Job, waited.Seconds(), strings.Join(found, "; "))
	if token {
		return fmt.Errorf("%s: %w", what, ErrToken)
	}
	return fmt.Errorf("%s; start the coordinator, or correct the address: %w", what, ErrUnreachable)
}

// greeting is the beginning of HTTP/2: the client's preface and its settings. A
// server answers with its own, which begin with a length below 65,536.
const greeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// greets reports whether an address answers a greeting, in the clear or under
// TLS, and what came instead.
func greets(endpoint string, config *tls.Config) error {
	conn, err := net.DialTimeout("tcp", endpoint, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"h2"}
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(endpoint)
		}
		conn = tls.Client(conn, config)
	}
	first := make([]byte, 1)
	if _, err = io.WriteString(conn, greeting); err == nil {
		_, err = io.ReadFull(conn, first) // under TLS 1.3 a refusal comes with the first byte
	}
	if err == nil && first[0] != 0 {
		err = errors.New("what answers does not speak HTTP/2")
	}
	return err
}

// probe asks one address what is wrong with it, and whether it is the token.
func (c *Client) probe(endpoint string) (why string, token bool) {
	err := greets(endpoint, c.cfg.TLS)
	var op *net.OpError
	switch {
	case err == nil:
		return "answers, but has no leader or not the time; most servers of a cluster must run", false
	case errors.Is(err, ErrToken):
		return "its token is another", true
	case errors.As(err, &op) && op.Op == "dial":
		if isTimeout(err) {
			return "no answer within a second", false
		}
		return op.Err.Error(), false
	case c.cfg.TLS == nil && isTimeout(err):
		return "connects and says nothing; it may not be a coordinator", false
	case c.cfg.TLS == nil && c.cfg.Token != "":
		return "it answered too late", false
	case c.cfg.TLS == nil:
		return "it wants TLS, and neither a token nor TLS is set here", true
	case greets(endpoint, nil) == nil:
		return "it was started without a token or TLS, and one is set here", true
	}
	return "TLS: " + err.Error(), false
}

// mistrust reports whether an endpoint answers and will never accept this client: it
// has another token, or TLS where this client has none, or the other way round.
func (c *Client) mistrust() bool {
	for _, e := range c.cfg.Endpoints {
		clear, secure := languages(e)
		switch {
		case c.cfg.TLS == nil && secure, c.cfg.TLS != nil && clear:
			return true
		case c.cfg.TLS != nil && secure && errors.Is(greets(e, c.cfg.TLS), ErrToken):
			return true
		}
	}
	return false
}

// languages finds out whether an address answers a greeting in the clear, and
// whether it does a TLS handshake. Certificates are not looked at.
func languages(endpoint string) (clear, secure bool) {
	if greets(endpoint, nil) == nil {
		return true, false
	}
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Second}, Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", endpoint)
	if err == nil {
		conn.Close()
	}
	return false, err == nil
}

// inTheClear waits until one of several endpoints answers and says whether that one
// speaks without TLS. It is not known if none answers in time.
func inTheClear(ctx context.Context, endpoints []string, wait time.Duration) (clear, known bool) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		for _, e := range endpoints {
			if clear, secure := languages(e); clear || secure {
				return clear, true
			}
		}
		pause(ctx, 10*again)
		if ctx.Err() != nil {
			return false, false
		}
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// transient reports whether a request may succeed when it is made again.
func transient(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, rpctypes.ErrInvalidAuthToken) {
		return true
	}
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code() == codes.Unavailable
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return true
	}
	return false
}

// do makes a request until it is answered or the context ends. A request may have
// been carried out although its answer was lost; what is asked for is such that a
// second time does no harm.
func (c *Client) do(ctx context.Context, request func(context.Context) error) error {
	return c.try(ctx, nil, request)
}

// try is do with something to ask after every attempt that was not answered: hopeless
// says that no further one will be.
func (c *Client) try(ctx context.Context, hopeless func() bool, request func(context.Context) error) error {
	began := time.Now()
	var last error
	for limit := attempt; ; limit = min(2*limit, longest) {
		try, cancel := context.WithTimeout(ctx, limit)
		err := request(try)
		cancel()
		switch {
		case err == nil:
			c.answered()
			return nil
		case c.ctx.Err() != nil:
			return fmt.Errorf("coord: the client is closed: %w", err)
		case ctx.Err() != nil || hopeless != nil && transient(err) && hopeless():
			if last == nil {
				last = err
			}
			return fmt.Errorf("coord: %s for %.1f s (%w): %w; last answer: %v", strings.Join(c.cfg.Endpoints, ","), time.Since(began).Seconds(),
				cmp.Or(ctx.Err(), err), ErrUnreachable, last)
		case !transient(err):
			return fmt.Errorf("coord: %s: %w", strings.Join(c.cfg.Endpoints, ","), err)
		}
		last = err
		pause(ctx, again)
	}
}

// pause lets time pass, or less if the context ends.
func pause(ctx context.Context, d time.Duration) {
	p := retry.Pause(d, d)
	_ = p.Wait(ctx)
}

// Close lets go of the connection. Registered workers keep their leases until
// these end; Leave first.
func (c *Client) Close() error {
	c.cancel()
	c.tasks.Wait()
	return c.etcd.Close()
}

// bind makes a context that ends with the client's, too.
func (c *Client) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}
