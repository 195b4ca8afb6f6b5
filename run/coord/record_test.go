package coord

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/weft-fabric/weft/run/internal/member"
)

// stable checks that what a decoder accepts is written and read as the same value.
func stable[T any](t *testing.T, b []byte, decode func([]byte) (T, error)) {
	v, err := decode(b)
	if err != nil {
		return
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%+v: %v", v, err)
	}
	w, err := decode(text)
	if err != nil {
		t.Fatalf("%s, from %q: %v", text, b, err)
	}
	second, err := json.Marshal(w)
	if err != nil || string(second) != string(text) {
		t.Fatalf("%s became %s, %v", text, second, err)
	}
}

func FuzzDecodeWorker(f *testing.F) {
	f.Add([]byte(`{"id":3,"life":"00000000000000ff","host":"h","pid":7,"address":"h:1","state":"dead","step":4,"pace":1000,"why":"killed"}`))
	f.Add([]byte(`{"id":4294967295,"life":"0","state":"x"}`))
	f.Add([]byte(`{} {}`))
	f.Fuzz(func(t *testing.T, b []byte) { stable(t, b, DecodeWorker) })
}

func FuzzDecodeEpoch(f *testing.F) {
	f.Add([]byte(`{"number":7,"start":2,"members":[{"id":0,"life":"0000000000000001","host":"h","address":"h:1"},{"id":2,"life":"0000000000000002"}],"recovering":[{"id":1,"life":"0000000000000003"}],"master":"h:1","token":"t","step":40,"after":44,"halt":1,"reason":"r","decider":"d"}`))
	f.Add([]byte(`{"number":1,"start":1,"members":[{"id":1,"life":"0000000000000001"},{"id":1,"life":"0000000000000001"}]}`))
	f.Add([]byte(`{"number":1,"members":[],"halt":7}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		stable(t, b, DecodeEpoch)
		if e, err := DecodeEpoch(b); err == nil {
			m := e.Member()
			if len(m.Members) != len(e.Members)+len(e.Recovering) || len(m.Active()) != len(e.Members) {
				t.Fatalf("%+v became %v", e, m)
			}
			if _, err := member.DecodeEpoch(m.Append(nil)); err != nil {
				t.Fatalf("%+v as a member list: %v", e, err)
			}
		}
	})
}

func FuzzDecodeList(f *testing.F) {
	f.Add(encodeList([][]byte{[]byte("a"), nil, []byte("bc")}), 3)
	f.Add(encodeList(nil), 2)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, 1)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if n < 0 || n > 1<<16 {
			return
		}
		all, err := decodeList(b, n)
		if err != nil {
			return
		}
		second, err := decodeList(encodeList(all), n)
		if err != nil || len(all) != len(second) || len(all) > 0 && !reflect.DeepEqual(all, second) {
			t.Fatalf("%q became %q, %v", all, second, err)
		}
	})
}

func FuzzParseEndpoints(f *testing.F) {
	f.Add("etcd://a:1,b:2")
	f.Fuzz(func(t *testing.T, s string) {
		if list, err := ParseEndpoints(s); err == nil && len(list) == 0 {
			t.Fatalf("%q gave no address and no error", s)
		}
	})
}
