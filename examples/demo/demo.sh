#!/usr/bin/env bash
# The main job, end to end, with real processes: three forebayd daemons; for each of three prompts a
# prefill worker that computes it and publishes its KV pages, and a decode worker in another process
# that finds the prefix, fetches the pages and goes on. Both must say the very same tokens, from the
# very same logits, bit for bit. Exits non-zero on any difference.
#
#   demo.sh [--path=auto|local|tcp|ucx] [--codec=auto|NAME] [--quality=CONTRACT] [--model=FILE]
#           [--generate=N] [--keep]
#
# With --codec or --quality the workers' caches are bf16, in pages of 64 tokens. Under another quality
# than "exact" the tokens may differ: then it says from which one on.
#
# FOREBAY_BIN  the folder with forebayd, forebay-worker and forebayctl
set -uo pipefail
here=$(dirname "$(realpath "$0")")
bin=${FOREBAY_BIN:?set FOREBAY_BIN to the folder with forebayd and forebay-worker}
path=auto model=$here/../models/forebay_tiny.bin generate=32 keep= daemons=3
codec= quality=
# For RDMA: what UCX may use, the daemons' devices, the workers' devices, and the address index.
ucx_transports=${FOREBAY_DEMO_UCX_TRANSPORTS:-tcp} ucx_devices=${FOREBAY_DEMO_UCX_DEVICES:-lo}
ucx_worker_devices=${FOREBAY_DEMO_UCX_WORKER_DEVICES:-$ucx_devices}
ucx_gid=${FOREBAY_DEMO_UCX_GID:-}
# An emulated machine is slow: more time, and only the ends of the prompts.
prompt_bytes=${FOREBAY_DEMO_PROMPT_BYTES:-100000}
deadline_ms=${FOREBAY_DEMO_DEADLINE_MS:-5000} peer_timeout_ms=${FOREBAY_DEMO_PEER_TIMEOUT_MS:-5000}
for argument in "$@"; do
    case $argument in
        --path=*) path=${argument#*=} ;;
        --codec=*) codec=${argument#*=} ;;
        --quality=*) quality=${argument#*=} ;;
        --model=*) model=${argument#*=} ;;
        --generate=*) generate=${argument#*=} ;;
        --keep) keep=1 ;;
        *) echo "demo: unknown argument $argument" >&2; sed -n '7,8p' "$0" >&2; exit 2 ;;
    esac
done

