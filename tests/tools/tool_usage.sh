#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the command says about itself, and about command lines that are wrong.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"

wants "no command shows the help and fails" 2 "Usage: attn COMMAND"
wants "help" 0 "Usage: attn COMMAND" --help
wants "help of a command" 0 "^Usage: attn select" help select
wants "help of a command that is none" 2 "did you mean select" help selcet
wants "version" 0 "^attn (libattn) [0-9]*\.[0-9]*\.[0-9]*$" --version
wants "a misspelt command is guessed" 2 "did you mean select" selcet
wants "an unknown command" 2 "see attn --help" frobnicate
for command in info select plan run record bench check compile; do
    wants "$command --help" 0 "^Usage: attn $command" $command --help
    wants "$command --help has examples" 0 "^  attn $command" $command --help
    wants "$command refuses unknown options" 2 "." $command --no-such-option-at-all
    ok "attn-$command has a manual page" test -f "$ATTN_TEST_SRCDIR/man/attn-$command.1"
done
wants "a misspelt option is guessed" 2 "did you mean --device" select --devise cpu
wants "an option without its value" 2 "needs a value" select --device
wants "a flag takes no value" 2 "takes no value" info --json=yes
wants "a number out of range" 2 "whole number from 1" bench --threads 0
wants "a number that is none" 2 "whole number" plan --memory lots
wants "a wrong --option" 2 "PLUGIN.KEY=VALUE" info --option level
if [ -f "$ATTN_TEST_PLUGIN_DIR/cpu.so" ]; then
    wants "an unknown plugin option" 4 "level" info --option cpu.lvel=avx2
else
    skip "an unknown plugin option" "the cpu plugin is not built"
fi
wants "a folder that is not there" 2 "no such folder" info --plugin-dir /no/such/folder
wants "a configuration that is not there" 4 "/no/such.ini" info --config-file /no/such.ini

# Colours: never into a file; the output of two runs is the same.
"$attn" select --device cpu role=decoder num_heads=8 head_size=64 >"$tap_scratch/a" 2>&1
ok "no escape sequences in a file" sh -c "! grep -q '$(printf '\033')' '$tap_scratch/a'"

# A full disk is an error, where there is a device for it.
if [ -w /dev/full ]; then
    "$attn" info >/dev/full 2>"$tap_scratch/err"
    ok "a full disk is noticed" test $? -eq 4
    for words in --help --version "info --help" "help run" ""; do
        # shellcheck disable=SC2086 # a list
        "$attn" $words >/dev/full 2>"$tap_scratch/err"
        ok "also by attn $words" test $? -eq 4
    done
else
    skip "a full disk is noticed" "no /dev/full"
fi
tap_done
