package cli_test

import (
	"bytes"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/app/cli"
	"go.etcd.io/etcd/server/v3/embed"
)

// An agent that published itself in etcd is found there while it lives.
func TestXferThroughEtcd(t *testing.T) {
	t.Setenv("WEFT_TOKEN", "")
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.LogOutputs = t.TempDir(), "fatal", []string{"/dev/null"}
	any := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = any, any
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(40 * time.Second):
		t.Fatal("etcd does not start")
	}
	at := e.Clients[0].Addr().String()
	in, end := io.Pipe()
	out, says := io.Pipe()
	over := make(chan int)
	go func() {
		over <- cli.Main([]string{"xfer", "serve", "--name", "store", "--region", "kv=host:64K", "--etcd", at}, in, says, io.Discard)
	}()
	if _, err := io.ReadFull(out, make([]byte, 10)); err != nil { // it says hello when it is published
		t.Fatal(err)
	}
	go io.Copy(io.Discard, out)
	var shown, errs bytes.Buffer
	if code := cli.Main([]string{"xfer", "show", "store", "--etcd", at}, strings.NewReader(""), &shown, &errs); code != 0 ||
		!strings.Contains(shown.String(), "kv      host  64 KiB  read, written") {
		t.Errorf("exit %d: %s%s", code, shown.String(), errs.String())
	}
	end.Close()
	select {
	case <-over:
	case <-time.After(20 * time.Second):
		t.Fatal("the agent does not end with its input")
	}
	if code := cli.Main([]string{"xfer", "show", "store", "--etcd", at}, strings.NewReader(""), io.Discard, &errs); code != 1 ||
		!strings.Contains(errs.String(), "nothing is published") {
		t.Errorf("one that is gone: exit %d: %s", code, errs.String())
	}
}
