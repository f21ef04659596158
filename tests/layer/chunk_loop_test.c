/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's own loop over chunks of context, as doc/engine-author.md shows it: the new tokens with the
 * causal mask, every chunk of earlier keys without one, keys with lengths of their own in both (semantics
 * 2.16), results merged by their LSE; against one pass over all keys in double. */
#include "layer_testing.h"

#include <attn/attn_merge.h>
#include <attn/attn_plan.h>

enum { HEADS = 4, KV_HEADS = 2, D = 24, DV = 16, REQS = 5, MAX_LEN = 1200, WORKSPACE = 512, TOKENS = 160 };

static attn_error_t error = {.struct_size = sizeof error};
static uint64_t state;

/* What the engine has: new queries, and the keys of every request, which a cache would hold. */
static float queries[TOKENS][HEADS][D], keys[REQS][MAX_LEN][KV_HEADS][D], values[REQS][MAX_LEN][KV_HEADS][DV];
static int32_t query_lens[REQS], seq_lens[REQS], starts[REQS + 1];

static float normal(void) {
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum +=
            (double)((state = state * UINT64_C(6364136223846793005) + 1442695040888963407u) >> 11) * 0x1p-53;
    return (float)(sum - 6);
}

/* Normal numbers; a large mean in the values; one key with much of the weight; a strong channel; equal
 * scores. */
static void make_inputs(int family) {
    for (int i = 0; i < TOKENS * HEADS * D; i++)
        (&queries[0][0][0])[i] = family == 4 ? 0 : normal();
    for (int i = 0; i < REQS * MAX_LEN * KV_HEADS * D; i++)
        (&keys[0][0][0][0])[i] = normal() * (family == 3 && i % D == 5 ? 100 : 1);
    for (int i = 0; i < REQS * MAX_LEN * KV_HEADS * DV; i++)
        (&values[0][0][0][0])[i] = normal() + (family == 1 ? 300 : 0);
    for (int r = 0; r < REQS && family == 2; r++)
        for (int d = 0; d < D; d++) /* along the request's first query */
            for (int h = 0; h < KV_HEADS; h++)
                keys[r][seq_lens[r] / 3][h][d] = 4 * queries[starts[r] < TOKENS ? starts[r] : 0][2 * h][d];
}

static double one_pass(int r, int i, int h, double scale, double *out) {
    static double s[MAX_LEN];
    const int last = seq_lens[r] - query_lens[r] + i;
    double most = -INFINITY, sum = 0;
    for (int k = 0; k <= last; k++) {
        s[k] = 0;
        for (int d = 0; d < D; d++)
            s[k] += (double)queries[starts[r] + i][h][d] * keys[r][k][h / 2][d];
        s[k] *= scale;
        most = s[k] > most ? s[k] : most;
    }
    for (int d = 0; d < DV; d++)
        out[d] = 0;
    if (last < 0) return -INFINITY; /* no key */
    for (int k = 0; k <= last; k++) {
        const double p = exp(s[k] - most);
        sum += p;
        for (int d = 0; d < DV; d++)
            out[d] += p * values[r][k][h / 2][d];
    }
    for (int d = 0; d < DV; d++)
        out[d] /= sum;
    return most + log(sum);
}

/* One of the engine's two groups: the keys of this step with the causal mask, or earlier ones without. */
struct group {
    attn_group_t *g;
    attn_layer_t *layer;
    struct buffers buf;
};

static int open_one(attn_context_t *context, const char *backend, uint32_t role, uint32_t mask, uint32_t out,
                    struct group *to) {
    ATTN_INIT(attn_problem_t, p);
    p.role = role;
    p.mask = mask;
    p.dtype = ATTN_DTYPE_FLOAT32;
    p.out_dtype = out;
    p.num_heads = HEADS, p.num_kv_heads = KV_HEADS;
    p.head_size = D;
    if (role == ATTN_ROLE_MLA_PREFILL)
        p.kv_lora_rank = 32, p.qk_nope_head_dim = 16, p.qk_rope_head_dim = D - 16, p.v_head_dim = DV;
    else
        p.head_size_v = DV;
    p.scale = 0.2;
    p.features = ATTN_F_KEY_LENGTHS | ATTN_F_LSE;
    p.max_num_seqs = REQS, p.max_num_batched_tokens = TOKENS, p.max_num_batched_keys = WORKSPACE;
    p.max_model_len = MAX_LEN;
    attn_device_t d = cpu();
    if (attn_group_open(context, &p, &d, backend, &to->g, NULL, &error) != ATTN_OK ||
        attn_layer_create(to->g, mask == ATTN_MASK_FULL ? "context" : "new", NULL, &to->layer, &error) !=
            ATTN_OK)
        return 0;
    to->buf = alloc_buffers(to->g);
    return 1;
}

