#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The manual pages: well-formed, and each option of a command stands in its page.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
ATTN_CONFIG=$ATTN_TEST_INI
export ATTN_CONFIG

for page in "$ATTN_TEST_SRCDIR"/man/*.[157]; do
    name=$(basename "$page")
    if command -v mandoc >/dev/null; then
        ok "$name has no fault (mandoc)" sh -c "mandoc -T lint -W warning '$page' && mandoc -T utf8 '$page' | grep -q libattn"
    elif command -v groff >/dev/null && groff -mdoc -Tutf8 "$page" 2>/dev/null | grep -q libattn; then
        ok "$name has no fault (groff)" sh -c "test -z \"\$(groff -mdoc -ww -z -Tutf8 '$page' 2>&1)\""
    else
        skip "$name has no fault" "neither mandoc nor groff with mdoc"
    fi
done

common=" json config-file plugin-dir option verbose help "
commands=$("$ATTN_TEST_BUILDDIR/tools/attn" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
ok "attn --help lists commands" test -n "$commands"
for command in $commands; do
    missing=
    for option in $("$ATTN_TEST_BUILDDIR/tools/attn" $command --help | sed -n 's/^  --\([a-z-]*\).*/\1/p'); do
        case $common in *" $option "*) continue ;; esac
        grep -q "Fl Fl $option\\>" "$ATTN_TEST_SRCDIR/man/attn-$command.1" || missing="$missing --$option"
    done
    ok "attn-$command.1 has every option" test -z "$missing"
    [ -z "$missing" ] || echo "# missing:$missing"
done
tap_done
