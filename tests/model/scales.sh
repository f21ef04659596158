#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scales.sh: scales of caches that are not of usual size or sign, on the model of a GPU: values and queries of every size, which
# a product of 16 bits does not hold as they are, and negative scales of K, in products that fold their factor and in others.
. "$ATTN_TEST_SRCDIR/tests/model/model_lib.sh"
of_every_size() { # ARCH CACHE [WHAT]
    on_model "$1" timeout 400 env ATTN_CONFIG="$ATTN_TEST_INI" "$ATTN_TEST_BUILDDIR/tools/attn" check \
        "$ATTN_TEST_PLUGIN_DIR/triton_like.so" --group numerics --only "${3:-values} of every size, bfloat16, cache $2"
}
right() { # NAME ARCH DTYPE CACHE WORDS [MORE]
    ok "sm_$2: $1, cache $4" is_right "$2" "$(problem_of "$3" "$4" "${6:-}" "query_lens=1,70 seq_lens=193,100 $5")"
}
ok "sm_80: values of every size, cache int8_per_token_head" of_every_size 80 int8_per_token_head
ok "sm_90: values of every size, cache int4_per_token_head" of_every_size 90 int4_per_token_head
for format in float16 fp8_e5m2 int8_per_token_head nvfp4 int4_per_token_head turboquant_k8v4 turboquant_4bit_nc; do
    ok "sm_80: queries of every size, cache $format" of_every_size 80 $format queries
    ok "sm_90: queries of every size, cache $format" of_every_size 90 $format queries
done
for format in int8_per_token_head fp8_per_token_head int4_per_token_head; do
    right "values near the end of bfloat16" 90 bfloat16 $format inputs=large
done
for format in fp8_e4m3 nvfp4; do
    right "a negative scale of K" 80 bfloat16 $format flags=2048
    right "a negative scale of K" 90 bfloat16 $format flags=2048
    ok "sm_90: negative scales of K of heads, ALiBi, cache $format" is_right 90 "role=decoder mask=causal dtype=float16 \
num_heads=8 num_kv_heads=2 head_size=128 kv_cache_dtype=$format block_size=16 features=lse,per_head_scales,alibi | \
query_lens=1,70 seq_lens=193,100 flags=2052"
done
right "a negative scale of K, a soft cap" 90 float16 fp8_e4m3 flags=2048 \
    "num_heads=8 num_kv_heads=2 head_size=128 logits_soft_cap=30"
tap_done
