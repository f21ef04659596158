/* SPDX-License-Identifier: Apache-2.0 */
/* run_quality.c: what cache formats cost. The stored keys and values come out of the cache through the
 * backend itself: with a window of one token a query sees its own key alone, so the output is the stored
 * value, and the LSE of a unit vector is one channel of the stored key (semantics 2.9, 2.13). */
#include "run/run_quality.h"

#include <attn/attn_plugin_util.h>
#include <math.h>
#include <stdlib.h>

#include "base/layer_sizes.h"
#include "tensor/tensor.h"

/* The tensors of a layer in double, and the exact answer. */
typedef struct layer_exact {
    const run_input_t *in;
    int64_t heads, kv_heads, d, dv, tokens;
    int is_causal;
    double *q, *k, *v, *out; /* [T, Hq, D], [T, Hkv, D], [T, Hkv, Dv], [T, Hq, Dv] */
} layer_exact_t;

enum { NUM_TIMED = 5 }; /* the fastest of so many runs counts */

/* What a cache kept. */
typedef struct layer_stored {
    double *k, *v; /* [T, Hkv, D], [T, Hkv, Dv] */
} layer_stored_t;

static double *load(const st_tensor_t *t, int64_t count) {
    double *x = malloc((size_t)count * sizeof *x + 1);
    for (int64_t i = 0; x != NULL && i < count; i++)
        x[i] = (double)tensor_load(t->data, t->dtype, (size_t)i);
    return x;
}

