#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The small engine: the selected backend's outputs equal the reference's, element by element.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
ATTN_CONFIG=$ATTN_TEST_INI
export ATTN_CONFIG
engine=$ATTN_TEST_BUILDDIR/examples/engine/engine

ok "serves all requests" sh -c "'$engine' > '$tap_scratch/log'"
ok "several requests share a step" grep -q "4 requests" "$tap_scratch/log"
backend=$(sed -n '1s/,.*//p' "$tap_scratch/log")
ok "the selected backend writes its outputs" sh -c "'$engine' $backend '$tap_scratch/selected' > /dev/null"
ok "the reference writes its outputs" sh -c "'$engine' REFERENCE '$tap_scratch/reference' > /dev/null"
floats() { od -An -v -tf4 -w4 "$1"; }
floats "$tap_scratch/selected" >"$tap_scratch/a"
floats "$tap_scratch/reference" >"$tap_scratch/b"
paste "$tap_scratch/a" "$tap_scratch/b" >"$tap_scratch/both"
echo "# $backend against REFERENCE, $(wc -l <"$tap_scratch/both") outputs"
# 225 tokens x 2 layers x 8 heads x 64 values
ok "as many outputs as tokens" test "$(wc -l <"$tap_scratch/both")" -eq $((225 * 2 * 8 * 64))
ok "equal within 2e-5" awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= 2e-5)) { print NR, $0; exit 1 } }' "$tap_scratch/both"
ok "not all zero" awk '$1 != 0 { n++ } END { exit !(n > NR / 2) }' "$tap_scratch/both"
ok "an unknown backend is an error" sh -c "! '$engine' NO_SUCH_BACKEND 2> '$tap_scratch/err' && grep -q engine: '$tap_scratch/err'"

# The engine over ranks: threads give the checksum of one rank.
parallel=$ATTN_TEST_BUILDDIR/examples/engine-parallel/engine_parallel
sum_of() { "$parallel" "$1" 2>&1 | sed -n 's/.* threads, 120 tokens: //p'; }
one=$(sum_of 1)
ok "one rank has a checksum" test -n "$one"
for world in 2 4 8; do
    many=$(sum_of $world)
    ok "$world ranks have it too ($one, $many)" awk -v a="$one" -v b="$many" \
        'BEGIN { d = a - b; exit !(b != "" && d < 1e-3 && d > -1e-3) }'
done
ok "ranks that the heads do not go over" sh -c "! '$parallel' 3 2>'$tap_scratch/err' && grep -q '8 heads' '$tap_scratch/err'"
tap_done
