package comm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// page is docs/reliability.md.
func (m *matrix) page() string {
	var b strings.Builder
	b.WriteString(pageHead)
	b.WriteString("| fault | transport | cases | errors | right rank named | late | wrong data | noticed, p50 | p99 |\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n")
	var all tally
	for _, k := range m.order() {
		y := m.rows[k]
		all.add(y)
		b.WriteString(line(k.fault, k.transport, y))
	}
	b.WriteString(line("**all**", "", &all))
	b.WriteString(pageNotes)
	for _, k := range m.order() {
		if s := m.samples[k]; s != "" {
			fmt.Fprintf(&b, "%s, %s:\n\n    %s\n\n", k.fault, k.transport, s)
		}
	}
	b.WriteString(pageAfter)
	b.WriteString(transfers())
	b.WriteString(pageLimits)
	return b.String()
}

func line(fault, transport string, y *tally) string {
	named, p50, p99 := "must succeed", "", ""
	if y.errors > 0 {
		named = fmt.Sprintf("%d (%.2f%%)", y.right, 100*float64(y.right)/float64(y.errors))
	}
	if len(y.notice) > 0 && transport != "" {
		p50, p99 = y.quantile(0.5).Round(100*time.Microsecond).String(), y.quantile(0.99).Round(100*time.Microsecond).String()
	}
	return fmt.Sprintf("| %s | %s | %d | %d | %s | %d | %d | %s | %s |\n", fault, transport, y.cases, y.errors, named, y.late, y.bad, p50, p99)
}

// The page has a line for every fault over every transport, and each says that
// no data was wrong.
func TestPageHasTheWholeMatrix(t *testing.T) {
	b, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(b), pageHead) || !strings.Contains(string(b), pageNotes) || !strings.Contains(string(b), pageAfter) || !strings.HasSuffix(string(b), pageLimits) {
		t.Error("docs/reliability.md is not what its test writes; go test ./run/comm -run FaultMatrix -update rewrites it")
	}
	for _, fault := range faults {
		for _, transport := range []string{"shm", "tcp"} {
			if !applies(fault, transport) {
				continue
			}
			var found string
			for l := range strings.Lines(string(b)) {
				if strings.HasPrefix(l, fmt.Sprintf("| %s | %s | %d |", fault, transport, 6*len(trialOps))) {
					found = l
				}
			}
			if cells := strings.Split(found, "|"); len(cells) < 9 || strings.TrimSpace(cells[7]) != "0" {
				t.Errorf("the line of %s over %s: %q", fault, transport, found)
			}
		}
	}
}

const pageHead = `# What happens when something breaks

Every wait of every operation ends: with the operation, when a rank dies, when
the time limit or the context ends, or when a rank aborts. The error tells the
kind of failure (errors.Is), the ranks at fault (Failure.Culprits) and what they
were last seen doing. Printed with %+v it has a line for each rank: which rank it
waits for, and since when. An operation that failed has left its inputs as they
were, or says that they are lost (Failure.Overwritten): see below. One that ended
without an error has its whole result, also on a rank that was stopped meanwhile.
After a failure, Shrink gives the survivors a communicator, without starting a
process or opening a connection.

## The fault matrix

Twelve kinds of fault are tried in each of fifteen operations, between real
processes. A process is killed, stopped or misbehaves at a point that it
announces: before the operation or inside it. Every case runs with three sizes
(20 bytes, 4 KB and 160 KB a block), in registered and in plain memory, in and out
of place, and with each rank as the victim, including rank 0 and the root of
rooted operations. After each case one more operation is called: then every
survivor must have an error that names the right rank.

- A rank that is dead, stopped or absent must be named, and no other. Where ranks
  call different things, two are named, and the one that differs is among them.
- Errors must come within a second after the time limit, which is 300 ms here. Dead
  ranks are noticed without it: the last columns tell how long after the kill.
- Data is wrong if a result is incomplete, or an input changed, on any rank.
- Four faults must have no effect: a slow rank, a closed stream while another one
  is left, garbage on the port, and a full /dev/shm.

`

const pageNotes = `
Made by ` + "`go test ./run/comm -run FaultMatrix -update`" + `, on 2 cores with four ranks (kills:
four to eight). ` + "`go test ./run/comm`" + ` runs a sixth of the cases.
A case is repeated with twice the limit if the machine gave a rank no core for a
quarter of it. The test fails, and writes no page, if a rank hangs, or if a rank that
ended by itself leaves a process, segment, socket or goroutine behind.

## What the errors say

`

// transfers is the page's section on transfers, which package xfer's tests are behind: it stays as it is.
func transfers() string {
	b, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		return ""
	}
	_, section, found := strings.Cut(string(b), pageAfter)
	section, _, whole := strings.Cut(section, pageLimits)
	if !found || !whole {
		return ""
	}
	return section
}

