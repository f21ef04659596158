#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kernels.sh: TRITON_ATTN's and TRITON_MLA's kernels on the model of a GPU, beside REFERENCE: every cache format, prompts and
# decodes, by mma.sync (8.0) and by wgmma (9.0). The whole kit on it: make check-model.
. "$ATTN_TEST_SRCDIR/tests/model/model_lib.sh"
right() { # NAME ARCH PROBLEM
    ok "sm_$2: $1" is_right "$2" "$3"
}
formats="fp8_e4m3 fp8_e5m2 int8_per_token_head fp8_per_token_head int8_static_v int8_k_only nvfp4 int4_per_token_head"
formats="$formats turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc"
for format in auto $formats; do
    right "float16, cache $format" 90 "$(problem_of float16 "$format")"
    right "bfloat16, cache $format" 80 "$(problem_of bfloat16 "$format" "num_heads=4 num_kv_heads=1 head_size=64")"
done
right "float32" 80 "$(problem_of float32 auto)"
right "a head size that is no multiple of 8" 80 "$(problem_of bfloat16 auto "num_heads=2 num_kv_heads=2 head_size=37")"
for format in fp8_e5m2 int8_per_token_head int4_per_token_head nvfp4 turboquant_3bit_nc; do # copiers of other sizes than 128
    right "heads of 64, cache $format" 90 "$(problem_of float16 "$format" "num_heads=8 num_kv_heads=2 head_size=64")"
done
for format in fp8_per_token_head int4_per_token_head turboquant_4bit_nc; do
    right "heads of 256, cache $format" 90 "$(problem_of bfloat16 "$format" "num_heads=4 num_kv_heads=2 head_size=256")"
done
right "heads of 256" 90 "$(problem_of bfloat16 auto "num_heads=2 num_kv_heads=1 head_size=256")"
right "a window, a soft cap" 90 "$(problem_of bfloat16 auto \
    "num_heads=4 num_kv_heads=2 head_size=128 sliding_window=100 logits_soft_cap=30")"
right "segments of a long context" 90 "$(problem_of bfloat16 int4_per_token_head "" "query_lens=1,2 seq_lens=5000,3000")"
cut="query_lens=40,1,20 seq_lens=1500,170,700" heads="num_heads=8 num_kv_heads=2 head_size=64"
for format in auto fp8_e4m3 int8_per_token_head int8_k_only nvfp4 int4_per_token_head turboquant_3bit_nc; do
    right "prompts in pieces, cache $format" 90 "$(problem_of bfloat16 "$format" "$heads" "$cut")"
done
right "prompts in pieces" 80 "$(problem_of float16 fp8_e4m3 "$heads" "$cut")"
right "prompts in pieces, with a soft cap" 80 "$(problem_of bfloat16 auto "$heads logits_soft_cap=30" "$cut")"
ATTN_MODEL_EDIT="triton_redo.cuh|if (is_bad)|if (true)"
export ATTN_MODEL_EDIT
right "prompts in pieces, every row computed again" 90 "$(problem_of bfloat16 auto "$heads" "$cut")"
unset ATTN_MODEL_EDIT
several="query_lens=3,1,8,4 seq_lens=275,17,170,900"
for format in fp8_e4m3 int8_per_token_head fp8_per_token_head int8_k_only nvfp4 int4_per_token_head turboquant_4bit_nc; do
    right "a few tokens, cache $format" 90 "$(problem_of bfloat16 "$format" "num_heads=8 num_kv_heads=2 head_size=64" "$several")"
done
right "a few tokens" 80 "$(problem_of float16 int8_per_token_head "num_heads=5 num_kv_heads=1 head_size=128" "$several")"
right "lines of a ring" 80 "$(problem_of float16 auto "" "query_lens=1,1,1 seq_lens=1000,17,513")"
latent() { # ARCH DTYPE
    right "latent attention, $2" "$1" "role=mla mask=causal dtype=$2 num_heads=16 num_kv_heads=1 head_size=576 kv_lora_rank=512 \
qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128 block_size=64 features=lse | query_lens=1,20,70 seq_lens=193,275,370"
}
latent 75 float16
latent 80 bfloat16
latent 90 bfloat16
tap_done
