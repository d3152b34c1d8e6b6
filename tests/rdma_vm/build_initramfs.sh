#!/usr/bin/env bash
# Build the base initramfs: busybox, RDMA modules, rdma-core/UCX/perftest/iproute2 and, on
# request, more programs of our own, each with every shared library that it needs.
#
#   build_initramfs.sh -w WORKDIR [-o OUT] [PROGRAM | HOSTPATH:GUESTPATH]...
#
# A bare PROGRAM is placed at its own path. A HOSTPATH:GUESTPATH pair places a file there.
# The output is an uncompressed cpio (kernel unpacks it fastest under TCG). Several cpio
# archives can be concatenated, which is how run_vm.sh adds a test's own files.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
work= out=
while getopts w:o: o; do case $o in w) work=$OPTARG ;; o) out=$OPTARG ;; *) exit 2 ;; esac; done
shift $((OPTIND - 1))
work=$(realpath "${work:?-w WORKDIR}"); out=${out:-$work/base.cpio}
kver=$(cat "$work/kver")

root=$(mktemp -d "$work/root.XXXXXX")
trap 'rm -rf "$root"' EXIT

# add_file HOST GUEST: copies one file, following links.
add_file() { mkdir -p "$root$(dirname "$2")"; cp -L --preserve=mode "$1" "$root$2"; }

# add_elf HOST [GUEST]: a program or library and its shared libraries (loader included).
declare -A seen
add_elf() {
    local src=$1 dst=${2:-$1} lib
    add_file "$src" "$dst"
    while read -r lib; do
        [ -n "${seen[$lib]:-}" ] && continue
        seen[$lib]=1
        add_file "$lib" "$lib"
    done < <(ldd "$src" 2>/dev/null | awk '$2=="=>" && $3 ~ /^\// {print $3} $1 ~ /^\// {print $1}')
}

# --- layout: merged /usr as on Debian, so that /lib64/ld-linux-x86-64.so.2 resolves ----------
mkdir -p "$root"/{dev,proc,sys,run,tmp,root,etc,usr/bin,usr/sbin,usr/lib,usr/lib64,mnt}
ln -s usr/bin "$root/bin"; ln -s usr/sbin "$root/sbin"
ln -s usr/lib "$root/lib"; ln -s usr/lib64 "$root/lib64"

# --- busybox (static): the shell and the small tools ------------------------------------------
add_file "$(command -v busybox)" /usr/bin/busybox
for a in $(busybox --list); do [ "$a" = busybox ] || ln -sf busybox "$root/usr/bin/$a"; done

# busybox's own shell prefers its applets to what PATH holds (its ip, tc and ping are too small
# for us), so the shell is dash.
rm -f "$root/usr/bin/sh" "$root/usr/bin/ip" "$root/usr/bin/tc"
add_elf "$(realpath /bin/dash)" /usr/bin/sh

# --- RDMA user space -----------------------------------------------------------------------
libdir=/usr/lib/$(gcc -print-multiarch 2>/dev/null || echo x86_64-linux-gnu)
for p in ibv_devinfo ibv_rc_pingpong ib_write_bw ucx_info rdma ip tc ss; do
    f=$(PATH=$PATH:/usr/sbin:/sbin command -v "$p") || { echo "note: no $p on this host, left out" >&2; continue; }
    rm -f "$root/usr/bin/$p"
    add_elf "$(realpath "$f")" "/usr/bin/$p"
done
# The provider and the UCX transports are dlopen'ed, so ldd does not name them.
add_elf "$(echo "$libdir"/libibverbs/librxe-rdmav*.so)"
add_file /etc/libibverbs.d/rxe.driver /etc/libibverbs.d/rxe.driver
for f in "$libdir"/ucx/libuct_*.so.0; do add_elf "$f"; done
for f in /usr/lib/tc/*.dist; do [ -e "$f" ] && add_file "$f" "$f"; done     # netem tables

# --- our own programs ------------------------------------------------------------------------
for spec in "$@"; do
    case $spec in *:*) add_elf "${spec%%:*}" "${spec#*:}" ;; *) add_elf "$(realpath "$spec")" "$spec" ;; esac
done

# --- modules, with a load order that respects their dependencies -------------------------------
# crc32_generic: rxe asks the crypto API for "crc32" (its ICRC); ib_umad is for tools only.
# Set MODULES to change the list.
modules=${MODULES:-crc32_generic rdma_rxe rdma_ucm veth sch_netem}
for m in $modules; do
    modprobe -d "$work/kroot" -S "$kver" --show-depends "$m" || echo "note: no module $m" >&2
done | awk '$1=="insmod" && !seen[$2]++ {print $2}' > "$root/modlist.host"
: > "$root/etc/modules.order"
mkdir -p "$root/lib/modules"
while read -r ko; do
    base=$(basename "$ko")
    case $base in
        *.xz)  xz -dc "$ko"   > "$root/lib/modules/${base%.xz}";  base=${base%.xz} ;;
        *.zst) zstd -dcq "$ko" > "$root/lib/modules/${base%.zst}"; base=${base%.zst} ;;
        *)     cp "$ko" "$root/lib/modules/$base" ;;
    esac
    # Without symbols and the signature appended to the file they load faster.
    strip --strip-debug "$root/lib/modules/$base"
    echo "/lib/modules/$base" >> "$root/etc/modules.order"
done < "$root/modlist.host"
rm "$root/modlist.host"

# --- minimal /etc --------------------------------------------------------------------------------
echo 'root:x:0:0:root:/root:/bin/sh' > "$root/etc/passwd"
echo 'root:x:0:' > "$root/etc/group"
echo '127.0.0.1 localhost' > "$root/etc/hosts"
echo 'hosts: files' > "$root/etc/nsswitch.conf"
ldconfig -r "$root" 2>/dev/null || true

install -m 755 "$here/guest/init" "$root/init"
[ -d "$here/guest/lib" ] && cp -r "$here/guest/lib" "$root/guest-lib"
( cd "$root" && find . -mindepth 1 -print0 | LC_ALL=C sort -z | cpio --quiet -0 -o -H newc -R 0:0 ) > "$out.tmp"
mv "$out.tmp" "$out"
echo "initramfs: $out ($(stat -c %s "$out") bytes, $(find "$root" -type f | wc -l) files)"
