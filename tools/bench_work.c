/* SPDX-License-Identifier: Apache-2.0 */
/* bench_work.c: the table of workloads. */
#include "bench_work.h"

#include <stdio.h>

#define LLAMA    "role=decoder num_heads=32 num_kv_heads=8 head_size=128 block_size=16"
#define DEEPSEEK "head_size=576 kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128"
#define VISION   "role=mm_encoder num_heads=16 head_size=72"

const bench_work_t bench_works[] = {
    {"cpu", "decode bf16", LLAMA, 1, 1, 8192},
    {"cpu", "decode f16", LLAMA " dtype=float16", 1, 1, 8192},
    {"cpu", "decode fp8", LLAMA " kv_cache_dtype=fp8_e4m3", 1, 1, 8192},
    {"cpu", "decode int8", LLAMA " kv_cache_dtype=int8_per_token_head", 1, 1, 8192},
    {"cpu", "prefill bf16", LLAMA, 1, 4096, 4096},
    {"cpu", "prefill f32", LLAMA " dtype=float32", 1, 4096, 4096},
    {"cpu", "chunk bf16", LLAMA, 1, 256, 8192},
    {"cpu", "vision bf16", VISION, 1, 5776, 5776},
    {"cpu", "vision f32", VISION " dtype=float32", 1, 5776, 5776},
    {"quick", "decode bf16", LLAMA, 1, 1, 1024},
    {"quick", "prefill f32", LLAMA " dtype=float32", 1, 256, 256},
    {"quick", "vision f32", VISION " dtype=float32", 1, 400, 400},
    {"gpu", "decode 64x8192", LLAMA, 64, 1, 8192},
    {"gpu", "decode 256x1024", LLAMA, 256, 1, 1024},
    {"gpu", "decode 1x131072", LLAMA, 1, 1, 131072},
    {"gpu", "decode fp8 64x8192", LLAMA " kv_cache_dtype=fp8_e4m3", 64, 1, 8192},
    {"gpu", "prefill 4x4096", LLAMA, 4, 4096, 4096},
    {"gpu", "prefill 32x512", LLAMA, 32, 512, 512},
    {"gpu", "prefill 1x16384", LLAMA, 1, 16384, 16384},
    {"gpu", "MLA 128 heads 64x8192", "role=mla num_heads=128 " DEEPSEEK, 64, 1, 8192},
    {"gpu", "MLA 16 heads 64x8192", "role=mla num_heads=16 " DEEPSEEK, 64, 1, 8192},
    {"gpu", "MLA prefill 1x8192", "role=mla num_heads=16 " DEEPSEEK, 1, 8192, 8192},
    {"gpu", "MLA sparse 64x8192", "role=mla_sparse num_heads=128 topk=2048 " DEEPSEEK, 64, 1, 8192},
    {"gpu", "vision 8x4096", "role=mm_encoder num_heads=16 head_size=80", 8, 4096, 4096},
    {"gpu", "vision 72 8x4096", VISION, 8, 4096, 4096},
    {"gpu", "vision 128 8x4096", "role=mm_encoder num_heads=16 head_size=128", 8, 4096, 4096},
    {NULL, NULL, NULL, 0, 0, 0},
};

void bench_rate_text(const bench_row_t *row, double rate, char *text, size_t size) {
    if (row->is_memory_bound)
        snprintf(text, size, "%.*f GB/s", rate < 1000 ? 1 : 0, rate);
    else if (rate >= 1e4)
        snprintf(text, size, "%.*f TFLOP/s", rate < 1e5 ? 1 : 0, rate / 1e3);
    else
        snprintf(text, size, "%.1f GFLOP/s", rate);
}
