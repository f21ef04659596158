/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of plugins/cpu at every level that this CPU has, against attention in double: random shapes,
 * masks and formats, extremes, ties, windows, page and tile borders, NaN behind seq_len, canaries around
 * outputs. */
#include "cpu_case.h"
#include "cpu_threads.h"

#include <float.h>

static int pick(uint64_t *rng, int n, const int *list) {
    return list[tap_rand_in(rng, 0, n - 1)];
}
#define PICK(rng, ...) pick(rng, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

/* What is not left to chance: long prompts, and decode in the shapes that AMX tiles, bf16 pairs and products
 * of codes serve. */
enum form { ANY_CASE, LONG_PREFILL, BYTE_DECODE };

static int is_centroid(enum cpu_dtype t) {
    return t == CPU_C4 || t == CPU_C3;
}

static void make_case(struct cpu_case *c, uint64_t *rng, int kv_dtype, enum form form) {
    struct cpu_attn *a = &c->a;
    static const char *const names[] = {"f32", "f16", "bf16", "e4m3", "e5m2", "i8", "i4", "packed"};
    memset(c, 0, sizeof *c);
    const int G = form == BYTE_DECODE ? PICK(rng, 1, 2, 3, 4, 5, 7, 8, 16)
                                      : PICK(rng, 1, 1, 2, 3, 4, 4, 5, 7, 8, 16, 40);
    a->num_kv_heads = PICK(rng, 1, 1, 2, 3, 4);
    a->num_q_heads = G * a->num_kv_heads;
    a->head_size = PICK(rng, 1, 8, 20, 33, 64, 64, 72, 80, 96, 128, 128, 192, 256);
    a->head_size_v = PICK(rng, 0, 0, 0, 1, 24, 64, 128);
    if (form == BYTE_DECODE) {
        a->head_size = PICK(rng, 64, 72, 80, 90, 112, 128, 128, 256);
        a->head_size_v = PICK(rng, 0, 0, 0, 64, 88, 192);
    }
    if (a->head_size_v == 0) a->head_size_v = a->head_size;
    if (kv_dtype == CPU_I4) { /* powers of two */
        a->head_size = 1 << tap_rand_in(rng, form == BYTE_DECODE ? 5 : 1, 8);
        a->head_size_v = tap_rand_in(rng, 0, 2) ? a->head_size : 1 << tap_rand_in(rng, 1, 7);
    }
    if (kv_dtype == CPU_PACKED) {
        a->k_row = (enum cpu_dtype)PICK(rng, CPU_E4M3, CPU_C4, CPU_C3);
        a->v_row = (enum cpu_dtype)PICK(rng, CPU_V4, CPU_V3);
        a->head_size = a->k_row == CPU_E4M3 ? 8 * (int)tap_rand_in(rng, 1, 24) : 1 << tap_rand_in(rng, 3, 8);
        if (tap_rand_in(rng, 0, 2) == 0) {
            a->k_row = a->v_row = CPU_E2M1;
            a->head_size = 16 * (int)tap_rand_in(rng, 1, 16);
        }
        if (form == BYTE_DECODE) a->head_size = 64 << tap_rand_in(rng, 0, 2);
        if (form == BYTE_DECODE && !is_centroid(a->k_row) && tap_rand_in(rng, 0, 1)) a->head_size = 192;
        a->head_size_v = a->head_size;
    }
    if (kv_dtype == CPU_I8) a->rounds_query = (int)tap_rand_in(rng, 0, 1);
    if (kv_dtype == CPU_PACKED && tap_rand_in(rng, 0, 3) == 0) {
        a->k_row = CPU_I8;
        a->v_row = form == BYTE_DECODE ? CPU_BF16 : (enum cpu_dtype)PICK(rng, CPU_F32, CPU_F16, CPU_BF16);
        a->rounds_query = 1;
        a->head_size = 4 * (int)tap_rand_in(rng, 1, 64);
        a->head_size_v = form == BYTE_DECODE      ? 32 * (int)tap_rand_in(rng, 1, 8)
                         : tap_rand_in(rng, 0, 1) ? a->head_size
                                                  : 4 * (int)tap_rand_in(rng, 1, 64);
    }
    a->kv_dtype = (enum cpu_dtype)kv_dtype;
    a->q_dtype =
        form == BYTE_DECODE ? CPU_BF16 : (enum cpu_dtype)PICK(rng, CPU_F32, CPU_F16, CPU_BF16, CPU_BF16);
    a->out_dtype = a->q_dtype;
    a->scale = 1 / sqrtf((float)a->head_size);
    a->q_scale = 1;
    a->block_size = form == BYTE_DECODE ? PICK(rng, 7, 16, 16, 32, 48) : PICK(rng, 1, 7, 16, 16, 32, 48, 64);
    c->contiguous = tap_rand_in(rng, 0, 5) == 0;
    c->packed = !c->contiguous && tap_rand_in(rng, 0, 1);
    c->hnd = !c->contiguous && tap_rand_in(rng, 0, 1);
    if (kv_dtype == CPU_E4M3 && tap_rand_in(rng, 0, 2) == 0)
        a->k_row_scale.block = -1; /* per token and head */
    else if (kv_dtype == CPU_E4M3 || kv_dtype == CPU_E5M2) {
        a->scale_per_head = (int)tap_rand_in(rng, 0, 1);
        for (int i = 0; i < 64; i++) {
            c->k_scale[i] = (float)(0.02 + 0.05 * tap_rand_unit(rng));
            c->v_scale[i] = (float)(0.02 + 0.05 * tap_rand_unit(rng));
        }
        a->k_scale = c->k_scale;
        a->v_scale = c->v_scale;
    }
    if (tap_rand_in(rng, 0, 4) == 0) a->soft_cap = (float)PICK(rng, 5, 30, 50);
    for (int i = 0; i < 512; i++) {
        c->sinks[i] = (float)tap_rand_normal(rng);
        c->alibi[i] = (float)(0.5 * tap_rand_unit(rng));
    }
    if (tap_rand_in(rng, 0, 3) == 0) a->sinks = c->sinks;
    if (tap_rand_in(rng, 0, 4) == 0) {
        a->alibi = c->alibi;
        a->alibi_sqrt = (int)tap_rand_in(rng, 0, 1);
    }
    if (tap_rand_in(rng, 0, 3) == 0) {
        a->rel_max = PICK(rng, 0, 1, 5, 16, 40, 128, 500);
        a->rel_stride = 2 * a->rel_max + PICK(rng, 1, 4);
        c->rel =
            malloc((size_t)(a->rel_stride * a->num_q_heads) * sizeof *c->rel); /* ends at its last entry */
        for (int64_t i = 0; i < a->rel_stride * a->num_q_heads; i++)
            c->rel[i] = (float)(3 * tap_rand_normal(rng));
        a->rel_bias = c->rel + a->rel_max;
    }
    c->num_seqs = (int)tap_rand_in(rng, 1, CASE_MAX_SEQS);
    for (int i = 0; i < c->num_seqs; i++) {
        struct cpu_seq *s = &c->seqs[i];
        s->kv_len = PICK(rng, 0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 65, 97, 191, 192, 193, 300, 777);
        if (i == 0 && tap_rand_in(rng, 0, 3) == 0) s->kv_len = 3000;
        s->q_len = PICK(rng, 0, 1, 1, 1, 2, 3, 5, 8, 20, 33, 100);
        if (form == BYTE_DECODE) s->q_len = PICK(rng, 1, 1, 1, 2, 4);
        if (form == LONG_PREFILL) s->q_len = s->kv_len = PICK(rng, 50, 130, 260);
        if (G > 8 && s->q_len > 20) s->q_len = 20;
        s->q_offset = s->kv_len - s->q_len; /* may be negative: rows before the first key see nothing */
        s->q_start = c->tokens;
        c->tokens += s->q_len;
        struct cpu_mask *m = &s->mask;
        m->causal = tap_rand_in(rng, 0, 3) != 0;
        m->window_left = m->window_right = -1;
        const int kind = PICK(rng, 0, 0, 0, 1, 1, 2, 3, 4, 5);
        if (s->q_offset < 0 && kind >= 2) continue;
        if (kind == 1) {
            m->window_left = PICK(rng, 0, 1, 15, 16, 63, 127, 200);
            if (!m->causal) m->window_right = m->window_left;
        } else if (kind == 2) {
            m->causal = 1;
            m->chunk = PICK(rng, 16, 64, 100);
            m->lookback = PICK(rng, 0, 0, 1, 2);
        } else if (kind == 3) {
            m->causal = 1;
            m->window_left = PICK(rng, 3, 20, 64);
            m->prefix = PICK(rng, 1, 16, 40);
        } else if (kind >= 4) {
            const int32_t e = (int32_t)tap_rand_in(rng, 0, s->kv_len > 0 ? s->kv_len : 1);
            c->spans[i][0] = (int32_t)tap_rand_in(rng, 0, e);
            c->spans[i][1] = e;
            c->spans[i][2] = e + 1;
            c->spans[i][3] = e + 1 + (int32_t)tap_rand_in(rng, 0, 60);
            m->spans = c->spans[i];
            m->num_spans = 2;
            if (kind == 5) {
                m->causal = 1;
                m->window_left = PICK(rng, 3, 20, 64);
                m->span_window = tap_rand_in(rng, 0, 1) ? m->window_left + 1 : 0;
            }
        }
    }
    if (tap_rand_in(rng, 0, 6) == 0 && c->tokens > 0) {
        a->qq_width = PICK(rng, 1, 3, 8);
        a->qq_stride = a->qq_width;
        c->bias = malloc((size_t)(c->tokens * a->qq_width) * sizeof *c->bias);
        for (int64_t i = 0; i < c->tokens * a->qq_width; i++)
            c->bias[i] = (float)tap_rand_normal(rng);
        a->qq_bias = c->bias;
    }
    const double spread = PICK(rng, 1, 1, 2, 30);
    const int ties = tap_rand_in(rng, 0, 7) == 0;
    case_fill(c, rng, spread, ties);
    snprintf(c->text, sizeof c->text,
             "q %s kv %s Hq %d Hkv %d D %d Dv %d bs %d %s%s%s reqs %d tokens %d cap %g%s%s%s%s spread %g",
             names[a->q_dtype], names[kv_dtype], a->num_q_heads, a->num_kv_heads, a->head_size,
             a->head_size_v, a->block_size,
             c->contiguous ? "contiguous"
             : c->hnd      ? "HND"
                           : "NHD",
             c->packed ? " packed" : "",
             a->rounds_query       ? " rounded query"
             : a->k_row_scale.base ? " row scales"
             : a->scale_per_head   ? " head scales"
                                   : "",
             c->num_seqs, c->tokens, (double)a->soft_cap, a->sinks ? " sinks" : "",
             a->alibi ? a->alibi_sqrt ? " alibi-sqrt" : " alibi" : "",
             a->qq_bias    ? " qq-bias"
             : a->rel_bias ? " rel-bias"
                           : "",
             ties ? " ties" : "", spread);
}

