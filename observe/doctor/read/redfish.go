package read

import (
	"cmp"
	"path"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
)

// redfish reads events of a baseboard controller, as it sends them to subscribers. The context of a subscription is what
// people set, mostly the host's name.
//
//	{"Context": "n1", "Events": [{"MessageSeverity": "Critical", "Message": "...",
//	  "OriginOfCondition": {"@odata.id": "/redfish/v1/Systems/.../GPU_SXM_3"}}]}
//
// The entries of its log have the same fields:
//
//	{"Members": [{"EntryType": "Event", "Created": "2026-08-03T10:14:02+00:00", "Severity": "Critical", "MessageArgs": ["GPU_SXM_5 Memory", ...]}]}
func (s *scan) redfish(d *pdict) bool {
	some := false
	for _, x := range append(d.list("Events"), d.list("Members")...) {
		e, _ := x.(*pdict)
		if e == nil || !e.has("MessageId") {
			continue
		}
		some = true
		severity := e.text("MessageSeverity")
		if severity == "" { // before version 1.3
			severity = e.text("Severity")
		}
		if !strings.EqualFold(severity, "Critical") {
			continue
		}
		k := doctor.Kernel{At: s.at(0, e.text("Message")), Host: s.host, Kind: "mce", Code: -1, Text: e.text("Message"),
			Time: clock(cmp.Or(e.text("EventTimestamp"), e.text("Created"))), F: map[string]string{"id": e.text("MessageId")}}
		if k.Host == "" {
			k.Host = d.text("Context")
		}
		if from := e.dict("OriginOfCondition"); from != nil {
			k.Device = path.Base(from.text("@odata.id"))
		}
		if args := e.list("MessageArgs"); k.Device == "" && len(args) > 0 {
			k.Device, _ = args[0].(string)
		}
		s.addKernel(k)
	}
	return some
}
