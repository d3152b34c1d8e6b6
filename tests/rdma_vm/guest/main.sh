#!/bin/sh
# Runs the checks in /test/checks in order, each in a shell of its own, and prints how many passed.
# Arguments: names of checks to run ("30_netem"); none means all.
. /guest-lib/rdma.sh
: > /tmp/results
export PATH=/test/bin:$PATH
rdma_veth || { echo "FAIL two rxe devices on a veth pair"; exit 1; }
for file in /test/checks/*.sh; do
    name=$(basename "$file" .sh)
    case " ${*:-$name} " in *" $name "*) ;; *) continue ;; esac
    echo "== $name"
    ( . /guest-lib/rdma.sh; . "$file" )
    # What a check did to the link ends with it.
    /usr/bin/tc qdisc del dev va root 2>/dev/null
done
passed=$(grep -c ok /tmp/results); failed=$(grep -c FAIL /tmp/results)
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
