#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# headers_alone.sh: every installed header compiles by itself and twice, as C11, as C++11 and under nvcc, with nothing
# to warn about.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"

inc=$ATTN_TEST_SRCDIR/include
strict="-Wall -Wextra -Wpedantic -Werror"

for header in "$inc"/attn/*.h "$inc"/attn/draft/*.h; do
    name=attn/${header#"$inc"/attn/}
    printf '#include <%s>\n#include <%s>\nint only_headers_here;\n' "$name" "$name" >"$tap_scratch/alone.c"
    cp "$tap_scratch/alone.c" "$tap_scratch/alone.cc"
    cp "$tap_scratch/alone.c" "$tap_scratch/alone.cu"
    # shellcheck disable=SC2086 # compilers and options are lists
    ok "$name as C11" $ATTN_TEST_CC -std=c11 $strict -I "$inc" -fsyntax-only "$tap_scratch/alone.c"
    # shellcheck disable=SC2086
    ok "$name as C++11" $ATTN_TEST_CXX -std=c++11 $strict -I "$inc" -fsyntax-only "$tap_scratch/alone.cc"
    if command -v clang >/dev/null 2>&1; then
        # shellcheck disable=SC2086
        ok "$name with clang" clang -std=c11 $strict -I "$inc" -fsyntax-only "$tap_scratch/alone.c"
    else
        skip "$name with clang" "no clang"
    fi
    if [ -n "$ATTN_TEST_NVCC" ]; then
        ok "$name under nvcc" "$ATTN_TEST_NVCC" -std=c++17 -Werror all-warnings -I "$inc" -c \
            -o "$tap_scratch/alone.o" "$tap_scratch/alone.cu"
    else
        skip "$name under nvcc" "no CUDA toolkit"
    fi
done
tap_done
