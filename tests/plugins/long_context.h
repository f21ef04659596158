/* SPDX-License-Identifier: Apache-2.0 */
/* long_context.h: one request over many keys, whose inputs are of a family (kit/case/case_families.h), on
 * any backend, against the exact answer in double from the same numbers. Errors are relative to what a
 * channel sums up to without its signs, the mean over rows of sum w |v|, so that they mean the same where
 * values cancel. Bias is counted along the exact answer: a sum that loses small addends has a
 * negative one. */
#ifndef ATTN_TESTS_LONG_CONTEXT_H
#define ATTN_TESTS_LONG_CONTEXT_H

#include "kit/case/attn_case.h"
#include "kit/case/case_families.h"
#include "../tap.h"

#include <attn/attn_plugin_util.h>

#include <unistd.h>

enum { CONTEXT_HEADS = 4, CONTEXT_SAMPLES = 7, CONTEXT_ROWS = CONTEXT_HEADS * CONTEXT_SAMPLES };
/* Tokens that are compared, counted from the last one. */
static const int32_t context_back[CONTEXT_SAMPLES] = {0, 1, 3, 55, 124, 191, 255};

/* What runs. Of the families in `not_exact` the format itself loses more than the limits: not run. */
typedef struct context_config {
    const char *file, *backend, *arch;
    uint32_t role, dtype, kv, query_dtype, tokens; /* tokens 0: as many as keys */
    uint64_t features;
    uint32_t not_exact;
    double max_error, max_bias, max_channel; /* max_channel: of KIT_CHANNEL; 0: as max_error */
} context_config_t;

typedef struct context {
    kit_case_t c;
    kit_inputs_t *in;
    int64_t value_size;
    double out[CONTEXT_ROWS][256], size[256], lse[CONTEXT_ROWS];
} context_t;

typedef struct context_error {
    double max, rms, bias, lse;
} context_error_t;

static uint32_t context_number(const char *name, uint32_t usual) {
    const char *text = getenv(name);
    return text != NULL ? (uint32_t)atoi(text) : usual;
}

static uint32_t context_heads(void) { /* on one KV head */
    return context_number("CONTEXT_TEST_HEADS", 4);
}

static void context_case(kit_case_t *c, uint32_t role, uint32_t tokens, int32_t keys) {
    kit_case_start(c, role, UINT64_C(20261123));
    attn_problem_t *p = &c->problem;
    if (role == ATTN_ROLE_MLA)
        kit_case_set_mla(c, 16, 512, 64, 128, 128, 0);
    else
        p->num_heads = context_heads(), p->num_kv_heads = 1,
        p->head_size = context_number("CONTEXT_TEST_SIZE", 128), p->scale = 1 / sqrt(p->head_size);
    p->dtype = ATTN_DTYPE_BFLOAT16;
    p->max_num_seqs = 1, p->max_model_len = (uint32_t)keys;
    p->max_num_batched_tokens = tokens + 8;
    c->padded_tokens = 0, c->flags = KIT_NO_SCALES;
    kit_case_add(c, (int32_t)tokens, keys);
}

/* Row `row` of what is compared: its head and token. */
static int context_head(const context_t *x, int row) {
    int heads = (int)x->c.problem.num_heads, i = row % CONTEXT_HEADS;
    return i * (heads - 1) / (CONTEXT_HEADS - 1);
}
static int64_t context_token(const context_t *x, int row) {
    const int32_t last = x->c.query_lens[0] - 1, back = context_back[row / CONTEXT_HEADS];
    return back < last ? last - back : 0;
}

