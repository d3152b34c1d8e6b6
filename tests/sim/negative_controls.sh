#!/usr/bin/env bash
# Breaks one guard of the product after another and requires that the simulation finds each.
#
#   negative_controls.sh BUILD_FOLDER [SEEDS]
#
# BUILD_FOLDER gets a build of the simulation with -DFOREBAY_BREAK=all: one build for all guards
# (base/broken.h). Each guard must be found within SEEDS seeds (default 200), and with none broken the
# same build must be sound.
set -euo pipefail

build=${1:?usage: negative_controls.sh BUILD_FOLDER [SEEDS]}
seeds=${2:-200}
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

guards=(
    skip_checksum skip_identity skip_length skip_lease_check publish_before_copy unpin_before_sent
    evict_pinned reuse_at_once skip_generation ignore_epoch count_failed_as_loaded
    identity_without_dtype
)

cmake -S "$source_dir" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFOREBAY_BREAK=all \
    -DFOREBAY_UCX=OFF -DFOREBAY_CUDA=OFF >/dev/null
cmake --build "$build" --target forebay-sim --parallel >/dev/null

# Every guard in the source is in the list above, and the other way round.
in_source=$(grep -rhoE --include='*.cc' --include='*.h' 'FB_BROKEN\("[a-z_]+"\)' \
    "$source_dir"/{base,proto,codec,transport,tiers,server,client} | grep -oE '"[a-z_]+"' | tr -d '"' |
    sort -u)
in_list=$(printf '%s\n' "${guards[@]}" | sort)
if [ "$in_source" != "$in_list" ]; then
    echo "negative controls: the guards in the source are not those listed here:"
    diff <(echo "$in_source") <(echo "$in_list") || true
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "$build/bin/forebay-sim" --seeds 1-16 >"$log" 2>&1; then
    cat "$log"
    echo "negative controls: the simulation fails with every guard in place"
    exit 1
fi

found=0
for guard in "${guards[@]}"; do
    if FOREBAY_BROKEN=$guard "$build/bin/forebay-sim" --seeds "1-$seeds" --until-found \
        >"$log" 2>&1; then
        printf '%-24s NOT FOUND in %s seeds\n' "$guard" "$seeds"
    else
        found=$((found + 1))
        printf '%-24s found: %s\n' "$guard" \
            "$(grep -m1 -oE 'VIOLATION.*|FAILED by signal.*' "$log" | cut -c1-150)"
    fi
done
echo "negative controls: $found of ${#guards[@]} found"
[ "$found" = "${#guards[@]}" ]