/* Softmax of one row over keys 0 .. n - 1, natural scores in s, which becomes ln p. */
static void log_softmax(double *s, int64_t n) {
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        top = fmax(top, s[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(s[i] - top);
    for (int64_t i = 0; i < n; i++)
        s[i] -= top + log(sum);
}

/* ln p of query row (token, head) of request r over the keys that it sees. Returns how many. */
static int64_t row_of(const layer_exact_t *e, const double *k, int32_t r, int64_t token, int64_t head,
                      double *s) {
    const int64_t first = e->in->q_start[r], n = (e->is_causal ? token + 1 : e->in->q_start[r + 1]) - first;
    const int64_t g = head / (e->heads / e->kv_heads);
    const double *q = e->q + (token * e->heads + head) * e->d;
    for (int64_t i = 0; i < n; i++) {
        const double *key = k + ((first + i) * e->kv_heads + g) * e->d;
        double dot = 0;
        for (int64_t j = 0; j < e->d; j++)
            dot += q[j] * key[j];
        s[i] = e->in->problem.scale * dot;
    }
    log_softmax(s, n);
    return n;
}

/* The exact output, or (stored given) the divergence of its softmax from the exact one. */
static int walk_rows(const layer_exact_t *e, const layer_stored_t *stored, quality_row_t *row) {
    double *p = malloc((size_t)(2 * e->tokens + 2) * sizeof *p);
    if (p == NULL) return ATTN_E_NO_MEMORY;
    double *other = p + e->tokens + 1;
    for (int32_t r = 0; r < e->in->num_reqs; r++)
        for (int64_t t = e->in->q_start[r]; t < e->in->q_start[r + 1]; t++)
            for (int64_t h = 0; h < e->heads; h++) {
                const int64_t first = e->in->q_start[r], n = row_of(e, e->k, r, t, h, p);
                double divergence = 0, *out = e->out + (t * e->heads + h) * e->dv;
                if (stored != NULL) {
                    row_of(e, stored->k, r, t, h, other);
                    for (int64_t i = 0; i < n; i++)
                        divergence += exp(p[i]) * (p[i] - other[i]);
                    divergence = fmax(divergence, 0);
                    row->mean_divergence += divergence; /* over num_rows at the end */
                    row->max_divergence = fmax(row->max_divergence, divergence);
                    row->num_rows++;
                    continue;
                }
                for (int64_t j = 0; j < e->dv; j++)
                    out[j] = 0;
                for (int64_t i = 0; i < n; i++) {
                    const double *v =
                        e->v + ((first + i) * e->kv_heads + h / (e->heads / e->kv_heads)) * e->dv;
                    for (int64_t j = 0; j < e->dv; j++)
                        out[j] += exp(p[i]) * v[j];
                }
            }
    free(p);
    return ATTN_OK;
}

/* The keys that a cache of this format stores, channel by channel. */
static int read_keys(attn_context_t *context, const layer_exact_t *e, const run_options_t *options, double *k,
                     attn_error_t *error) {
    const int64_t group = e->heads / e->kv_heads, width = e->heads * e->d;
    run_input_t in = *e->in;
    st_tensor_t query = *in.query;
    run_options_t own = *options;
    float *unit = calloc((size_t)(e->tokens * width) + 1, sizeof *unit);
    int code = unit != NULL ? ATTN_OK : attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory for the queries");
    query.data = (const unsigned char *)unit;
    in.query = &query;
    in.problem.sliding_window = 1;
    in.problem.scale = 1;
    in.sinks = in.slopes = in.rel_bias = NULL;
    own.wants_lse = 1;
    own.chunk = INT32_MAX;
    own.decode = 0;
    for (int64_t d = 0; code == ATTN_OK && d < e->d; d++) {
        run_result_t result;
        for (int64_t i = 0; i < e->tokens * e->heads; i++) {
            unit[i * e->d + d] = 1;
            if (d > 0) unit[i * e->d + d - 1] = 0;
        }
        code = run_layer(context, &in, &own, &result, error);
        for (int64_t i = 0; code == ATTN_OK && i < e->tokens * e->kv_heads; i++)
            k[i * e->d + d] = (double)result.lse[i / e->kv_heads * e->heads + i % e->kv_heads * group];
        run_result_free(&result);
    }
    free(unit);
    return code;
}

static int add_format(attn_context_t *context, const layer_exact_t *e, const run_options_t *options,
                      quality_row_t *row, attn_error_t *error) {
    run_options_t own = *options;
    run_result_t result;
    layer_stored_t stored = {.k = malloc((size_t)(e->tokens * e->kv_heads * e->d) * sizeof(double) + 1)};
    if (stored.k == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory for the stored keys");
    own.kv_cache_dtype = row->kv;
    double seconds = INFINITY;
    int code = ATTN_OK;
    for (int i = 0; code == ATTN_OK && i < NUM_TIMED; i++) {
        if (i > 0) run_result_free(&result);
        code = run_layer(context, e->in, &own, &result, error);
        seconds = fmin(seconds, result.seconds_update + result.seconds_forward);
    }
    double square = 0, exact = 0, most = 0, largest = 0;
    for (size_t i = 0; code == ATTN_OK && i < result.count; i++) {
        const double off = fabs((double)result.output[i] - e->out[i]);
        square += off * off;
        exact += e->out[i] * e->out[i];
        most = fmax(most, off);
        largest = fmax(largest, fabs(e->out[i]));
    }
    if (code == ATTN_OK) {
        const double error_here = exact > 0 ? sqrt(square / exact) : 0;
        row->error = fmax(row->error, error_here); /* of the worst layer */
        row->max_error = fmax(row->max_error, largest > 0 ? most / largest : 0);
        row->seconds += seconds;
        row->bytes = (double)result.page_bytes / result.problem.block_size / (double)e->kv_heads;
        snprintf(row->backend, sizeof row->backend, "%s", result.backend);
        own.backend = result.selection->backend->name; /* the window must not choose another */
        code = read_keys(context, e, &own, stored.k, error);
    }
    if (code == ATTN_OK) code = walk_rows(e, &stored, row);
    run_result_free(&result);
    free(stored.k);
    return code;
}

static int check_rules(const run_input_t *in, attn_error_t *error) {
    const attn_problem_t *p = &in->problem;
    const int is_encoder =
        (p->role == ATTN_ROLE_ENCODER || p->role == ATTN_ROLE_ENCODER_ONLY) && p->mask == ATTN_MASK_FULL;
    const char *what = p->role != ATTN_ROLE_DECODER && !is_encoder  ? "role"
                       : p->mask != ATTN_MASK_CAUSAL && !is_encoder ? "mask"
                       : p->sliding_window != 0                     ? "sliding_window"
                       : p->chunk_size != 0                         ? "chunk_size"
                       : p->rswa_window != 0                        ? "rswa_window"
                       : p->logits_soft_cap > 0                     ? "logits_soft_cap"
                       : p->features != 0                           ? "features"
                       : in->sinks != NULL                          ? "sinks"
                       : in->slopes != NULL                         ? "alibi_slopes"
                       : in->rel_bias != NULL                       ? "rel_bias"
                                                                    : NULL;
    if (what == NULL) return ATTN_OK;
    return attn_fail(
        error, ATTN_E_UNSUPPORTED, what,
        "layer %lld cannot be measured because of its %s (role %s): --quality takes decoders with a "
        "causal mask and encoders with a full one, with no window, cap, sink or bias",
        (long long)in->number, what, attn_role_name(p->role));
}

int quality_layer(attn_context_t *context, run_input_t *input, const run_options_t *options,
                  quality_row_t *rows, int *count, attn_error_t *error) {
    int code = check_rules(input, error);
    if (code == ATTN_OK) code = run_input_convert(input, ATTN_DTYPE_FLOAT32, error);
    if (code != ATTN_OK) return code;
    const layer_sizes_t z = layer_sizes(&input->problem);
    run_options_t whole = *options;
    if (input->problem.role != ATTN_ROLE_DECODER) { /* in one step over a cache, as a decoder that sees all */
        input->problem.role = ATTN_ROLE_DECODER;
        whole.chunk = INT32_MAX;
        whole.decode = 0;
        options = &whole;
    }
    layer_exact_t e = {.in = input,
                       .is_causal = input->problem.mask == ATTN_MASK_CAUSAL,
                       .heads = z.heads,
                       .kv_heads = z.kv_heads,
                       .d = z.key,
                       .dv = z.value};
    e.tokens = input->q_start[input->num_reqs];
    e.q = load(input->query, e.tokens * e.heads * e.d);
    e.k = load(input->key, e.tokens * e.kv_heads * e.d);
    e.v = load(input->value, e.tokens * e.kv_heads * e.dv);
    e.out = malloc((size_t)(e.tokens * e.heads * e.dv) * sizeof *e.out + 1);
    if (e.q == NULL || e.k == NULL || e.v == NULL || e.out == NULL)
        code = attn_fail(error, ATTN_E_NO_MEMORY, "", "no memory for the layer in double");
    if (code == ATTN_OK) code = walk_rows(&e, NULL, NULL);
    int i = 0;
    for (uint32_t kv = 1; code == ATTN_OK && kv < ATTN_KV_COUNT_ && i < QUALITY_MAX_FORMATS; kv++) {
        if ((attn_kv_format(kv)->roles & ATTN_BIT(ATTN_ROLE_DECODER)) == 0 || kv == ATTN_KV_AUTO) continue;
        quality_row_t *row = &rows[i++];
        const int is_first = row->kv == 0;
        row->kv = kv;
        if (!is_first && !row->is_served) continue;
        ATTN_INIT(attn_error_t, why);
        row->is_served = 1;
        const int status = add_format(context, &e, options, row, &why);
        if (status == ATTN_E_UNSUPPORTED || status == ATTN_E_NOT_FOUND) {
            *row = (quality_row_t){.kv = kv};
            if (options->backend == NULL)
                snprintf(row->why, sizeof row->why, "by no backend here; attn select says why");
            else
                snprintf(row->why, sizeof row->why, "%.199s", why.text);
        } else if (status != ATTN_OK) {
            code = attn_fail(error, status, why.param, "%s: %s", attn_kv_name(kv), why.text);
        }
    }
    *count = i;
    free(e.q);
    free(e.k);
    free(e.v);
    free(e.out);
    return code;
}

void quality_finish(quality_row_t *rows, int count) {
    for (int i = 0; i < count; i++)
        if (rows[i].num_rows > 0) rows[i].mean_divergence /= (double)rows[i].num_rows;
}
