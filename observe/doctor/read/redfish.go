package read

import (
	"path"
	"strings"

	"github.com/weft-fabric/weft/observe/doctor"
)

// redfish reads events of a baseboard controller, as it sends them to subscribers. The context of a subscription is what
// people set, mostly the host's name.
//
//	{"Context": "n1", "Events": [{"MessageSeverity": "Critical", "Message": "...",
//	  "OriginOfCondition": {"@odata.id": "/redfish/v1/Systems/.../GPU_SXM_3"}}]}
func (s *scan) redfish(d *pdict) bool {
	some := false
	for _, x := range d.list("Events") {
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
		k := doctor.Kernel{At: s.at(0, e.text("Message")), Host: s.host, Kind: "mce", Code: -1, Text: e.text("Message"), Time: clock(e.text("EventTimestamp")), F: map[string]string{"id": e.text("MessageId")}}
		if k.Host == "" {
			k.Host = d.text("Context")
		}
		if from := e.dict("OriginOfCondition"); from != nil {
			k.Device = path.Base(from.text("@odata.id"))
		}
		s.addKernel(k)
	}
	return some
}
