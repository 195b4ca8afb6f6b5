// Package observe groups the packages that find out what is happening and why: collectors, the agent on each host, the
// doctor that explains logs, and watch, which turns reports into incidents.
//
//	probe, evidence ──► agent ──► watch/server ──► watch       incidents, live or replayed
//	                                                  ▲
//	logs, dumps, counters ──► doctor/read ──► doctor ─┘        causes, from the same rules
//
// doctor and watch are pure: a case or a stream of reports in, findings out. A new log format goes into doctor/read. A new
// counter goes into agent. A new incident goes into watch.
//
// May import: model, collective, view, run.
package observe
