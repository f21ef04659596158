/* SPDX-License-Identifier: Apache-2.0 */
/* bench_work.c: the table of workloads. */
#include "measure/bench_work.h"

#include <stdio.h>

#define LLAMA    "role=decoder num_heads=32 num_kv_heads=8 head_size=128 block_size=16"
#define DEEPSEEK "head_size=576 kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128"
#define LATENT(N)                                                                                            \
    "role=mla features=latent num_heads=" #N " head_size=576 kv_lora_rank=512 qk_rope_head_dim=64 "          \
    "scale=0.07216878364870322 block_size=16"
#define VISION "role=mm_encoder num_heads=16 head_size=72"

#define PAGED       "role=decoder num_heads=32 num_kv_heads=8 head_size=128"
#define DIRECT      "role=encoder_only num_heads=32 num_kv_heads=8 head_size=128"
#define HEADS(Q, K) "role=decoder num_heads=" #Q " num_kv_heads=" #K " head_size=128 block_size=16"
#define PROMPT(N)                                                                                            \
    "role=mla_prefill num_heads=" #N " head_size=192 kv_lora_rank=512 qk_nope_head_dim=128 "                 \
    "qk_rope_head_dim=64 v_head_dim=128"
#define PROJECTED       "role=mla num_heads=128 block_size=64 " DEEPSEEK
#define SPARSE(N, MORE) "role=mla_sparse topk=2048 num_heads=" #N " block_size=64 " DEEPSEEK MORE

/* 64 sequences of a server, drawn once from a log-normal distribution: a few long ones hold most of the
 * keys. */
static const int32_t mixed_lens[64] = {
    771,  295,   4730,  191,  2499,  972,  177,   2134, 158,  1418, 189,   212,   1348,  12545, 254,  441,
    4152, 24520, 3141,  1155, 28725, 166,  14949, 638,  285,  246,  708,   11821, 349,   3220,  4425, 1009,
    2669, 181,   178,   401,  5569,  1371, 731,   3291, 1580, 675,  10478, 6174,  496,   3094,  2355, 16396,
    7310, 632,   29357, 246,  1301,  8523, 297,   1926, 159,  5205, 8881,  3070,  16427, 729,   6049, 3456};
/* 64 windows of 64 to 1024 tokens. */
static const int32_t window_lens[64] = {752, 702, 144, 798, 169, 917, 601, 557,  879, 95,  242, 854,  909,
                                        761, 734, 563, 125, 986, 941, 100, 445,  953, 762, 766, 1009, 324,
                                        753, 675, 508, 146, 709, 91,  798, 1022, 257, 789, 577, 386,  602,
                                        882, 810, 333, 540, 474, 544, 430, 572,  783, 102, 222, 242,  228,
                                        802, 320, 615, 668, 667, 429, 81,  765,  219, 980, 137, 525};

