#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit_device_roles.sh: the device of kit_device.sh in every role, latent ones too: over the reference backend, which is the
# oracle as well, so this is about who touches what.
. "${ATTN_TEST_SRCDIR:?}/tests/tap.sh"
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP memory behind a fence is no work for a sanitizer"
    exit 0
    ;;
esac
if "$ATTN_TEST_BUILDDIR/tools/attn" check "$ATTN_TEST_BUILDDIR/tests/kit/device/.libs/fenced_reference.so" \
    --group structs,memory,offsets,determinism,capture,errors >"$tap_scratch/out" 2>&1; then
    pass "what the kit looks at in every role: $(tail -n 1 "$tap_scratch/out")"
else
    fail "what the kit looks at in every role" "$(grep -A 2 '^not ok' "$tap_scratch/out" | head -n 20)"
fi
tap_done
