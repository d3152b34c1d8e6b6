#!/usr/bin/env bash
# cmake/abseil_for_tsan.sh PREFIX: Debian's Abseil, built again from its source package for
# ThreadSanitizer and installed under PREFIX. Without it every lock of the installed one is invisible,
# so that all that it guards looks like a race. The version is that of the installed libabsl-dev, so
# that gRPC and Protobuf run with it too.
set -euo pipefail

prefix=$1
version=$(dpkg-query -W -f '${source:Version}' libabsl-dev)
if [ "$(cat "$prefix/version" 2>/dev/null)" = "$version" ]; then exit 0; fi
echo "building Abseil $version for ThreadSanitizer (two minutes)" >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/parts" "$work/lists/partial" "$work/source"
# The same archives as the machine's own, asked for sources and without touching its lists.
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    if [ -e "$list" ]; then
        sed -n 's/^deb /deb-src /p' "$list" >"$work/parts/$(basename "$list" .list).list"
    fi
done
for list in /etc/apt/sources.list.d/*.sources; do
    if [ -e "$list" ]; then
        sed 's/^Types:.*/Types: deb-src/' "$list" >"$work/parts/$(basename "$list")"
    fi
done
apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/parts"
    -o "Dir::State::lists=$work/lists" -o APT::Sandbox::User=root)
# An archive without sources among them is no harm.
"${apt[@]}" update >&2 || true
(cd "$work/source" && "${apt[@]}" source "abseil=$version" >&2)

cmake -S "$work"/source/abseil-*/ -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_CXX_STANDARD=17 -DBUILD_SHARED_LIBS=ON -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_SHARED_LINKER_FLAGS=-fsanitize=thread \
    -DCMAKE_CXX_FLAGS='-fsanitize=thread -fno-omit-frame-pointer' >"$work/log" 2>&1 &&
    cmake --build "$work/build" >>"$work/log" 2>&1 &&
    cmake --install "$work/build" >>"$work/log" 2>&1 || {
    tail -n 30 "$work/log" >&2
    exit 1
}
printf '%s\n' "$version" >"$prefix/version"