const pageAfter = `## After a failure

    err := comm.AllReduce(ctx, c, gradients, comm.Sum)
    if errors.Is(err, comm.ErrDead) {
        c, err = c.Shrink(ctx) // gradients are as they were
    }

Where some pairs of ranks cannot reach each other (a one-way drop, a broken route), Shrink keeps the largest group of which
every two ranks can, if that is a majority. The others get ErrExcluded, which names the ranks that they cannot reach.
Shrink leaves out ranks that live and do not call it within two seconds (comm.Grace,
or half of the time limit), whichever they are: also rank 0, a process that is
stopped, or one that the network does not reach. A rank that was left out gets
ErrExcluded when it calls Shrink, also if it wakes up after all others have gone on and
ended: on one host what was decided is kept in memory as long as one of its ranks lives.

### A rank that is stopped, and wakes

A process may be stopped in the middle of a call (SIGSTOP, a debugger, a paused virtual machine) for longer than the
others wait for it. They get an error, Shrink, and go on. When it wakes it is still inside the call, and has their memory
mapped. What holds:

- A call that returns nil has its whole, right result. A rank marks a call as given up, in memory that all ranks of the
  host see, before it returns an error from it. A rank that reads other ranks' buffers looks for that mark after its last
  read. The woken rank gets an error that names the rank which gave up and the epoch; its Shrink returns ErrExcluded, and it
  can Join again.
- Nobody stores to a survivor's memory afterwards: neither to what it allocates after the failure, nor to the buffers of
  the failed call, which it may go on using. Buffers that other ranks were allowed to store to get other pages at the same
  addresses before the error is returned. The copy takes as much memory as the buffer until the late rank has ended or left
  the old communicator. If there is not enough, the error says so, and Shrink fails.
- Nobody waits for the stopped rank.
- An input is as it was after an error. There is one exception: an all-reduce, reduce, reduce-scatter or all-to-all **in
  place** may have overwritten part of its buffer: on memory from comm.Alloc, on large plain buffers, and on several hosts
  in the last phase. Then Failure.Overwritten is set and the error says so; fill the buffer again before the next call.
- Keys of a buffer whose call failed are no longer good: ask for new ones. Put and Get of a rank that was stopped within
  them never reach memory that was freed and allocated again; memory that its owner keeps may still be written to.

This does not cover GPU memory that ranks map directly: a process that is stopped after it entered a call, and before it
queued its kernels, may queue them when it wakes. It gets an error, but its kernels may store to the survivors' outputs.
Use WEFT_CUDA=staged where processes may be stopped.

TestEveryInterleavingOfAnOperationThatIsGivenUp explores every interleaving of a model with three ranks, with these
rules and without each of them. TestWokenRanks freezes processes over shared memory, several hosts and tcp, and judges
what the woken rank and the survivors have; ` + "`make freezes TRIALS=500`" + ` runs as many trials.

### How ranks agree

All that go on agree on one group, by ballots on the boards of the ranks. If ranks
are on several hosts, only a majority of the last communicator goes on, or half of
it with its rank 0: a broken network never leaves two groups. The others get
ErrNoQuorum. WEFT_QUORUM=majority demands that on one host, too; WEFT_QUORUM=any goes
on with whoever is left. Ranks of one host that can share neither memory nor an open file,
as containers with process numbers of their own cannot, need a majority, too.

Jobs on two hosts that are to outlive the loss of either need a third place that votes:
a witness. weft coord --witness 10.0.0.9:2381, on a third host, serves one and keeps what
it said on disk; weft run --witness 10.0.0.9:2381 is one while the run lasts. Ranks ask it
only where they are half of the last communicator (WEFT_QUORUM=witness:10.0.0.9:2381):
the half that gets its vote goes on, the other half gets ErrExcluded, or ErrNoQuorum if it
cannot reach the witness. It is one more voter of the same ballots, so there is one decision.

TestNeverTwoWorlds and TestWitnessDecidesBetweenHalves part seeded worlds in two, for ever
or for a while, and count the groups that go on: never two. TestShrinkWhileCandidatesDie kills ranks
while they agree. TestShrinkKeepsTheLargestConnectedMajority tears random pairs of ranks apart and compares the group
with a search of all groups. TestShrinkWithoutAStoppedProcess and TestALateRankDoesNotGoOnAlone do it
with processes and SIGSTOP.

Under weft run the others are ended when a rank fails; with --keep-going they run
on, and the run has failed only if no rank ends with 0 (examples/survive).

Every communicator keeps its last operations in a flight recorder (Comm.Flight),
with times and, where messages are sent, every step, and its last sends and receives. If WEFT_FLIGHT_DIR is set, each
rank writes the recorder there at the first failure, as JSON and as a trace for
chrome://tracing and Perfetto.

`

const pageLimits = `## Limits

- Between hosts a lost link is waited for ([links.md](links.md), with [every case measured](#several-hosts)). A host that
  loses power looks like one, and is given up after WEFT_OUTAGE.
- If two ranks of one host have a single stream between them (the default), losing it is losing the rank.
`
