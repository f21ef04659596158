/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_behind.c: the part of group determinism about rows that a kernel loads although they are not the
 * request's: a tile of query rows reaches over the last token into memory that is nobody's, and over the end
 * of a request into the next one. What is there changes no bit (semantics 10.5). A decision that all rows of
 * a tile take together, such as to raise their maxima, is how it gets in.
 */
#include "../case/case_run.h"
#include "../run/check_engine.h"

#include <math.h>
#include <stdlib.h>

enum { BEHIND = 45 }; /* rows behind the last token: more than half of a usual tile */
enum { NOT_A_NUMBER, INFINITE, HUGE_VALUES, LARGE, ZEROS, NUM_KINDS };
static const char *const kinds[NUM_KINDS] = {"NaN", "infinity", "the largest numbers", "large values",
                                             "zeros"};

static kit_run_t run;

/* One number of such a row. Large ones have scores whose maxima lie far apart from key to key. */
static float value_of(int kind, uint32_t dtype, uint64_t *state) {
    const double most = dtype == ATTN_DTYPE_FLOAT16 ? 65504 : dtype == ATTN_DTYPE_FP8_E4M3 ? 448 : 3e38;
    const int sign = kit_random(state) & 1 ? 1 : -1;
    switch (kind) {
    case NOT_A_NUMBER:
        return NAN;
    case INFINITE:
        return (float)sign * INFINITY;
    case HUGE_VALUES:
        return (float)(sign * most);
    case LARGE:
        return (float)fmax(-most, fmin(most, 1e4 * kit_random_normal(state)));
    default:
        return 0;
    }
}

/* Rows from on of query, key or value, of which the case says nothing. */
static void fill_behind(kit_tensor_t *t, int64_t from, int kind, uint64_t seed) {
    const int is_latent = t->t.ndim == 2;
    const int64_t heads = is_latent ? 1 : t->shape[1], size = t->shape[t->t.ndim - 1];
    float *row = malloc((size_t)size * sizeof *row);
    if (row == NULL) abort();
    for (int64_t i = from; i < t->shape[0]; i++)
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t e = 0; e < size; e++)
                row[e] = value_of(kind, t->dtype, &seed);
            kit_store_floats(kit_tensor_at(t, i, h), t->dtype, row, size);
        }
    free(row);
}

/* One run with that behind the tokens; 1 if it went well. */
static int run_with(check_t *c, const kit_case_t *k, const kit_inputs_t *in, int kind, kit_result_t *result) {
    int status = kit_run_open(&run, c->backend, k, in, c->memory, result);
    if (status == ATTN_OK) status = kit_run_fill(&run);
    if (status == ATTN_OK) {
        kit_tensor_t *const all[] = {run.query, run.key, run.value};
        for (int i = 0; i < 3; i++) {
            fill_behind(all[i], all[i]->shape[0] - BEHIND, kind, k->seed + (uint64_t)i);
            if (kit_tensor_send(&run.all, all[i])) status = kit_run_no_memory(&run);
        }
    }
    if (status == ATTN_OK) status = kit_run_update(&run);
    if (status == ATTN_OK) status = kit_run_prepare(&run);
    if (status == ATTN_OK) status = kit_run_outputs(&run);
    if (status == ATTN_OK) status = kit_run_build(&run);
    if (status == ATTN_OK) status = kit_run_forward(&run);
    if (status == ATTN_OK) kit_run_read(&run);
    kit_run_close(&run);
    if (status != ATTN_OK)
        return check_fail(c, "%s: %d, %s: %s", result->operation, status, result->error.param,
                          result->error.text);
    return result->fault[0] == '\0' ? 1 : check_fail(c, "%s", result->fault);
}

/* Tokens first to end of both. */
static int same_tokens(const kit_case_t *k, const kit_result_t *a, const kit_result_t *b, int64_t first,
                       int64_t end, int64_t tokens) {
    const kit_sizes_t z = kit_sizes(&k->problem);
    const int64_t row = z.heads * z.output;
    if (memcmp(a->out + first * row, b->out + first * row, (size_t)((end - first) * row) * sizeof *a->out))
        return 0;
    for (int64_t h = 0; a->lse != NULL && b->lse != NULL && h < z.heads; h++)
        if (memcmp(a->lse + h * tokens + first, b->lse + h * tokens + first,
                   (size_t)(end - first) * sizeof *a->lse))
            return 0;
    return 1;
}

static void add_requests(kit_case_t *k) {
    static const int32_t lens[][2] = {{21, 290}, {38, 150}, {1, 290}, {19, 150}};
    static const int32_t images[] = {150, 75, 201};
    k->num_reqs = 0;
    k->padded_tokens = BEHIND;
    if (kit_has_context(k))
        for (int r = 0; r < 4; r++)
            kit_case_add(k, lens[r][0], lens[r][1]);
    else
        for (int r = 0; r < 3; r++)
            kit_case_add(k, images[r], images[r]);
}

/* The kinds of problems that have kernels of their own: element types, and products of bytes. n from 0 on; 0
 * after the last. */