const bench_work_t bench_works[] = {
    {"cpu", "decode bf16", LLAMA, 1, 1, 8192, NULL, 0},
    {"cpu", "decode f16", LLAMA " dtype=float16", 1, 1, 8192, NULL, 0},
    {"cpu", "decode fp8", LLAMA " kv_cache_dtype=fp8_e4m3", 1, 1, 8192, NULL, 0},
    {"cpu", "decode int8", LLAMA " kv_cache_dtype=int8_per_token_head", 1, 1, 8192, NULL, 0},
    {"cpu", "prefill bf16", LLAMA, 1, 4096, 4096, NULL, 0},
    {"cpu", "prefill f32", LLAMA " dtype=float32", 1, 4096, 4096, NULL, 0},
    {"cpu", "chunk bf16", LLAMA, 1, 256, 8192, NULL, 0},
    {"cpu", "latent decode bf16", LATENT(16), 1, 1, 8192, NULL, 0},
    {"cpu", "latent decode 128 heads", LATENT(128), 1, 1, 8192, NULL, 0},
    {"cpu", "latent chunk bf16", LATENT(16), 1, 256, 8192, NULL, 0},
    {"cpu", "projected decode 128 heads", PROJECTED, 1, 1, 512, NULL, 0},
    {"cpu", "projected prompt 128 heads", PROJECTED, 1, 256, 256, NULL, 0},
    {"cpu", "sparse decode 16 heads", SPARSE(16, ""), 4, 1, 8192, NULL, 0},
    {"cpu", "sparse decode 656 bytes", SPARSE(128, " kv_cache_dtype=fp8_ds_mla"), 1, 1, 8192, NULL, 0},
    {"cpu", "vision bf16", VISION, 1, 5776, 5776, NULL, 0},
    {"cpu", "vision f32", VISION " dtype=float32", 1, 5776, 5776, NULL, 0},
    {"quick", "decode bf16", LLAMA, 1, 1, 1024, NULL, 0},
    {"quick", "prefill f32", LLAMA " dtype=float32", 1, 256, 256, NULL, 0},
    {"quick", "vision f32", VISION " dtype=float32", 1, 400, 400, NULL, 0},
    {"gpu", "decode 64x8192", LLAMA, 64, 1, 8192, NULL, 0},
    {"gpu", "decode 256x1024", LLAMA, 256, 1, 1024, NULL, 0},
    {"gpu", "decode 1x131072", LLAMA, 1, 1, 131072, NULL, 0},
    {"gpu", "decode fp8 64x8192", LLAMA " kv_cache_dtype=fp8_e4m3", 64, 1, 8192, NULL, 0},
    {"gpu", "prefill 4x4096", LLAMA, 4, 4096, 4096, NULL, 0},
    {"gpu", "prefill 32x512", LLAMA, 32, 512, 512, NULL, 0},
    {"gpu", "prefill 1x16384", LLAMA, 1, 16384, 16384, NULL, 0},
    {"gpu", "MLA 128 heads 64x8192", "role=mla num_heads=128 " DEEPSEEK, 64, 1, 8192, NULL, 0},
    {"gpu", "MLA 16 heads 64x8192", "role=mla num_heads=16 " DEEPSEEK, 64, 1, 8192, NULL, 0},
    {"gpu", "MLA prefill 1x8192", "role=mla num_heads=16 " DEEPSEEK, 1, 8192, 8192, NULL, 0},
    {"gpu", "MLA sparse 64x8192", "role=mla_sparse num_heads=128 topk=2048 " DEEPSEEK, 64, 1, 8192, NULL, 0},
    {"gpu", "vision 8x4096", "role=mm_encoder num_heads=16 head_size=80", 8, 4096, 4096, NULL, 0},
    {"gpu", "vision 72 8x4096", VISION, 8, 4096, 4096, NULL, 0},
    {"gpu", "vision 128 8x4096", "role=mm_encoder num_heads=16 head_size=128", 8, 4096, 4096, NULL, 0},
    {"h200", "P1 1x16384", DIRECT " mask=causal", 1, 16384, 16384, NULL, 0},
    {"h200", "P1 4x4096", DIRECT " mask=causal", 4, 4096, 4096, NULL, 0},
    {"h200", "P1 32x512", DIRECT " mask=causal", 32, 512, 512, NULL, 0},
    {"h200", "P1 4x4096 full", DIRECT " mask=full", 4, 4096, 4096, NULL, 0},
    {"h200", "P2 page 16", PAGED " block_size=16", 4, 2048, 16384, NULL, 0},
    {"h200", "P2 page 64", PAGED " block_size=64", 4, 2048, 16384, NULL, 0},
    {"h200", "P2 page 128", PAGED " block_size=128", 4, 2048, 16384, NULL, 0},
    {"h200", "P5 128 of 65536", PAGED " block_size=16", 1, 128, 65536, NULL, 0},
    {"h200", "P5 640 of 65536", PAGED " block_size=16", 1, 640, 65536, NULL, 0},
    {"h200", "P5 4x100 of 16384", PAGED " block_size=16", 4, 100, 16384, NULL, 0},
    {"h200", "P5 8/1 heads 512 of 32768", HEADS(8, 1), 1, 512, 32768, NULL, 0},
    {"h200", "P5 fp8 128 of 65536", PAGED " kv_cache_dtype=fp8_e4m3 block_size=16", 1, 128, 65536, NULL, 0},
    {"h200", "D1 64x8192 page 16", PAGED " block_size=16", 64, 1, 8192, NULL, 0},
    {"h200", "D1 1x131072 page 16", PAGED " block_size=16", 1, 1, 131072, NULL, 0},
    {"h200", "D1 256x1024 page 16", PAGED " block_size=16", 256, 1, 1024, NULL, 0},
    {"h200", "D1 8x32768 page 16", PAGED " block_size=16", 8, 1, 32768, NULL, 0},
    {"h200", "D1 mixed page 16", PAGED " block_size=16", 64, 1, 29357, mixed_lens, 0},
    {"h200", "D1 64x8192 page 64", PAGED " block_size=64", 64, 1, 8192, NULL, 0},
    {"h200", "D1 1x131072 page 64", PAGED " block_size=64", 1, 1, 131072, NULL, 0},
    {"h200", "D1 256x1024 page 64", PAGED " block_size=64", 256, 1, 1024, NULL, 0},
    {"h200", "D1 8x32768 page 64", PAGED " block_size=64", 8, 1, 32768, NULL, 0},
    {"h200", "D1 mixed page 64", PAGED " block_size=64", 64, 1, 29357, mixed_lens, 0},
    {"h200", "D2 32/32 heads", HEADS(32, 32), 64, 1, 8192, NULL, 0},
    {"h200", "D2 64/8 heads", HEADS(64, 8), 64, 1, 8192, NULL, 0},
    {"h200", "D2 8/1 heads", HEADS(8, 1), 64, 1, 8192, NULL, 0},
    {"h200", "D2 fp8 page 16", PAGED " kv_cache_dtype=fp8_e4m3 block_size=16", 64, 1, 8192, NULL, 0},
    {"h200", "D2 fp8 page 64", PAGED " kv_cache_dtype=fp8_e4m3 block_size=64", 64, 1, 8192, NULL, 0},
    {"h200", "D3 4 tokens page 16", PAGED " block_size=16", 64, 4, 8192, NULL, 0},
    {"h200", "D3 4 tokens page 64", PAGED " block_size=64", 64, 4, 8192, NULL, 0},
    {"h200", "D3 8 tokens", PAGED " block_size=16", 64, 8, 8192, NULL, 0},
    {"h200", "D3 16 tokens", PAGED " block_size=16", 64, 16, 8192, NULL, 0},
    {"h200", "D3 64/8 heads 4 tokens", HEADS(64, 8), 64, 4, 8192, NULL, 0},
    {"h200", "D3 64/8 heads 16 tokens", HEADS(64, 8), 64, 16, 8192, NULL, 0},
    {"h200", "D3 D 64 8 tokens", "role=decoder num_heads=64 num_kv_heads=8 head_size=64 block_size=16", 64, 8,
     8192, NULL, 0},
    {"h200", "D3 fp8 16 tokens", PAGED " kv_cache_dtype=fp8_e4m3 block_size=16", 64, 16, 8192, NULL, 0},
    {"h200", "E1 D 80 8x4096", "role=mm_encoder num_heads=16 head_size=80", 8, 4096, 4096, NULL, 0},
    {"h200", "E1 D 80 windows", "role=mm_encoder num_heads=16 head_size=80", 64, 0, 1024, window_lens, 0},
    {"h200", "E1 D 72 8x4096", "role=mm_encoder num_heads=16 head_size=72", 8, 4096, 4096, NULL, 0},
    {"h200", "E1 D 72 windows", "role=mm_encoder num_heads=16 head_size=72", 64, 0, 1024, window_lens, 0},
    {"h200", "E1 D 128 8x4096", "role=mm_encoder num_heads=16 head_size=128", 8, 4096, 4096, NULL, 0},
    {"h200", "E1 D 128 windows", "role=mm_encoder num_heads=16 head_size=128", 64, 0, 1024, window_lens, 0},
    {"h200", "C1 write 8192", PAGED " block_size=16", 1, 1, 8192, NULL, 1},
    {"h200", "L1 1x1024", PAGED " block_size=16", 1, 1, 1024, NULL, 0},
    {"h200", "M1 H 128 64x8192", "role=mla num_heads=128 block_size=64 " DEEPSEEK, 64, 1, 8192, NULL, 0},
    {"h200", "M1 H 128 64x8192 2 tokens", "role=mla num_heads=128 block_size=64 " DEEPSEEK, 64, 2, 8192, NULL,
     0},
    {"h200", "M1 H 16 64x8192", "role=mla num_heads=16 block_size=64 " DEEPSEEK, 64, 1, 8192, NULL, 0},
    {"h200", "M1 H 128 1x65536", "role=mla num_heads=128 block_size=64 " DEEPSEEK, 1, 1, 65536, NULL, 0},
    {"h200", "M1 H 128 128x4096", "role=mla num_heads=128 block_size=64 " DEEPSEEK, 128, 1, 4096, NULL, 0},
    {"h200", "M2 H 128 8192", PROMPT(128), 1, 8192, 8192, NULL, 0},
    {"h200", "M2 H 16 8192", PROMPT(16), 1, 8192, 8192, NULL, 0},
    {"h200", "S1 H 128", SPARSE(128, ""), 1, 4096, 32768, NULL, 0},
    {"h200", "S1 H 64", SPARSE(64, ""), 1, 4096, 32768, NULL, 0},
    {"h200", "S2 H 128", SPARSE(128, " kv_cache_dtype=fp8_ds_mla"), 128, 1, 32768, NULL, 0},
    {"h200", "S2 H 64", SPARSE(64, " kv_cache_dtype=fp8_ds_mla"), 128, 1, 32768, NULL, 0},
    {.name = NULL},
};

void bench_rate_text(const bench_row_t *row, double rate, char *text, size_t size) {
    if (row->is_memory_bound)
        snprintf(text, size, "%.*f GB/s", rate < 1000 ? 1 : 0, rate);
    else if (rate >= 1e4)
        snprintf(text, size, "%.*f TFLOP/s", rate < 1e5 ? 1 : 0, rate / 1e3);
    else
        snprintf(text, size, "%.1f GFLOP/s", rate);
}
