/* SPDX-License-Identifier: Apache-2.0 */
/* CPU_ATTN over selected keys (semantics 9.2) at every level of this CPU against REFERENCE in double: lists
 * of all lengths around the kernels' tiles, entries that name nothing anywhere, caches of 16, 8 and 656
 * bytes, batches of several passes, inputs that are not centred, and what is refused. */
#include "kit/case/attn_case.h"
#include "kit/case/case_families.h"
#include "../../tap.h"

#include <unistd.h>

static const attn_backend_t *cpu, *reference;

static const attn_backend_t *load(const char *file) {
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    char path[1200], why[256] = "";
    snprintf(path, sizeof path, "%s/%s", dir != NULL ? dir : "plugins-built", file);
    if (access(path, F_OK) != 0) skip_all("no %s", file);
    const attn_backend_t *b = kit_load(path, NULL, why, sizeof why);
    if (b == NULL) bail_out("%s: %s", path, why);
    return b;
}

static const char *const levels[] = {"generic", "avx2", "avx512", "avx512bf16", "neon"};
enum { NUM_LEVELS = 5 };

static int has_level(int level) {
#if defined __x86_64__
    if (level == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (level == 2) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
    if (level == 3) return __builtin_cpu_supports("avx512bf16");
#elif defined __aarch64__
    if (level == 4) return 1;
#endif
    return level == 0;
}

static attn_option_value_t options[2];
static kit_memory_t memory_of(int level, int threads) {
    kit_memory_t memory = kit_cpu_memory;
    options[0] = (attn_option_value_t){.struct_size = sizeof options[0],
                                       .type = ATTN_OPTION_ENUM,
                                       .name = "level",
                                       .s = level < NUM_LEVELS ? levels[level] : "auto"};
    options[1] = (attn_option_value_t){
        .struct_size = sizeof options[1], .type = ATTN_OPTION_INT, .name = "num_threads", .i = threads};
    memory.options = options, memory.num_options = 2;
    return memory;
}

/* Every `wild`-th entry names a position that no table has. */
static void make_wild(const kit_case_t *c, kit_inputs_t *in, int64_t wild) {
    for (int64_t i = 0; wild && i < in->num_tokens * c->problem.topk; i += wild)
        in->topk_indices[i] = i % 2 ? INT32_MAX - 7 : (int32_t)(in->table_width * c->problem.block_size);
}

enum { BF16 = ATTN_DTYPE_BFLOAT16, F16 = ATTN_DTYPE_FLOAT16, F32 = ATTN_DTYPE_FLOAT32 };
enum { DS = ATTN_KV_FP8_DS_MLA, E4 = ATTN_KV_FP8_E4M3, E5 = ATTN_KV_FP8_E5M2 };
enum { ABSORBED = 1, STRIDED = 2, INVARIANT = 4, LAYERS = 8 };

static const struct sparse_row {
    const char *name;
    uint32_t heads, topk, page, kv, dtype, query_dtype, flags;
    double scale;
    int64_t wild;
    int32_t lens[4][2];
} list[] = {
    {"less than a tile", 16, 31, 64, 0, BF16, 0, 0, 0, 0, {{2, 100}}},
    {"one entry", 16, 1, 64, 0, BF16, 0, ABSORBED, 0, 0, {{3, 90}}},
    {"a tile and one more, page 48", 3, 41, 48, 0, F16, 0, STRIDED, 0, 0, {{4, 77}, {1, 1}}},
    {"65 heads", 65, 256, 64, 0, BF16, 0, 0, 0, 0, {{1, 333}, {0, 20}, {3, 3}}},
    {"128 heads", 128, 192, 16, 0, BF16, 0, ABSORBED | LAYERS, 0, 0, {{1, 500}, {2, 40}}},
    {"float32", 16, 320, 64, 0, F32, 0, 0, 0, 0, {{1, 900}, {5, 60}}},
    {"float32, 40 heads", 40, 128, 64, 0, F32, 0, ABSORBED, 0, 0, {{1, 900}, {5, 60}}},
    {"a scale below zero", 16, 128, 64, 0, BF16, 0, 0, -0.11, 0, {{2, 200}}},
    {"positions that are not there", 32, 256, 64, 0, BF16, 0, 0, 0, 3, {{1, 700}, {2, 90}}},
    {"no position is there", 48, 128, 64, 0, BF16, 0, ABSORBED, 0, 1, {{1, 70}}},
    {"a list of several threads", 16, 2048, 64, 0, BF16, 0, 0, 0, 0, {{1, 3000}, {1, 20}}},
    {"the same, invariant", 16, 2048, 64, 0, BF16, 0, INVARIANT, 0, 0, {{1, 3000}, {1, 20}}},
    {"a list of several threads, 128 heads", 128, 1200, 64, 0, F16, 0, ABSORBED, 0, 5, {{1, 2500}}},
    {"prefill", 8, 128, 64, 0, BF16, 0, 0, 0, 0, {{150, 150}, {40, 300}}},
    {"two passes of projections", 120, 32, 64, 0, BF16, 0, STRIDED, 0, 0, {{90, 90}, {60, 70}}},
    {"two passes of 1024 tokens", 2, 32, 16, 0, F32, 0, ABSORBED, 0, 0, {{900, 900}, {0, 5}, {150, 300}}},
    {"e4m3 cache", 16, 256, 64, E4, BF16, 0, 0, 0, 4, {{1, 300}, {2, 50}}},
    {"e4m3 cache, 128 heads", 128, 256, 64, E4, BF16, 0, ABSORBED, 0, 0, {{1, 300}, {2, 50}}},
    {"e4m3 cache and query", 16, 256, 64, E4, BF16, ATTN_DTYPE_FP8_E4M3, 0, 0, 0, {{1, 300}}},
    {"e5m2 cache", 20, 128, 32, E5, F16, 0, ABSORBED, 0, 0, {{3, 200}}},
    {"656 bytes, one tile", 16, 32, 64, DS, BF16, 0, 0, 0, 0, {{1, 300}}},
    {"656 bytes, 128 heads", 128, 200, 64, DS, BF16, 0, STRIDED, 0, 0, {{1, 500}, {3, 9}}},
    {"656 bytes, float16", 64, 320, 64, DS, F16, 0, ABSORBED, 0, 0, {{1, 900}}},
    {"656 bytes, positions that are not there", 5, 256, 32, DS, BF16, 0, ABSORBED, 0, 3, {{1, 700}}},
    {"656 bytes, a list of several threads", 16, 2048, 64, DS, BF16, 0, 0, 0, 7, {{1, 3000}}},
    {"656 bytes, prefill", 33, 128, 64, DS, BF16, 0, 0, 0, 0, {{70, 70}, {20, 300}}},
};

static void make_case(kit_case_t *c, const struct sparse_row *x, uint64_t seed) {
    kit_case_start(c, ATTN_ROLE_MLA_SPARSE, seed);
    kit_case_set_mla(c, x->heads, 512, 64, 128, 128, x->topk);
    attn_problem_t *p = &c->problem;
    p->dtype = x->dtype, p->query_dtype = x->query_dtype;
    p->block_size = x->page;
    p->features |= ATTN_F_LSE | (x->flags & INVARIANT ? ATTN_F_BATCH_INVARIANT : 0);
    p->kv_cache_dtype = x->kv;
    p->max_num_batched_tokens = 1200;
    p->max_model_len = 131072;
    if (x->scale != 0) p->scale = x->scale;
    c->flags |= (x->flags & STRIDED ? KIT_STRIDED : 0) | (x->flags & LAYERS ? KIT_CROSS_LAYER : 0);
    if (x->flags & LAYERS) p->features |= ATTN_F_BLOCK_STRIDE;
    if (x->flags & ABSORBED) kit_case_set_latent(c);
    for (int r = 0; r < 4 && x->lens[r][1] > 0; r++)
        kit_case_add(c, x->lens[r][0], x->lens[r][1]);
}

static void cases(uint64_t seed) {
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        kit_case_t c;
        kit_result_t want;
        char why[2048] = "";
        int good = 1;
        make_case(&c, &list[i], seed + i);
        kit_inputs_t *in = kit_inputs_make(&c);
        if (in == NULL) bail_out("out of memory");
        make_wild(&c, in, list[i].wild);
        if (kit_run_oracle(reference, &c, in, &want) != ATTN_OK) bail_out("oracle: %s", want.error.text);
        for (int level = 0; good && level < NUM_LEVELS; level++) {
            const kit_memory_t memory = memory_of(level, 1 + (level + (int)i) % 3);
            kit_result_t got = {0};
            if (!has_level(level)) continue;
            good = kit_is_served(cpu, &c, &memory, why, sizeof why);
            if (good && kit_run(cpu, &c, in, &memory, &got) == ATTN_OK) {
                const kit_difference_t d = kit_compare(&c, &got, &want);
                good = d.is_close && got.fault[0] == '\0';
                snprintf(why, sizeof why, "%s %s", got.fault, d.text);
            } else if (good) {
                good = 0;
                snprintf(why, sizeof why, "%s: %s", got.operation, got.error.text);
            }
            kit_result_free(&got);
            if (!good) diag("level %s: %s", levels[level], why);
        }
        ok(good, "%s", list[i].name);
        kit_result_free(&want);
        kit_inputs_free(in);
    }
}

