/* SPDX-License-Identifier: Apache-2.0 */
/* CPU_ATTN over caches of 8 and 16 bits, to 131072 keys, whatever the inputs look like (long_context.h).
 * CONTEXT_TEST_PLUGINS: the folder of the plugins. */
#include "../long_context.h"

#define ROW(kv_, dtype_, tokens_, without, error, bias)                                                      \
    {                                                                                                        \
        .file = "cpu.so", .backend = "CPU_ATTN", .role = ATTN_ROLE_DECODER, .dtype = dtype_, .kv = kv_,      \
        .tokens = tokens_, .features = ATTN_F_LSE, .not_exact = without, .max_error = error,                 \
        .max_bias = bias                                                                                     \
    }
/* Latent attention with its projections; V is a part of the latent. */
#define LATENT(kv_, query, tokens_)                                                                          \
    {                                                                                                        \
        .file = "cpu.so", .backend = "CPU_ATTN", .role = ATTN_ROLE_MLA, .dtype = ATTN_DTYPE_BFLOAT16,        \
        .kv = kv_, .query_dtype = query, .tokens = tokens_, .features = ATTN_F_LSE, .max_error = 1e-2,       \
        .max_bias = 2e-3                                                                                     \
    }
/* One scale a row of a head: small channels beside one 100 times as large have no bits left. */
#define ROWS_APART (1u << KIT_CHANNEL | 1u << KIT_ENDS | 1u << KIT_GEOMETRIC)
/* 4 bits lose equal values that all lie on one side, in float32 products too, and the score of a needle. */
#define CODES_APART (ROWS_APART | 1u << KIT_CONSTANT | 1u << KIT_NEEDLE)

static const context_config_t configs[] = {
    ROW(ATTN_KV_FP8_E4M3, ATTN_DTYPE_BFLOAT16, 8, 0, 1e-2, 2e-3),
    ROW(ATTN_KV_FP8_E4M3, ATTN_DTYPE_BFLOAT16, 1, 0, 1e-2, 2e-3),
    ROW(ATTN_KV_FP8_E4M3, ATTN_DTYPE_FLOAT32, 1, 0, 1e-2, 2e-3),
    ROW(ATTN_KV_INT8_PER_TOKEN_HEAD, ATTN_DTYPE_BFLOAT16, 8, ROWS_APART, 2e-2, 4e-3),
    ROW(ATTN_KV_INT8_PER_TOKEN_HEAD, ATTN_DTYPE_FLOAT32, 1, ROWS_APART, 2e-2, 4e-3),
    ROW(ATTN_KV_FP8_PER_TOKEN_HEAD, ATTN_DTYPE_BFLOAT16, 8, ROWS_APART, 2e-2, 1e-2),
    ROW(ATTN_KV_INT4_PER_TOKEN_HEAD, ATTN_DTYPE_BFLOAT16, 8, CODES_APART, 3e-2, 5e-3),
    ROW(ATTN_KV_INT4_PER_TOKEN_HEAD, ATTN_DTYPE_BFLOAT16, 1, CODES_APART, 3e-2, 5e-3),
    ROW(ATTN_KV_INT4_PER_TOKEN_HEAD, ATTN_DTYPE_FLOAT32, 1, CODES_APART, 3e-2, 5e-3),
    ROW(0, ATTN_DTYPE_BFLOAT16, 8, 0, 1e-2, 2e-3),
    ROW(0, ATTN_DTYPE_BFLOAT16, 1, 0, 1e-2, 2e-3),
    ROW(0, ATTN_DTYPE_FLOAT16, 8, 1u << KIT_ENDS, 1e-2, 2e-3),
    LATENT(0, 0, 8),
    LATENT(0, 0, 1),
    LATENT(ATTN_KV_FP8_E4M3, 0, 8),
    LATENT(ATTN_KV_FP8_E4M3, ATTN_DTYPE_FP8_E4M3, 8),
};

/* 1 if this CPU runs that level of the option. */
static int has_level(const char *level) {
#if defined __x86_64__
    if (!strcmp(level, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512f");
    if (!strcmp(level, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
#endif
    return !strcmp(level, "auto") || !strcmp(level, "generic");
}

/* auto is the best; those below it are tested too. */
static const char *const levels[] = {"auto", "generic", "avx2", "avx512"};

static void over(uint32_t role, const attn_backend_t *cpu, int32_t keys) {
    static context_t store[KIT_NUM_E4M3_FAMILIES];
    context_t *contexts[KIT_NUM_E4M3_FAMILIES];
    int count = 0;
    for (uint32_t k = 1; k < KIT_NUM_E4M3_FAMILIES; k++) {
        if (keys > 4096 && k != KIT_CONSTANT && k != KIT_UNIFORM && k != KIT_NEEDLE) continue;
        contexts[count] = &store[count];
        context_open(contexts[count++], role, 8, keys + 77, k);
    }
    for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
        attn_option_value_t options[2] = {
            {.struct_size = sizeof options[0],
             .type = ATTN_OPTION_ENUM,
             .name = "level",
             .i = (int64_t)l,
             .s = levels[l]},
            {.struct_size = sizeof options[0], .type = ATTN_OPTION_INT, .name = "num_threads", .s = "0"}};
        kit_memory_t memory = kit_cpu_memory;
        memory.options = options, memory.num_options = 2;
        for (size_t i = 0; has_level(levels[l]) && i < sizeof configs / sizeof configs[0]; i++) {
            const context_config_t *f = &configs[i];
            if (f->role != role) continue;
            if (keys > 4096 && (f->tokens == 1 || f->dtype != ATTN_DTYPE_BFLOAT16)) continue;
            if (keys > 4096 && l > 0 && f->kv != ATTN_KV_INT8_PER_TOKEN_HEAD) continue;
            char name[160];
            snprintf(name, sizeof name, "CPU_ATTN %s, %s, %s, %s cache, %s query, %u tokens", levels[l],
                     attn_role_name(role), attn_dtype_name(f->dtype), attn_kv_name(f->kv),
                     attn_dtype_name(f->query_dtype ? f->query_dtype : f->dtype), f->tokens);
            context_check(contexts, count, f, cpu, &memory, name);
        }
    }
    for (int i = 0; i < count; i++)
        context_close(contexts[i]);
}

int main(void) {
    const attn_backend_t *cpu = context_load("cpu.so", "CPU_ATTN");
    if (cpu == NULL) skip_all("no cpu.so");
    for (int32_t keys = 4096; keys <= 131072; keys *= 32) {
        over(ATTN_ROLE_DECODER, cpu, keys);
        over(ATTN_ROLE_MLA, cpu, keys);
    }
    return tap_done();
}
