/* SPDX-License-Identifier: Apache-2.0 */
/* forward of the multi-head form: for each pass gather latents, then for some heads at a time project them
 * up, attend, and merge with the passes before (semantics 6.5, 7.4). */
#include "mla_prefill.h"
#include "kernels/cuda/latent/mla_prefill_params.h"

#include "kernels/cuda/dense/prefill_sm90.h"

/* What the launches of one call share. */
typedef struct call {
    const attn_instance_t *in;
    const mla_prefill *f;
    const attn_forward_t *a;
    const mla_prefill_plan *plan;
    char *metadata, *workspace;
    const mla_counts *counts;
    void *stream;
    uint16_t *out;             /* of the first token here */
    int64_t key_row, key_head; /* elements of the projected keys and values */
} call;

static int gather(const call *c, const mla_pass *p) {
    const attn_instance_t *in = c->in;
    const mla_gather_params g = {.counts = c->counts,
                                 .starts = (const int32_t *)(const void *)(c->metadata + p->starts_at),
                                 .cu = (const int32_t *)(const void *)(c->metadata + p->cu_at),
                                 .cache = attn_data(c->a->kv_cache),
                                 .cache_page = attn_byte_stride(c->a->kv_cache, 0),
                                 .cache_row = attn_byte_stride(c->a->kv_cache, 1),
                                 .num_pages = c->a->kv_cache->shape[0],
                                 .k_scale = c->a->scales.k ? attn_data(c->a->scales.k) : NULL,
                                 .rows = c->workspace,
                                 .ticket = (int32_t *)(void *)(c->workspace + c->f->ticket_at),
                                 .num_reqs = c->plan->num_reqs,
                                 .first_request = c->plan->first_request,
                                 .num_rows = p->num_rows,
                                 .latent_rank = in->latent,
                                 .page_size = in->page_size,
                                 .dtype = in->dtype,
                                 .cache_kind = in->cache_kind};
    return mla_gather(&g, c->stream);
}

/* Keys and values of heads h0 .. h0 + n - 1, interleaved per head: nope, then the values. The attention
 * kernel takes the rope from the latents. */
static int project_up(const call *c, const mla_pass *p, int h0, int n) {
    const attn_instance_t *in = c->in;
    const int per_head = in->nope + in->value;
    const mla_project_params u = {.a = c->workspace,
                                  .b = (const uint16_t *)c->a->weight_space +
                                       (int64_t)h0 * per_head * in->latent,
                                  .c = c->workspace + c->f->kv_at,
                                  .a_token = in->latent + MLA_ROPE,
                                  .b_row = in->latent,
                                  .c_token = (int64_t)n * per_head,
                                  .tokens = p->num_rows,
                                  .num_heads = 1,
                                  .n = n * per_head,
                                  .k = in->latent,
                                  .b_is_nk = 1,
                                  .dtype = in->dtype};
    return mla_multiply(in, MLA_UP, &u, c->stream);
}

/* The same for the portable kernel, which reads whole rows: nope, a copy of the rope, then the values. */
static int project_whole_rows(const call *c, const mla_pass *p, int h0, int n) {
    const attn_instance_t *in = c->in;
    const int per_head = in->nope + in->value;
    uint16_t *keys = (uint16_t *)(void *)(c->workspace + c->f->kv_at);
    const uint16_t *weights = (const uint16_t *)c->a->weight_space + (int64_t)h0 * per_head * in->latent;
    mla_project_params u = {.a = c->workspace,
                            .b = weights,
                            .c = keys,
                            .a_token = in->latent + MLA_ROPE,
                            .b_head = (int64_t)per_head * in->latent,
                            .b_row = in->latent,
                            .c_token = c->key_row * n,
                            .c_head = c->key_head,
                            .tokens = p->num_rows,
                            .num_heads = n,
                            .n = in->nope,
                            .k = in->latent,
                            .b_is_nk = 1,
                            .dtype = in->dtype};
    int e = mla_project(&u, c->stream);
    u.b = weights + (int64_t)in->nope * in->latent, u.c = keys + in->nope + MLA_ROPE, u.n = in->value;
    if (!e) e = mla_project(&u, c->stream);
    const mla_spread_params s = {.rows = c->workspace,
                                 .keys = keys,
                                 .key_row = c->key_row * n,
                                 .key_head = c->key_head,
                                 .num_rows = p->num_rows,
                                 .num_heads = n,
                                 .latent_rank = in->latent,
                                 .nope = in->nope};
    return e ? e : mla_spread_rope(&s, c->stream);
}

static float *lse_buffer(const call *c, int i) {
    return (float *)(void *)(c->workspace + c->f->lse_at[i]);
}

/* Attention of heads h0 .. h0 + n - 1 over the rows of the pass, to out and lse; merged with what lies in out
 * already where old_lse is its LSE. */
