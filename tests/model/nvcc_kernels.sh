#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nvcc_kernels.sh: kernels of the plugins that nvcc compiles on the model of a GPU of 9.0, beside REFERENCE: tensor copies,
# wgmma, clusters, gathers by cp.async that mbarriers tell of. Then bugs planted in them, which the model has to see. Only
# the sources that these need are compiled, to PTX. The whole kit: make check-model.
. "$ATTN_TEST_SRCDIR/tests/tap.sh"
plugins=$ATTN_TEST_BUILDDIR/tests/model/plugins
ptx=$ATTN_TEST_BUILDDIR/tests/model/ptx
case ${ATTN_TEST_SANITIZERS:-no} in
no) ;;
*) skip "kernels on the model" "sanitizers are in the library alone" && tap_done ;;
esac
for file in flash mla mla_sparse mm_encoder reference; do
    [ -e "$plugins/$file.so" ] || { skip "kernels on the model" "there is no $file.so" && tap_done; }
done
command -v "${ATTN_TEST_NVCC##* }" >/dev/null 2>&1 || { skip "kernels on the model" "there is no nvcc" && tap_done; }
make_ptx() { # SRCDIR OUT NAME..
    source=$1
    shift
    (cd "$ATTN_TEST_BUILDDIR" && "$ATTN_TEST_SRCDIR/tests/model/make_ptx" "$source" "$ATTN_TEST_NVCC" "$@")
}
# Says what the comparison with REFERENCE said; fails where it is not within tolerance.
is_right() { # BACKEND PROBLEM
    said=$("$ATTN_TEST_SRCDIR/tests/model/on_model" 90 timeout 400 "$ATTN_TEST_BUILDDIR/tools/attn" run \
        --plugin-dir "$plugins" --backend "$1" ${option:+--option "$option"} --problem "$2" 2>&1)
    printf '%s\n' "$said"
    case $said in *"$1: ok, "*) return 0 ;; esac
    return 1
}
right() { # NAME BACKEND PROBLEM
    ok "$1: $2" is_right "$2" "$3"
}
ok "PTX of the kernels" make_ptx "$ATTN_TEST_SRCDIR" "$ptx" cache_write_sm80 decode_sm80-bf16-d64 \
    decode_sm80-bf16-d128 \
    merge_sm80 prefill_sm90-bf16-d64-pages prefill_sm90-bf16-d72-rows mla_write_sm80 mla_rows_sm80 mla_project_sm80 \
    mla_decode_sm90_bf16 mla_combine_sm80 mla_combine_sm90 sparse_attend_sm90_bf16 widen_rows_sm80 resident_sm90-bf16-d64 \
    resident_sm90-bf16-d80