static int variant(const check_t *c, int n, kit_case_t *k) {
    static const struct {
        uint32_t dtype, kv, query;
        uint64_t features;
    } all[] = {{ATTN_DTYPE_FLOAT32, 0, 0, 0},
               {ATTN_DTYPE_FLOAT16, 0, 0, 0},
               {ATTN_DTYPE_BFLOAT16, 0, 0, 0},
               {ATTN_DTYPE_BFLOAT16, ATTN_KV_FP8_E4M3, 0, 0},
               {ATTN_DTYPE_BFLOAT16, ATTN_KV_FP8_E4M3, ATTN_DTYPE_FP8_E4M3, 0},
               {ATTN_DTYPE_BFLOAT16, 0, 0, ATTN_F_FP8_ATTENTION}};
    enum { SCALES = 2 };
    if (n >= SCALES * (int)(sizeof all / sizeof all[0])) return 0;
    if (!check_plain_case(c, k)) return 0;
    attn_problem_t *p = &k->problem;
    const int i = n / SCALES;
    p->dtype = all[i].dtype, p->query_dtype = all[i].query;
    if (all[i].kv != 0) p->kv_cache_dtype = all[i].kv;
    p->features |= all[i].features;
    if (!attn_role_is_mla(p->role)) p->head_size = check_head_size(c, 128);
    if (!attn_role_is_mla(p->role)) p->scale = (n % SCALES == 0 ? 1 : 10) / sqrt((double)p->head_size);
    k->num_reqs = 0;
    if (!(c->can.dtypes & ATTN_BIT(p->dtype)) || (c->can.features & all[i].features) != all[i].features ||
        (all[i].query != 0 && !(c->can.features & ATTN_F_QUANT_QUERY)) ||
        (all[i].kv != 0 && (p->block_size == 0 || !(c->can.kv_cache_dtypes & ATTN_BIT(all[i].kv)))))
        k->problem.dtype = 0; /* to be left out */
    return 1;
}

static void rows_behind(check_t *c) {
    kit_case_t k;
    for (int n = 0; variant(c, n, &k) && !c->report->is_failed; n++) {
        if (k.problem.dtype == 0 || !check_is_served(c, &k)) continue;
        add_requests(&k);
        check_running(c, &k);
        kit_inputs_t *in = kit_inputs_make(&k);
        kit_result_t first, other;
        if (in == NULL || !run_with(c, &k, in, ZEROS, &first)) return;
        for (int kind = 0; kind < ZEROS && !c->report->is_failed; kind++) {
            if (!run_with(c, &k, in, kind, &other)) return;
            if (!same_tokens(&k, &first, &other, 0, in->num_tokens, in->num_tokens))
                check_fail(c,
                           "%s in the rows behind the last token change the bits of a result; padded rows "
                           "count for nothing",
                           kinds[kind]);
            kit_result_free(&other);
            c->report->num_cases++;
        }
        kit_result_free(&first);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "the kit has no case that the backend serves");
}

/* Batch invariance from the other side: the same batch, with other numbers in the queries of all requests but
 * one. */
static void loud_neighbours(check_t *c) {
    static const int loud_kinds[] = {NOT_A_NUMBER, LARGE};
    kit_case_t k;
    for (int n = 0; variant(c, n, &k) && !c->report->is_failed; n++) {
        k.problem.features |= ATTN_F_BATCH_INVARIANT;
        if (k.problem.dtype == 0 || !check_is_served(c, &k)) continue;
        add_requests(&k);
        check_running(c, &k);
        const kit_sizes_t z = kit_sizes(&k.problem);
        const int64_t row = z.heads * z.query;
        kit_inputs_t *in = kit_inputs_make(&k), *loud = kit_inputs_make(&k);
        kit_result_t quiet, got;
        if (in == NULL || loud == NULL || !run_with(c, &k, in, ZEROS, &quiet)) return;
        int64_t first = 0;
        for (int r = 0; r < k.num_reqs && !c->report->is_failed; first += k.query_lens[r++])
            for (int i = 0; i < 2 && r % 2 == 0 && !c->report->is_failed; i++) {
                const int kind = loud_kinds[i];
                uint64_t state = k.seed;
                for (int64_t j = 0; j < in->num_tokens * row; j++)
                    loud->query[j] = j >= first * row && j < (first + k.query_lens[r]) * row
                                         ? in->query[j]
                                         : value_of(kind, z.query_dtype, &state);
                if (!run_with(c, &k, loud, ZEROS, &got)) return;
                if (!same_tokens(&k, &quiet, &got, first, first + k.query_lens[r], in->num_tokens))
                    check_fail(c,
                               "batch invariance is claimed, but %s in the queries of the other requests "
                               "change the bits of request %d",
                               kinds[kind], r);
                kit_result_free(&got);
                c->report->num_cases++;
            }
        kit_result_free(&quiet);
        kit_inputs_free(loud);
        kit_inputs_free(in);
    }
    if (c->report->num_cases == 0) check_skip(c, "the kit has no case that the backend serves");
}

void check_behind_list(check_list_t *list, const check_t *c) {
    check_add(list, "determinism", 1, rows_behind, 0, "what lies behind the tokens changes no bit");
    if (c->can.features & ATTN_F_BATCH_INVARIANT)
        check_add(list, "determinism", 1, loud_neighbours, 0, "values of other requests change no bit");
}