/* Largest error in units of the tolerance, and a line about the worst row. */
static double compare(const struct cpu_case *c, const struct cpu_kernels *k, const double *ref,
                      const double *ref_lse, char *worst, size_t n) {
    const struct cpu_attn *a = &c->a;
    const int Dv = a->head_size_v, os = cpu_dtype_size(a->out_dtype);
    /* int8, int4 and nvfp4 keys and 16-bit outputs: the query is rounded at 2^-16 of its largest value, some
     * 4 times the spread (cpu_rowdot_words.h); where all keys are equal, nothing averages that out: five
     * standard deviations, for there are thousands of rows. */
    const int has_words = a->kv_dtype == CPU_I8 || a->kv_dtype == CPU_I4 || cpu_has_groups(a);
    /* Products of bf16 pairs round the rotated query to bf16 (semantics 3.4): 2^-9 of each element, some 5
     * standard deviations of their sum: there are millions of sums. Products of bytes (cpu_rowdot_quads.h)
     * round it to 2^-12 of the largest one. */
    const int rounds_query =
        a->kv_dtype == CPU_I4 && a->q_dtype == CPU_BF16 && (k->bf16_dot || (k->needs & CPU_BIT_AVX512F) != 0);
    /* Products of centroids (cpu_rowdot_codes.h) round the rotated query to 2^-13 of its largest value. */
    const int has_centroids = is_centroid(a->k_row) && a->kv_dtype == CPU_PACKED && a->out_dtype != CPU_F32 &&
                              (k->needs & CPU_BIT_AVX2) != 0;
    const double rounded = rounds_query                           ? 1e-2 * c->spread
                           : has_centroids                        ? 7e-4 * c->spread
                           : has_words && a->out_dtype != CPU_F32 ? 1e-4 * c->spread
                                                                  : 0;
    const double tol = rounded + (a->out_dtype == CPU_F32   ? (c->spread > 10 ? 2e-4 : 3e-5)
                                  : a->out_dtype == CPU_F16 ? 2e-3
                                                            : 1.2e-2);
    double most = 0;
    worst[0] = 0;
    for (int t = 0; t < c->tokens; t++)
        for (int h = 0; h < a->num_q_heads; h++) {
            const int64_t r = (int64_t)t * a->num_q_heads + h;
            const char *o = a->out + t * a->out_token + h * a->out_head;
            double e = 0, lse = a->lse[t + (int64_t)h * c->tokens];
            for (int d = 0; d < Dv; d++) {
                const double x = case_read(a->out_dtype, o + d * os), y = ref[r * Dv + d];
                const double err = fabs(x - y) / (tol * (1 + fabs(y)));
                e = err > e || x != x ? (x != x ? 1e9 : err) : e;
            }
            const double le =
                lse == ref_lse[r] ? 0 : fabs(lse - ref_lse[r]) / ((1e-4 + rounded) * (1 + fabs(ref_lse[r])));
            e = le > e || le != le ? (le != le ? 1e9 : le) : e;
            for (int i = -16; i < 16; i++)
                if ((i < 0 || h + 1 < a->num_q_heads) && (unsigned char)o[i < 0 ? i : Dv * os + i] != 0xaa)
                    e = 1e10;
            if (e > most) {
                most = e;
                snprintf(worst, n, "token %d head %d: error %.3g of tolerance, lse %.6g wanted %.6g", t, h, e,
                         lse, ref_lse[r]);
            }
        }
    return most;
}

