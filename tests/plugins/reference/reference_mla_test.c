/* SPDX-License-Identifier: Apache-2.0 */
/* reference_mla.c: latent attention of REFERENCE against the other form of the same formula: K and V
 * projected up for every token and head (semantics 7.4), over every token, over selected ones (9.2), through
 * each cache format (3.5). */
#include <attn/attn_plugin_util.h>
#include "reference_brute.h"
#include "reference_setup.h"

static const attn_backend_t *reference;

/* One latent row after it went through the cache. */
static void through_cache(const kit_case_t *c, const kit_inputs_t *in, int64_t at, double *row) {
    int latent = (int)c->problem.kv_lora_rank, rope = (int)c->problem.qk_rope_head_dim;
    uint32_t kv = c->problem.kv_cache_dtype;
    const float *x = in->key + at * latent, *pe = in->value + at * rope;
    for (int i = 0; i < latent + rope; i++) {
        float value = i < latent ? x[i] : pe[i - latent], scale = in->k_scale[0];
        row[i] = value;
        if (kv == ATTN_KV_FLOAT16) row[i] = attn_from_f16(attn_to_f16(value));
        if (kv == ATTN_KV_BFLOAT16) row[i] = attn_from_bf16(attn_to_bf16(value));
        if (kv == ATTN_KV_FP8_E4M3 || kv == ATTN_KV_FP8_E5M2)
            row[i] = brute_nearest_fp8(value / scale, kv == ATTN_KV_FP8_E5M2) * scale;
        if (kv == ATTN_KV_FP8_DS_MLA && i < latent) {
            float most = 0;
            for (int j = i / 128 * 128; j < i / 128 * 128 + 128; j++)
                most = fmaxf(most, fabsf(x[j]));
            scale = fmaxf(most / 448.0f, 0x1p-126f);
            row[i] = brute_nearest_fp8(value / scale, 0) * scale;
        }
        if (kv == ATTN_KV_FP8_DS_MLA && i >= latent) row[i] = attn_from_bf16(attn_to_bf16(value));
    }
}

static double dot(const double *a, const float *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* One query token and head: keys [n] with the values of W_UK and W_UV applied to each of them. */
static void attend(const kit_case_t *c, const kit_inputs_t *in, int64_t token, int h, const double *rows,
                   const int32_t *keys, int64_t n, double *out, double *lse) {
    const attn_problem_t *p = &c->problem;
    int latent = (int)p->kv_lora_rank, rope = (int)p->qk_rope_head_dim, nope = (int)p->qk_nope_head_dim;
    int value = (int)p->v_head_dim;
    const float *q = in->query + (token * p->num_heads + h) * (nope + rope);
    const float *w = in->kv_b_proj + (int64_t)h * (nope + value) * latent;
    const int is_fp8 = p->query_dtype == ATTN_DTYPE_FP8_E4M3;
    double *fp8 = malloc((size_t)(latent + rope) * sizeof *fp8);
    for (int i = 0; i < latent + rope && is_fp8; i++) { /* what the keys meet, rounded */
        double x = i < latent ? 0 : q[nope + i - latent];
        for (int j = 0; j < nope && i < latent; j++)
            x += (double)q[j] * w[(int64_t)j * latent + i];
        fp8[i] = brute_nearest_fp8((float)x / in->q_scale[0], 0) * in->q_scale[0];
    }
    double *s = malloc((size_t)(n + 1) * sizeof *s), most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double *row = rows + keys[i] * (latent + rope);
        s[i] = is_fp8 ? 0 : dot(row + latent, q + nope, rope);
        for (int j = 0; j < nope && !is_fp8; j++)
            s[i] += q[j] * dot(row, w + (int64_t)j * latent, latent);
        for (int j = 0; j < latent + rope && is_fp8; j++)
            s[i] += fp8[j] * row[j];
        s[i] *= p->scale;
        most = fmax(most, s[i]);
    }
    for (int64_t i = 0; i < n; i++)
        sum += s[i] = exp(s[i] - most);
    for (int v = 0; v < value; v++) {
        out[v] = 0;
        for (int64_t i = 0; i < n; i++)
            out[v] +=
                s[i] / sum * dot(rows + keys[i] * (latent + rope), w + (int64_t)(nope + v) * latent, latent);
    }
    *lse = n > 0 ? most + log(sum) : -INFINITY;
    free(s);
    free(fp8);
}

