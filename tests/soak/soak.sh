#!/usr/bin/env bash
# ./forebay soak [--reads N] [--minutes M] [--seeds N] [--seed N] [--only sim|controls|torture]
#
#   1. the simulation over N seeds (500): three daemons and several clients, with faults
#   2. the negative controls: each guard that a build can break must be found
#   3. the torture: real daemons and clients, killed and stopped at random, until N reads (10 million)
#      have been checked, or M minutes (60) are over
#
# FOREBAY_BUILD is the build folder; the negative controls get one beside it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${FOREBAY_BUILD:?FOREBAY_BUILD is the build folder: run ./forebay soak}
bin=${FOREBAY_BIN:-$build/bin}
reads=10000000
minutes=60
seeds=500
seed=1
only=

usage() {
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    option=${1%%=*}
    case $1 in
        *=*) value=${1#*=} ;;
        *)
            [ $# -ge 2 ] || usage
            value=$2
            shift
            ;;
    esac
    shift
    case $option in
        --reads) reads=$value ;;
        --minutes) minutes=$value ;;
        --seeds) seeds=$value ;;
        --seed) seed=$value ;;
        --only) only=$value ;;
        *) usage ;;
    esac
done

passed=0
failed=0
summary=()

# step NAME COMMAND...: runs it unless --only names another, and notes how it went.
step() {
    local name=$1 began=$SECONDS status=0 log last
    shift
    if [ -n "$only" ] && [ "$only" != "$name" ]; then return; fi
    echo "== $name: $*"
    log=$(mktemp)
    "$@" 2>&1 | tee "$log" || status=$?
    last=$(tail -n 1 "$log")
    rm -f "$log"
    if [ "$status" = 0 ]; then
        passed=$((passed + 1))
        summary+=("$(printf 'ok      %-9s %5d s  %s' "$name" $((SECONDS - began)) "$last")")
    else
        failed=$((failed + 1))
        summary+=("$(printf 'FAILED  %-9s %5d s  %s' "$name" $((SECONDS - began)) "$last")")
    fi
}

step sim "$bin/forebay-sim" --seeds "$seed-$((seed + seeds - 1))"
step controls "$here/../sim/negative_controls.sh" "$build-broken"
step torture "$bin/forebay-torture" "--reads=$reads" "--minutes=$minutes" "--seed=$seed"

echo
printf '%s\n' ${summary[@]+"${summary[@]}"}
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
