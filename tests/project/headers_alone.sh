#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# headers_alone.sh: every installed header compiles by itself and twice, as C11, as C++11 and under nvcc, with nothing
# to warn about; and every function of the engine headers says which threads may call it.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"

inc=$ATTN_TEST_SRCDIR/include
strict="-Wall -Wextra -Wpedantic -Werror -D_POSIX_C_SOURCE=200809L"

for header in "$inc"/attn/*.h "$inc"/attn/draft/*.h; do
    name=attn/${header#"$inc"/attn/}
    if [ "$name" = attn/attn_comm_mpi.h ]; then # of a library that need not be here
        flags=$(mpicc --showme:compile 2>/dev/null)
        printf '#include <%s>\n#include <%s>\nint only_headers_here;\n' "$name" "$name" >"$tap_scratch/alone.c"
        # shellcheck disable=SC2086
        if echo '#include <mpi.h>' | $ATTN_TEST_CC $flags -fsyntax-only -x c - 2>/dev/null; then
            ok "$name as C11" $ATTN_TEST_CC -std=c11 $strict $flags -I "$inc" -fsyntax-only "$tap_scratch/alone.c"
        else
            skip "$name as C11" "no mpi.h"
        fi
        continue
    fi
    if [ "$name" = attn/attn_comm_nccl.h ]; then # of libraries that need not be here
        printf '#include <%s>\n#include <%s>\nint only_headers_here;\n' "$name" "$name" >"$tap_scratch/alone.c"
        cp "$tap_scratch/alone.c" "$tap_scratch/alone.cc"
        flags="-isystem ${CUDA_HOME:-/usr/local/cuda}/include"
        # shellcheck disable=SC2086
        if printf '#include <cuda_runtime_api.h>\n#include <nccl.h>\n' | $ATTN_TEST_CC $flags -fsyntax-only -x c - 2>/dev/null; then
            ok "$name as C11" $ATTN_TEST_CC -std=c11 $strict $flags -I "$inc" -fsyntax-only "$tap_scratch/alone.c"
            ok "$name as C++11" $ATTN_TEST_CXX -std=c++11 $strict $flags -I "$inc" -fsyntax-only "$tap_scratch/alone.cc"
        else
            skip "$name as C11" "no nccl.h"
            skip "$name as C++11" "no nccl.h"
        fi
        continue
    fi
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

# A function has a comment of its own above it (elsewhere than in attn.h neighbours may share one), with a mark in
# brackets, unless the head of its section or header says that all have it.
without_mark() { # NAME FILE: functions without a comment, or without a mark
    awk -v file="$1" '
        /^\/\* ---/ { section = 0 }
        /^\/\*/ { text = ""; inside = 1 }
        inside {
            line = $0
            sub(/^ \* ?/, " ", line)
            text = text line
            if ($0 ~ /\*\//) inside = 0
            if (text ~ /All are \[any thread\]/) all = 1
            if (text ~ /All of them: \[any thread\]/) section = 1
            next
        }
        /^[a-z].*\(/ && !/^(typedef|extern|static)/ {
            name = $0
            sub(/\(.*/, "", name)
            sub(/.*[ *]/, "", name)
            if (text == "" || (!all && !section && text !~ /\[(any thread|instance|one thread)/))
                print file ":" FNR ": " name
            if (file == "attn.h") text = ""
        }' "$2"
}
unmarked=$(for header in attn.h attn_calibration.h attn_comm.h attn_merge.h attn_model.h attn_plan.h; do
    without_mark $header "$inc/attn/$header"
done)
if [ -z "$unmarked" ]; then pass "functions have thread marks"; else fail "functions have thread marks" "$unmarked"; fi
printf '/* All of them: [any thread] */\n/* One. */\nint f(int);\nint g(int);\n/* ---- next */\n/* h */\nint h(int);\n' >"$tap_scratch/planted.h"
found=$(without_mark attn.h "$tap_scratch/planted.h" | tr '\n' ' ')
if [ "$found" = "attn.h:4: g attn.h:7: h " ]; then
    pass "a function without a sentence or a mark is found"
else
    fail "a function without a sentence or a mark is found" "found '$found'"
fi
tap_done
