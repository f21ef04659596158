/* SPDX-License-Identifier: Apache-2.0 */
/* What is run over ranks on CUDA devices: every family of attention (semantics 8), by the tests of one device
 * and of two. */
#ifndef ATTN_TESTS_RANKS_CASES_H
#define ATTN_TESTS_RANKS_CASES_H

#define BATCH16(TYPE, HEADS, KV, SIZE, BS) DENSE(TYPE, HEADS, KV, SIZE, SIZE, BS)
#define LATENT16(TYPE, HEADS)                                                                                \
    .role = ATTN_ROLE_MLA, .dtype = ATTN_DTYPE_##TYPE, .heads = HEADS, .kv_heads = 1, .block_size = 64,      \
    .latent = 512, .rope = 64, .nope = 128, .value = 128, RANK_BATCH
static const struct rank_case gpu_cases[] = {
    {"grouped heads", "FLASH_ATTN", BATCH16(BFLOAT16, 4, 2, 64, 16), .interleave = 1, .tolerance = 1.5e-2},
    {"runs of a page, float16", "FLASH_ATTN", BATCH16(FLOAT16, 4, 1, 128, 16), .interleave = 16,
     .tolerance = 3e-3},
    {"sinks", "FLASH_ATTN", BATCH16(FLOAT16, 2, 1, 64, 16), .interleave = 2, .sinks = 1, .tolerance = 3e-3},
    {"a window, sinks", "FLASH_ATTN", BATCH16(FLOAT16, 2, 1, 64, 16), .interleave = 4, .window = 48,
     .sinks = 1, .tolerance = 3e-3},
    {"no mask", "FLASH_ATTN", BATCH16(FLOAT16, 2, 2, 64, 16), .interleave = 4, .mask = ATTN_MASK_FULL,
     .tolerance = 3e-3},
    {"a mask per request, a cap", "FLASH_ATTN", BATCH16(FLOAT16, 2, 1, 64, 16), .interleave = 1,
     .mask = ATTN_MASK_PER_REQUEST, .soft_cap = 5, .tolerance = 3e-3},
    {"grouped heads", "TRITON_ATTN", BATCH16(FLOAT16, 4, 2, 64, 16), .interleave = 2, .tolerance = 3e-3},
    /* bfloat16 has three bits less than float16; partial values are larger over fewer keys, and rounded
     * first */
    {"latent", "FLASHMLA", LATENT16(BFLOAT16, 4), .interleave = 1, .tolerance = 4e-2},
    {"latent, runs of 64", "FLASHMLA", LATENT16(FLOAT16, 16), .interleave = 64, .tolerance = 6e-3},
    {"absorbed", "FLASHMLA", LATENT16(BFLOAT16, 16), .interleave = 1, .absorbed = 1, .tolerance = 2e-2},
    {"absorbed, runs of 64", "FLASHMLA", LATENT16(FLOAT16, 32), .interleave = 64, .absorbed = 1,
     .tolerance = 6e-3},
    /* hard inputs; with runs of 64 the shorter requests leave all ranks but one without a key */
    {"constant values", "FLASH_ATTN", BATCH16(BFLOAT16, 4, 2, 64, 64), .interleave = 64,
     .hard = RANK_CONSTANT_VALUES, .tolerance = 4e-3},
    {"constant values, float16", "FLASH_ATTN", BATCH16(FLOAT16, 4, 1, 128, 16), .interleave = 1,
     .hard = RANK_CONSTANT_VALUES, .tolerance = 5e-4},
    {"a large mean", "FLASH_ATTN", BATCH16(FLOAT16, 4, 1, 128, 64), .interleave = 64, .hard = RANK_LARGE_MEAN,
     .tolerance = 3e-3},
    {"a loud channel", "FLASH_ATTN", BATCH16(BFLOAT16, 4, 2, 64, 16), .interleave = 1,
     .hard = RANK_LOUD_CHANNEL, .tolerance = 1.5e-2},
    {"ends of the format", "FLASH_ATTN", BATCH16(FLOAT16, 4, 2, 128, 16), .interleave = 2,
     .hard = RANK_FORMAT_ENDS, .tolerance = 3e-3},
    {"ends of the format", "FLASH_ATTN", BATCH16(BFLOAT16, 4, 2, 128, 64), .interleave = 64,
     .hard = RANK_FORMAT_ENDS, .tolerance = 1.5e-2},
    {"a large mean", "FLASHMLA", LATENT16(FLOAT16, 32), .interleave = 1, .absorbed = 1,
     .hard = RANK_LARGE_MEAN, .tolerance = 6e-3},
    {"constant values", "FLASHMLA", LATENT16(BFLOAT16, 16), .interleave = 64, .absorbed = 1,
     .hard = RANK_CONSTANT_VALUES, .tolerance = 4e-3},
    /* two keys, which two ranks share, of the largest value: no sum may be larger */
    {"the end of the format", "FLASH_ATTN", .role = ATTN_ROLE_DECODER, .dtype = ATTN_DTYPE_BFLOAT16,
     .heads = 4, .kv_heads = 2, .size = 64, .size_v = 64, .block_size = 16, .n = 2, .query = {1, 1},
     .seq = {2, 1}, .interleave = 1, .hard = RANK_FORMAT_END, .tolerance = 4e-3},
};
/* Of a tolerance: what results may be off in the mean. */
#define RANK_MOST_BIAS 0.05
enum { NUM_GPU_CASES = sizeof gpu_cases / sizeof gpu_cases[0] };

#endif