decoder="role=decoder mask=causal dtype=bfloat16 num_heads=4 num_kv_heads=2 head_size=64 block_size=16 features=lse"
latent="mask=causal dtype=bfloat16 num_kv_heads=1 head_size=576 kv_lora_rank=512 qk_nope_head_dim=128 \
qk_rope_head_dim=64 v_head_dim=128 block_size=64 features=lse"
case $(is_right FLASH_ATTN "$decoder | query_lens=1 seq_lens=40") in
*"built for other GPUs"* | *"no code for sm_90"*) skip "kernels on the model" "the kernels were not built for 9.0" && tap_done ;;
esac
prompt="$decoder | query_lens=1,200,70 seq_lens=193,275,370"
one_tile="role=mla num_heads=16 $latent | query_lens=1,3 seq_lens=193,275"
long="role=mla num_heads=16 $latent | query_lens=1 seq_lens=2500"
two_tiles="role=mla num_heads=128 $latent | query_lens=1,3 seq_lens=193,275"
chosen="role=mla_sparse num_heads=64 $latent topk=128 | query_lens=1,3 seq_lens=193,275"
right "prompts and a decode" FLASH_ATTN "$prompt"
right "segments of a long context" FLASH_ATTN "$decoder | query_lens=1,1 seq_lens=2193,170"
narrow="$(echo "$decoder" | sed 's/head_size=64/head_size=40/') | query_lens=1,3 seq_lens=275,170"
right "rows of a decode that are narrower than their class" FLASH_ATTN "$narrow"
right "a window, a cap" FLASH_ATTN "$decoder sliding_window=100 logits_soft_cap=30 | query_lens=150 seq_lens=275"
bands="$(echo "$decoder" | sed 's/num_heads=4/num_heads=16/') sliding_window=60 | query_lens=50,1,25 seq_lens=275,170,25"
right "warpgroups with a group's heads each" FLASH_ATTN "$bands"
right "images" MM_ENCODER_ATTN "role=mm_encoder mask=full num_heads=2 num_kv_heads=2 head_size=72 dtype=bfloat16 \
features=lse | query_lens=300,64 seq_lens=300,64"
short="role=mm_encoder mask=full num_heads=2 num_kv_heads=1 head_size=64 dtype=bfloat16 features=lse | \
query_lens=196,33,129 seq_lens=196,33,129"
right "short images" MM_ENCODER_ATTN "$short"
tails="$(echo "$short" | sed 's/head_size=64/head_size=72/')"
right "short images, heads of more than whole lines" MM_ENCODER_ATTN "$tails"
right "a narrow tile" FLASHMLA "$one_tile"
right "tiles of a cluster" FLASHMLA "$two_tiles"
right "chosen tokens" FLASHMLA_SPARSE "$chosen"
right "pieces of lists of chosen tokens" FLASHMLA_SPARSE "${chosen% topk*} topk=512 | query_lens=1,2,1 seq_lens=600,700,130"

# A copy of the kernels with one line changed; its PTX comes before the others.
changed() { # BACKEND PROBLEM SOURCE HEADER EDIT
    # shellcheck disable=SC2154 # of tap.sh
    rm -rf "$tap_scratch/source" "$tap_scratch/ptx"
    mkdir -p "$tap_scratch/source"
    cp -R "$ATTN_TEST_SRCDIR/kernels" "$tap_scratch/source/"
    sed -i "$5" "$tap_scratch/source/kernels/cuda/$4"
    said="$4 has no such line"
    cmp -s "$ATTN_TEST_SRCDIR/kernels/cuda/$4" "$tap_scratch/source/kernels/cuda/$4" && return 1
    said="$3 was not compiled"
    make_ptx "$tap_scratch/source" "$tap_scratch/ptx" "$3" || return 1
    ATTN_MODEL_PTX=$tap_scratch/ptx:$ptx
    export ATTN_MODEL_PTX
    is_right "$1" "$2"
    status=$?
    unset ATTN_MODEL_PTX
    return $status
}
caught() { # BACKEND PROBLEM SOURCE HEADER EDIT WHAT
    changed "$1" "$2" "$3" "$4" "$5" && return 1
    case $said in *"$6"*) return 0 ;; esac
    return 1
}
# Rows that are computed anew where scores are far from zero: all of them.
ok "every row of a prompt is a far one" changed FLASH_ATTN "$decoder | query_lens=1,40 seq_lens=93,70" \
    prefill_sm90-bf16-d64-pages dense/far_rows.cuh "s/return !(fabsf(.*/return true;/"
ok "every row of a latent decode is a far one" changed FLASHMLA "${one_tile% |*} kv_cache_dtype=fp8_e4m3 | \
query_lens=1 seq_lens=93" mla_decode_sm90_e4m3 latent/mla_far_rows.cuh "s/return !(fabsf(.*/return true;/"
fault() { # NAME BACKEND PROBLEM SOURCE HEADER EDIT WHAT: what the output has to say
    ok "planted: $1" caught "$2" "$3" "$4" "$5" "$6" "$7"
}
fault "keys of a tensor copy are not waited for" FLASH_ATTN "$prompt" prefill_sm90-bf16-d64-pages \
    dense/prefill_sm90.cuh "s/mbar_wait(ring_k.full .*;/;/" "model:"
