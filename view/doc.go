// Package view groups the packages that people look at: pictures of topologies and schedules, the web pages, and the
// record in which ranks report their progress to a page.
//
//	topo.Graph, sched.Program ──► draw ──► draw/svg
//	topo.Graph ──► scene ──► a canvas
//	kit ──► every page: one stylesheet, one icon
//	report.Collective, events ──► web  ──► browser
//
// Drawing takes values and returns text. Pages get their data from the program that serves them; they compute no result
// of their own.
//
// May import: model, collective.
package view
