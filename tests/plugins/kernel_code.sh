#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The machine code of kernels that copy to shared memory under an L2 policy: no such copy (LDGSTS) has its descriptor in
# an odd uniform register. The assembler of CUDA 13.0 makes such code of a destination that is uniform but for an offset
# (cp_async_row16_by in sparse_attend_sm90_gather.cuh), and a device stops at it. Reads what KERNEL_CODE_FILES names,
# by default mla_sparse and decode's objects for head size 128, with cuobjdump; SKIP without.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/plugins/machine_code.sh"
files=${KERNEL_CODE_FILES:-"$ATTN_TEST_PLUGIN_DIR/mla_sparse.so" kernels/cuda/dense/.libs/decode_sm80-*-d128.o}
for file in $files; do
    name=$(basename "$file")
    if ! "$dump" -sass "$file" >"$tap_scratch/sass" 2>"$tap_scratch/err" ||
        ! grep -q 'Function :' "$tap_scratch/sass"; then
        skip "$name" "no machine code of a GPU"
        continue
    fi
    wrong=$(grep -c 'LDGSTS.*desc\[UR[0-9]*[13579]\]' "$tap_scratch/sass")
    if [ "$wrong" = 0 ]; then
        pass "$name: copies under a policy have their descriptor in an even register"
    else
        fail "$name: copies with their descriptor in an odd register: $wrong, expected 0" \
            "$(grep -m 3 'LDGSTS.*desc\[UR[0-9]*[13579]\]' "$tap_scratch/sass")"
    fi
done
tap_done
