#!/bin/sh
# Slurm's Prolog: a node whose agent finds a fault takes no job; Slurm drains it and starts the job elsewhere.
# Set in slurm.conf: Prolog=/etc/slurm/prolog.sh and PrologFlags=Alloc,Contain
#
# The agent (weft-agent.service) says what it sees at /state. A node without an agent takes jobs: a monitor that is away is
# no reason to stop a cluster.
AGENT=${WEFT_AGENT:-http://127.0.0.1:9410}

state=$(curl -fsS --max-time 5 "$AGENT/state" 2>/dev/null) || exit 0
if printf '%s' "$state" | grep -q '"state": *"bad"'; then
    printf '%s' "$state" | tr ',{}' '\n\n\n' | grep -B3 '"state": *"bad"' | head -20 >&2
    exit 1
fi
exit 0
