package coord

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/internal/member"
)

func TestDialSaysWhatIsWrong(t *testing.T) {
	ctx := within(t)
	p := start(t, child{Server: ServerConfig{Dir: stateDir(t), Listen: "127.0.0.1:0", Token: testToken, Job: "job"}})
	open := start(t, child{Server: ServerConfig{Dir: stateDir(t), Listen: "127.0.0.1:0"}})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	nobody := freePort(t)
	for _, c := range []struct {
		name string
		cfg  Config
		is   error
		says []string
	}{
		{"nobody", Config{Endpoints: []string{nobody}, Job: "job", Token: testToken}, ErrUnreachable,
			[]string{nobody, "connection refused", "start the coordinator, or correct the address"}},
		{"silent", Config{Endpoints: []string{silent.Addr().String()}, Job: "job"}, ErrUnreachable, []string{"says nothing"}},
		{"other token", Config{Endpoints: []string{p.addr}, Job: "job", Token: "another"}, ErrToken,
			[]string{p.addr, "its token is another", "WEFT_TOKEN"}},
		{"no token", Config{Endpoints: []string{p.addr}, Job: "job"}, ErrToken, []string{"it wants TLS"}},
		{"token for one without", Config{Endpoints: []string{open.addr}, Job: "job", Token: testToken}, ErrToken,
			[]string{"it was started without a token or TLS"}},
		{"other job", Config{Endpoints: []string{p.addr}, Job: "other", Token: testToken}, ErrJob, []string{`serves job "job"`, `"other"`}},
	} {
		if c.is != ErrJob { // which is an answer
			c.cfg.Wait = 300 * time.Millisecond
		}
		client, err := Dial(ctx, c.cfg)
		if err == nil {
			client.Close()
			t.Errorf("%s: no error", c.name)
			continue
		}
		t.Log(err)
		wantError(t, err, c.is, c.says...)
	}
	for _, job := range []string{"", "a/b", "a b"} {
		if _, err := Dial(ctx, Config{Endpoints: []string{p.addr}, Job: job}); err == nil {
			t.Errorf("job %q was accepted", job)
		}
	}

	// In a cluster that jobs share, a job's token is compared, and the version of its data.
	shared := func(token string) (*Client, error) {
		return Dial(ctx, Config{Endpoints: []string{open.addr}, Job: "shared", Token: token, External: true})
	}
	c, err := shared("one")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = shared("two")
	wantError(t, err, ErrToken, `job "shared"`)
	if _, err := c.etcd.Put(ctx, c.prefix+"format", fmt.Sprintf(`{"version":%d,"job":"shared"}`, Format+1)); err != nil {
		t.Fatal(err)
	}
	_, err = shared("one")
	wantError(t, err, ErrVersion, fmt.Sprintf("version %d", Format+1), fmt.Sprintf("reads and writes %d", Format))
}

// A client that waits for a coordinator to come does not wait for one whose token is
// another, or that wants a token where there is none.
func TestAWrongTokenIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	ours := single(t, nil)
	open := start(t, child{Server: ServerConfig{Dir: stateDir(t), Listen: freePort(t), Open: true}, Job: "job"})
	for _, c := range []struct{ at, token string }{{ours.addr, "another"}, {ours.addr, ""}, {open.addr, testToken}} {
		_, err := Dial(within(t), Config{Endpoints: []string{c.at}, Job: "job", Token: c.token, Wait: time.Hour})
		wantError(t, err, ErrToken, c.at)
	}
}

// The address may be that of a coordinator with a token or of any etcd, which may
// not be there yet.
func TestDetect(t *testing.T) {
	t.Parallel()
	ours := single(t, nil)
	at := freePort(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := Dial(within(t), Config{Endpoints: []string{at}, Job: "job", Token: testToken, Detect: true})
		if err != nil || !c.External() {
			t.Errorf("an etcd without TLS: %v", err)
		}
		if err == nil {
			c.Close()
		}
	}()
	start(t, child{Server: ServerConfig{Dir: stateDir(t), Listen: at, Open: true}, Job: "job"})
	<-ended
	c, err := Dial(within(t), Config{Endpoints: []string{ours.addr}, Job: "job", Token: testToken, Detect: true})
	if err != nil || c.External() {
		t.Errorf("a coordinator with a token: %v", err)
	}
	if err == nil {
		c.Close()
	}
}

