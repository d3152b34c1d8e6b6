# A slow and a lossy link change nothing but time. These are the tests of the contract that move
# messages of every kind; the others are about clocks, which delay and loss would only blur.
ucx_over rc_v
messages='*ConnectTellsBothSidesOnce/plain:*HeaderOnlyMessages/plain:*HeadersOfEverySize/*'
messages="$messages:*SegmentsShareChecksumsOrHaveNone/*:*DroppedPayloads/*:*ManyMessagesBothWays/*"
messages="$messages:*PingPongFromInsideCallbacks/plain:*ReconnectGetsAFreshEndpointAndNothingOld/*"
messages="$messages:*CloseAtEachStepHandsEverythingBack/plain:*LateBytesNeverTouch*/plain"
/usr/bin/tc qdisc add dev va root netem delay 5ms
contract "contract with 5 ms of delay" "$messages"
/usr/bin/tc qdisc replace dev va root netem loss 1%
contract "contract with 1 % of loss" "$messages"
/usr/bin/tc qdisc replace dev va root netem delay 5ms loss 1%
SHOW=1
check "pings stay under the timeout with both" /usr/bin/timeout 300 \
    ucx_transport_test --gtest_filter='*IdlePeersStayConnected/plain' --gtest_brief=1
