# SPDX-License-Identifier: Apache-2.0
# tool_lib.sh: for tests of the `attn` command; sourced after tap.sh. The build's own configuration counts, nothing else.
attn=$ATTN_TEST_BUILDDIR/tools/attn
data=$ATTN_TEST_SRCDIR/examples/data
configs=$ATTN_TEST_SRCDIR/examples/configs
ATTN_CONFIG=$ATTN_TEST_INI
export ATTN_CONFIG
unset NO_COLOR

# wants NAME STATUS TEXT WORD...: `attn WORD...` ends with STATUS and says TEXT (a basic regular expression).
wants() {
    wants_name=$1 wants_status=$2 wants_text=$3
    shift 3
    "$attn" "$@" >"$tap_scratch/out" 2>"$tap_scratch/err"
    wants_got=$?
    if [ $wants_got -ne "$wants_status" ]; then
        fail "$wants_name" "\$ attn $*
status $wants_got, wanted $wants_status
$(head -n 20 "$tap_scratch/out" "$tap_scratch/err")"
    elif cat "$tap_scratch/out" "$tap_scratch/err" | grep -q -e "$wants_text"; then
        pass "$wants_name"
    else
        fail "$wants_name" "\$ attn $*
wanted to read: $wants_text
$(head -n 20 "$tap_scratch/out" "$tap_scratch/err")"
    fi
}

# json NAME PATH VALUE WORD...: `attn WORD... --json` is JSON and has VALUE (a basic regular expression) at PATH.
json() {
    json_name=$1 json_path=$2 json_value=$3
    shift 3
    "$attn" "$@" --json >"$tap_scratch/json" 2>"$tap_scratch/err"
    json_got=$("$ATTN_TEST_BUILDDIR/tests/tools/json_query" "$json_path" <"$tap_scratch/json" 2>&1)
    if printf '%s\n' "$json_got" | grep -q -e "^$json_value\$"; then
        pass "$json_name"
    else
        fail "$json_name" "\$ attn $* --json
$json_path is '$json_got', wanted '$json_value'
$(head -n 5 "$tap_scratch/json" "$tap_scratch/err")"
    fi
}
