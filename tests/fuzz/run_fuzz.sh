#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_fuzz.sh SRCDIR SECONDS: builds every tests/fuzz/fuzz_*.c with clang's libFuzzer, AddressSanitizer and UBSan
# and runs it for that many seconds on its corpus (tests/fuzz/corpus/NAME). A line `SOURCES: ...` in the harness
# says what it is linked with; lines `PLUGIN: NAME ...` say of what the plugins are built that it loads. The seed
# is fixed unless FUZZ_SEED gives another; a crash leaves its input in ./fuzz. With FUZZ_CPU=N rounds of SECONDS
# follow each other, each with the next seed, until each harness has had its share of N seconds of processor time.
# With FUZZ_RUNS=N a round ends after N inputs, at the same addresses every time: the same build then tries the same
# inputs on every machine, however fast.
set -u
src=$(cd "$1" && pwd)
seconds=${2:-20}
command -v clang >/dev/null || { echo "fuzz: SKIP, no clang"; exit 0; }
mkdir -p fuzz
cd fuzz || exit 1
failed=0
passed=0
names=
ATTN_TEST_PLUGIN_DIR=$PWD/plugins
export ATTN_TEST_PLUGIN_DIR
mkdir -p plugins

# expanded PATTERN...: the files of the tree that the patterns name.
expanded() {
    for pattern in "$@"; do
        for file in "$src"/$pattern; do printf '%s ' "$file"; done
    done
}

# plugin NAME FILE...: plugins/NAME.so with the same sanitizers; the harness brings their run-time library.
plugin() {
    plugin_name=$1
    shift
    clang -std=c11 -D_GNU_SOURCE -g -O1 -fPIC -shared -fvisibility=hidden -fsanitize=fuzzer-no-link,address,undefined \
        -fno-sanitize-recover=all -DPACKAGE_VERSION='"fuzz"' -DATTN_BUILD_ID='""' -I "$src/include" \
        -I "$src/plugins/$plugin_name" -o "plugins/$plugin_name.so" "$@" -lm
}

# built NAME FILE: the harness as fuzz/NAME, with its plugins.
built() {
    # shellcheck disable=SC2046 # lists
    sources=$(expanded $(sed -n 's/^.*SOURCES: *//p' "$2" | sed 's:\*/$::'))
    for made in $(sed -n 's/^.*PLUGIN: *\([a-z_]*\) .*/\1/p' "$2" | sort -u); do
        # shellcheck disable=SC2046 # lists
        if ! plugin "$made" $(expanded $(sed -n "s/^.*PLUGIN: *$made //p" "$2")) >"$1.build.log" 2>&1; then
            echo "FAIL: the plugin $made of $1 does not build (fuzz/$1.build.log)"
            return 1
        fi
    done
    # shellcheck disable=SC2046,SC2086 # lists
    if ! clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        -DATTN_DEFAULT_PLUGIN_DIR='"/nonexistent"' -DATTN_DEFAULT_CONFIG_DIR='"/nonexistent"' \
        -DPACKAGE_VERSION='"fuzz"' -DVERSION='"fuzz"' \
        -I "$src/include" -I "$src/core" -I "$src/tools" -o "$1" "$2" $sources \
        $(pkg-config --cflags --libs inih jansson) -ldl -lm >"$1.build.log" 2>&1; then
        echo "FAIL: $1 does not build (fuzz/$1.build.log)"
        grep -m 5 -E 'error|undefined' "$1.build.log"
        return 1
    fi
}

# cpu: seconds of processor time that our children have used, the second line of times; a subshell would have none.
cpu_used() {
    times >times.now
    cpu=$(sed -n '2y/ms/  /;2p' times.now | awk '{ print $1 * 60 + $2 + $3 * 60 + $4 }')
}

# round NAME SEED: one run; its line is in rounds.NAME (executions, edges reached, edges, seconds of processor time).
round() {
    corpus=$src/tests/fuzz/corpus/$1
    [ -d "$corpus" ] || corpus=
    [ "$1" != fuzz_config_json ] || corpus="$corpus $src/examples/configs"
    mkdir -p "found-$1"
    cpu_used
    before=$cpu
    # shellcheck disable=SC2086
    $same_addresses "./$1" -seed="$2" -max_total_time="$seconds" -runs="${FUZZ_RUNS:--1}" -max_len=8192 -timeout=30 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$1-" "found-$1" $corpus >"$1.log" 2>&1
    status=$?
    cpu_used
    awk -v cpu="$cpu $before" '
        /^INFO: Loaded/ { for (i = 1; i <= NF; i++) if ($i ~ /^\(/) { edges = substr($i, 2); break } }
        / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") reached = $(i + 1) }
        /^stat::number_of_executed_units/ { runs = $2 }
        END { split(cpu, c, " "); print runs + 0, reached + 0, edges + 0, c[1] - c[2] }' "$1.log" >>"rounds.$1"
    if [ $status -ne 0 ]; then
        mv "$1.log" "$1.found.log"
        echo "FAIL: $1 (fuzz/$1.found.log)"
        grep -m 3 -E 'ERROR|runtime error|artifact' "$1.found.log"
    fi
    return $status
}

same_addresses=
[ -z "${FUZZ_RUNS:-}" ] || ! setarch -R true 2>/dev/null || same_addresses="setarch -R"

for harness in "$src"/tests/fuzz/fuzz_*.c; do
    name=$(basename "$harness" .c)
    rm -f "rounds.$name"
    if built "$name" "$harness"; then names="$names $name"; else failed=$((failed + 1)); fi
done
seed=${FUZZ_SEED:-1}
# shellcheck disable=SC2086
total=$(set -- $names && echo $#)
# shellcheck disable=SC2086
while [ -n "$names" ]; do
    next=
    for name in $names; do
        if ! round "$name" "$seed"; then
            failed=$((failed + 1))
            continue
        fi
        used=$(awk '{ cpu += $4 } END { print int(cpu) }' "rounds.$name")
        if [ $((used * total)) -lt "${FUZZ_CPU:-0}" ]; then next="$next $name"; else passed=$((passed + 1)); fi
        # rounds.NAME was started anew with this run, so its sum is this run's
        awk -v name="$name" '{ runs += $1; if ($2 > reached) reached = $2; edges = $3; cpu += $4 }
            END { printf "PASS: %s, %d inputs, %d of %d edges, %d s of processor time\n", name, runs, reached,
                  edges, cpu }' "rounds.$name" >"sum.$name"
        case $next in
        *"$name") ;; # goes on
        *) cat "sum.$name" ;;
        esac
    done
    names=$next
    seed=$((seed + 1))
done
echo "fuzz: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
