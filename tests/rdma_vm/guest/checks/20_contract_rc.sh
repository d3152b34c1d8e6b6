# The whole transport contract over reliable connections.
ucx_over rc_v
contract "contract over rc" '*'
