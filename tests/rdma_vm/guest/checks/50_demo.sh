# The demo over rc: three daemons on rxe1, workers on rxe0. Then a link that is cut: a worker goes on
# without the pool, by its deadline, to the same tokens.
export FOREBAY_BIN=/test/bin FOREBAY_DEMO_UCX_TRANSPORTS=rc_v FOREBAY_DEMO_UCX_GID=0
export FOREBAY_DEMO_UCX_DEVICES=rxe1:1 FOREBAY_DEMO_UCX_WORKER_DEVICES=rxe0:1
export FOREBAY_DEMO_PROMPT_BYTES=120 FOREBAY_DEMO_DEADLINE_MS=60000 FOREBAY_DEMO_PEER_TIMEOUT_MS=20000
before=$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)
SHOW=6 check "demo over rc_verbs" /usr/bin/timeout -k 5 900 \
    bash /test/examples/demo/demo.sh --path=ucx --generate=6
after=$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)
check "it went over rxe0 ($((after - before)) packets)" [ $((after - before)) -gt 300 ]

tail -c 120 /test/examples/demo/prompts/3-text.txt > /tmp/prompt
cat > /tmp/one.textproto <<CONFIG
node: "one"
control_address: "127.0.0.1:0"
data_plane { tcp_address: "" local_socket: "" ucx_address: "127.0.0.1:0" ucx_transports: "rc_v"
             ucx_devices: "rxe1:1" ucx_gid_index: 0 peer_timeout_ms: 20000 }
dram { capacity_bytes: 134217728 }
CONFIG
rm -f /tmp/one.ready
forebayd --config /tmp/one.textproto --ready_file /tmp/one.ready 2> /tmp/server.log & daemon=$!
n=0; until [ -s /tmp/one.ready ] || [ $n -gt 600 ]; do n=$((n + 1)); sleep 0.1; done
control=$(sed -n 's/^control=//p' /tmp/one.ready)
# worker ROLE DEADLINE_MS
worker() {
    forebay-worker --model /test/examples/models/forebay_tiny.bin --daemons "$control" --role "$1" \
        --path ucx --ucx-transports rc_v --ucx-devices rxe0:1 --ucx-gid-index 0 --deadline-ms "$2" \
        --prompt-file /tmp/prompt --generate 4 --always-fetch \
        --result "/tmp/$1.result"
}
value() { sed -n "s/^$2=//p" "/tmp/$1.result"; }
check "a prefill worker publishes" worker prefill 60000
/usr/bin/tc qdisc replace dev va root netem loss 100%
cut_at=$(up)
check "a decode worker ends with its link cut" worker decode 15000
took=$(echo "$(up) $cut_at" | awk '{print int($1 - $2)}')
/usr/bin/tc qdisc del dev va root
check "all of it was a miss, after $took s: $(value decode pool_status)" \
    [ "$(value decode fetched_pages)" = 0 ]
check "its tokens are the same" [ "$(value decode tokens)" = "$(value prefill tokens)" ]
kill $daemon; wait $daemon
