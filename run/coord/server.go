package coord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport/auth"
)

// ServerConfig says where and for whom a coordinator of one's own runs.
type ServerConfig struct {
	// Dir holds the state: a directory of this server's alone, made if it is not
	// there. A restart on the same one continues. Each write is on disk before it
	// is answered, which takes 0.3 to 2.2 ms on the disks tried.
	Dir string

	// NoSync leaves it to the system when writes reach the disk: 0.1 ms each
	// rather than milliseconds. The state survives the end of this process, as
	// ever, but not that of the host. It is for jobs of one host, which do not
	// survive that either.
	NoSync bool

	// Listen is the address for clients, host:port. Port 0 takes any free one; a
	// server that is to be found again after a restart needs a port of its own.
	Listen string

	// Job, if set, is the only job that the server is for.
	Job string

	// Token is the secret of the job: clients and servers prove to one another
	// that they have it, by certificates that follow from it. Without one Listen
	// must be an address that only this host reaches, unless Open is set or TLS
	// has an authority that clients' certificates are held against.
	Token string
	Open  bool

	// TLS takes the place of the token's certificates.
	TLS Files

	// Name and Peers make it one of several: the name of this one, and of each,
	// this one too, "name=host:port" where the servers reach it. Three bear the
	// loss of one.
	Name  string
	Peers []string
}

// Server is a coordinator in this process.
type Server struct {
	etcd *embed.Etcd
	lock *os.File
	addr string
	stop sync.Once
}

// marker says that a directory is a coordinator's.
type marker struct {
	Version int    `json:"version"`
	Job     string `json:"job"`
	Name    string `json:"name"`
}

const markerFile = "weft-coord.json"

// hold takes a directory for this process, and checks whose data it has.
func (c *ServerConfig) hold() (lock *os.File, err error) {
	if c.Dir == "" {
		return nil, errors.New("coord: no directory for the coordinator's state; set Dir")
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("coord: directory of the coordinator's state: %w", err)
	}
	path := filepath.Join(c.Dir, markerFile)
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		found, err := os.ReadDir(c.Dir)
		if err != nil {
			return nil, fmt.Errorf("coord: directory of the coordinator's state: %w", err)
		}
		// The lock alone is what a server that was killed in its first moment leaves.
		if i := slices.IndexFunc(found, func(d os.DirEntry) bool { return d.Name() != "lock" && d.Name() != markerFile+".new" }); i >= 0 {
			return nil, fmt.Errorf("coord: %s holds %q and is not a coordinator's directory; choose an empty or a new one", c.Dir, found[i].Name())
		}
	case err != nil:
		return nil, fmt.Errorf("coord: directory of the coordinator's state: %w", err)
	default:
		var m marker
		if err := json.Unmarshal(b, &m); err != nil {
			return nil, fmt.Errorf("coord: %s is damaged: %w", path, err)
		}
		if m.Version != Format {
			return nil,
				fmt.Errorf("coord: %s has data of version %d, this program reads and writes %d; use another directory or the program that wrote it: %w",
					c.Dir, m.Version, Format, ErrVersion)
		}
		if m.Job != c.Job || m.Name != c.Name {
			return nil, fmt.Errorf("coord: %s has the data of job %q, server %q, asked for are job %q, server %q; use another directory: %w",
				c.Dir, m.Job, m.Name, c.Job, c.Name, ErrJob)
		}
	}
	lock, err = os.OpenFile(filepath.Join(c.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("coord: directory of the coordinator's state: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("coord: %s is in use by another coordinator; stop that one or choose another directory (%w)", c.Dir, err)
	}
	if b == nil {
		b, err = json.Marshal(marker{Format, c.Job, c.Name})
		if err == nil {
			err = os.WriteFile(path+".new", b, 0o600)
		}
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			lock.Close()
			return nil, fmt.Errorf("coord: %w", err)
		}
	}
	return lock, nil
}

