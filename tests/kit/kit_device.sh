#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_device.sh: a device that libattn does not know, brought by a plugin that is built out of tree from public headers.
# Its memory cannot be touched by the host, so that every pointer of it that core, kit or command follow is a crash here. It
# passes the kit, is run and timed; host sides that do touch it are caught. Latent roles: kit_device_roles.sh.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
source=$ATTN_TEST_SRCDIR/tests/kit/device
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP memory behind a fence and plugins that crash on purpose are no work for a sanitizer"
    exit 0
    ;;
esac

build() { # OUTPUT FLAGS.. : over the example plugin's kernels
    output=$1
    shift
    # shellcheck disable=SC2086 # CPPFLAGS is a list: where the headers of libdlpack are
    ${ATTN_TEST_CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -fPIC -shared -fvisibility=hidden $CPPFLAGS \
        -I"$ATTN_TEST_SRCDIR/include" -I"$ATTN_TEST_SRCDIR/examples/plugin" -DFENCED_TARGET='"simple_attn.c"' "$@" \
        "$source/fenced_device.c" "$source/fenced_peers.c" "$source/fenced_attn.c" -lm -lpthread -o "$output"
}
good=$tap_scratch/fenced.so
ok "the plugin builds" build "$good"
if "$attn" check "$good" >"$tap_scratch/out" 2>&1 && grep -q '^# on fenced:0, gen_30' "$tap_scratch/out"; then
    pass "the whole kit on fenced:0: $(tail -n 1 "$tap_scratch/out")"
else
    fail "the whole kit on fenced:0" "$(grep -A 2 '^not ok' "$tap_scratch/out" | head -n 20)"
fi
for group in abi structs capabilities numerics memory offsets determinism capture errors threads leaks \
    manners; do
    if grep "^ok .* - $group: " "$tap_scratch/out" | grep -vq '# SKIP'; then
        pass "group $group ran"
    else
        fail "group $group ran" "all of it is skipped"
    fi
done

# The three ways in which a host side can be wrong, each caught by the group that makes the call.
for wrong in 1:numerics 2:offsets 3:memory; do
    build "$tap_scratch/wrong.so" -DFENCED_WRONG="${wrong%:*}" 2>"$tap_scratch/out"
    "$attn" check "$tap_scratch/wrong.so" --group "${wrong#*:}" --max-failures 1 >"$tap_scratch/out" 2>&1
    status=$?
    name="a host that touches the device (${wrong%:*}) is caught by ${wrong#*:}"
    if [ $status -eq 1 ] && grep -q 'signal 11' "$tap_scratch/out"; then
        pass "$name"
    else
        fail "$name" "$(tail -n 5 "$tap_scratch/out")"
    fi
done

# Checks that leave nothing behind share a process on a device. What fails there is run again alone, and is a failure
# even if it passes then; those behind it run in another process, so that one fault is not theirs.
for wrong in 4:'no place for another instance' 5:'signal 6'; do
    build "$tap_scratch/wrong.so" -DFENCED_WRONG="${wrong%%:*}" 2>"$tap_scratch/out"
    "$attn" check "$tap_scratch/wrong.so" --group structs --jobs 1 >"$tap_scratch/out" 2>&1
    status=$?
    name="state of a process that outlives its instances (${wrong%%:*}) fails beside others, and says so"
    if [ $status -eq 1 ] && grep -q "# *it fails behind .* passes alone: .*${wrong#*:}" "$tap_scratch/out" &&
        grep -q '^ok ' "$tap_scratch/out"; then
        pass "$name"
    else
        fail "$name" "$(head -n 20 "$tap_scratch/out")"
    fi
done

# Commands, with a context that loads the plugin. Less memory, for what bench fills of it is the machine's.
build "$tap_scratch/small.so" -DFENCED_SMALL=67108864
cat >"$tap_scratch/fenced.ini" <<END
[attn]
plugin_dir = $ATTN_TEST_PLUGIN_DIR
[plugin fenced]
path = $tap_scratch/small.so
required = yes
[select decoder]
backend = FENCED_ATTN
END
with() { # COMMAND ARGUMENTS..
    command=$1
    shift
    "$attn" "$command" --config-file "$tap_scratch/fenced.ini" "$@"
}
problem='role=decoder num_heads=8 num_kv_heads=2 head_size=64 dtype=float32'
says() { # NAME PATTERN COMMAND..: the output has the pattern
    name=$1 pattern=$2
    shift 2
    with "$@" >"$tap_scratch/out" 2>&1
    if grep -Eq "$pattern" "$tap_scratch/out"; then
        pass "$name"
    else
        fail "$name" "$(head -n 20 "$tap_scratch/out")"
    fi
}
says "attn info lists the device" 'fenced:0 +fenced test device, gen_30' info
says "and the backend's kind" 'FENCED_ATTN +fenced' info
says "attn select for a device that is there" 'FENCED_ATTN +chosen' select --device fenced:0 "$problem"
says "and for one that is not" 'FENCED_ATTN +chosen' select --device gen_30 "$problem"
says "a second one is not there" 'there is no fenced:1' select --device fenced:1 "$problem"
says "an unknown name gets those that are known" 'write cpu, cuda:0, fenced:0, or' \
    select --device fence "$problem"
says "attn run of a random case" 'FENCED_ATTN: .*ok' run --device fenced:0 --problem "$problem"
says "attn run of a file, pages and steps" 'FENCED_ATTN .* ok' run --device fenced --dtype float32 \
    "$ATTN_TEST_SRCDIR/examples/data/minilm-as-decoder.safetensors" --chunk 64 --decode 2
says "attn bench" '^ +yours +FENCED_ATTN .*[0-9] [um]?s .*copy' \
    bench --device fenced:0 --problem "$problem" --requests 2 --seq 128

# Kinds that cannot be: the plugin is refused, and says why.
refused() { # NAME PATTERN FLAGS..
    name=$1 pattern=$2
    shift 2
    build "$tap_scratch/small.so" "$@"
    says "$name" "$pattern" info
}
refused "a kind without an operation" 'device kind fenced has no operation copy_from' \
    -DFENCED_NO_READ -Wno-unused-function
refused "a kind with the type of another" 'device kind fenced has type 2, which is already cuda' \
    -DFENCED_TYPE=kDLCUDA
refused "a kind with no type" 'expected a DLDeviceType from 1 to 63' -DFENCED_TYPE=0
tap_done
