// Package fabric groups the packages for the network itself: is the design sound, how are its parts addressed and
// configured, and does the running network match the plan?
//
//	cluster ──► design    the report: oversubscription, bisection, failures, cost
//	        └─► network   one plan of addresses, rails, tables and ports
//	               ├─► network/emit    the plan as files for hosts, switches, schedulers, DHCP and DNS
//	               ├─► network/check   what hosts and switches report, compared with the plan
//	               ├─► network/prove   packets followed through the emitted files alone
//	               ├─► network/change  a change of a running network, step by step
//	               └─► lab             the plan brought up on one machine, with real routers in namespaces
//
// A new switch operating system or scheduler gets a file in network/emit and, if it can be asked for its state, a reader in
// network/check.
//
// May import: model, collective, view, predict, run.
package fabric
