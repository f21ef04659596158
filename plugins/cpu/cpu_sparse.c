/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over selected keys (semantics 9.2). To the plan and the kernels every token is a request of its
 * own, whose keys are the rows that its indices name; how many is known in forward only, so that the plan is
 * made there, for as many tokens at a time as the workspace has room for. */
#include "cpu_instance.h"

enum { PASS_TOKENS = 1024, PASS_BYTES = 64 << 20 };

/* Positions at or beyond this are outside the block table and name nothing (semantics 9.3). */
static int64_t table_end(const attn_instance_t *in, const struct cpu_metadata *m) {
    return m->block_table_width * (int64_t)in->block_size;
}

static const int32_t *indices_of(const DLTensor *t, int64_t token) {
    return (const int32_t *)attn_data(t) + token * t->strides[0];
}

struct cpu_limits cpu_sparse_limits(const attn_instance_t *in) {
    struct cpu_limits pass = in->limits;
    int64_t tokens = PASS_TOKENS;
    if (in->projects) {
        const int64_t one = (int64_t)cpu_latent_row_bytes(in) * in->p.num_heads;
        tokens = one < PASS_BYTES / PASS_TOKENS ? PASS_TOKENS : one < PASS_BYTES ? PASS_BYTES / one : 1;
    }
    if (pass.max_tokens > tokens) pass.max_tokens = (int32_t)tokens;
    pass.max_seqs = pass.max_tokens;
    return pass;
}

size_t cpu_sparse_workspace(const attn_instance_t *in) {
    return (size_t)cpu_sparse_limits(in).max_tokens * in->p.num_heads * cpu_latent_row_bytes(in);
}

int cpu_sparse_check(const attn_instance_t *in, const attn_forward_t *a, struct cpu_metadata *m,
                     attn_error_t *error) {
    const struct cpu_plan *batch = cpu_metadata_plan(m);
    int status = call_check_topk(a->topk_indices, in->p.topk, m->num_tokens, error);
    for (int32_t r = 0; status == ATTN_OK && r < batch->num_seqs; r++) {
        const struct cpu_seq *s = &batch->seqs[r];
        int32_t count;
        for (int64_t t = s->q_start; status == ATTN_OK && t < s->q_start + s->q_len; t++)
            status = call_count_selected(indices_of(a->topk_indices, t), in->p.topk, table_end(in, m),
                                         s->kv_len, t, r, &count, error);
    }
    return status;
}

/* Token `token` of request r as a request of a pass that begins at token0. */
static struct cpu_seq one_token(const attn_instance_t *in, const attn_forward_t *a, struct cpu_metadata *m,
                                int32_t r, int32_t token, int32_t token0) {
    const struct cpu_seq *s = &cpu_metadata_plan(m)->seqs[r];
    struct cpu_seq own = {.q_start = token - token0, .q_len = 1, .table_row = s->table_row};
    call_count_selected(indices_of(a->topk_indices, token), in->p.topk, table_end(in, m), s->kv_len, token, r,
                        &own.kv_len, NULL);
    own.mask = (struct cpu_mask){.window_left = -1, .window_right = -1};
    return own;
}

void cpu_sparse_run(const attn_instance_t *in, const attn_forward_t *a, struct cpu_metadata *m,
                    struct cpu_attn *call, char *workspace) {
    const struct cpu_limits pass = cpu_sparse_limits(in);
    const struct cpu_plan *batch = cpu_metadata_plan(m);
    const int32_t tokens = cpu_plan_tokens(batch);
    const struct cpu_attn whole = *call;
    for (int32_t token0 = 0, r = 0; token0 < tokens; token0 += pass.max_tokens) {
        const int32_t left = tokens - token0, n = left < pass.max_tokens ? left : pass.max_tokens;
        struct cpu_plan *plan = cpu_plan_init(workspace + in->plan_at, &in->shape, &in->tiling, &pass, 0);
        for (plan->num_seqs = 0; plan->num_seqs < n; plan->num_seqs++) {
            const int32_t token = token0 + plan->num_seqs;
            while (token >= batch->seqs[r].q_start + batch->seqs[r].q_len)
                r++;
            plan->seqs[plan->num_seqs] = one_token(in, a, m, r, token, token0);
        }
        cpu_plan_build(plan, in->k, &in->shape, &in->tiling, &pass);
        *call = whole;
        call->topk_indices = indices_of(a->topk_indices, token0);
        call->topk_row = a->topk_indices->strides[0];
        call->topk_end = table_end(in, m);
        call->q += token0 * call->q_token;
        call->out += token0 * call->out_token;
        if (call->lse != NULL) call->lse += token0 * call->lse_token;
        if (in->projects) {
            const struct cpu_latent_part part = {token0, n, 0, (int)in->p.num_heads};
            cpu_latent_pass(in, a, &part, plan, call, workspace);
        } else {
            cpu_plan_run(plan, in->k, call, &in->tiling, &pass, workspace, 0);
        }
    }
}
