#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_command.sh: the command line of attn check and attn info --probe: exit codes, bad input, what a failure prints.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
attn=$ATTN_TEST_BUILDDIR/tools/attn
plugin=$ATTN_TEST_PLUGIN_DIR/reference.so
include=-I$ATTN_TEST_SRCDIR/include
cc="${ATTN_TEST_CC:-cc} -std=c11 -O1 -fPIC -shared -fvisibility=hidden $include"
out=$tap_scratch/text

says() { # NAME STATUS TEXT COMMAND...
    name=$1 want=$2 text=$3
    shift 3
    "$@" >"$out" 2>&1
    status=$?
    if [ $status -eq "$want" ] && grep -q -e "$text" "$out"; then pass "$name"; else
        fail "$name" "\$ $* (status $status, expected $want with '$text')
$(head -n 20 "$out")"
    fi
}

says "help" 0 'attn check' "$attn" check --help
says "no file" 2 'one plugin file' "$attn" check
says "two files" 2 'one plugin file' "$attn" check a b
says "a file that is not there" 3 'no such file' "$attn" check "$tap_scratch/none.so"
says "an unknown group names the known ones" 2 'numerics' "$attn" check "$plugin" --group numeric
says "an unknown backend" 3 'no backend NONE' "$attn" check "$plugin" --backend NONE
echo text >"$tap_scratch/text.so"
says "a file that is no shared object" 3 'not ok 1' "$attn" check "$tap_scratch/text.so"
says "the list runs nothing" 0 'numerics: page borders' "$attn" check "$plugin" --list
says "seed and backend are printed" 0 'seed 7' "$attn" check "$plugin" --group abi --seed 7
says "JSON has the totals" 0 '"passed": 5' "$attn" check "$plugin" --group abi --json
says "and each check" 0 '"result": "passed"' "$attn" check "$plugin" --group abi --json
says "and how long it took" 0 '"seconds": 0\.' "$attn" check "$plugin" --group abi --json
says "JSON of a file that is no plugin" 3 '"text": ' "$attn" check "$tap_scratch/text.so" --json
says "JSON and a list exclude each other" 2 'cannot be combined' "$attn" check "$plugin" --list --json
says "a name that no check has is no pass" 1 'no check has this name' "$attn" check "$plugin" --only nosuch
says "a group that ran nothing says so" 1 'no check was executed' "$attn" check "$plugin" --group capture

# a file of two backends, which export a symbol too many
cat >"$tap_scratch/two.c" <<END
#define attn_plugin_v1 bad_single
#include "$ATTN_TEST_SRCDIR/tests/kit/faults/good.c"
#undef attn_plugin_v1
static const attn_backend_t other = {.struct_size = sizeof other, .name = "OTHER_ATTN", .doc = "The same again.",
                                     .capabilities = &bad_capabilities, .ops = &bad_ops};
static const attn_backend_t *const both[] = {&bad_backend, &other};
__attribute__((visibility("default"))) extern const attn_plugin_t attn_plugin_v1;
const attn_plugin_t attn_plugin_v1 = {.magic = ATTN_PLUGIN_MAGIC, .struct_size = sizeof(attn_plugin_t),
    .abi_major = ATTN_ABI_MAJOR, .abi_minor = ATTN_ABI_MINOR, .name = "bad", .version = "1.0", .vendor = "tests",
    .license = "Apache-2.0", .build_id = "", .num_backends = 2, .backends = both};
END
ok "a plugin of two backends builds" $cc "$tap_scratch/two.c" -lm -o "$tap_scratch/two.so"
two=$tap_scratch/two.so
says "a check that only the second backend has" 0 '^# 1 passed, 0 failed' "$attn" check "$two" --only "of OTHER_ATTN"
says "says so of the first" 0 '^# no check of BAD_ATTN has this name' "$attn" check "$two" --only "of OTHER_ATTN"
says "one that only the first has" 0 '^# 1 passed, 0 failed' "$attn" check "$two" --only "descriptor of the plugin"
says "one that neither has" 1 '^# 0 passed, 1 failed' "$attn" check "$two" --only nosuch
says "after as many failures as asked for nothing is added" 1 '^# 0 passed, 1 failed' "$attn" check "$two" --group abi \
    --max-failures 1
