#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_lengths.sh: mistakes about the lengths of a batch (tests/kit/kit_lengths_bad.c) are caught by the checks of the
# conformance kit that are there for them.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
reference=$ATTN_TEST_PLUGIN_DIR/reference.so
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP broken plugins on purpose are no work for a sanitizer"
    exit 0
    ;;
esac

build() { # MISTAKE
    ${ATTN_TEST_CC:-cc} -std=c11 -O1 -fPIC -shared -fvisibility=hidden -I"$ATTN_TEST_SRCDIR/include" -DMISTAKE="$1" \
        -DREFERENCE="\"$reference\"" "$ATTN_TEST_SRCDIR/tests/kit/kit_lengths_bad.c" -o "$tap_scratch/$1.so" >"$tap_scratch/out" 2>&1 ||
        { echo "Bail out! $(cat "$tap_scratch/out")"; exit 1; }
}
caught() { # MISTAKE GROUP CHECK
    build "$1"
    "$attn" check "$tap_scratch/$1.so" --group "$2" --only "$3" >"$tap_scratch/out" 2>&1
    status=$?
    if [ $status -eq 1 ] && grep -q "^not ok .* - $2: .*$3" "$tap_scratch/out"; then pass "$1 is caught by $2: $3"; else
        fail "$1 is caught by $2: $3" "status $status
$(tail -n 5 "$tap_scratch/out")"
    fi
    rm -f "$tap_scratch/$1.so"
}

build NOTHING
"$attn" check "$tap_scratch/NOTHING.so" --group numerics,errors --only lengths >"$tap_scratch/checks" 2>&1
ok "the plugin without a mistake passes" test $? -eq 0
sed -n 's/^not ok/# &/p' "$tap_scratch/checks"
for role in encoder encoder_only mla_prefill mm_encoder; do
    ok "$role has cases" grep -q "^ok .*$role: keys with lengths.*([0-9]* cases)" "$tap_scratch/checks"
done
caught IGNORES_GAPS numerics 'encoder: keys with lengths of their own'
caught ALIGNS_AT_START numerics 'mm_encoder: keys with lengths of their own'
caught FULL_IS_CAUSAL numerics 'encoder_only: all of keys with lengths of their own'
caught EMPTY_HAS_LSE numerics 'mla_prefill: keys with lengths of their own'
caught TAKES_NO_ROWS errors 'key lengths that contradict'
for role in decoder mla; do
    ok "$role has cases of lengths on the device" grep -q "^ok .*$role: lengths that grow.*([0-9]* cases)" "$tap_scratch/checks"
done
caught READS_HOST_LENGTHS numerics 'decoder: lengths that grow on the device'
caught READS_HOST_LENGTHS numerics 'mla: lengths that grow on the device'
caught READS_AT_BUILD numerics 'decoder: lengths that grow on the device'
caught READS_STARTS_AT_BUILD numerics 'decoder: lengths that grow on the device'
caught TAKES_NO_LISTS errors 'decoder: lengths on the device without'
tap_done
