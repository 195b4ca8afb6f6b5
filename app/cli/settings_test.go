package cli

import (
	"bytes"
	"strings"
	"testing"
)

// Every verb that starts ranks refuses a WEFT_ variable that is not known, or whose value is not, before it starts any: exit code 2.
func TestWrongSettings(t *testing.T) {
	verbs := [][]string{
		{"bench", "all-reduce", "-n", "2", "-b", "8", "-e", "8"},
		{"bench", "--compare", "all-reduce", "-n", "2", "--sizes", "8"},
		{"bench", "--predict", "all-reduce", "-n", "2", "-b", "8", "-e", "8"},
		{"run", "-n", "2", "--", "true"},
		{"run", "--nproc", "2", "--", "true"},
		{"up", "--ranks", "2", "--for", "1s"},
		{"algo", "synth", "--measured", "-n", "2"},
	}
	for _, x := range []struct{ name, value, want string }{
		{"WEFT_TRANPORT", "tcp", "did you mean WEFT_TRANSPORT?"},
		{"WEFT_TRANSPORT", "ib", `WEFT_TRANSPORT="ib" is none of shm, tcp, mixed, ucx`},
		{"WEFT_REQUIRE", "ib", `WEFT_REQUIRE="ib" is none of`},
		{"WEFT_RAILS", "two", `WEFT_RAILS="two" is none of one, all, discover`},
		{"WEFT_STREAMS", "x", `WEFT_STREAMS="x" is not a number`},
		{"WEFT_TIMEOUT", "3", `WEFT_TIMEOUT="3" is not a time`},
		{"WEFT_QUORUM", "most", `WEFT_QUORUM="most" is none of`},
		{"WEFT_FLOOR", "fast", `WEFT_FLOOR="fast" is not a rate`},
		{"WEFT_LOG", "loud", `WEFT_LOG="loud" is none of`},
		{"WEFT_OUTAGE", "-3", `WEFT_OUTAGE="-3" is neither`},
		{"WEFT_CHECKSUM", "some", `WEFT_CHECKSUM="some" is none of`},
		{"WEFT_TLS", "/nowhere", `WEFT_TLS="/nowhere"`},
		{"WEFT_CANONICAL", "yes", `WEFT_CANONICAL="yes" is none of`},
		{"WEFT_MEASURE", "yes", `WEFT_MEASURE="yes" is none of`},
		{"WEFT_EXPLAIN", "yes", `WEFT_EXPLAIN="yes" is none of`},
		{"WEFT_FLIGHT", "x", `WEFT_FLIGHT="x" is not a number`},
		{"WEFT_FLIGHT_DIR", "/proc/nothing", `(WEFT_FLIGHT_DIR) "/proc/nothing"`},
		{"WEFT_WATCH", "/proc/nothing", `(WEFT_WATCH) "/proc/nothing"`},
		{"WEFT_INTERFACES", "eth0,", `WEFT_INTERFACES="eth0,"`},
		{"WEFT_CUDA", "fast", `WEFT_CUDA: way "fast" is none of`},
		{"WEFT_CUDA_SUMS", "there", `WEFT_CUDA_SUMS: sums "there" are none of`},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Setenv(x.name, x.value)
			for _, args := range verbs {
				var out, errs bytes.Buffer
				if code := Main(args, strings.NewReader(""), &out, &errs); code != 2 || !strings.Contains(errs.String(), x.want) || out.Len() > 0 {
					t.Errorf("%s=%s weft %s: exit code %d, %q, want 2 and %q", x.name, x.value, strings.Join(args, " "), code, errs.String(), x.want)
				}
			}
		})
	}
	for _, args := range [][]string{{"run", "--env", "WEFT_RAILS=two", "--", "true"}, {"run", "--tls=/nowhere", "--", "true"}} {
		var out, errs bytes.Buffer
		if code := Main(args, strings.NewReader(""), &out, &errs); code != 2 {
			t.Errorf("weft %s: exit code %d, %q", strings.Join(args, " "), code, errs.String())
		}
	}
}