static void brute_mla(const kit_case_t *c, const kit_inputs_t *in, double *out, double *lse) {
    const attn_problem_t *p = &c->problem;
    int64_t width = (int64_t)p->kv_lora_rank + p->qk_rope_head_dim, token = 0;
    for (int r = 0; r < c->num_reqs; r++) {
        int64_t seq = c->seq_lens[r];
        double *rows = malloc((size_t)(seq * width + 1) * sizeof *rows);
        int32_t *keys = malloc(((size_t)seq + p->topk + 1) * sizeof *keys);
        for (int64_t i = 0; i < seq; i++)
            through_cache(c, in, in->key_start[r] + i, rows + i * width);
        for (int64_t i = seq - c->query_lens[r]; i < seq; i++, token++) {
            int64_t n = 0;
            for (int64_t k = 0; k <= i && in->topk_indices == NULL; k++)
                keys[n++] = (int32_t)k;
            for (uint32_t j = 0; j < p->topk; j++)
                if (in->topk_indices[token * p->topk + j] >= 0)
                    keys[n++] = in->topk_indices[token * p->topk + j];
            for (uint32_t h = 0; h < p->num_heads; h++)
                attend(c, in, token, (int)h, rows, keys, n, out + (token * p->num_heads + h) * p->v_head_dim,
                       &lse[h * in->num_tokens + token]);
        }
        free(rows);
        free(keys);
    }
}

static void check(const char *name, kit_case_t *c) {
    char text[2048];
    c->problem.features |= ATTN_F_LSE;
    c->problem.out_dtype = ATTN_DTYPE_FLOAT64;
    kit_inputs_t *in = kit_inputs_make(c);
    kit_result_t got;
    if (in == NULL) bail_out("out of memory for inputs");
    kit_run(reference, c, in, &kit_cpu_memory, &got);
    double worst = 0, worst_lse = 0;
    double *out = calloc((size_t)got.num_out + 1, sizeof *out),
           *lse = calloc((size_t)got.num_lse + 1, sizeof *lse);
    if (got.status == ATTN_OK && c->problem.role == ATTN_ROLE_MLA_PREFILL) {
        kit_case_t plain = *c; /* the MHA part alone is causal attention without a cache */
        plain.problem.role = ATTN_ROLE_ENCODER;
        plain.problem.head_size = c->problem.qk_nope_head_dim + c->problem.qk_rope_head_dim;
        plain.problem.head_size_v = c->problem.v_head_dim;
        brute_attention(&plain, in, out, lse);
    } else if (got.status == ATTN_OK) {
        brute_mla(c, in, out, lse);
    }
    for (int64_t i = 0; i < got.num_out; i++) {
        double e = fabs(got.out[i] - out[i]);
        worst = brute_worse(worst, e);
    }
    for (int64_t i = 0; i < got.num_lse; i++) {
        double e = got.lse[i] == lse[i] ? 0 : fabs(got.lse[i] - lse[i]) / (1 + fabs(lse[i]));
        worst_lse = brute_worse(worst_lse, e);
    }
    if (!ok(got.status == ATTN_OK && got.fault[0] == '\0' && got.num_out > 0 && worst <= 1e-10 &&
                worst_lse <= 1e-6,
            "%s", name)) {
        diag("%s", kit_case_text(c, text, sizeof text));
        diag("output off by %g, lse by %g; %s %s %s", worst, worst_lse, got.operation, got.error.text,
             got.fault);
    }
    free(out);
    free(lse);
    kit_result_free(&got);
    kit_inputs_free(in);
}