func TestServeSaysWhatIsWrong(t *testing.T) {
	ctx := within(t)
	p := start(t, child{Server: ServerConfig{Dir: stateDir(t), Listen: "127.0.0.1:0", Job: "job"}})
	dir := p.conf.Server.Dir
	_, err := Serve(ctx, ServerConfig{Dir: dir, Listen: "127.0.0.1:0", Job: "other"})
	wantError(t, err, ErrJob, `data of job "job"`, `"other"`)
	refuse := func(c ServerConfig, says string) {
		t.Helper()
		_, err := Serve(ctx, c)
		if err == nil {
			t.Fatalf("%+v was accepted", c)
		}
		wantError(t, err, err, says)
	}
	refuse(ServerConfig{Dir: dir, Listen: "127.0.0.1:0", Job: "job"}, "in use by another coordinator")
	refuse(ServerConfig{Dir: dir + "2", Listen: "0.0.0.0:0"}, "token")
	refuse(ServerConfig{Dir: dir + "3", Listen: p.addr}, "address already in use")
	refuse(ServerConfig{Dir: dir + "4", Listen: "127.0.0.1"}, "host:port")
	refuse(ServerConfig{Listen: "127.0.0.1:0"}, "set Dir")
	refuse(ServerConfig{Dir: dir + "5", Listen: "127.0.0.1:0", Name: "a", Peers: []string{"b=127.0.0.1:1"}}, "not among the servers")
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refuse(ServerConfig{Dir: other, Listen: "127.0.0.1:0"}, "thesis.tex")
	p.kill()
	if err := os.WriteFile(filepath.Join(dir, markerFile), []byte(`{"version":9,"job":"job","name":"weft"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Serve(ctx, ServerConfig{Dir: dir, Listen: "127.0.0.1:0", Job: "job"})
	wantError(t, err, ErrVersion, "version 9")
}

// A user and a password of a cluster that others run.
func TestUserAndPassword(t *testing.T) {
	ctx := within(t)
	p := start(t, child{Server: ServerConfig{Dir: stateDir(t), Listen: freePort(t)}})
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{p.addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for _, do := range []func() error{
		func() error { _, err := admin.RoleAdd(ctx, "root"); return err },
		func() error { _, err := admin.UserAdd(ctx, "root", "s3cret"); return err },
		func() error { _, err := admin.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := admin.AuthEnable(ctx); return err },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	dial := func(user, password string) (*Client, error) {
		return Dial(ctx, Config{Endpoints: []string{p.addr}, Job: "job", User: user, Password: password, Token: "t", External: true,
			Wait: bounded.Limit / 4})
	}
	if _, err := dial("root", "wrong"); err == nil {
		t.Fatal("a wrong password was accepted")
	} else {
		wantError(t, err, err, `user "root"`, "correct user and password")
	}
	if _, err := dial("", ""); err == nil {
		t.Fatal("nobody was accepted")
	}
	c, err := dial("root", "s3cret")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	workers := c.WatchWorkers(ctx)
	r := register(t, c, 3)
	await(t, workers, "worker 3", func(e WorkerEvent) bool { return e.Worker.ID == 3 })
	// What the password was exchanged for does not outlive the server.
	p.kill()
	p = start(t, p.conf)
	s := register(t, c, 4)
	await(t, workers, "worker 4", func(e WorkerEvent) bool { return e.Worker.ID == 4 })
	for _, r := range []*Registration{r, s} {
		if err := r.Leave(ctx); err != nil {
			t.Error(err)
		}
	}
}

func TestIdIsTaken(t *testing.T) {
	ctx := within(t)
	p := single(t, nil)
	c := dialTerm(t, 4*time.Second, p.addr) // the first one keeps its place as long as this process is not stopped for that long
	first := register(t, c, 5)
	_, err := c.Register(ctx, Worker{ID: 5, Host: "elsewhere", PID: 1})
	wantError(t, err, ErrTaken, "worker 5 (pid 105 on h)", "choose another id")
	// A process whose predecessor has died waits for the lease and gets its place.
	first.cancel()
	second := register(t, c, 5)
	if second.Worker().Life == first.Worker().Life {
		t.Error("two processes have one life")
	}
	if a, b := register(t, c, Any), register(t, c, Any); a.Worker().ID != 0 || b.Worker().ID != 1 {
		t.Errorf("free ids: %d, %d", a.Worker().ID, b.Worker().ID)
	}
	// One that is reported dead and lives enters anew.
	events := c.WatchWorkers(ctx)
	life := second.Worker().Life
	if err := c.ReportDead(ctx, 5, life, "seen to end"); err != nil {
		t.Fatal(err)
	}
	await(t, events, "its return", func(e WorkerEvent) bool { return e.Word == Joined && e.Worker.ID == 5 && e.Worker.Life != life })
	_, err = c.Register(ctx, Worker{ID: outside})
	if err == nil {
		t.Error("a reserved id was accepted")
	}
}

func TestGather(t *testing.T) {
	ctx := within(t)
	p := single(t, nil)
	const n = 5
	e := Epoch{Number: 1, Members: []Seat{}}
	for i := range member.ID(n) {
		e.Members = append(e.Members, Seat{Seat: member.Seat{ID: 10 + i, Life: 1}, Host: fmt.Sprint("host", i)})
	}
	clients := make([]*Client, n)
	for i := range clients {
		clients[i] = dial(t, p.addr)
	}
	if _, err := clients[0].Publish(ctx, e); err != nil {
		t.Fatal(err)
	}
	each := func(ranks int, f func(rank int)) {
		var all sync.WaitGroup
		for r := range ranks {
			all.Go(func() { f(r) })
		}
		all.Wait()
	}
	value := func(rank int) []byte { return bytes.Repeat([]byte{byte('a' + rank)}, rank*3) }
	each(n, func(r int) {
		all, err := clients[r].Gather(ctx, e, r, "addresses", value(r))
		if err != nil || len(all) != n {
			t.Errorf("rank %d: %q, %v", r, all, err)
			return
		}
		for i, v := range all {
			if !bytes.Equal(v, value(i)) {
				t.Errorf("rank %d has %q of rank %d", r, v, i)
			}
		}
	})
	_, err := clients[1].Gather(ctx, e, 1, "addresses", []byte("another"))
	wantError(t, err, ErrConflict, "a name serves once in an epoch")
	_, err = clients[0].Gather(ctx, e, 0, "tensor", make([]byte, MaxValue+1))
	wantError(t, err, ErrTooLarge, "65537", "65536", "comm")

	each(n-2, func(r int) { // ranks 3 and 4 do not come; the others have when their time is up
		if err := clients[r].once(ctx, fmt.Sprintf("%sin/%08x", gatherKey(e, "step-7"), r), nil, "another value"); err != nil {
			t.Error(err)
		}
	})
	each(n-2, func(r int) {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		err := clients[r].Barrier(short, e, r, "step-7")
		var missing *MissingError
		if !errors.As(err, &missing) || len(missing.Ranks) != 2 || missing.Ranks[0] != 3 || missing.Ranks[1] != 4 {
			t.Errorf("rank %d: %v", r, err)
			return
		}
		wantError(t, err, context.DeadlineExceeded, `"step-7" in epoch 1`, "3 of 5 came",
			"rank 3 (worker 13 on host3), rank 4 (worker 14 on host4)")
	})
	// Those that wait are told of a later epoch. Its publication follows the first value.
	each(2, func(r int) {
		if r == 0 {
			wantError(t, clients[0].Barrier(ctx, e, 0, "never"), ErrSuperseded, "epoch 2", "worker 13 died")
			return
		}
		clients[1].follow(ctx, gatherKey(e, "never")+"in/", func(news []change) bool { return len(news) == 0 })
		if _, err := clients[1].Publish(ctx, Epoch{Number: 2, Members: e.Members[:3], Reason: "worker 13 died"}); err != nil {
			t.Error(err)
		}
	})
}

func TestParseEndpoints(t *testing.T) {
	for s, want := range map[string]string{
		"etcd://a:1,b:2": "[a:1 b:2]", "a:1": "[a:1]", "etcd://[::1]:2379/": "[[::1]:2379]",
		"": "", "http://a:1": "", "a": "", "a:1,": "", ":1": "", "a:": "", "a:1/x": "",
	} {
		list, err := ParseEndpoints(s)
		if got := fmt.Sprint(list); want != "" && (err != nil || got != want) || want == "" && err == nil {
			t.Errorf("%q: %v, %v; want %q", s, list, err, want)
		}
	}
}

// A server in this process leaves nothing behind when it is closed, and continues
// on its directory.
func TestServeInThisProcess(t *testing.T) {
	ctx := within(t)
	conf := ServerConfig{Dir: stateDir(t), Listen: freePort(t), Token: testToken, Job: "job", NoSync: true}
	for n := uint64(1); n <= 2; n++ {
		s, err := Serve(ctx, conf)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Dial(ctx, Config{Endpoints: []string{s.Address()}, Job: "job", Token: testToken})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Publish(ctx, Epoch{Number: n, Members: []Seat{{Seat: member.Seat{ID: 0, Life: 1}}}}); err != nil {
			t.Error(err)
		}
		c.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
