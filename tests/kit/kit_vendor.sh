#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_vendor.sh: faults planted into four plugins of other builds than examples/plugin, and into that one.
# vendor_faults.h, vendor_*_faults.h and example_faults.txt name for each the group and the check that has to catch it;
# without a fault every group passes. A run plants every sixth fault of each group, from the one that ATTN_TEST_SEED says (0): 0 to 5 together
# are all of them. ATTN_TEST_LONG=1 plants all in one run, and ATTN_TEST_ONLY=NAME one.
# ATTN_TEST_JOBS says how many checks run at once; else one for each processor.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
folder=$ATTN_TEST_SRCDIR/tests/kit/vendor
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP broken plugins on purpose are no work for a sanitizer"
    exit 0
    ;;
esac

build_example() { # FAULT OUTPUT: the example with the line of example_faults.txt done to it
    sed -n "s/^$1|[^|]*|[^|]*|//p" "$folder/example_faults.txt" >"$tap_scratch/script"
    for file in simple_attn.c simple_rules.h; do
        sed -f "$tap_scratch/script" "$ATTN_TEST_SRCDIR/examples/plugin/$file" >"$tap_scratch/$file"
    done
    cat "$tap_scratch/simple_attn.c" "$tap_scratch/simple_rules.h" | cmp -s - "$tap_scratch/example" && return 1
    ${ATTN_TEST_CC:-cc} -std=gnu11 -O1 -w -fPIC -shared -fvisibility=hidden -I"$ATTN_TEST_SRCDIR/include" \
        "$tap_scratch/simple_attn.c" -lm -o "$2"
}
cat "$ATTN_TEST_SRCDIR/examples/plugin/simple_attn.c" "$ATTN_TEST_SRCDIR/examples/plugin/simple_rules.h" \
    >"$tap_scratch/example"

build() { # PLUGIN FAULT OUTPUT [FLAG OF THE COMPILER]
    [ "$1" != example ] || { build_example "$2" "$3"; return; }
    openmp=
    [ "$1" != team ] || openmp=-fopenmp
    # shellcheck disable=SC2086 # no flag, or one
    ${ATTN_TEST_CC:-cc} -std=c11 -O1 -w $openmp ${4:-} -DFAULT="F_$2" -fPIC -shared -fvisibility=hidden \
        -I"$ATTN_TEST_SRCDIR/include" "$folder/vendor_$1.c" -lm -lpthread -o "$3"
}

plugins="attn split tile team"
if ! build team NONE "$tap_scratch/none.so" >"$tap_scratch/out" 2>&1; then
    plugins="attn split tile"
    echo "# vendor_team needs a compiler with OpenMP: left out"
fi
if [ -z "$ATTN_TEST_ONLY" ]; then
    for plugin in $plugins; do
        build $plugin NONE "$tap_scratch/none.so"
        ok "vendor_$plugin: without a fault every group passes" "$attn" check "$tap_scratch/none.so"
    done
fi
# Values of 16 bits are often next to a tie of their codes under the scale of their group, where a division in float32 may
# end on the other side.
codes_of_16_bits() {
    build split NONE "$tap_scratch/bf16.so" '-DVENDOR_DTYPES=ATTN_BIT(ATTN_DTYPE_BFLOAT16)' || return 1
    for seed in 3 4 7 14 16; do
        "$attn" check "$tap_scratch/bf16.so" --seed $seed --only "codes of a group fp8 output" --max-failures 1 || return 1
    done
}
# Two heads of 256 and 72 bytes are 656 a token, as many as those of sparse latent attention, in a case of this seed.
rows_of_656_bytes() {
    "$attn" check "$tap_scratch/bf16.so" --seed 3 --only "instances of different problems live beside each other" --max-failures 1
}
if [ -z "$ATTN_TEST_ONLY" ]; then
    ok "vendor_split over bfloat16 alone: codes next to a tie" codes_of_16_bits
    ok "vendor_split over bfloat16 alone: a decoder's rows of 656 bytes" rows_of_656_bytes
fi
seed=${ATTN_TEST_SEED:-0} every=6
if [ "${ATTN_TEST_LONG:-0}" != 0 ] || [ -n "$ATTN_TEST_ONLY" ]; then every=1; fi
for plugin in $plugins; do
    list=$folder/vendor_faults.h
    [ $plugin = attn ] || list=$folder/vendor_${plugin}_faults.h
    sed -n "s/^X(\([a-z0-9_]*\), \([a-z]*\), \"\(.*\)\")\$/$plugin \1 \2 \3/p" "$list"
done >"$tap_scratch/all"
sed -n 's/^\([a-z0-9_]*\)|\([a-z]*\)|\([^|]*\)|.*/example \1 \2 \3/p' "$folder/example_faults.txt" >>"$tap_scratch/all"
awk -v seed="$seed" -v every=$every '(n[$1 $3]++ + every - seed % every) % every == 0' "$tap_scratch/all" \
    >"$tap_scratch/list"
echo "# seed $seed: $(grep -c . "$tap_scratch/list") of $(grep -c . "$tap_scratch/all") faults" \
    "(ATTN_TEST_LONG=1: all)"
ok "there are faults to plant" grep -q . "$tap_scratch/list"
while read -r plugin name group check; do
    [ -n "$ATTN_TEST_ONLY" ] && [ "$ATTN_TEST_ONLY" != "$name" ] && continue
    if ! build "$plugin" "$name" "$tap_scratch/$name.so" >"$tap_scratch/out" 2>&1; then
        fail "$name builds" "$(cat "$tap_scratch/out")"
        continue
    fi
    "$attn" check "$tap_scratch/$name.so" --group "$group" --only "$check" --max-failures 1 --timeout 20 \
        ${ATTN_TEST_JOBS:+--jobs "$ATTN_TEST_JOBS"} >"$tap_scratch/out" 2>&1 </dev/null
    status=$?
    # 3: it could not be examined at all, which is right for a file that ends the process
    if { [ $status -eq 1 ] || [ $status -eq 3 ]; } && grep -q "^not ok .* - $group: " "$tap_scratch/out"; then
        pass "$name is caught by $group: $check"
    else
        fail "$name is caught by $group: $check" "status $status
$(tail -n 4 "$tap_scratch/out")"
    fi
    rm -f "$tap_scratch/$name.so"
done <"$tap_scratch/list"
tap_done