static void start(kit_case_t *c, uint32_t role, uint64_t seed) {
    kit_case_start(c, role, seed);
    kit_case_set_mla(c, 3, 24, 8, 12, 10, role == ATTN_ROLE_MLA_SPARSE ? 128 : 0);
    kit_case_add(c, 1, 17);
    kit_case_add(c, 20, 52);
    kit_case_add(c, 0, 9);
    kit_case_add(c, 2, 2);
    kit_case_add(c, 33, 33);
}

static void numbers(uint64_t seed) {
    static const uint32_t roles[] = {ATTN_ROLE_MLA, ATTN_ROLE_MLA_SPARSE};
    char name[96];
    for (int i = 0; i < 2; i++)
        for (uint32_t kv = ATTN_KV_AUTO; kv <= ATTN_KV_FP8_E5M2; kv++) {
            kit_case_t c;
            start(&c, roles[i], seed + kv);
            c.problem.kv_cache_dtype = kv;
            c.flags = kv % 2 != 0 ? KIT_STRIDED | KIT_CROSS_LAYER : 0;
            snprintf(name, sizeof name, "%s, cache %s", attn_role_name(roles[i]), attn_kv_name(kv));
            check(name, &c);
            if (kv != ATTN_KV_FP8_E4M3) continue;
            c.problem.query_dtype = ATTN_DTYPE_FP8_E4M3;
            snprintf(name, sizeof name, "%s, cache and queries of fp8", attn_role_name(roles[i]));
            check(name, &c);
            c.problem.dtype = ATTN_DTYPE_BFLOAT16, c.amplitude = 12, c.problem.scale = 0x1p-12;
            snprintf(name, sizeof name, "%s, such numbers that saturate", attn_role_name(roles[i]));
            check(name, &c);
        }
    for (uint32_t dtype = ATTN_DTYPE_FLOAT16; dtype <= ATTN_DTYPE_BFLOAT16; dtype++) {
        kit_case_t c;
        start(&c, ATTN_ROLE_MLA, seed);
        c.problem.dtype = dtype;
        snprintf(name, sizeof name, "mla in %s", attn_dtype_name(dtype));
        check(name, &c);
        kit_case_start(&c, ATTN_ROLE_MLA_SPARSE, seed);
        kit_case_set_mla(&c, 2, 512, 64, 16, 8, 128);
        kit_case_add(&c, 2, 40);
        kit_case_add(&c, 3, 20);
        c.problem.dtype = dtype;
        c.problem.kv_cache_dtype = ATTN_KV_FP8_DS_MLA;
        c.problem.block_size = 64;
        snprintf(name, sizeof name, "mla_sparse in %s over 656-byte rows", attn_dtype_name(dtype));
        check(name, &c);
    }
    kit_case_t c;
    start(&c, ATTN_ROLE_MLA_PREFILL, seed);
    check("mla_prefill", &c);
    c.flags = KIT_STRIDED;
    c.problem.dtype = ATTN_DTYPE_BFLOAT16;
    check("mla_prefill in bfloat16, strided", &c);
    kit_case_start(&c, ATTN_ROLE_MLA, seed);
    kit_case_set_mla(&c, 4, 512, 64, 128, 128, 0);
    kit_case_add(&c, 1, 70);
    check("the sizes of DeepSeek-V3", &c);
}

