#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn compile: kernels ahead of time, without a GPU.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"

if [ ! -f "$ATTN_TEST_PLUGIN_DIR/triton_like.so" ]; then
    echo "1..0 # SKIP the plugin triton_like is not built"
    exit 0
fi
problem="role=encoder_only num_heads=4 head_size=64 dtype=float16"
dir=$tap_scratch/kernels
# shellcheck disable=SC2086 # words of problem text
"$attn" compile $problem --device sm_90 --cache-dir "$dir" >"$tap_scratch/first" 2>&1
if grep -q 'libnvrtc' "$tap_scratch/first"; then
    echo "1..0 # SKIP NVRTC is not installed"
    exit 0
fi
ok "a problem compiles for a device that is not here" grep -q '1 program' "$tap_scratch/first"
ok "its code is in the folder" sh -c "ls '$dir'/sm_90-*.cubin"
# shellcheck disable=SC2086
wants "the second time it is there" 0 "all there already" compile $problem --device sm_90 --cache-dir "$dir"
# shellcheck disable=SC2086
json "as JSON" kinds.0.cached 1 compile $problem --device sm_90 --cache-dir "$dir"
wants "a model" 0 "program" compile --model "$configs/minilm-l6.json" --device sm_80 --cache-dir "$dir"
# shellcheck disable=SC2086
wants "no folder" 2 "cache-dir" compile $problem --device sm_90
# shellcheck disable=SC2086
wants "a device too old" 1 "not compiled" compile $problem --device sm_75 --cache-dir "$dir"
wants "a backend that compiles nothing" 1 "compiles nothing" compile role=encoder_only num_heads=4 head_size=64 \
    --backend REFERENCE --device sm_90 --cache-dir "$dir"
tap_done
