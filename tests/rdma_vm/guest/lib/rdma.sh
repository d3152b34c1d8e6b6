# Helpers for the checks in the VM. guest/main.sh reads it before each of them.
#
# UCX 1.13 on rxe:
#  - rc_verbs needs an auxiliary transport for its wire-up: the alias rc_v = rc_verbs + ud_verbs:aux.
#  - ud_verbs drops every IPv4 RoCEv2 packet on rxe (it reads the packet's type from wc.sl, which
#    only Mellanox hardware fills): so the GID must be an IPv6 one, index 0 (link-local).

# wait_gid DEV NETDEV: until the port is active and NETDEV's link-local address has passed duplicate
# address detection. (GID 0 shows before the address exists; connecting then fails in
# 'modify QP to RTR', since the peer's neighbour discovery gets no answer.)
wait_gid() {
    n=0
    until [ "$(cat "/sys/class/infiniband/$1/ports/1/state" 2>/dev/null)" = "4: ACTIVE" ] &&
          ip -6 addr show dev "$2" scope link -tentative | grep -q fe80; do
        n=$((n + 1)); [ $n -lt 300 ] || { echo "no active $1" >&2; return 1; }
        sleep 0.1
    done
}

# rdma_veth: two rxe devices, rxe0 on va and rxe1 on vb, joined by a veth pair in ONE namespace.
# The link-local GIDs make the packets really cross the veth, so tc netem/tbf on va or vb apply.
rdma_veth() {
    ip link add va type veth peer name vb
    ip link set va mtu 4200 up; ip link set vb mtu 4200 up        # 4200: room for a 4096 B RDMA MTU
    rdma link add rxe0 type rxe netdev va && rdma link add rxe1 type rxe netdev vb &&
    wait_gid rxe0 va && wait_gid rxe1 vb
}


# The devices of the tests: FOREBAY_TEST_UCX_*, see transport/ucx/testing/ucx_test_options.h.
# ucx_over TLS: all that follows in this check runs over TLS, on rxe0 and rxe1 in turn.
ucx_over() {
    export FOREBAY_TEST_UCX_TLS=$1 FOREBAY_TEST_UCX_DEVICES=rxe0:1,rxe1:1 FOREBAY_TEST_UCX_GID=0
    export FOREBAY_TEST_UCX_TIME_SCALE=${VM_time_scale:-4}
}

up() { cut -d' ' -f1 /proc/uptime; }

# check NAME COMMAND...: runs it, prints its last lines, counts it.
check() {
    name=$1; shift
    begin=$(up)
    "$@" > /tmp/check.log 2>&1 && rc=0 || rc=$?
    if [ $rc -eq 0 ]; then
        echo "ok   [$(up)s] $name"
        grep -v '^$' /tmp/check.log | tail -n "${SHOW:-2}" | sed 's/^/       /'
        echo ok >> /tmp/results
    else
        echo "FAIL [$(up)s] $name (status $rc, began at $begin)"; grep -v ' RUN ' /tmp/check.log | tail -n 80
        echo FAIL >> /tmp/results
    fi
}

# contract NAME FILTER: the contract suite, limited to what takes no more than LIMIT seconds.
contract() {
    check "$1" /usr/bin/timeout -k 5 "${LIMIT:-900}" /test/bin/ucx_transport_test \
        --gtest_filter="$2"
}
