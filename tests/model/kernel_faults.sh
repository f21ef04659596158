#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kernel_faults.sh: bugs planted in kernels, which the model has to see; a device lets most of them pass most of the
# time. Each is right without the edit, by kernels.sh.
. "$ATTN_TEST_SRCDIR/tests/model/model_lib.sh"
caught() { # ARCH PROBLEM EDIT WHAT
    ATTN_MODEL_EDIT=$3
    export ATTN_MODEL_EDIT
    is_right "$1" "$2" && return 1
    case $said in *"has no such text"*) return 1 ;; esac
    case $said in *"$4"*) return 0 ;; esac
    return 1
}
fault() { # NAME ARCH PROBLEM EDIT WHAT: what the output has to say
    ok "sm_$2: $1" caught "$2" "$3" "$4" "$5"
}
unordered="nothing between that orders them"
flying="what a cp.async is still to write"
plain=$(problem_of bfloat16 auto)
fault "decode does not wait for its keys" 80 "$plain" \
    "triton_decode.cuh|cp_async_wait<stages_of(PIECE) - 2>();|" "$flying"
fault "decode's lanes do not wait for each other's copies" 80 "$plain" \
    "triton_decode.cuh|cp_async_wait<stages_of(PIECE) - 2>();
            __syncwarp();|cp_async_wait<stages_of(PIECE) - 2>();" "$unordered"
fault "decode waits for one block too few" 80 "$plain" \
    "triton_decode.cuh|cp_async_wait<stages_of(PIECE) - 2>();|cp_async_wait<stages_of(PIECE) - 1>();" "$flying"
fault "the merge of warps has no barrier" 80 "$plain" \
    "triton_decode_merge.cuh|    __syncthreads();
    float *so|    float *so" "$unordered"
fault "a prompt's tile has no barrier" 80 "$plain" \
    "triton_prefill.cuh|cp_async_wait<0>();
        __syncthreads();|cp_async_wait<0>();" "$unordered"
fault "wgmma without a fence of the proxy" 90 "$plain" \
    "triton_prefill_sm90.cuh|fence_proxy_async();|" "without fence.proxy.async"
fault "scores are read before wgmma has written them" 90 "$plain" \
    "triton_prefill_sm90.cuh|wgmma_wait<1>();|" "touches accumulators"
fault "a ring's memory is given back before wgmma has read it" 90 "$plain" \
    "triton_prefill_sm90.cuh|stage ^ 1);
            wgmma_wait<0>();|stage ^ 1);" "model:"
fault "queries of a prompt in two parts are not waited for" 90 "$(problem_of float16 turboquant_k8v4)" \
    "triton_prefill_split_sm90.cuh|cp_async_wait_all();|" "$flying"
fault "copiers do not wait for an empty stage" 90 "$(problem_of bfloat16 int8_static_v)" \
    "triton_split_apart.cuh|mbar_wait(ring.empty + 8 * asked.stage, asked.phase ^ 1);|" "model:"
fault "a negative scale of K does not turn the queries" 90 "$(problem_of bfloat16 fp8_e4m3 "" \
    "query_lens=1,200,70 seq_lens=193,275,370 flags=2048")" "triton_tile_rows.cuh| ^ turn|" "WRONG"
fault "weights times large scales have no unit" 80 "$(problem_of bfloat16 int8_per_token_head "" \
    "query_lens=1,1 seq_lens=193,370 inputs=large")" "triton_decode.cuh|units.raise(s, vs, o);|" "WRONG"
fault "the second tile of rows has the first one's queries" 90 "$(problem_of bfloat16 int8_per_token_head "" \
    "query_lens=3,4 seq_lens=193,370")" "triton_decode.cuh|row0 + n * 8 + g, rows|row0 + g, rows" "WRONG"
fault "keys beyond the last page are read" 80 "$plain" \
    "triton_rows.cuh|min(__ldg(entry), last_page)|__ldg(entry) + (1 << 20)" "memory nobody allocated"
fault "a rounding of float16 that saturates" 80 "$(problem_of float16 auto)" \
    "ptx_sm80.cuh|cvt.rn.f16x2.f32 %0, %1, %2;|cvt.rn.bf16x2.f32 %0, %1, %2;" "WRONG"
cut=$(problem_of bfloat16 auto "num_heads=8 num_kv_heads=2 head_size=64" "query_lens=40,1,20 seq_lens=1500,170,700")
fault "the merge of a prompt leaves a piece out" 90 "$cut" \
    "triton_tile.cuh|cut.slot, cut.pieces, merged|cut.slot, cut.pieces - 1, merged" "WRONG"
fault "a prompt's pieces are merged before the last is there" 80 "$cut" \
    "triton_tile.cuh|== cut.pieces - 1|== cut.pieces - 2" "WRONG"
tap_done
