/* SPDX-License-Identifier: Apache-2.0 */
/* reference_dense.c: REFERENCE against the brute force of reference_brute.c: every feature, role, format and
 * layout, and random mixtures of them. */
#include "reference_brute.h"

#include <attn/attn_plugin_util.h>

#include "tests/tap.h"

static const attn_backend_t *reference;

/* One case in float64 output; the name says what it is about. */
static void check(const char *name, kit_case_t *c) {
    char text[2048];
    c->problem.features |= ATTN_F_LSE;
    c->problem.out_dtype = ATTN_DTYPE_FLOAT64;
    kit_inputs_t *in = kit_inputs_make(c);
    kit_result_t got, want = {0};
    if (in == NULL) bail_out("out of memory for inputs");
    want.num_out = in->num_tokens * c->problem.num_heads *
                   (c->problem.head_size_v != 0 ? c->problem.head_size_v : c->problem.head_size);
    want.num_lse = in->num_tokens * c->problem.num_heads;
    want.out = malloc((size_t)(want.num_out + 1) * sizeof(double));
    want.lse = malloc((size_t)(want.num_lse + 1) * sizeof(double));
    brute_attention(c, in, want.out, want.lse);
    kit_run(reference, c, in, &kit_cpu_memory, &got);
    double worst = 0, worst_lse = 0;
    for (int64_t i = 0; got.status == ATTN_OK && i < want.num_out; i++) {
        double e = fabs(got.out[i] - want.out[i]);
        worst = brute_worse(worst, e);
    }
    for (int64_t i = 0; got.status == ATTN_OK && i < want.num_lse; i++) {
        double e = got.lse[i] == want.lse[i] ? 0 : fabs(got.lse[i] - want.lse[i]) / (1 + fabs(want.lse[i]));
        worst_lse = brute_worse(worst_lse, e); /* the LSE is a float32 */
    }
    int passed =
        ok(got.status == ATTN_OK && got.fault[0] == '\0' && worst <= 1e-10 && worst_lse <= 1e-6, "%s", name);
    if (!passed) {
        diag("%s", kit_case_text(c, text, sizeof text));
        diag("output off by %g, lse by %g; %s %s %s", worst, worst_lse, got.operation, got.error.text,
             got.fault);
    }
    kit_result_free(&got);
    kit_result_free(&want);
    kit_inputs_free(in);
}

/* Lengths around pages of 16: decode, chunked prefill, fresh prefill, no new tokens at all. */
static void start(kit_case_t *c, uint32_t role, uint64_t seed) {
    kit_case_start(c, role, seed);
    kit_case_add(c, 1, 17);
    kit_case_add(c, 20, 52);
    kit_case_add(c, 0, 9);
    kit_case_add(c, 33, 33);
    kit_case_add(c, 1, 1);
    kit_case_add(c, 7, 64);
}

static void masks(uint64_t seed) {
    kit_case_t c;
    start(&c, ATTN_ROLE_DECODER, seed);
    check("causal", &c);
    c.problem.mask = ATTN_MASK_FULL;
    check("full", &c);
    c.problem.mask = ATTN_MASK_PER_REQUEST;
    c.causal[1] = c.causal[3] = 0;
    check("causal per request", &c);
    c.problem.sliding_window = 9;
    check("window of a mixture: both sides where not causal", &c);
    for (uint32_t w = 1; w <= 65; w += w < 15 ? 7 : 25) {
        char name[64];
        start(&c, ATTN_ROLE_DECODER, seed + w);
        c.problem.sliding_window = w;
        snprintf(name, sizeof name, "causal window %u", w);
        check(name, &c);
    }
    start(&c, ATTN_ROLE_DECODER, seed);
    c.problem.chunk_size = 16;
    c.problem.features = ATTN_F_CHUNKED_LOCAL;
    check("chunked local", &c);
    for (uint32_t back = 0; back < 3; back++) {
        start(&c, ATTN_ROLE_DECODER, seed + back);
        c.problem.sliding_window = 24;
        c.problem.chunk_lookback = back;
        c.problem.features = ATTN_F_CHUNK_LOOKBACK;
        check("chunk lookback", &c);
    }
    start(&c, ATTN_ROLE_DECODER, seed);
    c.problem.features = ATTN_F_CHUNK_LOOKBACK;
    c.problem.chunk_lookback = 1;
    check("chunk lookback without a window is off", &c);
    start(&c, ATTN_ROLE_DECODER, seed);
    c.problem.rswa_window = 5;
    for (int r = 0; r < c.num_reqs; r++)
        c.rswa_prefix_lens[r] = 3 * r;
    check("reference sliding window", &c);
}

