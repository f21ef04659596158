/* SPDX-License-Identifier: Apache-2.0 */
/* mla_sparse.so on a device against the reference plugin in double: what is its own beside what mla_plugin.c
 * tests. Both of its kernels, the device's own and the portable one; lists of all lengths around blocks,
 * heads that do not fill a tile, indices that name nothing (all, most, half of them, at either end), a scale
 * below zero, contexts of 131072 keys with hard inputs, lists too long to be packed, the cache dtype fp8 that
 * becomes fp8_ds_mla, replays over the 656-byte cache, with projections of either kind, prompts by 16-bit
 * copies. MLA_TEST_PLUGINS: the folder of the plugins; ATTN_TEST_PART: part.h. */
#include "gpu_memory.h"
#include "kit/case/case_families.h"
#include "mla_testing.h"
#include "part.h"

enum { SEEN_LOGS = 8 };
static const attn_backend_t *sparse, *reference;
static char logged[SEEN_LOGS][256];
static int num_logged;

static void keep_log(void *ctx, uint32_t level, const char *text) {
    (void)ctx, (void)level;
    if (num_logged < SEEN_LOGS) snprintf(logged[num_logged++], sizeof logged[0], "%s", text);
}
static const attn_host_t host = {.struct_size = sizeof host, .log = keep_log};

/* Which positions of a list name nothing, and are -1 (semantics 9.3). */
enum holes {
    NO_HOLES,
    ALL,
    ALL_BUT_LAST,
    ALL_BUT_FIRST,
    AT_RANDOM,
    MOST_AT_RANDOM,
    AT_END,
    AT_START,
    TOKENS_DIFFER
};

static void make_holes(kit_inputs_t *in, int64_t topk, enum holes holes) {
    uint64_t seed = 77;
    for (int64_t t = 0; t < in->num_tokens; t++) {
        const enum holes h = holes == TOKENS_DIFFER ? (enum holes)(1 + t % (TOKENS_DIFFER - 1)) : holes;
        for (int64_t k = 0; k < topk; k++) {
            const int64_t x = tap_rand_in(&seed, 0, 99);
            if (h == ALL || (h == ALL_BUT_LAST && k < topk - 1) || (h == ALL_BUT_FIRST && k > 0) ||
                (h == AT_RANDOM && x < 50) || (h == MOST_AT_RANDOM && x < 97) ||
                (h == AT_END && k >= topk / 2 + 5) || (h == AT_START && k < topk / 2 + 5))
                in->topk_indices[t * topk + k] = -1;
        }
    }
}

/* option arch: 0 auto, 1 sm80 */
static void run_case(const char *name, const kit_case_t *c, int64_t wild, enum holes holes) {
    const int archs =
        holes == NO_HOLES || holes == ALL || holes == AT_RANDOM ? 2 : 1; /* the oracle takes long */
    for (int arch = 0; arch < archs; arch++) {
        if (!part_takes()) continue;
        kit_memory_t memory = gpu;
        mla_test_set(MLA_TEST_ARCH, arch ? "sm80" : "auto");
        memory.options = mla_test_options, memory.num_options = MLA_TEST_SPARSE_OPTIONS;
        kit_inputs_t *in = kit_inputs_make(c);
        for (int64_t i = 0; wild && i < in->num_tokens * c->problem.topk; i += wild)
            in->topk_indices[i] = i % 2 ? INT32_MAX - 7 : (int32_t)(in->table_width * c->problem.block_size);
        make_holes(in, c->problem.topk, holes);
        kit_difference_t d;
        char why[2048] = "";
        if (!ok(mla_test_agrees(sparse, reference, c, in, &memory, &d, why, sizeof why), "%s (%s)", name,
                arch ? "portable" : "auto"))
            diag("%s", why);
        kit_inputs_free(in);
    }
}

