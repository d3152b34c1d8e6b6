# A host drops off the net: whoever sent to it is told, within its timeout (5 s, scaled; the checks
# around it take a moment too).
cut_link() { # cut_link TLS
    ucx_over "$1"
    limit=$((5 * FOREBAY_TEST_UCX_TIME_SCALE + 5))
    rm -f /tmp/hold; mkfifo /tmp/hold; : > /tmp/address; : > /tmp/watch.log
    FOREBAY_TEST_UCX_TURN=1 ucx_peer serve < /tmp/hold > /tmp/address 2>/tmp/server.log & server=$!
    exec 3> /tmp/hold
    n=0; until grep -q '^address' /tmp/address || [ $n -gt 300 ]; do n=$((n + 1)); sleep 0.1; done
    ucx_peer watch "$(sed -n 's/^address //p' /tmp/address)" 120 > /tmp/watch.log 2>&1 & watch=$!
    n=0; until grep -q 'first answer' /tmp/watch.log || [ $n -gt 600 ]; do n=$((n + 1)); sleep 0.1; done
    cut_at=$(up)
    /usr/bin/tc qdisc replace dev va root netem loss 100%
    wait $watch; rc=$?
    took=$(echo "$(up) $cut_at" | awk '{print int($1 - $2)}')
    cat /tmp/watch.log
    SHOW=0 check "a cut link is noticed over $1 after $took s, limit $limit s" \
        [ $rc -eq 0 -a "$took" -le $limit ]
    /usr/bin/tc qdisc del dev va root
    exec 3>&-; wait $server
}
cut_link rc_v
cut_link ud_v