static void result_of(const kit_case_t *c, const kit_inputs_t *in, int threads, kit_result_t *got) {
    const kit_memory_t memory = memory_of(NUM_LEVELS, threads);
    if (kit_run(cpu, c, in, &memory, got) != ATTN_OK) bail_out("%s: %s", got->operation, got->error.text);
}

/* Holes cost neither time nor bits: what is selected counts, not where in the list it stands. */
static void holes(uint64_t seed) {
    static const struct sparse_row rows[] = {
        {"", 16, 512, 64, 0, BF16, 0, 0, 0, 0, {{3, 800}, {2, 40}}},
        {"", 128, 512, 64, DS, BF16, 0, ABSORBED, 0, 0, {{3, 800}, {2, 40}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kit_case_t c;
        kit_result_t got[3];
        make_case(&c, &rows[i], seed);
        kit_inputs_t *in = kit_inputs_make(&c);
        if (in == NULL) bail_out("out of memory");
        const int64_t topk = c.problem.topk;
        result_of(&c, in, 1, &got[0]);
        for (int64_t t = 0; t < in->num_tokens; t++) { /* all holes to the end, then all to the start */
            int32_t *row = in->topk_indices + t * topk;
            int64_t n = 0;
            for (int64_t j = 0; j < topk; j++)
                if (row[j] >= 0) row[n++] = row[j];
            for (; n < topk; n++)
                row[n] = -1;
        }
        result_of(&c, in, 1, &got[1]);
        for (int64_t t = 0; t < in->num_tokens; t++) {
            int32_t *row = in->topk_indices + t * topk;
            int64_t n = topk;
            for (int64_t j = topk; j-- > 0;)
                if (row[j] >= 0) row[--n] = row[j];
            while (n > 0)
                row[--n] = INT32_MIN;
        }
        result_of(&c, in, 1, &got[2]);
        const size_t bytes = (size_t)got[0].num_out * sizeof *got[0].out;
        ok(memcmp(got[0].out, got[1].out, bytes) == 0 && memcmp(got[0].out, got[2].out, bytes) == 0,
           "%u heads: the place of the holes in a list changes no bit", rows[i].heads);
        for (int k = 0; k < 3; k++)
            kit_result_free(&got[k]);
        kit_inputs_free(in);
    }
}

/* Inputs of a family over `keys` keys, of which each of two tokens selects 2048 in an order of its own, the
 * needle among them; the error relative to the size of the outputs, and its mean along them. */
static void family(uint32_t kind, int32_t keys, uint32_t heads, uint32_t kv, uint64_t seed) {
    const struct sparse_row row = {"", heads, 2048, 64, kv, BF16, 0, 0, 0, 0, {{2, keys}}};
    kit_case_t c;
    kit_result_t got, want;
    make_case(&c, &row, seed);
    c.family = kind, c.flags |= KIT_NO_SCALES;
    kit_inputs_t *in = kit_inputs_make(&c);
    if (in == NULL) bail_out("out of memory");
    for (int64_t t = 0; t < 2; t++) {
        int32_t *list_ = in->topk_indices + t * 2048;
        const int32_t step = keys > 2048 ? keys / 2048 * 3 + 1 : 1031; /* prime to 2048 */
        for (int32_t j = 0; j < 2048; j++)
            list_[j] = (int32_t)(((int64_t)j * step + 7 * t) % (keys - 1));
        list_[1700 + t] = keys / 3;
    }
    result_of(&c, in, 2, &got);
    if (kit_run_oracle(reference, &c, in, &want) != ATTN_OK) bail_out("oracle: %s", want.error.text);
    double off = 0, size = 0, bias = 0, lse = 0;
    for (int64_t i = 0; i < want.num_out; i++) {
        const double e = got.out[i] - want.out[i];
        off += e * e, size += want.out[i] * want.out[i];
        bias += want.out[i] < 0 ? -e : e;
    }
    for (int64_t i = 0; i < want.num_lse; i++)
        lse = fmax(lse, fabs(got.lse[i] - want.lse[i]) / fmax(1, fabs(want.lse[i])));
    off = sqrt(off / size), bias /= sqrt(size * (double)want.num_out);
    /* bfloat16 outputs: half a step is 2^-9 */
    ok(off < 6e-3 && fabs(bias) < 2e-3 && lse < 1e-2,
       "%s, %d keys, %u heads, %s: error %.1e, bias %.1e, LSE %.1e", kit_family_name(kind), keys, heads,
       kv == DS ? "656 bytes" : "16 bits", off, bias, lse);
    kit_result_free(&got), kit_result_free(&want);
    kit_inputs_free(in);
}

/* A position that the request does not have: REFERENCE and CPU_ATTN refuse it alike, and write nothing. */
static void refused(uint64_t seed) {
    const struct sparse_row row = {"", 16, 128, 64, 0, BF16, 0, ABSORBED, 0, 0, {{1, 100}, {2, 90}}};
    const attn_backend_t *both[] = {reference, cpu};
    kit_case_t c;
    make_case(&c, &row, seed);
    kit_inputs_t *in = kit_inputs_make(&c);
    if (in == NULL) bail_out("out of memory");
    in->topk_indices[2 * 128 + 77] = 90;
    for (int i = 0; i < 2; i++) {
        const kit_memory_t memory = i ? memory_of(NUM_LEVELS, 2) : kit_cpu_memory;
        kit_result_t got;
        is_int(kit_run(both[i], &c, in, &memory, &got), ATTN_E_INVALID, "%s refuses position 90 of 90",
               both[i]->name);
        is_str(got.error.param, "topk_indices", "by name");
        has_str(got.error.text, "topk_indices[2][77] is 90; request 1 has 90 tokens (-1: none)", "%s",
                got.error.text);
        kit_result_free(&got);
    }
    kit_inputs_free(in);
    char why[512] = "";
    const kit_memory_t memory = memory_of(NUM_LEVELS, 2);
    c.problem.topk = 1 << 18;
    ok(!kit_is_served(cpu, &c, &memory, why, sizeof why) && strstr(why, "131072") != NULL,
       "a list of 2^18 is refused: %s", why);
    c.problem.topk = 128;
    c.problem.dtype = F32, c.problem.kv_cache_dtype = DS;
    ok(!kit_is_served(cpu, &c, &memory, why, sizeof why) && strstr(why, "fp8_ds_mla") != NULL,
       "656-byte rows of a float32 model are refused: %s", why);
}

int main(void) {
    const uint64_t seed = tap_seed();
    cpu = load("cpu.so");
    reference = load("reference.so");
    cases(seed);
    holes(seed);
    for (uint32_t kind = KIT_NORMAL; kind < KIT_NUM_E4M3_FAMILIES; kind++)
        for (int i = 0; i < 2; i++)
            family(kind, 2700, (kind + i) % 2 ? 40 : 8, i ? DS : 0, seed);
    family(KIT_NEEDLE, 131072, 8, 0, seed);
    family(KIT_UNIFORM, 131072, 40, DS, seed);
    refused(seed);
    return tap_done();
}
