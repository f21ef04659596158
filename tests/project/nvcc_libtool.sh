#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nvcc_libtool.sh: for which architectures build-aux/nvcc-libtool has a source compiled. `echo` stands in for nvcc.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"

compiles_for() { # ARCHITECTURES SOURCE CODE: what nvcc is told to make
    made=$(ATTN_CUDA_ARCH=$1 sh "$ATTN_TEST_SRCDIR/build-aux/nvcc-libtool" echo -c "$2" | tr ' ' '\n' |
        sed -n 's/^-gencode=arch=[a-z0-9_]*,code=//p' | tr '\n' ' ')
    echo "made: $made, wanted: $3"
    [ "$made" = "$3" ]
}
ok "a portable source: all, and PTX of the lowest" compiles_for '80 90a' a/x_sm80.cu 'sm_80 sm_90a compute_80 '
ok "a source for Hopper: the 9x alone" compiles_for '80 90a' a/x_sm90.cu 'sm_90a '
ok "without a, too" compiles_for '80 90' a/x_sm90_bf16.cu 'sm_90 '
ok "for 8.0 alone: the source for Hopper compiles all the same" compiles_for 80 a/x_sm90.cu 'sm_90 '
ok "and the portable one has its PTX" compiles_for 80 a/x.cu 'sm_80 compute_80 '
ok "a has no PTX that another architecture takes" compiles_for 90a a/x.cu 'sm_90a '
ok "the lowest, in whatever order" compiles_for '100f 86' a/x.cu 'sm_100f sm_86 compute_86 '
tap_done
