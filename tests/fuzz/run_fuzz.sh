#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_fuzz.sh SRCDIR SECONDS: builds every tests/fuzz/fuzz_*.c with clang's libFuzzer, AddressSanitizer and UBSan and
# runs it for that many seconds on its corpus (tests/fuzz/corpus/NAME). A line `SOURCES: ...` in the harness says what it
# is linked with. The seed is fixed unless FUZZ_SEED gives another; a crash leaves its input in ./fuzz.
set -u
src=$(cd "$1" && pwd)
seconds=${2:-20}
command -v clang >/dev/null || { echo "fuzz: SKIP, no clang"; exit 0; }
mkdir -p fuzz
cd fuzz || exit 1
failed=0
passed=0
for harness in "$src"/tests/fuzz/fuzz_*.c; do
    name=$(basename "$harness" .c)
    sources=
    for pattern in $(sed -n 's/^.*SOURCES: *//p' "$harness" | sed 's:\*/$::'); do
        for file in "$src"/$pattern; do sources="$sources $file"; done
    done
    # shellcheck disable=SC2046,SC2086 # lists
    if ! clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        -DATTN_DEFAULT_PLUGIN_DIR='"/nonexistent"' -DATTN_DEFAULT_CONFIG_DIR='"/nonexistent"' \
        -DPACKAGE_VERSION='"fuzz"' -DVERSION='"fuzz"' \
        -I "$src/include" -I "$src/core" -I "$src/tools" -o "$name" "$harness" $sources \
        $(pkg-config --cflags --libs inih jansson) -ldl -lm >"$name.build.log" 2>&1; then
        echo "FAIL: $name does not build (fuzz/$name.build.log)"
        grep -m 5 -E 'error|undefined' "$name.build.log"
        failed=$((failed + 1))
        continue
    fi
    mkdir -p "found-$name"
    corpus=$src/tests/fuzz/corpus/$name
    [ -d "$corpus" ] || corpus=
    # shellcheck disable=SC2086
    if "./$name" -seed="${FUZZ_SEED:-1}" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$name-" "found-$name" $corpus >"$name.log" 2>&1; then
        echo "PASS: $name, $(sed -n 's/^Done \([0-9]*\) runs.*/\1 inputs/p' "$name.log")"
        passed=$((passed + 1))
    else
        echo "FAIL: $name (fuzz/$name.log)"
        grep -m 3 -E 'ERROR|runtime error|artifact' "$name.log"
        failed=$((failed + 1))
    fi
done
echo "fuzz: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