static void spans(uint64_t seed) {
    for (int kind = 0; kind < 3; kind++) {
        static const char *const names[] = {"spans", "spans override the window", "spans respect the window"};
        kit_case_t c;
        start(&c, ATTN_ROLE_DECODER, seed);
        c.problem.features = ATTN_F_MM_PREFIX | (kind == 2 ? ATTN_F_MM_PREFIX_CLAMP : 0);
        if (kind > 0) c.problem.sliding_window = 4;
        c.num_spans = 3;
        for (int r = 0; r < c.num_reqs; r++) {
            int32_t at[3][2] = {{2, 12}, {30, 30}, {40, 48}}; /* the second is a single token: ignored */
            memcpy(c.spans[r], at, sizeof at);
        }
        check(names[kind], &c);
    }
}

static void scores(uint64_t seed) {
    static const struct {
        const char *name;
        uint64_t features;
        double cap;
    } list[] = {{"soft cap", 0, 3.0},
                {"sink", ATTN_F_SINK, 0},
                {"alibi", ATTN_F_ALIBI, 0},
                {"alibi with a sink", ATTN_F_ALIBI | ATTN_F_SINK, 0},
                {"alibi after the soft cap", ATTN_F_ALIBI, 2.0},
                {"alibi_sqrt", ATTN_F_ALIBI_SQRT, 0},
                {"relative bias", ATTN_F_REL_BIAS, 0},
                {"relative bias after the soft cap, with a sink", ATTN_F_REL_BIAS | ATTN_F_SINK, 2.0},
                {"query-query bias", ATTN_F_QQ_BIAS, 1.5},
                {"all of them", ATTN_F_QQ_BIAS | ATTN_F_SINK | ATTN_F_ALIBI_SQRT | ATTN_F_REL_BIAS, 5.0}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        kit_case_t c;
        start(&c, ATTN_ROLE_DECODER, seed + i);
        c.problem.features = list[i].features;
        c.problem.logits_soft_cap = list[i].cap;
        check(list[i].name, &c);
        if ((list[i].features & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT | ATTN_F_REL_BIAS)) == 0) continue;
        c.problem.mask = ATTN_MASK_FULL;
        check("the same with keys behind the query", &c);
    }
    kit_case_t c;
    start(&c, ATTN_ROLE_DECODER, seed);
    c.amplitude = 30.0;
    check("scores in the hundreds", &c);
}

static void roles(uint64_t seed) {
    static const uint32_t plain[] = {ATTN_ROLE_ENCODER, ATTN_ROLE_ENCODER_ONLY, ATTN_ROLE_MM_ENCODER};
    kit_case_t c;
    for (int i = 0; i < 3; i++) {
        start(&c, plain[i], seed);
        check(attn_role_name(plain[i]), &c);
        c.problem.sliding_window = 5;
        c.flags = KIT_STRIDED;
        check("the same with a window on both sides, as views of a fused buffer", &c);
        c.problem.head_size_v = 24;
        c.problem.features |= ATTN_F_SINK;
        check("the same with a sink and another V size", &c);
    }
    start(&c, ATTN_ROLE_ENCODER_DECODER, seed);
    check("cross attention", &c);
    kit_case_add(&c, 12, 3); /* more queries than encoder tokens */
    kit_case_add(&c, 3, 0);  /* no encoder token: rows without keys */
    check("cross attention with more queries than keys, and with none", &c);
    c.problem.sliding_window = 40;
    check("cross attention with a window", &c);
}

