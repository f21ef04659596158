#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# default_backends.sh: every backend of the built-in priority lists is in a plugin of this repository, and every backend of
# a plugin is in a list: else a name leads nowhere, or a kernel is never chosen.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
rules=$ATTN_TEST_SRCDIR/core/select/select_rules.c
listed=$(sed -n '/^#define DENSE/p; /^static const char \*const [a-z_]*\[\] = /p' "$rules" | grep -o '"[A-Z_]*"' | sort -u)
held=$(cat "$ATTN_TEST_SRCDIR"/plugins/*/*.c "$ATTN_TEST_SRCDIR"/plugins/*/*.h "$ATTN_TEST_SRCDIR"/plugins/*/plugin.am |
    sed -n 's/.*\.name = \("[A-Z_]*"\).*/\1/p; s/.*_backend_name\[\] = *\("[A-Z_]*"\).*/\1/p' | sort -u)
ok "there are lists and backends" [ -n "$listed" -a -n "$held" ]
for name in $listed; do
    ok "$name of a built-in list is held by a plugin" sh -c "printf '%s\\n' '$held' | grep -q -x -e '$name'"
done
for name in $held; do
    ok "$name of a plugin is in a built-in list" sh -c "printf '%s\\n' '$listed' | grep -q -x -e '$name'"
    ok "$name is among the known names" grep -q "{$name, \"" "$rules"
done
tap_done