static void close_one(struct group *x) {
    attn_layer_destroy(x->layer);
    attn_group_close(x->g);
    free(x->buf.memory);
}

/* Attention of all queries to `key` and `value`, whose rows are where key_starts says. */
static int attend(struct group *x, const int32_t *key_starts, const DLTensor *key, const DLTensor *value,
                  const DLTensor *out, const DLTensor *lse) {
    int32_t lens[REQS];
    struct tensor q;
    for (int r = 0; r < REQS; r++)
        lens[r] = key_starts[r + 1] - key_starts[r];
    ATTN_INIT(attn_batch_t, b);
    b.num_reqs = REQS;
    b.num_actual_tokens = starts[REQS];
    b.query_start_loc_host = starts;
    b.seq_lens_host = lens;
    b.key_start_loc_host = key_starts;
    ATTN_INIT(attn_forward_t, f);
    f.query = tensor(&q, queries, ATTN_DTYPE_FLOAT32, 3, TOKENS, HEADS, D, 0);
    f.key = key, f.value = value, f.output = out, f.lse = lse;
    int code = attn_group_build_metadata(x->g, &b, &x->buf.space, NULL, &error);
    return code != ATTN_OK ? code : attn_layer_forward(x->layer, &f, &x->buf.space, NULL, &error);
}

/* Rows first .. first + n - 1 of a request's keys to row `to` of the workspace: the engine's gather, and, for
 * latents, its projection. */
static float key_rows[WORKSPACE][KV_HEADS][D], value_rows[WORKSPACE][KV_HEADS][DV];
static void gather(int r, int first, int n, int to) {
    memcpy(key_rows[to], keys[r][first], (size_t)n * sizeof keys[0][0]);
    memcpy(value_rows[to], values[r][first], (size_t)n * sizeof values[0][0]);
}

static int run_loop(struct group *own, struct group *context, int *num_chunks, const DLTensor *out,
                    const DLTensor *lse, const DLTensor *part, const DLTensor *part_lse) {
    struct tensor k, v;
    const DLTensor *key = tensor(&k, key_rows, ATTN_DTYPE_FLOAT32, 3, WORKSPACE, KV_HEADS, D, 0),
                   *value = tensor(&v, value_rows, ATTN_DTYPE_FLOAT32, 3, WORKSPACE, KV_HEADS, DV, 0);
    for (int r = 0; r < REQS; r++)
        gather(r, seq_lens[r] - query_lens[r], query_lens[r], starts[r]);
    int code = attend(own, starts, key, value, out, lse);
    if (code != ATTN_OK) return code;

    ATTN_INIT(attn_mla_context_params_t, params);
    params.block_size = 16;
    params.workspace_tokens = WORKSPACE;
    attn_mla_context_t cut;
    code = attn_plan_mla_context_size(&params, starts, seq_lens, REQS, &cut, &error);
    if (code != ATTN_OK) return code;
    *num_chunks = cut.num_chunks;
    int32_t *first = calloc((size_t)cut.num_chunks * REQS + 1, sizeof *first),
            *cu = calloc((size_t)cut.num_chunks * (REQS + 1) + 1, sizeof *cu);
    code =
        attn_plan_mla_context(&params, starts, seq_lens, REQS, cut.num_chunks, first, cu, NULL, NULL, &error);
    for (int j = 0; j < cut.num_chunks && code == ATTN_OK; j++) {
        const int32_t *at = cu + j * (REQS + 1);
        for (int r = 0; r < REQS; r++)
            gather(r, first[j * REQS + r], at[r + 1] - at[r], at[r]);
        code = attend(context, at, key, value, part, part_lse);
        const attn_state_t states[2] = {{out, lse}, {part, part_lse}};
        if (code == ATTN_OK) code = attn_merge_states(states, 2, starts[REQS], NULL, out, lse, NULL, &error);
    }
    free(first);
    free(cu);
    return code;
}

static double out[TOKENS * HEADS * DV], part[TOKENS * HEADS * DV]; /* of either type */
static float lse[HEADS][TOKENS], part_lse[HEADS][TOKENS];

static double value_at(uint32_t dtype, int64_t i) {
    return dtype == ATTN_DTYPE_FLOAT64 ? out[i] : (double)((const float *)(const void *)out)[i];
}

