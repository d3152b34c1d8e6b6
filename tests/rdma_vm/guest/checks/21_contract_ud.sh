# The same over datagrams, with UCX's own reliability.
ucx_over ud_v
contract "contract over ud" '*/plain'