/* e4m3's NaN: in a key it reaches every column of the rows that see the token, in a value that column (and
 * may reach it in the request's other rows); nothing else. Heads of 72: whole vectors and a rest. */
static void nan_case(struct cpu_case *c, const struct cpu_kernels *k, int side, int column, int q_len,
                     int kv_len) {
    static const struct cpu_mask causal = {.causal = 1, .window_left = -1, .window_right = -1};
    uint64_t rng = 5;
    memset(c, 0, sizeof *c);
    c->a = (struct cpu_attn){.num_q_heads = 4,
                             .num_kv_heads = 1,
                             .head_size = 72,
                             .head_size_v = 72,
                             .scale = 0.1f,
                             .q_scale = 1,
                             .block_size = 16,
                             .q_dtype = CPU_BF16,
                             .kv_dtype = CPU_E4M3,
                             .out_dtype = CPU_BF16};
    c->num_seqs = 2;
    for (int i = 0; i < 2; i++)
        c->seqs[i] = (struct cpu_seq){.q_len = q_len,
                                      .kv_len = kv_len,
                                      .q_offset = kv_len - q_len,
                                      .q_start = q_len * i,
                                      .mask = causal};
    c->tokens = 2 * q_len;
    case_fill(c, &rng, 1, 0);
    const struct cpu_rows *r = side ? &c->a.v : &c->a.k;
    ((char *)r->base + c->table[(kv_len - 1) / 16] * r->block + (kv_len - 1) % 16 * r->token)[column] =
        (char)0xff;
    case_run(c, k, 3, 0);
    int wrong = 0;
    for (int t = 0; t < c->tokens; t++)
        for (int h = 0; h < 4; h++) {
            const float lse = c->lse[t + h * c->tokens];
            wrong += (lse != lse) != (t == q_len - 1 && side == 0);
            for (int d = 0; d < 72; d++) {
                const double x =
                    case_read(CPU_BF16, c->a.out + t * c->a.out_token + h * c->a.out_head + d * 2);
                wrong += (t >= q_len - 1 || side == 0 || d != column) &&
                         (x != x) != (t == q_len - 1 && (side == 0 || d == column));
            }
        }
    ok(wrong == 0, "%s: NaN in e4m3, %s column %d, %d rows, %d keys: %d outputs and LSE wrong", k->name,
       side ? "value" : "key", column, q_len, kv_len, wrong);
    case_free(c);
}

