/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over caches and queries of 8 bits on a device, to a million keys, whatever the inputs look like:
 * every backend that multiplies or sums such numbers, through the plugin ABI against double (long_context.h).
 * CONTEXT_TEST_PLUGINS: the folder of the plugins; CONTEXT_TEST_ONLY: a text that a row's name must contain;
 * CONTEXT_TEST_KEYS: the most keys; CONTEXT_TEST_HEADS, CONTEXT_TEST_SIZE: heads on one KV head and their
 * size; ATTN_TEST_PART: part.h. */
#include "../plugins/long_context.h"
#include "gpu_memory.h"
#include "part.h"
#include "plan_host.h"

#define FLASH(kv_, query, tokens_, arch_, error, bias, channel)                                              \
    {                                                                                                        \
        .file = "flash.so", .backend = "FLASH_ATTN", .arch = arch_, .role = ATTN_ROLE_DECODER, .kv = kv_,    \
        .query_dtype = query, .tokens = tokens_, .features = ATTN_F_LSE, .max_error = error,                 \
        .max_bias = bias, .max_channel = channel                                                             \
    }
#define TRITON(kv_, query, tokens_, without, error, bias)                                                    \
    {                                                                                                        \
        .file = "triton_like.so", .backend = "TRITON_ATTN", .role = ATTN_ROLE_DECODER, .kv = kv_,            \
        .query_dtype = query, .tokens = tokens_, .not_exact = without, .max_error = error, .max_bias = bias  \
    }
#define MLA(kv_, query, tokens_)                                                                             \
    {                                                                                                        \
        .file = "mla.so", .backend = "FLASHMLA", .role = ATTN_ROLE_MLA, .kv = kv_, .query_dtype = query,     \
        .tokens = tokens_, .features = ATTN_F_LSE, .max_error = 1e-2, .max_bias = 2e-3                       \
    }
#define E4M3  ATTN_DTYPE_FP8_E4M3
#define KV8   ATTN_KV_FP8_E4M3
#define INT8T ATTN_KV_INT8_PER_TOKEN_HEAD
#define FP8T  ATTN_KV_FP8_PER_TOKEN_HEAD
/* One scale a row of a head: small channels beside one 100 times as large have no bits left. */
#define ROWS_APART (1u << KIT_CHANNEL | 1u << KIT_ENDS | 1u << KIT_GEOMETRIC)

enum { DECODE_ROWS = 64 }; /* tokens times heads on one, flash_instance.h */

/* Rows of more than 16 query tokens over an e4m3 cache are products of bytes on Hopper. Weights have 3 bits
 * of mantissa there, which shows where few keys have most of the weight, and scores are sums of about 14
 * bits, which shows where one channel is 100 times the others. */
static const context_config_t configs[] = {
    FLASH(KV8, E4M3, 256, "auto", 1.5e-2, 3e-3, 5e-2),
    FLASH(KV8, E4M3, 64, "auto", 1.5e-2, 3e-3, 5e-2),
    FLASH(KV8, E4M3, 17, "auto", 1.5e-2, 3e-3, 5e-2),
    FLASH(KV8, E4M3, 16, "auto", 1e-2, 2e-3, 0),
    FLASH(KV8, E4M3, 4, "auto", 1e-2, 2e-3, 0),
    FLASH(KV8, E4M3, 1, "auto", 1e-2, 2e-3, 0),
    FLASH(KV8, 0, 256, "auto", 1e-2, 2e-3, 0),
    FLASH(KV8, 0, 16, "auto", 1e-2, 2e-3, 0),
    FLASH(KV8, 0, 4, "auto", 1e-2, 2e-3, 0),
    FLASH(KV8, 0, 1, "auto", 1e-2, 2e-3, 0),
    FLASH(KV8, E4M3, 256, "sm80", 1e-2, 2e-3, 0),
    FLASH(KV8, 0, 256, "sm80", 1e-2, 2e-3, 0),
    FLASH(0, 0, 256, "auto", 1e-2, 2e-3, 0),
    FLASH(0, 0, 24, "auto", 1e-2, 2e-3, 0),
    FLASH(0, 0, 16, "auto", 1e-2, 2e-3, 0),
    FLASH(0, 0, 4, "auto", 1e-2, 2e-3, 0),
    FLASH(0, 0, 1, "auto", 1e-2, 2e-3, 0),
    TRITON(KV8, E4M3, 256, 0, 1e-2, 2e-3),
    TRITON(KV8, E4M3, 1, 0, 1e-2, 2e-3),
    TRITON(KV8, 0, 12, 0, 1e-2, 2e-3), /* two n-tiles of decode: its second program */
    TRITON(KV8, 0, 256, 0, 1e-2, 2e-3),
    TRITON(INT8T, 0, 256, ROWS_APART, 2e-2, 4e-3),
    TRITON(INT8T, 0, 12, ROWS_APART, 2e-2, 4e-3),
    TRITON(INT8T, 0, 1, ROWS_APART, 2e-2, 4e-3),
    TRITON(FP8T, 0, 256, ROWS_APART, 2e-2, 1e-2),
    TRITON(FP8T, 0, 1, ROWS_APART, 2e-2, 1e-2),
    MLA(KV8, E4M3, 1),
    MLA(KV8, E4M3, 16),
    MLA(KV8, 0, 1),
    MLA(0, 0, 1),
    MLA(0, 0, 16),
    {.file = "mm_encoder.so",
     .backend = "MM_ENCODER_ATTN",
     .role = ATTN_ROLE_MM_ENCODER,
     .features = ATTN_F_FP8_ATTENTION,
     .max_error = 2e-2,
     .max_bias = 4e-3},
    {.file = "mm_encoder.so",
     .backend = "MM_ENCODER_ATTN",
     .role = ATTN_ROLE_MM_ENCODER,
     .max_error = 1e-2,
     .max_bias = 2e-3},
};
enum { NUM_CONFIGS = sizeof configs / sizeof configs[0] };

