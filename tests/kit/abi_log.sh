#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi_log.sh: a public header cannot change without an entry in the log. tests/kit/abi/headers.sum holds a checksum of each
# header without its comments; the log of doc/ABI.md must name each checksum. `tests/kit/abi_log.sh --update` writes the
# file anew and prints the line that the log wants.
set -u
top=${ATTN_TEST_SRCDIR:-$(cd "$(dirname "$0")/../.." && pwd)}
sums=$top/tests/kit/abi/headers.sum
log=$top/doc/ABI.md

# The first 16 digits of SHA-256 of the code: comments and white space do not count.
sum_of() {
    tr '\n' ' ' <"$1" | sed 's@/\*[^*]*\*\**\([^/*][^*]*\*\**\)*/@ @g' | tr -s ' \t' '  ' | sha256sum | cut -c1-16
}

if [ "${1-}" = --update ]; then
    for header in "$top"/include/attn/*.h; do
        echo "$(sum_of "$header")  ${header##*/}"
    done >"$sums"
    echo "Written to $sums. Add these to the newest entry of doc/ABI.md, with what changed and why:"
    while read -r sum header; do
        grep -q "$sum" "$log" || echo "- \`$header\` $sum"
    done <"$sums"
    exit 0
fi

. "$top/tests/tap.sh"
for header in "$top"/include/attn/*.h; do
    name=${header##*/}
    sum=$(sum_of "$header")
    if grep -q "^$sum  $name\$" "$sums"; then
        pass "$name is as tests/kit/abi/headers.sum says"
    else
        fail "$name is as tests/kit/abi/headers.sum says" "the header changed and has the sum $sum now; \
was that meant? then describe it in the log of doc/ABI.md and run tests/kit/abi_log.sh --update"
    fi
    if grep -q "$sum" "$log"; then
        pass "$name is in the log"
    else
        fail "$name is in the log" "no entry of doc/ABI.md names $sum"
    fi
done
minor=$(sed -n 's/^#define ATTN_ABI_MINOR \([0-9]*\).*/\1/p' "$top/include/attn/attn_types.h")
major=$(sed -n 's/^#define ATTN_ABI_MAJOR \([0-9]*\).*/\1/p' "$top/include/attn/attn_types.h")
ok "the log has an entry for ABI $major.$minor" grep -q "^### $major\.$minor" "$log"
tap_done