/* Scores that masks of the lowest float leave, and dot products of that size: keys that are equally far down
 * are averaged, like any others; a sink of -inf is none, and of the lowest float is one more of them. */
enum far { FAR_BIAS, FAR_PRODUCT, FAR_SINK, NO_SINK, NUM_FAR };
static void far_case(struct cpu_case *c, const struct cpu_kernels *k, enum far kind, int q_len, int kv_len,
                     int kv_dtype) {
    static const char *const names[] = {"a bias of -FLT_MAX", "products of -2^106",
                                        "a bias and a sink of -FLT_MAX", "a sink of -inf"};
    uint64_t rng = 9;
    memset(c, 0, sizeof *c);
    c->a = (struct cpu_attn){.num_q_heads = 2,
                             .num_kv_heads = 2,
                             .head_size = 64,
                             .head_size_v = 64,
                             .scale = 0.125f,
                             .q_scale = 1,
                             .block_size = 16,
                             .q_dtype = CPU_F32,
                             .kv_dtype = (enum cpu_dtype)kv_dtype,
                             .out_dtype = CPU_F32};
    c->num_seqs = 1;
    c->tokens = q_len;
    c->seqs[0] = (struct cpu_seq){.q_len = q_len, .kv_len = kv_len, .mask = {0, -1, -1, 0, 0, 0, NULL, 0, 0}};
    if (kind != FAR_PRODUCT && kind != NO_SINK) {
        c->a.qq_width = c->a.qq_stride = kv_len;
        c->bias = malloc((size_t)(q_len * kv_len) * sizeof *c->bias);
        for (int i = 0; i < q_len * kv_len; i++) /* the first row sees some keys, hidden ones stay hidden */
            c->bias[i] = i % 7 == 3 ? -INFINITY : i < kv_len && i % 5 == 0 ? 0.0f : -FLT_MAX;
        c->a.qq_bias = c->bias;
    }
    if (kind == FAR_SINK || kind == NO_SINK) {
        c->sinks[0] = c->sinks[1] = kind == NO_SINK ? -INFINITY : -FLT_MAX;
        c->a.sinks = c->sinks;
        if (kind == NO_SINK) c->seqs[0].mask.window_left = c->seqs[0].mask.window_right = 40;
    }
    case_fill(c, &rng, 1, 0);
    for (int i = 0; kind == FAR_PRODUCT && i < q_len * 2 * 64; i++) {
        const float q = -0x1p53f;
        c->qd[i] = q;
        memcpy(c->q + 4 * i, &q, 4);
    }
    for (int64_t i = 0; kind == FAR_PRODUCT && i < (int64_t)kv_len * 2 * 64; i++) {
        const float key = 0x1p50f;
        const int64_t token = i / 128, h = i / 64 % 2;
        c->kd[i] = key;
        memcpy((char *)c->a.k.base + c->table[token / 16] * c->a.k.block + token % 16 * c->a.k.token +
                   h * c->a.k.head + i % 64 * 4,
               &key, 4);
    }
    double *ref = malloc((size_t)q_len * 2 * 64 * 8), *lse = malloc((size_t)q_len * 2 * 8),
           *tmp = malloc((size_t)kv_len * 8);
    char worst[256];
    for (int t = 0; t < q_len; t++)
        for (int h = 0; h < 2; h++)
            lse[t * 2 + h] = case_reference(c, 0, t, h, ref + (t * 2 + h) * 64, tmp);
    case_run(c, k, 3, 0);
    const double e = compare(c, k, ref, lse, worst, sizeof worst);
    if (!ok(e <= 1, "%s, %d rows, %d keys, format %d: %s", k->name, q_len, kv_len, kv_dtype, names[kind]))
        diag("%s", worst);
    free(ref);
    free(lse);
    free(tmp);
    case_free(c);
}