/* The projections of semantics 7.4 around the latent form give what the projected form gives. */
static void latent_form(uint32_t role) {
    kit_case_t c, l;
    kit_result_t want, got;
    start(&c, role, 5);
    c.problem.features |= ATTN_F_LSE, c.problem.out_dtype = ATTN_DTYPE_FLOAT64;
    l = c;
    kit_case_set_latent(&l);
    kit_inputs_t *in = kit_inputs_make(&c), *absorbed = kit_inputs_make(&l);
    if (in == NULL || absorbed == NULL) bail_out("no memory for inputs");
    const attn_problem_t *p = &c.problem;
    const int64_t L = p->kv_lora_rank, R = p->qk_rope_head_dim, P = p->qk_nope_head_dim, V = p->v_head_dim,
                  rows = in->num_tokens * p->num_heads;
    memcpy(absorbed->key, in->key, (size_t)(in->num_keys * L) * sizeof(float));
    memcpy(absorbed->value, in->value, (size_t)(in->num_keys * R) * sizeof(float));
    if (role == ATTN_ROLE_MLA_SPARSE)
        memcpy(absorbed->topk_indices, in->topk_indices,
               (size_t)(in->num_tokens * p->topk) * sizeof(int32_t));
    for (int64_t row = 0; row < rows; row++) {
        const float *q = in->query + row * (P + R), *w = in->kv_b_proj + row % p->num_heads * (P + V) * L;
        float *a = absorbed->query + row * (L + R);
        for (int64_t i = 0; i < L; i++) {
            double x = 0;
            for (int64_t j = 0; j < P; j++)
                x += (double)q[j] * w[j * L + i];
            a[i] = (float)x;
        }
        memcpy(a + L, q + P, (size_t)R * sizeof *a);
    }
    kit_run(reference, &c, in, &kit_cpu_memory, &want);
    kit_run(reference, &l, absorbed, &kit_cpu_memory, &got);
    double worst = 0;
    for (int64_t i = 0; i < got.num_lse && want.lse != NULL; i++)
        worst = brute_worse(worst, got.lse[i] == want.lse[i] ? 0 : fabs(got.lse[i] - want.lse[i]));
    for (int64_t i = 0; i < rows * V && got.num_out == rows * L; i++) {
        const float *w = in->kv_b_proj + (i / V % p->num_heads * (P + V) + P + i % V) * L;
        double x = 0;
        for (int64_t j = 0; j < L; j++)
            x += got.out[i / V * L + j] * w[j];
        worst = brute_worse(worst, fabs(x - want.out[i]));
    }
    if (!ok(got.status == ATTN_OK && got.num_out == rows * L && worst < 2e-5, "%s, latent in and out",
            attn_role_name(role)))
        diag("off by %g; %s %s", worst, got.operation, got.error.text);
    kit_result_free(&want);
    kit_result_free(&got);
    kit_inputs_free(in);
    kit_inputs_free(absorbed);
}

/* One head, L = R = P = V = 1, weights of 1, a key of zeros and one of ones: the score is q_nope + q_pe as
 * e4m3. */
