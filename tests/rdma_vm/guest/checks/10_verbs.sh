# The devices, as libibverbs and we see them.
check "two active ports" sh -c '[ "$(ibv_devinfo | grep -c PORT_ACTIVE)" = 2 ]'
SHOW=3 check "forebay-verbs lists them" sh -c '
    forebay-verbs && [ "$(forebay-verbs --json | grep -c "\"state\": \"active\".*fe80")" = 2 ]'
FOREBAY_TEST_VERBS_PORTS=2 check "test of transport/verbs" verbs_devices_test --gtest_brief=1