int main(void) {
    uint64_t rng = tap_seed();
    const uint32_t bits = cpu_bits();
    const int cases = getenv("ATTN_TEST_CASES") ? atoi(getenv("ATTN_TEST_CASES")) : 150;
    struct cpu_case *c = malloc(sizeof *c);
    for (int i = 0; i < cases + cases / 2; i++) {
        const int bytes = i >= cases;
        make_case(c, &rng,
                  bytes ? (const int[]){CPU_I8, CPU_E4M3, CPU_I4, CPU_BF16, CPU_PACKED, CPU_PACKED}[i % 6]
                        : i % CPU_NUM_DTYPES,
                  bytes         ? BYTE_DECODE
                  : i % 10 == 9 ? LONG_PREFILL
                                : ANY_CASE);
        c->no_extras = (bytes ? i / 6 : i / CPU_NUM_DTYPES) % 2;
        const int Dv = c->a.head_size_v;
        const int64_t rows = (int64_t)c->tokens * c->a.num_q_heads;
        double *ref = malloc((size_t)(rows * Dv + 1) * 8), *lse = malloc((size_t)(rows + 1) * 8),
               *tmp = malloc(4000 * 8);
        for (int s = 0; s < c->num_seqs; s++)
            for (int t = 0; t < c->seqs[s].q_len; t++)
                for (int h = 0; h < c->a.num_q_heads; h++) {
                    const int64_t r = (c->seqs[s].q_start + t) * c->a.num_q_heads + h;
                    lse[r] = case_reference(c, s, t, h, ref + r * Dv, tmp);
                }
        for (int l = 0; cpu_levels[l]; l++) {
            if (cpu_levels[l]->needs & ~bits) continue;
            char worst[256];
            const int threads = 1 + i % 3, invariant = i % 4 == 3;
            const int items = case_run(c, cpu_levels[l], threads, invariant);
            const double e = compare(c, cpu_levels[l], ref, lse, worst, sizeof worst);
            if (!ok(e <= 1 && items >= 0, "%s, %d threads%s, %d items: %s", cpu_levels[l]->name, threads,
                    invariant ? " invariant" : "", items, c->text))
                diag("case %d: %s", i, worst);
        }
        free(ref);
        free(lse);
        free(tmp);
        case_free(c);
    }
    for (int l = 0; cpu_levels[l]; l++)
        for (int i = 0; !(cpu_levels[l]->needs & ~bits) && i < 8; i++)
            nan_case(c, cpu_levels[l], i % 2, i / 2 % 2 ? 70 : 3, i < 4 ? 2 : 40,
                     i < 4 && i % 2 ? 1500 : 100);
    for (int l = 0; cpu_levels[l]; l++)
        for (int i = 0; !(cpu_levels[l]->needs & ~bits) && i < 4 * NUM_FAR; i++)
            far_case(c, cpu_levels[l], i / 4, i % 2 ? 70 : 1, i % 4 < 2 ? 90 : 2500,
                     i % 4 == 2 && i / 4 != FAR_PRODUCT ? CPU_I4 : CPU_F32);
    free(c);
    return tap_done();
}