static const char *dtype_text(uint32_t query, uint32_t dtype) {
    return query == E4M3 ? "e4m3" : dtype == ATTN_DTYPE_FLOAT16 ? "f16" : "bf16";
}

static void name_of(const context_config_t *f, char *name, size_t size) {
    snprintf(name, size, "%s%s, %s cache, %s query, %u tokens", f->backend,
             f->arch != NULL && !strcmp(f->arch, "sm80") ? " sm80" : "",
             f->kv ? attn_kv_name(f->kv) : "16-bit", dtype_text(f->query_dtype, f->dtype), f->tokens);
}

/* All configurations of a role over these families of `keys` keys. */
static void over(uint32_t role, int32_t keys, uint32_t families, int first_only) {
    static context_t store[KIT_NUM_E4M3_FAMILIES];
    context_t *contexts[KIT_NUM_E4M3_FAMILIES];
    const char *only = getenv("CONTEXT_TEST_ONLY");
    int count = 0, done = 0;
    for (int i = 0; i < NUM_CONFIGS && !(first_only && done); i++) {
        context_config_t bounds = configs[i], *f = &bounds;
        char name[160];
        name_of(f, name, sizeof name);
        if (f->query_dtype == E4M3 && f->arch != NULL && !strcmp(f->arch, "auto") &&
            f->tokens * context_heads() > DECODE_ROWS)
            bounds.max_error = configs[0].max_error, bounds.max_bias = configs[0].max_bias,
            bounds.max_channel = configs[0].max_channel; /* a prompt with so many heads on one */
        if (f->role != role || (only != NULL && strstr(name, only) == NULL) || !part_takes()) continue;
        for (uint32_t k = 1; k < KIT_NUM_E4M3_FAMILIES && !done; k++)
            if (families >> k & 1) {
                contexts[count] = &store[count];
                context_open(contexts[count++], role, role == ATTN_ROLE_MM_ENCODER ? (uint32_t)keys : 256,
                             keys, k);
            }
        done = 1;
        attn_option_value_t arch = {.struct_size = sizeof arch,
                                    .type = ATTN_OPTION_ENUM,
                                    .name = "arch",
                                    .i = f->arch != NULL && !strcmp(f->arch, "sm80"),
                                    .s = f->arch},
                            options[2] = {arch,
                                          {.struct_size = sizeof arch,
                                           .type = ATTN_OPTION_INT,
                                           .name = "num_splits",
                                           .i = 0,
                                           .s = "0"}};
        gpu.options = f->arch != NULL ? options : NULL, gpu.num_options = f->arch != NULL ? 2 : 0;
        context_check(contexts, count, f, context_load(f->file, f->backend), &gpu, name);
    }
    for (int i = 0; i < count; i++)
        context_close(contexts[i]);
}

int main(void) {
    if (gpu_start() != 0) skip_all("no CUDA device");
    gpu.host = &plan_host;
    const char *text = getenv("CONTEXT_TEST_KEYS");
    const int32_t most = text != NULL ? atoi(text) : 1048576;
    const uint32_t all = ~0u, few = 1u << KIT_CONSTANT | 1u << KIT_UNIFORM | 1u << KIT_NEEDLE;
    for (int32_t keys = 2048; keys <= 131072 && keys <= most; keys *= 8) {
        over(ATTN_ROLE_DECODER, keys + 77, keys < 131072 ? all : few, 0);
        over(ATTN_ROLE_MLA, keys + 77, keys < 131072 ? all : few, 0);
    }
    over(ATTN_ROLE_MM_ENCODER, 128, all, 0); /* keys in shared memory whole (resident_sm90.cuh) */
    over(ATTN_ROLE_MM_ENCODER, 200, all, 0); /* the same with heads of up to 96 */
    if (4096 <= most) over(ATTN_ROLE_MM_ENCODER, 4096, all, 0);
    if (131072 <= most) over(ATTN_ROLE_DECODER, 131072, all & ~few, 1);
    if (1048576 <= most) over(ATTN_ROLE_DECODER, 1048576, 1u << KIT_UNIFORM | 1u << KIT_NEEDLE, 1);
    return tap_done();
}