static void caches(uint64_t seed) {
    const uint64_t served =
        reference->capabilities->kv_cache_dtypes & attn_kv_formats_of(ATTN_KV_DENSE_ROLES);
    for (uint32_t kv = ATTN_KV_AUTO; kv < ATTN_KV_COUNT_; kv++)
        for (uint32_t layout = ATTN_LAYOUT_NHD; layout <= ATTN_LAYOUT_HND; layout++)
            for (int separate = 0; separate < 2; separate++) {
                char name[96];
                kit_case_t c;
                if (!(served >> kv & 1) || (separate && attn_kv_is_whole_page(kv))) continue;
                start(&c, ATTN_ROLE_DECODER, seed + kv);
                c.problem.kv_cache_dtype = kv;
                c.problem.kv_layout = layout;
                c.problem.head_size_v = !separate || attn_kv_has_one_size(kv)      ? 0
                                        : attn_kv_has_size(attn_kv_format(kv), 40) ? 40
                                                                                   : 64;
                c.flags = layout == ATTN_LAYOUT_HND ? KIT_CROSS_LAYER : KIT_STRIDED;
                c.problem.features = separate ? ATTN_F_SEPARATE_KV : 0;
                snprintf(name, sizeof name, "cache %s, %s, %s", attn_kv_name(kv),
                         layout == ATTN_LAYOUT_NHD ? "NHD" : "HND", separate ? "K and V apart" : "packed");
                check(name, &c);
            }
    static const uint32_t scaled[] = {ATTN_KV_FP8_E4M3, ATTN_KV_FP8_E5M2, ATTN_KV_NVFP4};
    for (int i = 0; i < 3; i++) {
        kit_case_t c;
        start(&c, ATTN_ROLE_DECODER, seed);
        c.problem.kv_cache_dtype = scaled[i];
        c.problem.features = ATTN_F_PER_HEAD_SCALES;
        c.flags = KIT_PER_HEAD;
        check("scale per head", &c);
        c.problem.query_dtype = ATTN_DTYPE_FP8_E4M3;
        check("quantised query", &c);
        c.problem.query_dtype = 0;
        c.problem.features = 0;
        c.flags = KIT_NO_SCALES;
        check("no scale given: 1", &c);
    }
}

static void shapes(uint64_t seed) {
    static const uint32_t list[][5] = {/* heads, KV heads, D, Dv, page */
                                       {1, 1, 1, 0, 1},   {6, 6, 3, 0, 5},     {8, 1, 33, 0, 16},
                                       {6, 2, 72, 40, 7}, {3, 0, 128, 64, 32}, {4, 4, 40, 300, 64}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        for (uint32_t dtype = ATTN_DTYPE_FLOAT32; dtype <= ATTN_DTYPE_BFLOAT16; dtype++) {
            char name[96];
            kit_case_t c;
            start(&c, ATTN_ROLE_DECODER, seed + i);
            c.problem.dtype = dtype;
            c.problem.num_heads = list[i][0];
            c.problem.num_kv_heads = list[i][1];
            c.problem.head_size = list[i][2];
            c.problem.head_size_v = list[i][3];
            c.problem.block_size = list[i][4];
            snprintf(name, sizeof name, "%u heads over %u, D %u, Dv %u, pages of %u, %s", list[i][0],
                     list[i][1], list[i][2], list[i][3], list[i][4], attn_dtype_name(dtype));
            check(name, &c);
        }
}

static void mixtures(uint64_t seed) {
    for (int i = 0; i < 60; i++) {
        char name[48];
        kit_case_t c;
        kit_case_random(&c, reference->capabilities, seed + (uint64_t)i, 90);
        snprintf(name, sizeof name, "random mixture %d", i);
        check(name, &c);
    }
}

int main(void) {
    uint64_t seed = tap_seed();
    char path[4096], why[256];
    const char *folder = getenv("ATTN_TEST_PLUGIN_DIR");
    snprintf(path, sizeof path, "%s/reference.so", folder != NULL ? folder : "plugins-built");
    reference = kit_load(path, "REFERENCE", why, sizeof why);
    if (reference == NULL) bail_out("%s", why);
    masks(seed);
    spans(seed);
    scores(seed);
    roles(seed);
    caches(seed);
    shapes(seed);
    mixtures(seed);
    return tap_done();
}
