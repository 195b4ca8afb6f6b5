package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/observe/agent"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/server"
)

// Agents with the server's token are heard, others are not and learn why; without a token
// only this host is served.
func TestReportsNeedTheToken(t *testing.T) {
	if _, err := reportListener("0.0.0.0:0", "", "token"); err == nil || !strings.Contains(err.Error(), "WEFT_TOKEN") {
		t.Errorf("without a token, for everybody: %v", err)
	}
	s, err := server.New(server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := reportListener("127.0.0.1:0", "secret", "token")
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 1)
	stop := serveHTTP(s.Reports(), l, ends)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for token, ok := range map[string]bool{"secret": true, "other": false, "": false} {
		client, scheme, err := reportClient(token, "token")
		if err != nil {
			t.Fatal(err)
		}
		_, err = agent.HTTP(client, scheme+"://"+l.Addr().String())(ctx, &watch.Report{Host: "of-" + token, At: 1, Every: 1})
		if (err == nil) != ok {
			t.Errorf("token %q: %v", token, err)
		}
		client.CloseIdleConnections()
	}
	s.Tick()
	if h := s.View().Health; h.Hosts != 1 {
		t.Errorf("%d hosts are known", h.Hosts)
	}
}