static void context_exact_row(context_t *x, int row, double *weights, double *size) {
    const attn_problem_t *p = &x->c.problem;
    const kit_sizes_t z = kit_sizes(p);
    const int64_t h = context_head(x, row), t = context_token(x, row), n = x->c.seq_lens[0],
                  d_k = z.is_latent ? p->qk_nope_head_dim : z.key, d_v = x->value_size,
                  seen = p->mask == ATTN_MASK_CAUSAL ? n - x->c.query_lens[0] + t + 1 : n;
    const int64_t kvh = z.is_latent ? 0 : h / (z.heads / z.kv_heads),
                  stride_v = z.is_latent ? z.key : z.kv_heads * z.value;
    const float *q = x->in->query + (t * z.heads + h) * z.query, *k = x->in->key + kvh * z.key,
                *v = z.is_latent ? x->in->key + d_k + d_v * (h % (z.key / d_v - 1))
                                 : x->in->value + kvh * z.value;
    double top = -INFINITY, sum = 0, *out = x->out[row];
    for (int64_t i = 0; i < seen; i++) {
        double s[8] = {0};
        for (int64_t d = 0; d < d_k; d++)
            s[d & 7] += (double)q[d] * (double)k[i * z.kv_heads * z.key + d];
        weights[i] = p->scale * (s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]);
        top = fmax(top, weights[i]);
    }
    for (int64_t d = 0; d < d_v; d++)
        out[d] = size[d] = 0;
    for (int64_t i = 0; i < seen; i++) {
        const double w = exp(weights[i] - top);
        sum += w;
        for (int64_t d = 0; d < d_v && w > 0; d++) {
            const double a = w * (double)v[i * stride_v + d];
            out[d] += a, size[d] += fabs(a);
        }
    }
    for (int64_t d = 0; d < d_v; d++)
        out[d] /= sum, size[d] /= sum;
    x->lse[row] = top + log(sum);
}

/* Inputs and exact answers; 0 on success. */
static int context_open(context_t *x, uint32_t role, uint32_t tokens, int32_t keys, uint32_t family) {
    context_case(&x->c, role, tokens, keys);
    x->c.family = family;
    x->value_size = kit_sizes(&x->c.problem).output;
    x->in = kit_inputs_make(&x->c);
    double *weights = malloc((size_t)keys * CONTEXT_ROWS * sizeof *weights), size[CONTEXT_ROWS][256];
    if (x->in == NULL || weights == NULL) bail_out("out of memory for %d keys", keys);
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic)
#endif
    for (int row = 0; row < CONTEXT_ROWS; row++)
        if (context_token(x, row) >= 0)
            context_exact_row(x, row, weights + (size_t)row * (size_t)keys, size[row]);
    for (int64_t d = 0; d < x->value_size; d++) {
        int rows = 0;
        x->size[d] = 0;
        for (int row = 0; row < CONTEXT_ROWS; row++)
            if (context_token(x, row) >= 0) x->size[d] += size[row][d], rows++;
        x->size[d] /= rows;
    }
    free(weights);
    return 0;
}

static void context_close(context_t *x) {
    kit_inputs_free(x->in);
}

/* Errors of one configuration, or its refusal in why. 0 on success. */
static int context_run(const context_t *x, const attn_backend_t *b, const context_config_t *f,
                       const kit_memory_t *memory, context_error_t *e, char *why, size_t size) {
    const uint32_t tokens = f->tokens != 0 ? f->tokens : (uint32_t)x->c.query_lens[0];
    const int64_t ahead = x->c.query_lens[0] - (int32_t)tokens;
    kit_case_t c;
    context_case(&c, f->role, tokens, x->c.seq_lens[0]);
    c.family = x->c.family;
    attn_problem_t *p = &c.problem;
    p->kv_cache_dtype = f->kv, p->query_dtype = f->query_dtype, p->features = f->features;
    if (f->dtype != 0) p->dtype = f->dtype;
    kit_inputs_t in = *x->in; /* the last tokens of it */
    const kit_sizes_t z = kit_sizes(p);
    float one = 1;
    in.q_scale = &one;
    in.num_tokens = tokens, in.query = x->in->query + ahead * z.heads * z.query;
    if (!kit_is_served(b, &c, memory, why, size)) return -1;
    kit_result_t got;
    if (kit_run(b, &c, &in, memory, &got) != ATTN_OK || got.fault[0] != '\0') {
        snprintf(why, size, "%s: %.300s %s", got.operation, got.error.text, got.fault);
        kit_result_free(&got);
        return -1;
    }
    int64_t count = 0;
    *e = (context_error_t){0};
    for (int row = 0; row < CONTEXT_ROWS; row++) {
        const int64_t t = context_token(x, row) - ahead, h = context_head(x, row);
        if (t < 0) continue;
        for (int64_t d = 0; d < x->value_size; d++) {
            const double want = x->out[row][d],
                         off = (got.out[(t * z.heads + h) * x->value_size + d] - want) / x->size[d];
            if (!(fabs(off) <= e->max)) e->max = fabs(off); /* NaN stays */
            e->rms += off * off, e->bias += want < 0 ? -off : off, count++;
        }
        if (got.lse != NULL) e->lse = fmax(e->lse, fabs(got.lse[h * tokens + t] - x->lse[row]));
    }
    e->rms = sqrt(e->rms / (double)count), e->bias /= (double)count;
    kit_result_free(&got);
    return 0;
}

