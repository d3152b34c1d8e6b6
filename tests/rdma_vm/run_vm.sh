#!/usr/bin/env bash
# Boot the RDMA test VM, run one test script in it and exit with the script's status.
#
#   run_vm.sh [options] TEST_SCRIPT [ARG...]
#     -w DIR          work folder with vmlinux and base.cpio
#     -f SRC[:DST]    add a host file or folder at /test/DST in the guest (may be repeated)
#     -m MEM  -c CPUS -t SECONDS                                   (default 2G, 2, 300)
#     -v NAME=VALUE   sets VM_NAME in the test's environment (no spaces)
#     -l LOG          the console's log                              (default WORK/console.log)
#     -q              don't print the console
#
# Exit status: that of TEST_SCRIPT (0..119); 120..122 where /init failed; 124 on a time-out;
# 125 where the guest went down without reporting (kernel panic, for example).
# Everything is emulated by TCG: no /dev/kvm, no privileges are needed.
set -uo pipefail
work= mem=2G cpus=2 limit=300 log= quiet= append= files=()
while getopts w:f:m:c:t:v:l:q o; do
    case $o in
        w) work=$OPTARG ;; f) files+=("$OPTARG") ;; m) mem=$OPTARG ;;
        c) cpus=$OPTARG ;; t) limit=$OPTARG ;; v) append+=" rdmavm.$OPTARG" ;;
        l) log=$OPTARG ;; q) quiet=1 ;; *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || { sed -n '2,16p' "$0"; exit 2; }
script=$1; shift
work=$(realpath "${work:?-w DIR}"); log=${log:-$work/console.log}

# --- the test's own files, as a second cpio after the base one -------------------------------
tmp=$(mktemp -d)
qpid=
cleanup() { [ -n "$qpid" ] && kill "$qpid" 2>/dev/null; rm -rf "$tmp"; }
trap cleanup EXIT
mkdir -p "$tmp/root/test"
cp -L "$script" "$tmp/root/test/main"
{ echo '#!/bin/sh'; printf 'exec /test/main'; printf ' %q' "$@"; echo; } > "$tmp/root/test/run"
chmod 755 "$tmp/root/test/main" "$tmp/root/test/run"
for f in ${files[@]+"${files[@]}"}; do
    src=${f%%:*} dst=${f#*:}; [ "$dst" = "$f" ] && dst=$(basename "$src")
    mkdir -p "$(dirname "$tmp/root/test/$dst")"; cp -rL "$src" "$tmp/root/test/$dst"
done
{ cat "$work/base.cpio"; ( cd "$tmp/root" && find . -mindepth 1 | cpio --quiet -o -H newc -R 0:0 ); } > "$tmp/initrd"

# --- qemu ---------------------------------------------------------------------------------------
# q35, entered through the kernel's PVH note. Not microvm: without HPET and ACPI timer the guest
#       falls back to the jiffies clock and loses its APIC timer, and busy-polling UCX programs
#       then hang. tsc=reliable: TCG's TSC is the host's, the same on every virtual CPU.
# -cpu: erms/fsrm off, since 'rep movsb' is emulated byte by byte while 'rep movsq' moves 8;
# mitigations=off, nokaslr: only cost time here. panic=-1 with -no-reboot: a panic ends qemu.
args=(
    -M "${VM_MACHINE:-q35,usb=off,smm=off}" -accel tcg,thread=multi -cpu "${VM_CPU:-max,-erms,-fsrm}"
    -smp "$cpus" -m "$mem" -nodefaults -no-user-config -display none -no-reboot
    -kernel "$work/vmlinux" -initrd "$tmp/initrd"
    -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable random.trust_cpu=on ${VM_APPEND:-}$append"
    -serial "file:$log" -device isa-debug-exit,iobase=0xf4,iosize=0x04
)

: > "$log"
qemu-system-x86_64 "${args[@]}" < /dev/null 2>"$tmp/qemu.err" &
qpid=$!
tailpid=
if [ -z "$quiet" ]; then tail -n +1 -f --pid="$qpid" "$log" 2>/dev/null & tailpid=$!; fi
( sleep "$limit" & s=$!; trap 'kill $s 2>/dev/null; exit 0' TERM; wait "$s"
  : > "$tmp/timeout"; kill "$qpid" 2>/dev/null ) &
dog=$!
wait "$qpid"; rc=$?
qpid=
kill "$dog" 2>/dev/null; wait "$dog" 2>/dev/null
[ -z "$tailpid" ] || wait "$tailpid" 2>/dev/null
[ ! -s "$tmp/qemu.err" ] || cat "$tmp/qemu.err" >&2

# isa-debug-exit: qemu's status is 2*V+1. An even one means that the guest never reported.
if [ -e "$tmp/timeout" ]; then echo "run_vm: time limit of $limit s reached" >&2; exit 124; fi
if [ $((rc % 2)) -eq 1 ] && ! { [ "$rc" -eq 1 ] && [ -s "$tmp/qemu.err" ]; }; then exit $(((rc - 1) / 2)); fi
echo "run_vm: the guest went down without a status (qemu $rc)" >&2
exit 125
