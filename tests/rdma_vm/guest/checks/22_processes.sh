# Two processes, each payload checked: what the wire carries, and that nothing is left behind.
# with_server CHECK_NAME COMMAND...: COMMAND with the address of a server on rxe1 in place of @.
with_server() {
    name=$1; shift
    rm -f /tmp/hold; mkfifo /tmp/hold; : > /tmp/address
    FOREBAY_TEST_UCX_TURN=1 ucx_peer serve < /tmp/hold > /tmp/address 2>/tmp/server.log & server=$!
    exec 3> /tmp/hold                       # the server ends when this closes
    n=0; until grep -q '^address' /tmp/address || [ $n -gt 300 ]; do n=$((n + 1)); sleep 0.1; done
    address=$(sed -n 's/^address //p' /tmp/address)
    set -- $(for word in "$@"; do [ "$word" = @ ] && echo "$address" || echo "$word"; done)
    check "$name" /usr/bin/timeout -k 5 300 "$@"
    exec 3>&-; wait $server
}
for tls in rc_v ud_v; do
    ucx_over $tls
    for sizes in "200 4096" "20 262144" "10 1048576" "2 8388608"; do
        set -- $sizes
        SHOW=1 with_server "$1 payloads of $2 B over $tls" ucx_peer send @ "$1" "$2"
    done
done
before=$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)
ucx_over rc_v
SHOW=1 with_server "one more over rc" ucx_peer send @ 4 1048576
after=$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)
check "it went over rxe0 ($((after - before)) packets)" [ $((after - before)) -gt 1000 ]