static void test_loop(attn_context_t *context, const char *backend, uint32_t role, uint32_t dtype,
                      double most) {
    struct group own, earlier;
    struct tensor to, tp, tl, tpl;
    if (!open_one(context, backend, role, ATTN_MASK_CAUSAL, dtype, &own) ||
        !open_one(context, backend, role, ATTN_MASK_FULL, dtype, &earlier))
        bail_out("%s, %s: %s", backend, attn_role_name(role), error.text);
    /* earlier tokens: none; less than a chunk; several; of a request that has no new ones; many */
    static const int32_t news[REQS] = {40, 7, 1, 0, 90}, earlier_lens[REQS] = {0, 33, 701, 300, 1100};
    double worst = 0, worst_lse = 0;
    int chunks = 0, code = ATTN_OK;
    for (int family = 0; family < 5 && code == ATTN_OK; family++) {
        for (int r = 0; r < REQS; r++) {
            query_lens[r] = news[r];
            seq_lens[r] = news[r] + earlier_lens[r];
            starts[r + 1] = starts[r] + news[r];
        }
        make_inputs(family);
        const DLTensor *o = tensor(&to, out, dtype, 3, TOKENS, HEADS, DV, 0),
                       *p = tensor(&tp, part, dtype, 3, TOKENS, HEADS, DV, 0),
                       *l = tensor(&tl, lse, ATTN_DTYPE_FLOAT32, 2, HEADS, TOKENS, 0, 0),
                       *pl = tensor(&tpl, part_lse, ATTN_DTYPE_FLOAT32, 2, HEADS, TOKENS, 0, 0);
        code = run_loop(&own, &earlier, &chunks, o, l, p, pl);
        const double size = family == 1 ? 300 : 1;
        for (int r = 0; r < REQS; r++)
            for (int i = 0; i < query_lens[r]; i++)
                for (int h = 0; h < HEADS; h++) {
                    double want[DV];
                    const int64_t row = starts[r] + i;
                    const double want_lse = one_pass(r, i, h, 0.2, want);
                    worst_lse = fmax(worst_lse, fabs(lse[h][row] - want_lse) / (1 + fabs(want_lse)));
                    /* an LSE is float32: weights of the merge are as exact as its last place is small */
                    const double unit = size * (1 + fabs(want_lse));
                    for (int d = 0; d < DV; d++)
                        worst =
                            fmax(worst, fabs(value_at(dtype, (row * HEADS + h) * DV + d) - want[d]) / unit);
                }
    }
    if (!ok(code == ATTN_OK && chunks > 3 && worst < most && worst_lse < most,
            "%s, %s to %s: chunks and their merge are one pass", backend, attn_role_name(role),
            attn_dtype_name(dtype)))
        diag("code %d, '%s', %d chunks, off by %g, LSE %g", code, error.text, chunks, worst, worst_lse);
    close_one(&own);
    close_one(&earlier);
}

int main(void) {
    const char *dir = getenv("ATTN_TEST_PLUGIN_DIR");
    attn_context_t *context = NULL;
    if (dir == NULL || access(dir, R_OK) != 0) skip_all("no plugins built: ATTN_TEST_PLUGIN_DIR");
    state = tap_seed();
    ATTN_INIT(attn_context_options_t, o);
    o.flags = ATTN_CONTEXT_NO_SYSTEM_CONFIG;
    o.config_text = "[attn]\nplugins = reference, cpu\n[hook check]\nlevel = all\n";
    o.plugin_dir = dir;
    o.log = keep_log;
    if (attn_context_create(&o, &context, &error) != ATTN_OK) bail_out("context: %s", error.text);
    test_loop(context, "REFERENCE", ATTN_ROLE_MLA_PREFILL, ATTN_DTYPE_FLOAT64, 1e-6);
    test_loop(context, "REFERENCE", ATTN_ROLE_ENCODER_ONLY, ATTN_DTYPE_FLOAT64, 1e-6);
    test_loop(context, "REFERENCE", ATTN_ROLE_ENCODER, ATTN_DTYPE_FLOAT32, 2e-5);
    if (attn_context_find_backend(context, "CPU_ATTN", NULL) != NULL)
        test_loop(context, "CPU_ATTN", ATTN_ROLE_ENCODER_ONLY, ATTN_DTYPE_FLOAT32, 2e-5);
    else
        skip(1, "CPU_ATTN is not built");
    attn_context_destroy(context);
    return tap_done();
}