static void cases(void) {
    static const struct {
        const char *name;
        uint32_t heads, topk, page, kv, dtype;
        double scale;
        int64_t wild; /* every that many entries name no position */
        int32_t lens[5][2];
    } list[] = {
        {"one block", 64, 64, 64, 0, 0, 0, 0, {{1, 300}}},
        {"less than a block", 16, 37, 64, 0, 0, 0, 0, {{2, 100}}},
        {"two blocks and a part", 128, 150, 64, 0, 0, 0, 0, {{1, 500}, {2, 40}}},
        {"three blocks, page 16", 3, 192, 16, 0, 0, 0, 0, {{4, 77}, {1, 1}}},
        {"65 heads, page 48", 65, 256, 48, 0, 0, 0, 0, {{1, 333}, {0, 20}, {3, 3}}},
        {"float16", 64, 320, 64, 0, ATTN_DTYPE_FLOAT16, 0, 0, {{1, 900}, {5, 60}}},
        {"a scale below zero", 16, 128, 64, 0, 0, -0.11, 0, {{2, 200}}},
        {"positions that are not there", 32, 256, 64, 0, 0, 0, 3, {{1, 700}, {2, 90}}},
        {"no position is there", 32, 128, 64, 0, 0, 0, 1, {{1, 70}}},
        {"a cut list", 16, 2048, 64, 0, 0, 0, 0, {{1, 3000}, {1, 20}}},
        {"a cut list, 128 heads", 128, 2048, 64, 0, 0, 0, 5, {{1, 2500}}},
        {"prefill", 8, 128, 64, 0, 0, 0, 0, {{150, 150}, {40, 300}}},
        {"cut lists beside whole ones", 8, 1024, 64, 0, 0, 0, 0, {{1, 1100}, {150, 1200}, {49, 1100}}},
        {"656 bytes, one block", 64, 64, 64, ATTN_KV_FP8_DS_MLA, 0, 0, 0, {{1, 300}}},
        {"656 bytes, three blocks and a part", 128, 200, 64, ATTN_KV_FP8_DS_MLA, 0, 0, 0, {{1, 500}, {3, 9}}},
        {"656 bytes, float16", 64, 320, 64, ATTN_KV_FP8_DS_MLA, ATTN_DTYPE_FLOAT16, 0, 0, {{1, 900}}},
        {"656 bytes, positions that are not there", 5, 256, 32, ATTN_KV_FP8_DS_MLA, 0, 0, 3, {{1, 700}}},
        {"656 bytes, a cut list", 16, 2048, 64, ATTN_KV_FP8_DS_MLA, 0, 0, 7, {{1, 3000}}},
        {"656 bytes, prefill", 16, 128, 64, ATTN_KV_FP8_DS_MLA, 0, 0, 0, {{150, 150}, {20, 300}}},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        kit_case_t c;
        kit_case_start(&c, ATTN_ROLE_MLA_SPARSE, 300 + i);
        kit_case_set_mla(&c, list[i].heads, 512, 64, 128, 128, list[i].topk);
        c.problem.dtype = list[i].dtype ? list[i].dtype : (uint32_t)ATTN_DTYPE_BFLOAT16;
        c.problem.block_size = list[i].page;
        c.problem.features = ATTN_F_LSE;
        c.problem.kv_cache_dtype = list[i].kv;
        if (list[i].scale != 0) c.problem.scale = list[i].scale;
        for (int r = 0; r < 5 && list[i].lens[r][1] > 0; r++)
            kit_case_add(&c, list[i].lens[r][0], list[i].lens[r][1]);
        run_case(list[i].name, &c, list[i].wild, NO_HOLES);
    }
}