fault "columns beyond narrow rows are not zeros" FLASH_ATTN "$narrow" decode_sm80-bf16-d64 dense/decode_sm80.cuh \
    "s/if (kbytes < DK .*{/if (false) {/" "WRONG"
fault "keys are copied over others that are still read" FLASH_ATTN "$prompt" prefill_sm90-bf16-d64-pages \
    dense/prefill_sm90_producer.cuh "s/mbar_wait(k.empty .*;/;/" "model:"
fault "keys of a short request are not waited for" MM_ENCODER_ATTN "$short" resident_sm90-bf16-d64 \
    dense/resident_sm90.cuh "s/mbar_wait(k_full .*;/;/" "model:"
fault "its values are read before rows behind them are zero" MM_ENCODER_ATTN "$short" resident_sm90-bf16-d64 \
    dense/resident_sm90.cuh "s/mbar_wait(clean, 0);/;/" "model:"
fault "zeros without a fence of the proxy" MM_ENCODER_ATTN "$short" resident_sm90-bf16-d64 \
    dense/resident_sm90.cuh "s/^ *fence_proxy_async();//" "without fence.proxy.async"
fault "tails of keys are not waited for" MM_ENCODER_ATTN "$tails" resident_sm90-bf16-d80 \
    dense/resident_sm90.cuh "s/mbar_expect(bar, T::BLOCK + T::TAIL_BLOCK)/mbar_expect(bar, T::BLOCK)/" "model:"
fault "each 16 keys have the first ones' tails of values" MM_ENCODER_ATTN "$tails" resident_sm90-bf16-d80 \
    dense/resident_sm90.cuh "s/vt + (uint64_t)(k \* T::TAIL_LINE)/vt/" "WRONG"
fault "each warpgroup has the first one's tokens" FLASH_ATTN "$bands" prefill_sm90-bf16-d64-pages \
    dense/prefill_sm90_producer.cuh "s/(T::BANDS ? band \* P.band_tokens : 0)/0/" "WRONG"
fault "mbarriers are used before they are made" FLASH_ATTN "$prompt" prefill_sm90-bf16-d64-pages \
    dense/prefill_sm90.cuh "s/^    __syncthreads();//" "mbarrier"
# One multiprocessor: a few tokens are tiles of several heads there.
ATTN_MODEL_SMS=1
export ATTN_MODEL_SMS
few="$(echo "$decoder" | sed 's/num_heads=4/num_heads=16/') | query_lens=8,5,7 seq_lens=193,275,88"
right "tiles of several heads" FLASH_ATTN "$few"
fault "all rows of a tile are its first head's" FLASH_ATTN "$few" prefill_sm90-bf16-d64-pages \
    dense/prefill_sm90_parts.cuh "s/t.head + min(head, P.tile_heads - 1)/t.head/" "WRONG"
pairs="$(echo "$decoder" | sed 's/num_heads=4/num_heads=32/') | query_lens=8,5,3 seq_lens=193,275,88"
right "tiles of two heads a warp" FLASH_ATTN "$pairs"
ok "every row of two heads is a far one" changed FLASH_ATTN "$pairs" prefill_sm90-bf16-d64-pages \
    dense/far_rows.cuh "s/return !(fabsf(.*/return true;/"
fault "a warp's second head is its first one" FLASH_ATTN "$pairs" prefill_sm90-bf16-d64-pages \
    dense/prefill_sm90_parts.cuh "s/return {P.second_token, P.second_token == 0};/return {P.second_token, 0};/" "WRONG"
ATTN_MODEL_SMS=132
cut="$decoder | query_lens=20,1 seq_lens=1500,170"
right "pieces of a prompt's tiles" FLASH_ATTN "$cut"
fault "the merge leaves a piece out" FLASH_ATTN "$cut" merge_sm80 dense/merge_sm80.cu \
    "s/for (int i = 0; i < span.pieces; i++) {/for (int i = 1; i < span.pieces; i++) {/" "WRONG"
