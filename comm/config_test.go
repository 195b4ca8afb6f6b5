package comm

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

func TestWrongEnvironment(t *testing.T) {
	for _, x := range []struct{ name, value, want string }{
		{"RANK", "a", `RANK="a" is not a number`},
		{"RANK", "2", "rank 2 of 2"},
		{"WORLD_SIZE", "-2", `WORLD_SIZE="-2" is below 0`},
		{"MASTER_PORT", "", "both are needed"},
		{"WEFT_STREAMS", "-3", `WEFT_STREAMS="-3" is below 0`},
		{"WEFT_FLIGHT", "-3", `WEFT_FLIGHT="-3" is below 0`},
		{"WEFT_RAILS", "two", "none of one, all"},
		{"WEFT_TIMEOUT", "30", "such as 30s"},
		{"WEFT_TIMEOUT", "-3s", "such as 30s"},
		{"WEFT_FLOOR", "5", "WEFT_FLOOR"},
		{"WEFT_TRANSPORT", "ib", "none of shm, tcp"},
		{"WEFT_TRANSPORT", "mem", "goroutines"},
		{"WEFT_REQUIRE", "ib", "none of shm, tcp"},
	} {
		env := map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", x.name: x.value}
		_, err := Join(context.Background(), fromEnv(func(s string) string { return env[s] }))
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s=%q: %v, want %q in it", x.name, x.value, err, x.want)
		}
	}
}

func TestAddressInBrackets(t *testing.T) {
	env := map[string]string{"MASTER_ADDR": "[::1]", "MASTER_PORT": "29500"}
	if c := fromEnv(func(s string) string { return env[s] }); c.Addr != "[::1]:29500" || c.err != nil {
		t.Errorf("address %q, %v", c.Addr, c.err)
	}
}

// Where nobody comes Join ends, although its context does not.
func TestJoinEnds(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Join(context.Background(), Config{Size: 2, Listener: ln, Timeout: 300 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "rank 1 of 2 did not come") {
		t.Error(err)
	}
}
