#!/bin/bash
# The lab of eslag.yaml in an emulated kernel: segments, bonds, traffic, drift, a cut cable and a dead leaf. $1 is weft.
set -e
weft=$1
here=$(dirname "$0")
$weft lab up "$here/eslag.yaml" --hosts plain --no-lldp --wait 15m
$weft lab exec eslag leaf0 -- vtysh -N leaf0 -c 'show evpn es'
$weft lab exec eslag n0 -- grep -E 'Slave Interface|Aggregator ID' /proc/net/bonding/stor
traffic() { echo "== $1"; $weft lab traffic eslag --size 200KB --limit 60s; }
traffic 'all is up'
$weft lab exec eslag leaf2 -- ip nexthop show fdb || true
$weft net check "$here/eslag.yaml" --from lab:eslag --allow-unknown
$weft lab exec eslag leaf0 -- ip link set swp1s0 down
# Linux before 6.6 has no backup for a bridge port's addresses: what n1 sends to n0 by leaf0 ends there.
traffic "n0's cable to leaf0 is cut" || true
$weft lab exec eslag leaf0 -- ip link set swp1s0 up
for port in swp1s0 swp1s1 swp2s0; do $weft lab exec eslag leaf3 -- ip link set $port down; done
traffic 'leaf3 is dead'