/* Lists with holes, cut in pieces and whole ones, whatever the holes are. */
static void lists_with_holes(void) {
    static const char *const names[] = {"",
                                        "all -1",
                                        "all but the last -1",
                                        "all but the first -1",
                                        "half -1",
                                        "97 in 100 -1",
                                        "-1 at the end",
                                        "-1 at the start",
                                        "each token its own holes"};
    static const struct {
        const char *name;
        uint32_t heads, topk, kv;
        int32_t lens[3][2];
    } shapes[] = {
        {"656 bytes, 128 heads, cut", 128, 512, ATTN_KV_FP8_DS_MLA, {{1, 500}, {2, 430}}},
        {"656 bytes, 64 heads, cut", 64, 390, ATTN_KV_FP8_DS_MLA, {{1, 500}, {1, 1}}},
        {"656 bytes, 129 heads, whole", 129, 130, ATTN_KV_FP8_DS_MLA, {{70, 140}}},
        {"16 bits, 96 heads, cut in chunks", 96, 2200, 0, {{1, 300}, {2, 90}}},
        {"16 bits, 128 heads, whole", 128, 130, 0, {{70, 140}}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int holes = ALL; holes <= TOKENS_DIFFER; holes++) {
            if (i % 2 == 1 && holes != ALL && holes != AT_RANDOM && holes != TOKENS_DIFFER) continue;
            if (shapes[i].topk == 130 && holes != TOKENS_DIFFER) continue;
            kit_case_t c;
            char name[160];
            kit_case_start(&c, ATTN_ROLE_MLA_SPARSE, 350 + i);
            kit_case_set_mla(&c, shapes[i].heads, 512, 64, 128, 128, shapes[i].topk);
            c.problem.dtype = ATTN_DTYPE_BFLOAT16, c.problem.block_size = 64, c.problem.features = ATTN_F_LSE;
            c.problem.kv_cache_dtype = shapes[i].kv;
            for (int r = 0; r < 3 && shapes[i].lens[r][1] > 0; r++)
                kit_case_add(&c, shapes[i].lens[r][0], shapes[i].lens[r][1]);
            snprintf(name, sizeof name, "%s, %s", shapes[i].name, names[holes]);
            run_case(name, &c, 0, (enum holes)holes);
        }
}

/* Outputs with one scale and with group scales, over both caches. */
static void quantised_outputs(void) {
    static const struct {
        const char *name;
        uint64_t feature;
        uint32_t heads, kv, dtype;
    } list[] = {
        {"e4m3 output, one scale", ATTN_F_OUT_FP8_STATIC, 64, 0, ATTN_DTYPE_BFLOAT16},
        {"e4m3 output, groups", ATTN_F_OUT_FP8_GROUP, 16, 0, ATTN_DTYPE_FLOAT16},
        {"656 bytes, e4m3 output, one scale", ATTN_F_OUT_FP8_STATIC, 128, ATTN_KV_FP8_DS_MLA,
         ATTN_DTYPE_FLOAT16},
        {"656 bytes, e4m3 output, groups", ATTN_F_OUT_FP8_GROUP, 65, ATTN_KV_FP8_DS_MLA, ATTN_DTYPE_BFLOAT16},
        {"4-bit output", ATTN_F_OUT_NVFP4, 16, 0, ATTN_DTYPE_BFLOAT16},
        {"656 bytes, 4-bit output", ATTN_F_OUT_NVFP4, 65, ATTN_KV_FP8_DS_MLA, ATTN_DTYPE_BFLOAT16},
        {"e4m3 output, powers of two", ATTN_F_OUT_FP8_GROUP | ATTN_F_OUT_SCALE_UE8M0, 128, 0,
         ATTN_DTYPE_BFLOAT16},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        kit_case_t c;
        kit_case_start(&c, ATTN_ROLE_MLA_SPARSE, 400 + i);
        kit_case_set_mla(&c, list[i].heads, 512, 64, 128, 128, 192);
        c.problem.dtype = list[i].dtype;
        c.problem.features = ATTN_F_LSE | list[i].feature;
        c.problem.out_dtype = list[i].feature == ATTN_F_OUT_NVFP4 ? ATTN_DTYPE_UINT8 : ATTN_DTYPE_FP8_E4M3;
        c.problem.kv_cache_dtype = list[i].kv;
        c.flags = i % 2 == 0 ? KIT_STRIDED : 0;
        kit_case_add(&c, 1, 500), kit_case_add(&c, 30, 120), kit_case_add(&c, 1, 1);
        run_case(list[i].name, &c, 0, i % 2 ? AT_RANDOM : NO_HOLES);
    }
}

/* Contexts of 131072 keys: lists from all of them, inputs that are not normal, and a list that is too long to
 * be packed (MLA_PACKED_LIST). */
static void long_contexts(void) {
    static const struct {
        uint32_t heads, topk, kv, family;
        enum holes holes;
    } list[] = {{128, 2048, ATTN_KV_FP8_DS_MLA, KIT_USUAL, NO_HOLES},
                {128, 2048, ATTN_KV_FP8_DS_MLA, KIT_UNIFORM, AT_RANDOM},
                {64, 2048, ATTN_KV_FP8_DS_MLA, KIT_CONSTANT, AT_RANDOM},
                {64, 2048, ATTN_KV_FP8_DS_MLA, KIT_NEEDLE, AT_RANDOM},
                {64, 2048, ATTN_KV_FP8_DS_MLA, KIT_CHANNEL, AT_START},
                {64, 2048, ATTN_KV_FP8_DS_MLA, KIT_ENDS, AT_END},
                {128, 2048, 0, KIT_USUAL, AT_RANDOM},
                {64, 2048, 0, KIT_LARGE_MEAN, NO_HOLES},
                {64, 2048, 0, KIT_LARGE, AT_RANDOM},
                {64, 2048, 0, KIT_SMALL, AT_RANDOM},
                {4, 65536, ATTN_KV_FP8_DS_MLA, KIT_UNIFORM, AT_RANDOM},
                {4, 65537, ATTN_KV_FP8_DS_MLA, KIT_UNIFORM, AT_RANDOM},
                {4, 131072, 0, KIT_UNIFORM, TOKENS_DIFFER}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        kit_case_t c;
        char name[160];
        kit_case_start(&c, ATTN_ROLE_MLA_SPARSE, 500 + i);
        kit_case_set_mla(&c, list[i].heads, 512, 64, 128, 128, list[i].topk);
        c.problem.dtype = ATTN_DTYPE_BFLOAT16, c.problem.block_size = 64, c.problem.features = ATTN_F_LSE;
        c.problem.kv_cache_dtype = list[i].kv, c.problem.max_model_len = 131072;
        c.family = list[i].family;
        kit_case_add(&c, list[i].topk > 2048 ? 1 : 2, 131072);
        snprintf(name, sizeof name, "131072 keys, %s, %u heads, list of %u, family %s",
                 attn_kv_name(list[i].kv), list[i].heads, list[i].topk, kit_family_name(list[i].family));
        run_case(name, &c, 0, list[i].holes);
    }
}

static void fp8_becomes_656_bytes(void) {
    attn_kv_cache_shape_t shape[2];
    for (int i = 0; i < 2; i++) {
        attn_problem_t p =
            mla_test_problem(ATTN_ROLE_MLA_SPARSE, 64, i ? ATTN_KV_FP8_E4M3 : ATTN_KV_FP8_DS_MLA);
        attn_device_t device = {.struct_size = sizeof device, .type = kDLCUDA};
        attn_instance_t *instance = NULL;
        attn_error_t error = {.struct_size = sizeof error};
        num_logged = 0;
        shape[i] = (attn_kv_cache_shape_t){.struct_size = sizeof shape[i]};
        int status = sparse->ops->open(&p, &device, NULL, 0, &host, &instance, &error);
        if (status == ATTN_OK) status = sparse->ops->kv_cache_shape(instance, 4, &shape[i], &error);
        ok(status == ATTN_OK, "%s opens (%s)", attn_kv_name(p.kv_cache_dtype), status ? error.text : "");
        if (i) {
            ok(num_logged == 1 && strstr(logged[0], "fp8_ds_mla") && strstr(logged[0], "REFERENCE"),
               "the change is told, with the backend that keeps the plain format: %s",
               num_logged ? logged[0] : "nothing");
        } else
            is_int(num_logged, 0, "fp8_ds_mla itself needs no word");
        sparse->ops->close(instance);
    }
    is_int(shape[1].shape[2], 656, "fp8 has rows of 656 bytes");
    ok(shape[0].fingerprint == shape[1].fingerprint && shape[0].page_bytes == shape[1].page_bytes,
       "both names are one format");
}

/* Prompts over 656-byte rows by a 16-bit copy of them. */
static void copies(void) {
    static const struct {
        const char *name, *widen;
        uint32_t heads, topk, page, dtype;
        uint64_t feature;
        int64_t wild;
        enum holes holes;
        int32_t lens[6][2];
        uint32_t family;
    } list[] = {
        {"prompts", "on", 16, 128, 64, 0, 0, 0, NO_HOLES, {{150, 150}, {20, 300}}, KIT_USUAL},
        {"prompts beside decodes, page 48",
         "on",
         65,
         256,
         48,
         0,
         0,
         0,
         AT_RANDOM,
         {{1, 900}, {0, 20}, {30, 333}, {3, 3}},
         KIT_USUAL},
        {"float16, page 16",
         "on",
         128,
         384,
         16,
         ATTN_DTYPE_FLOAT16,
         0,
         0,
         NO_HOLES,
         {{2, 900}, {40, 300}, {1, 1}},
         KIT_USUAL},
        {"positions that are not there", "on", 5, 256, 32, 0, 0, 3, NO_HOLES, {{1, 700}, {9, 40}}, KIT_USUAL},
        {"cut lists", "on", 128, 2048, 64, 0, 0, 7, AT_START, {{1, 3000}, {2, 2500}}, KIT_CHANNEL},
        {"several slices", "on", 1024, 128, 64, 0, 0, 0, TOKENS_DIFFER, {{1, 300}, {140, 200}}, KIT_USUAL},
        {"a slice ends where the copies begin",
         "auto",
         128,
         256,
         64,
         0,
         0,
         0,
         AT_RANDOM,
         {{1, 3000}, {2, 2800}, {300, 400}},
         KIT_USUAL},
        {"e4m3 output",
         "on",
         64,
         128,
         64,
         ATTN_DTYPE_FLOAT16,
         ATTN_F_OUT_FP8_STATIC,
         0,
         NO_HOLES,
         {{1, 500}, {60, 120}},
         KIT_USUAL},
        {"131072 keys, constant", "on", 64, 2048, 64, 0, 0, 0, AT_RANDOM, {{3, 131072}}, KIT_CONSTANT},
        {"131072 keys, large_mean", "on", 64, 2048, 64, 0, 0, 0, NO_HOLES, {{3, 131072}}, KIT_LARGE_MEAN},
        {"131072 keys, uniform", "on", 64, 2048, 16, 0, 0, 0, AT_RANDOM, {{3, 131072}}, KIT_UNIFORM},
        {"131072 keys, needle", "on", 64, 2048, 64, 0, 0, 0, NO_HOLES, {{3, 131072}}, KIT_NEEDLE},
        {"131072 keys, channel", "on", 64, 2048, 64, 0, 0, 0, AT_RANDOM, {{3, 131072}}, KIT_CHANNEL},
        {"131072 keys, ends", "on", 64, 2048, 16, 0, 0, 0, AT_END, {{3, 131072}}, KIT_ENDS},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (!part_takes()) continue;
        kit_case_t c;
        kit_case_start(&c, ATTN_ROLE_MLA_SPARSE, 600 + i);
        kit_case_set_mla(&c, list[i].heads, 512, 64, 128, 128, list[i].topk);
        c.problem.dtype = list[i].dtype ? list[i].dtype : (uint32_t)ATTN_DTYPE_BFLOAT16;
        c.problem.block_size = list[i].page, c.problem.features = ATTN_F_LSE | list[i].feature;
        c.problem.out_dtype = list[i].feature ? ATTN_DTYPE_FP8_E4M3 : 0;
        c.problem.kv_cache_dtype = ATTN_KV_FP8_DS_MLA, c.problem.max_model_len = 131072;
        c.family = list[i].family;
        for (int r = 0; r < 6 && list[i].lens[r][1] > 0; r++)
            kit_case_add(&c, list[i].lens[r][0], list[i].lens[r][1]);
        kit_inputs_t *in = kit_inputs_make(&c);
        for (int64_t k = 0; list[i].wild && k < in->num_tokens * c.problem.topk; k += list[i].wild)
            in->topk_indices[k] = k % 2 ? INT32_MAX - 7 : (int32_t)(in->table_width * c.problem.block_size);
        make_holes(in, c.problem.topk, list[i].holes);
        kit_memory_t memory = gpu;
        mla_test_set(MLA_TEST_ARCH, "auto"), mla_test_set(MLA_TEST_PROJECTIONS, "auto");
        attn_option_value_t options[3] = {mla_test_options[0], mla_test_options[1], MLA_TEST_OPTION("widen")};
        memory.options = options, memory.num_options = 3;
        options[2].s = list[i].widen, options[2].i = strcmp(list[i].widen, "on") == 0;
        kit_difference_t d;
        char why[2048] = "";
        if (!ok(mla_test_agrees(sparse, reference, &c, in, &memory, &d, why, sizeof why), "16-bit copies, %s",
                list[i].name))
            diag("%s", why);
        kit_inputs_free(in);
    }
}

static void replay(void) {
    const attn_problem_t p = mla_test_problem(ATTN_ROLE_MLA_SPARSE, 64, ATTN_KV_FP8_DS_MLA);
    mla_step s;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    static const char *const projections[] = {"auto", "own"};
    for (int i = 0; i < 2; i++) {
        mla_test_set(MLA_TEST_ARCH, "auto"), mla_test_set(MLA_TEST_PROJECTIONS, projections[i]);
        if (mla_test_replays(&s, sparse, &p, i ? "656 bytes, own projections" : "656 bytes", stream) ==
            ATTN_OK)
            mla_step_close(&s);
    }
    cudaStreamDestroy(stream);
}

int main(void) {
    if (gpu_start() != 0) skip_all("no CUDA device");
    sparse = mla_test_load("mla_sparse.so");
    reference = mla_test_load("reference.so");
    fp8_becomes_656_bytes();
    long_contexts();
    lists_with_holes();
    cases();
    quantised_outputs();
    copies();
    replay();
    return tap_done();
}