one_head="$(echo "$decoder" | sed 's/num_kv_heads=2/num_kv_heads=1/') | query_lens=1 seq_lens=9000 inputs=needle"
right "clusters of one KV head's pieces, which meet in memory" FLASH_ATTN "$one_head"
fault "all clusters but one are left out" FLASH_ATTN "$one_head" decode_sm80-bf16-d64 \
    dense/decode_sm80_merge.cuh "s/pieces = c.pieces >> log_width;/pieces = 1;/" "WRONG"
# 32 query rows of a KV head, of which there are enough keys for few multiprocessors.
ATTN_MODEL_SMS=24
rows="$(echo "$decoder" | sed 's/num_heads=4/num_heads=16/; s/head_size=64/head_size=128/') | query_lens=4 seq_lens=7000 \
inputs=large_mean"
right "many rows in a cluster" FLASH_ATTN "$rows"
fault "query rows are read before all warps have put theirs" FLASH_ATTN "$rows" decode_sm80-bf16-d128 \
    dense/decode_sm80.cuh "/query.store(p, i, nwarp);/,/} else/s/__syncthreads();/;/" "model:"
fault "a cluster writes where keys are still read" FLASH_ATTN "$rows" decode_sm80-bf16-d128 dense/decode_sm80.cuh \
    "s/width > 1 \&\& !T::INBOX_IN_RING/width > 1/; s/if (width > 1 \&\& T::INBOX_IN_RING) cluster_arrive();//" "model:"
unset ATTN_MODEL_SMS
right "a ring used often" FLASHMLA "$long"
fault "a ring's memory is given back before wgmma has read it" FLASHMLA "$long" mla_decode_sm90_bf16 \
    latent/mla_decode_sm90_narrow.cuh "s/wgmma_wait<4>();//" "of wgmma"
fault "blocks do not wait for the cluster's mbarriers" FLASHMLA "$two_tiles" mla_decode_sm90_bf16 \
    latent/mla_decode_sm90.cuh "s/if constexpr (CTAS > 1) cluster_sync();\$//" "model:"
fault "blocks end while the cluster copies to them" FLASHMLA "$two_tiles" mla_decode_sm90_bf16 \
    latent/mla_decode_sm90.cuh "s/if constexpr (CTAS > 1) cluster_sync();.*nobody/; \/* nobody/" "model:"
fault "rows of cp.async without a fence of the proxy" FLASHMLA_SPARSE "$chosen" sparse_attend_sm90_bf16 \
    sparse/sparse_attend_sm90_math.cuh "s/^        fence_proxy_async();//" "without fence.proxy.async"
packed="$(echo "$chosen" | sed 's/topk=.*/kv_cache_dtype=fp8_ds_mla topk=128/') | query_lens=1,30,9 seq_lens=193,275,70"
option=mla_sparse.widen=on
right "16-bit copies of 656-byte rows" FLASHMLA_SPARSE "$packed"
fault "a row gets the scales of its neighbour" FLASHMLA_SPARSE "$packed" widen_rows_sm80 sparse/widen_rows_sm80.cu \
    "s/from + i \* p.cache_row + MLA_DS_SCALES_AT/from + (i ^ 1) * p.cache_row + MLA_DS_SCALES_AT/" "WRONG"
fault "all requests have the first one's pages" FLASHMLA_SPARSE "$packed" widen_rows_sm80 sparse/widen_rows_sm80.cu \
    "s/block = __ldg(c->block_table + (p.first_request + request)/block = __ldg(c->block_table + (p.first_request + 0)/" "WRONG"
option=
fault "rows of cp.async are not waited for" FLASHMLA_SPARSE "$chosen" sparse_attend_sm90_bf16 \
    sparse/sparse_attend_sm90_math.cuh "s/mbar_sleep(sm.full(buffer, 1), phase);//" "model:"
tap_done