static int attend(const call *c, const mla_pass *p, int h0, int n, void *out, int64_t out_token,
                  int64_t out_head, float *lse, int64_t lse_head, int64_t lse_token, const float *old_lse) {
    const attn_instance_t *in = c->in;
    const mla_prefill *f = c->f;
    const int is_sm90 = f->config.kind == FLASH_PREFILL_SM90;
    const DLTensor *q = c->a->query;
    const uint16_t *keys = (const uint16_t *)(const void *)(c->workspace + f->kv_at);
    flash_shape shape = f->shape;
    shape.num_q_heads = shape.num_kv_heads = n;
    flash_params params = {.q = (const uint16_t *)attn_data(q) + c->plan->first_token * q->strides[0] +
                                h0 * q->strides[1],
                           .out = out,
                           .lse = lse,
                           .k = keys,
                           .v = keys + (is_sm90 ? in->nope : in->nope + MLA_ROPE),
                           .counts = (const flash_counts *)(const void *)(c->metadata + p->counts_at),
                           .tiles = (const flash_tile *)(const void *)(c->metadata + p->tiles_at),
                           .q_token = q->strides[0],
                           .q_head = q->strides[1],
                           .out_token = out_token,
                           .out_head = out_head,
                           .k_token = c->key_row * n,
                           .k_head = c->key_head,
                           .v_token = c->key_row * n,
                           .v_head = c->key_head,
                           .lse_token = lse_token,
                           .lse_head = lse_head,
                           .q_dtype = shape.q_dtype,
                           .kv_dtype = shape.kv_dtype,
                           .out_dtype = shape.q_dtype,
                           .num_seqs = c->plan->num_reqs,
                           .num_q_heads = n,
                           .num_kv_heads = n,
                           .group = 1,
                           .head_size = shape.head_size,
                           .head_size_v = shape.head_size_v,
                           .window_left = -1,
                           .window_right = -1,
                           .keys_per_tile = p->keys_per_tile,
                           .q_rows = c->plan->num_tokens,
                           .kv_rows = p->num_rows,
                           .scale = (float)in->problem.scale};
    if (is_sm90) {
        params.k_tail = c->workspace + (size_t)in->latent * 2;
        params.k_tail_token = in->latent + MLA_ROPE;
        params.k_tail_at = in->nope;
    }
    const flash_prefill_more more = {.ticket = (int32_t *)(void *)(c->workspace + f->ticket_at),
                                     .old_lse = old_lse,
                                     .old_lse_head = c->plan->num_tokens};
    return flash_run_prefill_more(&params, &more, &shape, &f->config, p->num_tiles, &f->runtime, c->stream);
}

/* Pass number `pass` for some heads. The LSE so far lies in buffer 0 where the attention kernel merges; else
 * in buffers 0 and 1 in turn, and that of the pass in buffer 2. */
static int run_heads(const call *c, int pass, int h0, int n) {
    const attn_instance_t *in = c->in;
    const mla_pass *p = &c->plan->passes[pass];
    const DLTensor *o = c->a->output, *lse = c->a->lse;
    const int64_t tokens = c->plan->num_tokens, first = c->plan->first_token;
    const int is_last = pass == c->plan->num_passes - 1, inside = c->f->merges_inside;
    float *to = NULL;
    int64_t to_head = tokens, to_token = 1;
    if (!is_last)
        to = lse_buffer(c, inside ? 0 : pass & 1) + h0 * tokens;
    else if (lse != NULL) {
        to = (float *)attn_data(lse) + h0 * lse->strides[0] + first * lse->strides[1];
        to_head = lse->strides[0], to_token = lse->strides[1];
    }
    uint16_t *out = c->out + h0 * o->strides[1];
    int e =
        c->f->config.kind == FLASH_PREFILL_SM90 ? project_up(c, p, h0, n) : project_whole_rows(c, p, h0, n);
    if (e) return e;
    if (pass == 0 || inside)
        return attend(c, p, h0, n, out, o->strides[0], o->strides[1], to, to_head, to_token,
                      pass > 0 ? lse_buffer(c, 0) + h0 * tokens : NULL);
    void *part = c->workspace + c->f->part_at;
    float *part_lse = lse_buffer(c, 2);
    e = attend(c, p, h0, n, part, (int64_t)n * in->value, in->value, part_lse, tokens, 1, NULL);
    const mla_merge_params m = {.out = out,
                                .part = part,
                                .lse = lse_buffer(c, (pass - 1) & 1) + h0 * tokens,
                                .part_lse = part_lse,
                                .lse_out = to,
                                .out_token = o->strides[0],
                                .out_head = o->strides[1],
                                .lse_head = tokens,
                                .part_lse_head = tokens,
                                .lse_out_head = to_head,
                                .lse_out_token = to_token,
                                .num_tokens = (int32_t)tokens,
                                .num_heads = n,
                                .value = in->value,
                                .dtype = in->dtype};
    return e ? e : mla_merge(&m, c->stream);
}

int mla_prefill_forward(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s,
                        const mla_prefill_plan *plan, void *stream) {
    call c = {.in = in,
              .f = in->prefill,
              .a = a,
              .plan = plan,
              .metadata = (char *)s->metadata + in->prefill_at,
              .workspace = s->workspace,
              .counts = s->metadata,
              .stream = stream,
              .key_row = in->prefill->row_elements,
              .key_head = in->prefill->row_elements};
    c.out = (uint16_t *)attn_data(a->output) + plan->first_token * a->output->strides[0];
    int e = 0;
    for (int pass = 0; pass < plan->num_passes && !e; pass++) {
        const mla_pass *p = &plan->passes[pass];
        e = gather(&c, p);
        for (int h = 0; h < in->heads && !e; h += p->heads)
            e = run_heads(&c, pass, h, in->heads - h < p->heads ? in->heads - h : p->heads);
    }
    return e;
}
