#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# attn select, plan, run and bench on vision towers (Qwen-VL, LLaVA) and on Whisper with its cross attention.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
. "$ATTN_TEST_SRCDIR/tests/tools/tool_lib.sh"

json "LLaVA: text and tower" kinds.# 2 select --device cpu --model "$configs/llava-1.5-7b.json"
json "the tower is CLIP's" kinds.1.problem ".*role=mm_encoder mask=full dtype=float16 num_heads=16.*head_size=64.*" \
    select --device cpu --model "$configs/llava-1.5-7b.json"
json "MM_ENCODER_ATTN stands first" kinds.1.selection.candidates.0.backend MM_ENCODER_ATTN \
    select --device sm_90 --model "$configs/qwen2.5-vl-7b.json"
wants "Qwen's windows are the same problem" 0 "cu_seqlens then lists windows" select --device cpu \
    --model "$configs/qwen2.5-vl-7b.json"
wants "a tower takes no cache" 0 "self attention" plan --device cpu --model "$configs/llava-1.5-7b.json" --memory 40GiB
wants "Whisper: both caches are planned" 0 "cross attention" plan --device cpu --model "$configs/whisper-small.json" \
    --memory 4GiB
wants "a tower of head size 72 runs" 0 ": ok" run --device cpu --problem 'role=mm_encoder num_heads=4 head_size=72' \
    --query-lens 5,33,64
wants "fp8 runs on the reference" 0 "REFERENCE: ran" run --device cpu --query-lens 5,33 \
    --problem 'role=mm_encoder num_heads=4 head_size=72 features=fp8_attention'
wants "cross attention runs" 0 ": ok" run --device cpu --query-lens 1,3 --seq-lens 20,50 \
    --problem 'role=encoder_decoder num_heads=4 head_size=64 mask=full'
wants "a tower is measured" 0 "yours" bench --device cpu --threads 1 --time 1 --query 64 \
    --problem 'role=mm_encoder num_heads=4 head_size=80 dtype=float32'
cat >"$tap_scratch/fp8.ini" <<EOF
[attn]
plugin_dir = $ATTN_TEST_PLUGIN_DIR
[mm_encoder]
attn_dtype = fp8
EOF
chmod 644 "$tap_scratch/fp8.ini"
json "[mm_encoder] reaches select" kinds.1.selection.backend REFERENCE select --device cpu \
    --config-file "$tap_scratch/fp8.ini" --model "$configs/qwen2.5-vl-7b.json"
wants "and is shown by info" 0 "attn_dtype" info --config --config-file "$tap_scratch/fp8.ini"
wants "fp8_attention is for encoders" 2 "fp8_attention" select --device cpu role=decoder num_heads=8 head_size=64 \
    features=fp8_attention
tap_done
