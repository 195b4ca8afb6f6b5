package cluster

import "regexp"

// Tenant is a set of hosts that reach one another on the backend and in storage, and nobody else there.
type Tenant struct {
	Name  string
	Hosts []string
	Line  int
}

var tenantName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,30}$`)

// tenants reads the tenants of an Ethernet fabric.
func (p *parse) tenants(n *node) (out []Tenant) {
	if n == nil {
		return nil
	}
	f := p.fields("network.tenants", n)
	for _, e := range f.n.keys {
		q := p.fields(f.at(clip(e.key)), e.value)
		if !tenantName.MatchString(e.key) {
			p.fail(e.line, f.at(clip(e.key)), "a tenant's name has 1 to 31 letters, digits and hyphens")
		}
		hosts := q.names("hosts")
		if len(hosts) == 0 && len(p.errs) == 0 {
			q.fail("hosts", "missing; write the hosts of the tenant, such as \"n[0-3]\"")
		}
		out = append(out, Tenant{Name: e.key, Hosts: hosts, Line: e.line})
		q.done()
	}
	return out
}
