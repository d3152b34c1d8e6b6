#!/usr/bin/env bash
# Fetch the Debian kernel that has rdma_rxe (Soft-RoCE) and unpack it into a work folder.
# Nothing is installed on the host: the package is only unpacked with dpkg -x.
#
#   fetch_kernel.sh WORKDIR
#
# Leaves behind
#   WORKDIR/kroot/lib/modules/KVER   the modules
#   WORKDIR/vmlinux                  the decompressed kernel (booted through its PVH entry:
#                                    xz decompression under TCG would cost many seconds)
#   WORKDIR/kver                     the kernel's version string
set -euo pipefail
work=$(realpath -m "${1:?the work folder}")
mkdir -p "$work"
cd "$work"

# linux-image-amd64 is the full flavour; the -cloud- flavour has no drivers/infiniband/sw.
pkg=${KERNEL_PKG:-$(apt-cache depends linux-image-amd64 | awk '/Depends:/{print $2; exit}')}
[ -n "$pkg" ] || { echo "no linux-image-amd64 in the package lists (apt-get update?)" >&2; exit 1; }
kver=${pkg#linux-image-}

if [ "$(cat kver 2>/dev/null || true)" != "$kver" ] || [ ! -s vmlinux ]; then
    rm -rf kroot vmlinux
    # apt warns that its own user cannot write here; it downloads all the same.
    ls "$pkg"_*.deb >/dev/null 2>&1 || apt-get download -qq "$pkg" 2>&1 | grep -v unsandboxed || true
    dpkg -x "$pkg"_*.deb kroot
    [ -d kroot/lib ] || ln -s usr/lib kroot/lib          # trixie and later: merged /usr
    [ -n "$(find kroot/ -name 'rdma_rxe.ko*')" ] || { echo "$pkg has no rdma_rxe" >&2; exit 1; }
    depmod -b "$work/kroot" "$kver"

    # The payload's offset and length are fields of the bzImage header (boot protocol >= 2.08):
    # setup_sects at 0x1f1, payload_offset at 0x248, payload_length at 0x24c.
    bz=kroot/boot/vmlinuz-$kver
    u() { od -An -t"$2" -j "$1" -N "${2#u}" "$bz" | tr -d ' '; }
    setup=$(u $((0x1f1)) u1); off=$(u $((0x248)) u4); len=$(u $((0x24c)) u4)
    start=$(( (setup + 1) * 512 + off ))
    dd if="$bz" of=payload bs=1M iflag=skip_bytes,count_bytes skip="$start" count="$len" status=none
    # The last four bytes are the decompressed size, no part of the compressed stream.
    case $(od -An -tx1 -N4 payload | tr -d ' ') in
        fd377a58) head -c -4 payload | xz -dc   > vmlinux.tmp ;;
        28b52ffd) head -c -4 payload | zstd -dc > vmlinux.tmp ;;
        1f8b*)    gzip -dc < payload            > vmlinux.tmp ;;
        *) echo "unknown kernel compression" >&2; exit 1 ;;
    esac
    [ "$(od -An -tx1 -N4 vmlinux.tmp | tr -d ' ')" = 7f454c46 ] || { echo "no ELF kernel" >&2; exit 1; }
    mv vmlinux.tmp vmlinux
    rm -f payload
    echo "$kver" > kver
fi
echo "kernel $kver: $work/vmlinux ($(stat -c %s vmlinux) bytes)"