static void known_fp8_query(void) {
    static const struct {
        const char *name;
        float nope, pe, scale;
        double score;
    } cases[] = {
        {"0.3 and 1.1 become 0.3125 and 1.125", 0.3f, 1.1f, 1, 1.4375},
        {"over 0.25, 1.2 and 4.4 become 1.25 and 4.5", 0.3f, 1.1f, 0.25f, 1.4375},
        {"ties go to even: 1.0625 to 1, 1.1875 to 1.25", 1.0625f, 1.1875f, 1, 2.25},
        {"over 2^-9, 600 and -512 saturate at 448", 600 * 0x1p-9f, -1, 0x1p-9f, 0},
        {"below 2^-6, steps of 2^-9", 0.005f, -0.0105f, 1, (3 - 5) * 0x1p-9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kit_case_t c;
        kit_result_t got;
        kit_case_start(&c, ATTN_ROLE_MLA, 1);
        kit_case_set_mla(&c, 1, 1, 1, 1, 1, 0);
        kit_case_add(&c, 1, 2);
        c.problem.scale = 1, c.problem.out_dtype = ATTN_DTYPE_FLOAT64, c.problem.features = ATTN_F_LSE;
        c.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3, c.problem.query_dtype = ATTN_DTYPE_FP8_E4M3;
        c.flags = KIT_NO_SCALES; /* of the cache */
        kit_inputs_t *in = kit_inputs_make(&c);
        in->query[0] = cases[i].nope, in->query[1] = cases[i].pe, in->q_scale[0] = cases[i].scale;
        in->kv_b_proj[0] = in->kv_b_proj[1] = 1;
        in->key[0] = in->value[0] = 0, in->key[1] = in->value[1] = 1;
        kit_run(reference, &c, in, &kit_cpu_memory, &got);
        double e = exp(cases[i].score), lse = log(1 + e);
        if (!ok(got.status == ATTN_OK && fabs(got.out[0] - e / (1 + e)) < 1e-14 &&
                    fabs(got.lse[0] - lse) < 1e-6,
                "fp8 query: %s", cases[i].name))
            diag("%s %s; output %.17g, wanted %.17g; lse %.9g, wanted %.9g", got.operation, got.error.text,
                 got.out ? got.out[0] : 0, e / (1 + e), got.lse ? got.lse[0] : 0, lse);
        kit_result_free(&got);
        kit_inputs_free(in);
    }
}

/* Bytes of a 656-byte row. */
static void ds_row(void) {
    attn_problem_t p = {.struct_size = sizeof p,
                        .role = ATTN_ROLE_MLA_SPARSE,
                        .mask = ATTN_MASK_CAUSAL,
                        .dtype = ATTN_DTYPE_BFLOAT16,
                        .kv_cache_dtype = ATTN_KV_FP8_DS_MLA,
                        .num_heads = 1,
                        .head_size = 576,
                        .block_size = 2,
                        .scale = 1,
                        .kv_lora_rank = 512,
                        .qk_nope_head_dim = 4,
                        .qk_rope_head_dim = 64,
                        .v_head_dim = 4,
                        .topk = 128};
    attn_instance_t *instance = NULL;
    attn_error_t error = {.struct_size = sizeof error};
    if (reference->ops->open(&p, &test_cpu, NULL, 0, NULL, &instance, &error) != ATTN_OK)
        bail_out("%s", error.text);
    attn_kv_cache_shape_t shape = {.struct_size = sizeof shape};
    reference->ops->kv_cache_shape(instance, 3, &shape, &error);
    ok(shape.ndim == 3 && shape.shape[2] == 656 && shape.page_bytes == 2 * 656 &&
           shape.total_bytes == 6 * 656,
       "pages of 2 tokens of 656 bytes");
    static unsigned char cache[3 * 2 * 656];
    static uint16_t kv_c[512], k_pe[64];
    memset(cache, 0xee, sizeof cache);
    for (int i = 0; i < 512; i++)
        kv_c[i] = attn_to_bf16(i < 128 ? 0.0 : i < 256 ? 896.0 : i % 128 == 0 ? 448.0 : 2.0);
    kv_c[384 + 5] = 0x7fc0; /* NaN, between the largest value of its tile and others */
    for (int i = 0; i < 64; i++)
        k_pe[i] = (uint16_t)(0x3f80 + i);
    int64_t slots[1] = {3};
    dense_t key, value, cached, slot;
    dense_set(&key, kv_c, ATTN_DTYPE_BFLOAT16, 2, 1, 512, 0, 0);
    dense_set(&value, k_pe, ATTN_DTYPE_BFLOAT16, 3, 1, 1, 64, 0);
    dense_set(&cached, cache, ATTN_DTYPE_UINT8, 3, 3, 2, 656, 0);
    dense_set(&slot, slots, ATTN_DTYPE_INT64, 1, 1, 0, 0, 0);
    attn_kv_update_t args = {.struct_size = sizeof args,
                             .key = &key.t,
                             .value = &value.t,
                             .kv_cache = &cached.t,
                             .slot_mapping = &slot.t};
    is_int(reference->ops->update_kv_cache(instance, &args, NULL, &error), ATTN_OK,
           "k_pe may have a heads dimension");
    const unsigned char *row = cache + 3 * 656;
    float scales[4];
    memcpy(scales, row + 512, sizeof scales);
    ok(scales[0] == 0x1p-126f && scales[1] == 2.0f && scales[2] == 1.0f,
       "tile scales: the smallest normal for zeros, 896 / 448, 448 / 448");
    ok(row[0] == 0 && row[128] == 0x7e && row[256] == 0x7e && row[257] == 0x40, "codes: 0, 448, 448, 2");
    ok(scales[3] == 1.0f && row[384] == 0x7e && row[384 + 5] == 0x7f,
       "NaN is stored and does not count for the scale (%g)", (double)scales[3]);
    ok(memcmp(row + 528, k_pe, 128) == 0, "the rope part is copied");
    ok(cache[3 * 656 - 1] == 0xee && cache[4 * 656] == 0xee, "and nothing around the row was written");
    reference->ops->close(instance);
}

static attn_error_t last;

static void refused(const char *name, int status, int want, const char *param) {
    if (!ok(status == want && strcmp(last.param, param) == 0, "%s: %s", param, name))
        diag("status %d (wanted %d), param '%s', text '%s'", status, want, last.param, last.text);
}

#define OPEN_REFUSED(NAME, PARAM, CHANGE)                                                                    \
    do {                                                                                                     \
        kit_case_t c;                                                                                        \
        start(&c, ATTN_ROLE_MLA, 1);                                                                         \
        attn_problem_t *p = &c.problem;                                                                      \
        CHANGE;                                                                                              \
        attn_instance_t *none = NULL;                                                                        \
        refused(NAME, reference->ops->open(p, &test_cpu, NULL, 0, NULL, &none, &last), ATTN_E_UNSUPPORTED,   \
                PARAM);                                                                                      \
    } while (0)

/* A case changed after its inputs were made: what the backend says to it. */
#define RUN_REFUSED(NAME, CODE, PARAM, ROLE, CHANGE)                                                         \
    do {                                                                                                     \
        kit_case_t c;                                                                                        \
        start(&c, ROLE, 1);                                                                                  \
        kit_inputs_t *in = kit_inputs_make(&c);                                                              \
        kit_result_t got;                                                                                    \
        CHANGE;                                                                                              \
        int status = kit_run(reference, &c, in, &kit_cpu_memory, &got);                                      \
        last = got.error;                                                                                    \
        refused(NAME, status, CODE, PARAM);                                                                  \
        kit_result_free(&got);                                                                               \
        kit_inputs_free(in);                                                                                 \
    } while (0)

static void drop(float **p) {
    free(*p);
    *p = NULL;
}

static void errors(void) {
    OPEN_REFUSED("zero", "kv_lora_rank", (p->kv_lora_rank = 0, p->head_size = p->qk_rope_head_dim));
    OPEN_REFUSED("zero", "v_head_dim", p->v_head_dim = 0);
    OPEN_REFUSED("not L + R", "head_size", p->head_size++);
    OPEN_REFUSED("two", "num_kv_heads", (p->num_heads = 4, p->num_kv_heads = 2));
    OPEN_REFUSED("full", "mask", p->mask = ATTN_MASK_FULL);
    OPEN_REFUSED("with mla", "sliding_window", p->sliding_window = 8);
    OPEN_REFUSED("without sparse", "topk", p->topk = 128);
    OPEN_REFUSED("without topk", "topk", p->role = ATTN_ROLE_MLA_SPARSE);
    OPEN_REFUSED("int8 per token and head", "kv_cache_dtype",
                 p->kv_cache_dtype = ATTN_KV_INT8_PER_TOKEN_HEAD);
    OPEN_REFUSED("fp8_ds_mla of other sizes", "kv_cache_dtype",
                 (p->role = ATTN_ROLE_MLA_SPARSE, p->topk = 128, p->kv_cache_dtype = ATTN_KV_FP8_DS_MLA));
    OPEN_REFUSED("fp8 over a plain cache", "query_dtype", p->query_dtype = ATTN_DTYPE_FP8_E4M3);
    OPEN_REFUSED("fp8 over e5m2", "query_dtype",
                 (p->query_dtype = ATTN_DTYPE_FP8_E4M3, p->kv_cache_dtype = ATTN_KV_FP8_E5M2));
    OPEN_REFUSED("fp8 of the MHA part", "query_dtype",
                 (p->role = ATTN_ROLE_MLA_PREFILL, p->query_dtype = ATTN_DTYPE_FP8_E4M3));
#define FP8_QUERY(SCALE)                                                                                     \
    (c.problem.kv_cache_dtype = ATTN_KV_FP8_E4M3, c.problem.query_dtype = ATTN_DTYPE_FP8_E4M3,               \
     in->q_scale[0] = SCALE)
    RUN_REFUSED("zero", ATTN_E_INVALID, "q_scale", ATTN_ROLE_MLA, FP8_QUERY(0));
    RUN_REFUSED("below zero", ATTN_E_INVALID, "q_scale", ATTN_ROLE_MLA, FP8_QUERY(-1));
    RUN_REFUSED("not a number", ATTN_E_INVALID, "q_scale", ATTN_ROLE_MLA_SPARSE, FP8_QUERY(NAN));
    RUN_REFUSED("infinite", ATTN_E_INVALID, "q_scale", ATTN_ROLE_MLA, FP8_QUERY(INFINITY));
#define FP8_OUTPUT(SCALE)                                                                                    \
    (c.problem.out_dtype = ATTN_DTYPE_FP8_E4M3, c.problem.features = ATTN_F_OUT_FP8_STATIC,                  \
     in->output_scale = SCALE)
    RUN_REFUSED("zero", ATTN_E_INVALID, "output_scale", ATTN_ROLE_MLA, FP8_OUTPUT(0));
    RUN_REFUSED("not a number", ATTN_E_INVALID, "output_scale", ATTN_ROLE_MLA, FP8_OUTPUT(NAN));
    OPEN_REFUSED("with mla", "sink", p->features |= ATTN_F_SINK);
    RUN_REFUSED("never prepared", ATTN_E_INVALID, "weight_space", ATTN_ROLE_MLA, drop(&in->kv_b_proj));
    RUN_REFUSED("an index at seq_len", ATTN_E_INVALID, "topk_indices", ATTN_ROLE_MLA_SPARSE,
                in->topk_indices[128 + 5] = 52);
    RUN_REFUSED("no indices", ATTN_E_INVALID, "topk_indices", ATTN_ROLE_MLA_SPARSE,
                (free(in->topk_indices), in->topk_indices = NULL));
    RUN_REFUSED("beyond the table means none", ATTN_OK, "", ATTN_ROLE_MLA_SPARSE,
                in->topk_indices[128 + 5] = 1 << 20);
    kit_case_t c;
    start(&c, ATTN_ROLE_MLA, 1);
    attn_instance_t *a = NULL, *b = NULL;
    reference->ops->open(&c.problem, &test_cpu, NULL, 0, NULL, &a, &last);
    static float weights[3 * 22 * 24];
    static unsigned char space[64 + sizeof weights];
    dense_t w;
    dense_set(&w, weights, ATTN_DTYPE_FLOAT32, 2, 3 * 22, 24, 0, 0);
    attn_weights_t args = {.struct_size = sizeof args,
                           .kv_b_proj = &w.t,
                           .weight_space = space,
                           .weight_space_bytes = sizeof space};
    is_int(reference->ops->prepare_weights(a, &args, NULL, &last), ATTN_OK,
           "weights of 3 heads, P 12, V 10, L 24");
    static unsigned char codes[3 * 22 * 24], other[sizeof space];
    float half = 0.5f;
    dense_t scale;
    for (int i = 0; i < 3 * 22 * 24; i++) {
        codes[i] = (unsigned char)(i % 100);
        weights[i] = (float)attn_from_e4m3(codes[i]) * half;
    }
    reference->ops->prepare_weights(a, &args, NULL, &last);
    dense_set(&w, codes, ATTN_DTYPE_FP8_E4M3, 2, 3 * 22, 24, 0, 0);
    dense_set(&scale, &half, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    args.kv_b_proj_scale = &scale.t;
    args.weight_space = other;
    reference->ops->prepare_weights(a, &args, NULL, &last);
    ok(memcmp(space + 64, other + 64, sizeof weights) == 0,
       "fp8 weights times their scale are those weights");
    half = 0;
    refused("zero", reference->ops->prepare_weights(a, &args, NULL, &last), ATTN_E_INVALID,
            "kv_b_proj_scale");
    half = 0.5f;
    static float blocks[2] = {0.5f, 0.5f}; /* 66 x 24 weights are one block */
    dense_set(&scale, blocks, ATTN_DTYPE_FLOAT32, 2, 1, 1, 0, 0);
    memset(other + 64, 1, sizeof weights);
    is_int(reference->ops->prepare_weights(a, &args, NULL, &last), ATTN_OK, "a scale of one block");
    ok(memcmp(space + 64, other + 64, sizeof weights) == 0, "is that of all its weights");
    blocks[0] = -1;
    refused("a negative block", reference->ops->prepare_weights(a, &args, NULL, &last), ATTN_E_INVALID,
            "kv_b_proj_scale");
    blocks[0] = 0.5f;
    dense_set(&scale, blocks, ATTN_DTYPE_FLOAT32, 2, 1, 2, 0, 0);
    refused("two columns of blocks", reference->ops->prepare_weights(a, &args, NULL, &last), ATTN_E_INVALID,
            "kv_b_proj_scale");
    dense_set(&scale, blocks, ATTN_DTYPE_FLOAT32, 1, 2, 0, 0, 0);
    refused("two scales in a row", reference->ops->prepare_weights(a, &args, NULL, &last), ATTN_E_INVALID,
            "kv_b_proj_scale");
    dense_set(&scale, blocks, ATTN_DTYPE_FLOAT32, 2, 1, 1, 0, 0);
    dense_set(&w, weights, ATTN_DTYPE_FLOAT32, 2, 3 * 22, 24, 0, 0);
    refused("blocks of weights that are not e4m3", reference->ops->prepare_weights(a, &args, NULL, &last),
            ATTN_E_INVALID, "kv_b_proj_scale");
    dense_set(&w, codes, ATTN_DTYPE_FP8_E4M3, 2, 3 * 22, 24, 0, 0);
    dense_set(&scale, &half, ATTN_DTYPE_FLOAT32, 1, 1, 0, 0, 0);
    w.shape[0]++;
    refused("one row too many", reference->ops->prepare_weights(a, &args, NULL, &last), ATTN_E_INVALID,
            "kv_b_proj");
    w.shape[0]--;
    args.weight_space_bytes--;
    refused("one byte too small", reference->ops->prepare_weights(a, &args, NULL, &last), ATTN_E_SPACE,
            "weight_space");
    reference->ops->close(a);
    start(&c, ATTN_ROLE_DECODER, 1);
    kit_case_start(&c, ATTN_ROLE_DECODER, 1);
    reference->ops->open(&c.problem, &test_cpu, NULL, 0, NULL, &b, &last);
    refused("no latent role", reference->ops->prepare_weights(b, &args, NULL, &last), ATTN_E_STATE, "role");
    reference->ops->close(b);
}

int main(void) {
    uint64_t seed = tap_seed();
    reference = load_reference();
    last.struct_size = sizeof last;
    numbers(seed);
    latent_form(ATTN_ROLE_MLA);
    latent_form(ATTN_ROLE_MLA_SPARSE);
    known_fp8_query();
    ds_row();
    errors();
    return tap_done();
}