says "a plan ends the stream" 0 '^1\.\.5$' "$attn" check "$plugin" --group abi

# a failure comes with a line that replays it
$cc "$ATTN_TEST_SRCDIR/tests/kit/faults/gqa_mapping.c" -lm -o "$tap_scratch/gqa.so"
says "a failure is status 1" 1 '^not ok' "$attn" check "$tap_scratch/gqa.so" --group numerics --only "query heads per"
problem=$(sed -n "s/^#   replay: attn run --backend BAD_ATTN --problem '\(.*\)'\$/\1/p" "$out" | head -n 1)
says "attn run takes the line" 0 'REFERENCE' "$attn" run --backend REFERENCE --problem "$problem" \
    --config-file "$ATTN_TEST_INI"
$cc "$ATTN_TEST_SRCDIR/tests/kit/faults/window_off_by_one.c" -lm -o "$tap_scratch/window.so"
"$attn" check "$tap_scratch/window.so" --group numerics --max-failures 1 --seed 3 >"$tap_scratch/first" 2>&1
"$attn" check "$tap_scratch/window.so" --group numerics --max-failures 1 --seed 3 >"$tap_scratch/second" 2>&1
ok "the same seed gives the same failure" cmp "$tap_scratch/first" "$tap_scratch/second"

# checks at once: the same lines in the same order, the last words of a crash included
for jobs in 1 5; do
    "$attn" check "$tap_scratch/window.so" --group numerics,relations,abi --jobs $jobs >"$tap_scratch/jobs.$jobs" 2>&1
done
ok "five checks at once print what one at a time does" cmp "$tap_scratch/jobs.1" "$tap_scratch/jobs.5"
"$attn" check "$tap_scratch/window.so" --group numerics --max-failures 1 --jobs 5 --seed 3 >"$tap_scratch/second" 2>&1
ok "and stop at the same failure" cmp "$tap_scratch/first" "$tap_scratch/second"
says "--times says the seconds of a check" 0 '^ok .* cases, [0-9.]* s)$' "$attn" check "$plugin" --only "query heads per" --times
says "and of a group" 0 '^# group numerics: [0-9.]* s$' "$attn" check "$plugin" --only "query heads per" --times
says "no checks at once are none" 2 'jobs' "$attn" check "$plugin" --jobs 0

# a plugin that crashes or hangs when it is loaded
cat >"$tap_scratch/crash.c" <<'END'
__attribute__((constructor)) static void now(void) { __builtin_trap(); }
END
cat >"$tap_scratch/hang.c" <<'END'
#include <unistd.h>
__attribute__((constructor)) static void now(void) { for (;;) pause(); }
END
cat >"$tap_scratch/empty.c" <<'END'
__attribute__((visibility("default"))) int something = 1;
END
for name in crash hang empty; do $cc "$tap_scratch/$name.c" -o "$tap_scratch/$name.so"; done
says "a crash at loading is a failed check" 3 'signal' "$attn" check "$tap_scratch/crash.so"
says "in JSON, too" 3 '"failed": 1' "$attn" check "$tap_scratch/crash.so" --json
head -c 4000 "$plugin" >"$tap_scratch/short.so"
says "so is a file that was cut short" 3 'is cut short' "$attn" check "$tap_scratch/short.so"
says "which the probe calls by its name, too" 1 'is cut short' "$attn" info --probe "$tap_scratch/short.so"
says "and text" 1 'is not an ELF file' "$attn" info --probe "$tap_scratch/text.so"
probe() { "$attn" info --probe "$1" >"$out" 2>&1; }
probe "$tap_scratch/crash.so"
status=$?
ok "info --probe survives a crash" test $status -ne 0 -a $status -lt 128
ok "and says so" grep -q 'signal' "$out"
probe "$tap_scratch/hang.so"
ok "info --probe ends a hang" grep -q 'timed out after' "$out"
probe "$tap_scratch/empty.so"
ok "info --probe names the missing symbol" grep -q 'attn_plugin_v1' "$out"
says "info --probe shows a good one" 0 REFERENCE "$attn" info --probe "$plugin"
tap_done
