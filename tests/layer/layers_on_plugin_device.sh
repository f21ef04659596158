#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# layers_on_plugin_device.sh: what the core adds around layers works on a device that a plugin brings, whose memory
# the host cannot touch (tests/kit/device).
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
case $ATTN_TEST_SANITIZERS in
'' | no) ;;
*)
    echo "1..0 # SKIP memory behind a fence is no work for a sanitizer"
    exit 0
    ;;
esac
cat >"$folder/fenced.ini" <<END
[attn]
plugin_dir = $ATTN_TEST_PLUGIN_DIR
[plugin fenced]
path = $ATTN_TEST_BUILDDIR/tests/kit/device/.libs/fenced_reference.so
required = yes
END
ATTN_CONFIG=$folder/fenced.ini "$ATTN_TEST_BUILDDIR/tests/layer/layer_families_device" fenced:0 FENCED_ATTN
