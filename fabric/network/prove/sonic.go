package prove

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// sonicTables are the tables of config_db.json that do not change where packets go, or that
// other tables repeat. DEVICE_NEIGHBOR says what should be plugged in; cables.csv decides.
var sonicTables = map[string]bool{
	"DEVICE_METADATA": true, "MGMT_PORT": true, "MGMT_INTERFACE": true, "DEVICE_NEIGHBOR": true, "CABLE_LENGTH": true, "LLDP": true,
	"SWITCH_HASH":  true,
	"PORT_QOS_MAP": true, "QUEUE": true, "PFC_WD": true, "DSCP_TO_TC_MAP": true, "TC_TO_QUEUE_MAP": true, "TC_TO_PRIORITY_GROUP_MAP": true,
	"MAP_PFC_PRIORITY_TO_QUEUE": true,
	"WRED_PROFILE":              true, "SCHEDULER": true, "BUFFER_POOL": true, "BUFFER_PROFILE": true, "BUFFER_PG": true, "BUFFER_QUEUE": true,
	"VLAN": true,
}

// sonic reads a switch's ports, addresses and VLANs; its routing is in frr.conf.
func (n *Net) sonic(name string, data []byte) error {
	var db map[string]map[string]map[string]any
	if err := json.Unmarshal(data, &db); err != nil {
		return err
	}
	d := n.device(name, true)
	q := qos{ports: map[string]map[string]string{}, dscp: map[string]map[string]string{}, group: map[string]map[string]string{}}
	for table, rows := range db {
		for key, row := range rows {
			q.row(table, key, row)
			known, err := d.sonicRow(table, key, row)
			if err != nil {
				return fmt.Errorf("%s %s: %w", table, key, err)
			}
			if !known && !sonicTables[table] {
				n.Unread = append(n.Unread, fmt.Sprintf("%s config_db: %s %s", name, table, key))
			}
		}
	}
	return q.apply(d)
}

func (d *Device) sonicRow(table, key string, row map[string]any) (known bool, err error) {
	first, second, both := strings.Cut(key, "|")
	if known, err := d.sonicVRF(table, first, row); known {
		return true, err
	}
	switch table {
	case "PORT":
		mtu, given := row["mtu"].(string)
		if !given {
			mtu = "9100" // SONiC's own
		}
		d.port(key).MTU, err = strconv.Atoi(mtu)
		return true, err
	case "INTERFACE", "LOOPBACK_INTERFACE", "VLAN_INTERFACE":
		return true, d.sonicAddress(table, first, second)
	case "VLAN_MEMBER":
		if row["tagging_mode"] != "untagged" || !both {
			return false, nil
		}
		d.port(second).into(d.port(first))
		return true, nil
	}
	return d.sonicOverlay(table, first, second, row)
}

// sonicAddress reads a row of an interface: its name, or with an address behind it.
func (d *Device) sonicAddress(table, name, addr string) error {
	if table == "LOOPBACK_INTERFACE" {
		name = "lo"
	}
	p := d.port(name)
	if table == "VLAN_INTERFACE" && p.Members == nil {
		p.Members = []*Port{}
	}
	if addr == "" {
		return nil
	}
	return p.address(addr)
}
