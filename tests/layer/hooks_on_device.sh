#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# hooks_on_device.sh: the hooks over a device whose memory the host cannot touch (tests/kit/device), and the replay of
# what was recorded there.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP memory behind a fence is no work for a sanitizer"
    exit 0
    ;;
esac
PLANTED_TARGET=$ATTN_TEST_BUILDDIR/tests/kit/device/.libs/fenced_reference.so
HOOKS_ATTN=$ATTN_TEST_BUILDDIR/tools/attn
HOOKS_FOLDER=$folder
export PLANTED_TARGET HOOKS_ATTN HOOKS_FOLDER
cat >"$folder/planted.ini" <<END
[attn]
plugin_dir = $ATTN_TEST_PLUGIN_DIR
[plugin planted]
path = $ATTN_TEST_BUILDDIR/tests/layer/.libs/planted.so
required = yes
END
ATTN_CONFIG=$folder/planted.ini "$ATTN_TEST_BUILDDIR/tests/layer/hooks_on_device" fenced:0 FENCED_ATTN
