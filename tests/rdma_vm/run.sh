#!/usr/bin/env bash
# RDMA for real, without hardware: boots a Debian kernel with Soft-RoCE in qemu and runs the checks
# of guest/checks in it, over true verbs. Prints "N passed, N failed".
#
#   run.sh --build DIR [--limit SECONDS] [--time-scale N] [CHECK...]
#
#   --build DIR      where the project was built (with FOREBAY_UCX and FOREBAY_TESTS)
#   --limit SECONDS  for the whole machine (default 2400)
#   --time-scale N   how much longer than on a real machine timeouts are (default 4)
#   CHECK            "30_netem": only these; default all
#
# To add a check: a file in guest/checks, and the programs that it needs in `programs` below.
# The kernel and the initramfs are kept in build/rdma_vm of the source tree.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../..")
work=$root/build/rdma_vm build= limit=2400 time_scale=4 checks=()
while [ $# -gt 0 ]; do
    case $1 in
        --build) build=$(realpath "$2"); shift 2 ;;
        --limit) limit=$2; shift 2 ;;
        --time-scale) time_scale=$2; shift 2 ;;
        --help | -h) sed -n '2,14p' "$0"; exit 0 ;;
        -*) echo "run.sh: unknown option $1" >&2; exit 2 ;;
        *) checks+=("$1"); shift ;;
    esac
done
[ -n "$build" ] || { echo "run.sh: --build DIR is missing" >&2; exit 2; }

packages=(qemu-system-x86 busybox-static dash cpio kmod xz-utils zstd binutils rdma-core
          ibverbs-providers ibverbs-utils perftest ucx-utils iproute2)
missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "run.sh: please install: apt-get install ${missing[*]}" >&2; exit 1
    fi
    echo "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

# Guest name -> program. Those marked "?" come when they are built.
programs=(
    ucx_transport_test=transport/ucx/transport_ucx_ucx_transport_test
    verbs_devices_test=transport/verbs/transport_verbs_verbs_devices_test
    ucx_peer=bin/ucx_peer
    forebay-verbs=bin/forebay-verbs
    forebayd=?bin/forebayd
    forebayctl=?bin/forebayctl
    forebay-worker=?bin/forebay-worker
)
specs=()
for entry in "${programs[@]}"; do
    name=${entry%%=*} path=${entry#*=}
    if [ -x "$build/${path#\?}" ]; then specs+=("$build/${path#\?}:/test/bin/$name"); continue; fi
    case $path in
        \?*) echo "note: no ${path#\?} in $build, left out" ;;
        *) echo "run.sh: $build/$path is not built" >&2; exit 1 ;;
    esac
done

specs+=(/bin/bash:/usr/bin/bash)        # for examples/demo/demo.sh

mkdir -p "$work"
"$here/fetch_kernel.sh" "$work"
"$here/build_initramfs.sh" -w "$work" "${specs[@]}"
"$here/run_vm.sh" -w "$work" -t "$limit" -v "time_scale=$time_scale" -f "$here/guest/checks:checks" \
    -f "$root/examples/demo:examples/demo" -f "$root/examples/models:examples/models" \
    "$here/guest/main.sh" ${checks[@]+"${checks[@]}"}