/* The backend of a plugin in the folder $CONTEXT_TEST_PLUGINS, else in plugins-built; NULL where it was not
 * built. */
static const attn_backend_t *context_load(const char *file, const char *backend) {
    const char *dir = getenv("CONTEXT_TEST_PLUGINS");
    char path[1200], cwd[1000] = ".", why[256] = "";
    if (dir != NULL)
        snprintf(path, sizeof path, "%s/%s", dir, file);
    else if (getcwd(cwd, sizeof cwd) != NULL)
        snprintf(path, sizeof path, "%s/plugins-built/%s", cwd, file);
    if (access(path, F_OK) != 0) return NULL; /* not built */
    const attn_backend_t *b = kit_load(path, backend, why, sizeof why);
    if (b == NULL) bail_out("%s: %s", path, why);
    return b;
}

/* One line for a configuration and a number of keys: the worst of the families in `families`. */
static void context_check(context_t *const *contexts, int count, const context_config_t *f,
                          const attn_backend_t *b, const kit_memory_t *memory, const char *name) {
    double max = 0, bias = 0;
    char why[1024] = "", bad[256] = "";
    const char *worst = "";
    int runs = 0;
    if (b == NULL) {
        skip(1, "%s: %s is not built", name, f->file);
        return;
    }
    for (int i = 0; i < count; i++) {
        const context_t *x = contexts[i];
        context_error_t e;
        if (f->not_exact >> x->c.family & 1) continue;
        if (context_run(x, b, f, memory, &e, why, sizeof why) != 0) {
            ok(0, "%s, %d keys, %s: %s", name, x->c.seq_lens[0], kit_family_name(x->c.family), why);
            return;
        }
        runs++;
        diag("%s, %7d keys, %-31s max %.1e rms %.1e bias %+.1e lse %.1e", name, x->c.seq_lens[0],
             kit_family_name(x->c.family), e.max, e.rms, e.bias, e.lse);
        const int is_channel = x->c.family == KIT_CHANNEL && f->max_channel > 0;
        const double limit = is_channel ? f->max_channel : f->max_error;
        if (!is_channel && !(e.max <= max)) max = e.max, worst = kit_family_name(x->c.family);
        if (!(fabs(e.bias) <= bias)) bias = fabs(e.bias);
        if (!(e.max <= limit) || !(fabs(e.bias) <= f->max_bias))
            snprintf(bad, sizeof bad, "; %s: error %.1e, bias %.1e", kit_family_name(x->c.family), e.max,
                     e.bias);
    }
    ok(runs > 0 && bad[0] == '\0', "%s, %d keys: %d families within %.1e (%.1e, %s), bias %.1e within %.1e%s",
       name, contexts[0]->c.seq_lens[0], runs, f->max_error, max, worst, bias, f->max_bias, bad);
}

#endif
