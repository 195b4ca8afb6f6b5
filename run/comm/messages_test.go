package comm

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"
)

// Sends and receives are in the flight record, with their errors; one under way has no end.
func TestMessagesInTheFlightRecord(t *testing.T) {
	comms, err := LocalWith(2, quick)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := Send(ctx, comms[0], []float32{1, 2, 3}, 1); err != nil {
			t.Error(err)
		}
	})
	if err := Recv(ctx, comms[1], make([]float32, 3), 0); err != nil {
		t.Error(err)
	}
	wg.Wait()
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	h := RecvAsync(short, comms[1], make([]float64, 5), 0)
	under := comms[1].Flight().Messages()
	if len(under) != 2 || under[1].Ended != 0 || under[1].Bytes != 40 || under[1].What != "receive from" {
		t.Errorf("%+v", under)
	}
	if err := h.Wait(ctx); err == nil {
		t.Error("a message that nobody sent was received")
	}
	var b bytes.Buffer
	if err := comms[1].Flight().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var dump struct{ Messages []Message }
	if err := json.Unmarshal(b.Bytes(), &dump); err != nil || len(dump.Messages) != 2 {
		t.Fatalf("%v: %s", err, &b)
	}
	for i, m := range dump.Messages {
		if m.Peer != 0 || m.Began <= 0 || m.Ended < m.Began || (i == 1) != strings.Contains(m.Err, "time limit") {
			t.Errorf("message %d: %+v", i, m)
		}
	}
	for _, c := range comms {
		_ = c.Close()
	}
}