work=$(mktemp -d "${TMPDIR:-/tmp}/forebay-demo.XXXXXX")
pids=()
cleanup() {
    for pid in ${pids[@]+"${pids[@]}"}; do kill "$pid" 2>/dev/null; done
    for pid in ${pids[@]+"${pids[@]}"}; do wait "$pid" 2>/dev/null; done
    if [ -n "$keep" ]; then echo "logs are in $work"; else rm -rf "$work"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM
fail() {
    echo "demo: $*" >&2
    tail -n 5 "$work"/daemon*.log "$work"/*.err 2>/dev/null >&2
    exit 1
}

# --- the pool ----------------------------------------------------------------------------------
addresses=
for i in $(seq "$daemons"); do
    ucx_address=
    if [ "$path" = ucx ]; then ucx_address=127.0.0.1:0; fi
    cat > "$work/daemon$i.textproto" <<CONFIG
node: "demo$i"
control_address: "127.0.0.1:0"
data_plane {
  tcp_address: "127.0.0.1:0"
  local_socket: "$work/daemon$i.sock"
  ucx_address: "$ucx_address"
  ucx_transports: "$ucx_transports"
  ucx_devices: "$ucx_devices"
  ucx_gid_index: ${ucx_gid:--1}
  peer_timeout_ms: $peer_timeout_ms
}
dram { capacity_bytes: 134217728 }
CONFIG
    "$bin/forebayd" --config "$work/daemon$i.textproto" --ready_file "$work/daemon$i.ready" \
        2> "$work/daemon$i.log" &
    pids+=($!)
done
for i in $(seq "$daemons"); do
    for _ in $(seq 600); do
        [ -s "$work/daemon$i.ready" ] && break
        kill -0 "${pids[$((i - 1))]}" 2>/dev/null || fail "daemon $i did not start"
        sleep 0.05
    done
    control=$(sed -n 's/^control=//p' "$work/daemon$i.ready")
    [ -n "$control" ] || fail "daemon $i is not ready after 30 s"
    addresses+=${addresses:+,}$control
done
echo "pool:    $daemons daemons at $addresses"
echo "model:   $(basename "$model"), path: $path"
encoding=()
if [ -n "$codec$quality" ]; then
    encoding=(--cache bf16 --page-tokens 64 --codec "${codec:-auto}" --quality "${quality:-exact}")
    echo "codec:   ${codec:-auto}, within the quality \"${quality:-exact}\""
fi
# The first of two lists of tokens that differs, counted from 1; 0: none.
first_difference() {
    awk -v a="$1" -v b="$2" 'BEGIN { n = split(a, x, ","); split(b, y, ",")
        for (i = 1; i <= n; i++) if (x[i] != y[i]) { print i; exit } print 0 }'
}

# --- the workers ---------------------------------------------------------------------------------
value() { sed -n "s/^$2=//p" "$work/$1.result"; }
worker() { # worker NAME ROLE PROMPT_FILE EXTRA…
    local name=$1 role=$2 prompt=$3
    shift 3
    "$bin/forebay-worker" --model "$model" --daemons "$addresses" --role "$role" --path "$path" --ucx-transports "$ucx_transports" --ucx-devices "$ucx_worker_devices" \
        ${ucx_gid:+--ucx-gid-index "$ucx_gid"} --deadline-ms "$deadline_ms" \
        --prompt-file "$prompt" --generate "$generate" --result "$work/$name.result" \
        ${encoding[@]+"${encoding[@]}"} "$@" \
        2> "$work/$name.err" || fail "the $name worker failed: $(cat "$work/$name.err")"
}
compared=0
for whole in "$here"/prompts/*.txt; do
    name=$(basename "$whole" .txt)
    prompt=$work/prompt
    tail -c "$prompt_bytes" "$whole" > "$prompt"
    echo
    echo "prompt:  $name, $(wc -c < "$prompt") bytes, ending in «$(tail -c 32 "$prompt")»"
    worker prefill prefill "$prompt"
    worker decode decode "$prompt" --compare --always-fetch
    echo "prefill: «$(value prefill text)»"
    echo "decode:  «$(value decode text)»"
    echo "tokens:  $(value prefill tokens)"
    echo "     =?  $(value decode tokens)"
    differs=$(first_difference "$(value prefill tokens)" "$(value decode tokens)")
    if [ "${quality:-exact}" = exact ]; then
        [ "$differs" = 0 ] || fail "$name: the tokens differ"
        [ "$(value prefill logits_hash)" = "$(value decode logits_hash)" ] ||
            fail "$name: the tokens are equal, the logits are not"
    fi
    fetched=$(value decode fetched_pages)
    [ "$fetched" -gt 0 ] || fail "$name: no page was fetched: $(value decode pool_status)"
    with=$(value decode first_token_us) without=$(value decode first_token_without_pool_us)
    if [ "${quality:-exact}" = exact ]; then
        echo "equal:   tokens and logits, bit for bit"
    elif [ "$differs" = 0 ]; then
        echo "equal:   all $generate tokens"
    else
        echo "differ:  from token $differs of $generate on"
    fi
    echo "pages:   $(value prefill published_pages) published, $fetched of" \
        "$(value decode prompt_pages) fetched: $(value decode fetched_bytes) bytes over" \
        "$(value decode path)"
    awk -v a="$without" -v b="$with" 'BEGIN {
        printf "first token: %.2f ms without the pool, %.2f ms with it: %.1f times as fast\n",
               a / 1000, b / 1000, a / b }'
    if [ "$path" != auto ] && [ "$(value decode path)" != "$path" ]; then
        fail "$name: asked for the path $path, the pages came over $(value decode path)"
    fi
    compared=$((compared + 1))
done
[ "$compared" -eq 3 ] || fail "compared $compared prompts, not 3"
echo
if [ "${quality:-exact}" = exact ]; then
    echo "demo: $compared prompts, all equal"
else
    echo "demo: $compared prompts"
fi
