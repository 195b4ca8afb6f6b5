package doctor_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"strings"
	"testing"
)

// Files of which nothing can be read or understood give no all-clear: the verdict is unknown, and each file is listed with
// the reason.
func TestUnreadableInputIsUnknown(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write([]byte(ncclJob{version: "2.27.3"}.text()))
	z.Close()
	for name, text := range map[string]string{
		"cut JSON":         `{"pg_config": {"0": {"name": "default_pg", "ra`,
		"other JSON":       `{"loss": 2.1, "step": 400}`,
		"broken gzip":      "\x1f\x8b\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
		"gzip of 12 bytes": packed.String()[:12],
		"cut pickle":       "\x80\x02}q\x00(X\x07\x00\x00\x00ent",
		"pickled code":     "\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00idq\x01\x85q\x02Rq\x03.",
		"cut zip":          "PK\x03\x04\x14\x00\x00\x00\x08\x00",
		"empty":            "",
		"bytes":            "\x00\x01\x02\xfe\xff\x00\x00",
		"prose":            "The meeting is at ten.\nBring the notes.\n",
	} {
		r := diagnose(t, map[string]string{"given": text})
		if !r.Blind() || !strings.HasPrefix(r.Verdict, "Unknown: ") || len(r.Unread) != 1 || r.Unread[0].Path != "given" ||
			r.Unread[0].Why == "" {
			t.Errorf("%s: %q, unread %+v, file %+v", name, r.Verdict, r.Unread, r.Files)
		}
	}
	r := diagnose(t, map[string]string{"job.log": ncclJob{version: "2.27.3"}.text(), "stderr": "",
		"dump": "\x80\x02}q\x00(X\x07\x00\x00\x00ent"})
	if r.Blind() || len(r.Unread) != 2 || !strings.HasPrefix(r.Verdict, "Nothing is wrong in what was read; 2 files told nothing") {
		t.Errorf("beside a healthy log: %q, %+v", r.Verdict, r.Unread)
	}
	var keys struct{ Unread []struct{ Path, Why string } }
	if b, err := json.Marshal(r); err != nil || json.Unmarshal(b, &keys) != nil || len(keys.Unread) != 2 || keys.Unread[0].Path != "dump" {
		t.Errorf("JSON: %v, %+v", err, keys)
	}
}
