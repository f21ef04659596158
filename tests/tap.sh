# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# tap.sh: the Test Anything Protocol for shell tests; sourced. ok NAME COMMAND... runs COMMAND: its status is the
# check and its output the explanation of a failure. tap_done prints the plan and ends the test.
tap_run=0
tap_failed=0
tap_scratch=$(mktemp -d)
trap 'rm -rf "$tap_scratch"' EXIT

pass() {
    tap_run=$((tap_run + 1))
    echo "ok $tap_run - $1"
}
fail() { # NAME [TEXT]
    tap_run=$((tap_run + 1))
    tap_failed=$((tap_failed + 1))
    echo "not ok $tap_run - $1"
    [ $# -lt 2 ] || printf '%s\n' "$2" | sed 's/^/# /'
}
skip() { # NAME WHY
    tap_run=$((tap_run + 1))
    echo "ok $tap_run - $1 # SKIP $2"
}
ok() {
    tap_name=$1
    shift
    if "$@" >"$tap_scratch/out" 2>&1; then
        pass "$tap_name"
    else
        fail "$tap_name" "\$ $* (status $?)
$(head -n 40 "$tap_scratch/out")"
    fi
}
bail_out() { # WHY
    echo "Bail out! $1"
    exit 1
}
tap_done() {
    echo "1..$tap_run"
    [ $tap_failed -eq 0 ]
    exit
}