// etcd makes the configuration of the store.
func (c *ServerConfig) etcd() (*embed.Config, error) {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("coord: address %q to listen on is not host:port: %w", c.Listen, err)
	}
	if err := auth.CheckToken(c.Token, host, c.Open || c.TLS.CA != ""); err != nil {
		return nil, fmt.Errorf("coord: listen on %s: %w", c.Listen, err)
	}
	files := c.TLS
	if files == (Files{}) && c.Token != "" {
		if files, err = writeIdentity(c.Dir, c.Token); err != nil {
			return nil, err
		}
	}
	e := embed.NewConfig()
	e.Name, e.Dir = c.Name, filepath.Join(c.Dir, "etcd")
	// One node alone elects itself, the sooner the better: ready in 0.1 to 0.2 s,
	// against 0.6 with etcd's defaults. Several must bear a pause of one.
	e.TickMs, e.ElectionMs = 10, 100
	if len(c.Peers) > 0 {
		e.TickMs, e.ElectionMs = 50, 500
	}
	e.LogLevel, e.LogOutputs = "error", []string{filepath.Join(c.Dir, "etcd.log")}
	e.AutoCompactionMode, e.AutoCompactionRetention = "periodic", "10m"
	e.EnableGRPCGateway = false
	e.UnsafeNoFsync = c.NoSync
	e.GRPCKeepAliveMinTime = keepAliveTime / 2
	scheme := "http"
	if files != (Files{}) {
		scheme = "https"
		e.ClientTLSInfo = transport.TLSInfo{CertFile: files.Cert, KeyFile: files.Key, TrustedCAFile: files.CA, ClientCertAuth: files.CA != "",
			SkipClientSANVerify: true}
		e.PeerTLSInfo = e.ClientTLSInfo
		if files != c.TLS {
			e.PeerTLSInfo.ServerName = serverName
		}
	}
	e.ListenClientUrls = []url.URL{{Scheme: scheme, Host: c.Listen}}
	e.AdvertiseClientUrls = e.ListenClientUrls
	if len(c.Peers) == 0 {
		// Nobody comes there; etcd wants one all the same.
		e.ListenPeerUrls = []url.URL{{Scheme: scheme, Host: "127.0.0.1:0"}}
		e.AdvertisePeerUrls = e.ListenPeerUrls
		e.InitialCluster = e.InitialClusterFromName(c.Name)
		return e, nil
	}
	var cluster []string
	for _, p := range c.Peers {
		name, addr, ok := strings.Cut(p, "=")
		if _, _, err := net.SplitHostPort(addr); !ok || err != nil || checkName("server", name) != nil {
			return nil, fmt.Errorf("coord: server %q is not name=host:port", p)
		}
		u := url.URL{Scheme: scheme, Host: addr}
		if name == c.Name {
			e.ListenPeerUrls, e.AdvertisePeerUrls = []url.URL{u}, []url.URL{u}
		}
		cluster = append(cluster, name+"="+u.String())
	}
	if !slices.ContainsFunc(c.Peers, func(p string) bool { return strings.HasPrefix(p, c.Name+"=") }) {
		return nil, fmt.Errorf("coord: server %q is not among the servers %s; add it with its address", c.Name, strings.Join(c.Peers, ", "))
	}
	e.InitialCluster, e.InitialClusterToken = strings.Join(cluster, ","), "weft-"+c.Job
	return e, nil
}

// Serve starts a coordinator in this process and returns once it answers; one of
// several does so once most of them are there. The context bounds the start only.
func Serve(ctx context.Context, c ServerConfig) (*Server, error) {
	if c.Name == "" {
		c.Name = "weft"
	}
	if err := checkName("server", c.Name); err != nil {
		return nil, err
	}
	if c.Job != "" {
		if err := checkName("job", c.Job); err != nil {
			return nil, err
		}
	}
	lock, err := c.hold()
	if err != nil {
		return nil, err
	}
	conf, err := c.etcd()
	if err != nil {
		lock.Close()
		return nil, err
	}
	e, err := embed.StartEtcd(conf)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("coord: coordinator on %s with state in %s: %w; is the address another's, or the disk full? (%s has more)",
			c.Listen, c.Dir, err, conf.LogOutputs[0])
	}
	s := &Server{etcd: e, lock: lock, addr: e.Clients[0].Addr().String()}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		s.Close()
		return nil, fmt.Errorf("coord: coordinator on %s: %w", c.Listen, err)
	case <-ctx.Done():
		s.Close()
		return nil, fmt.Errorf("coord: coordinator on %s is not ready: %w; most of the servers %q must run", c.Listen, ctx.Err(), c.Peers)
	}
	if c.Job != "" {
		b, err := json.Marshal(format{Version: Format, Job: c.Job})
		if err == nil {
			_, err = e.Server.Put(ctx, &etcdserverpb.PutRequest{Key: []byte(servesKey), Value: b})
		}
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("coord: coordinator on %s: first write: %w", c.Listen, err)
		}
	}
	return s, nil
}

// Address is where clients reach the server, host:port.
func (s *Server) Address() string { return s.addr }

// Err delivers what ends the server of itself.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Close stops the server. Its state stays, and so do the leases in it.
func (s *Server) Close() error {
	s.stop.Do(func() {
		s.etcd.Close()
		s.lock.Close()
	})
	return nil
}
