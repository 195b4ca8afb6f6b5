#!/bin/bash
# The lab of vrf.yaml in an emulated kernel: VRFs, traffic, drift, and three faults that traffic and drift must both find. $1 is weft.
set -e
weft=$1
here=$(dirname "$0")
$weft lab up "$here/vrf.yaml" --hosts plain --no-lldp --wait 15m
$weft lab exec vrf leaf0 -- vtysh -N leaf0 -c 'show vrf vni'
$weft lab exec vrf leaf0 -- ip route show table 1001
traffic() { echo "== $1"; $weft lab traffic vrf --size 200KB --limit 60s; }
drift() { $weft net check "$here/vrf.yaml" --from lab:vrf --allow-unknown --json | grep -E '"(state|device|part|what)"' | paste - - - - | grep -v unknown || true; }
traffic 'all is up'
drift
broken() { echo "== $1"; shift; $weft lab exec vrf leaf0 -- sh -c "$1"; traffic 'so' || true; drift; $weft lab exec vrf leaf0 -- sh -c "$2"; }
broken 'the VRF of red has no end' 'ip route del table 1001 unreachable default' 'ip route add table 1001 unreachable default metric 4278198272'
broken "n0's port is in blue's VRF" 'ip link set swp1s0 master Vrf_blue' 'ip link set swp1s0 master Vrf_red'
traffic 'repaired'
