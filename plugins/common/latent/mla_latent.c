/* SPDX-License-Identifier: Apache-2.0 */
/* Latent in, latent out (semantics 7.11): the kernels read absorbed queries from the caller's tensor and
 * leave latents in the caller's, if rows lie evenly there. What does not goes through the workspace: queries
 * of other strides, e4m3 queries, which the kernels read as 16-bit numbers, and outputs that are not
 * dense. */
#include "mla_instance.h"

/* Elements between neighbouring rows (a token's heads, then the next token's), 0 where they are uneven. */
static int64_t even_rows(const DLTensor *t) {
    if (t->shape[1] == 1) return t->strides[0];
    return t->shape[0] == 1 || t->strides[0] == t->shape[1] * t->strides[1] ? t->strides[1] : 0;
}

int mla_latent_begin(const attn_instance_t *in, const attn_forward_t *a, const attn_space_t *s,
                     int32_t token0, int32_t tokens, mla_attend_params *p, void *stream) {
    const DLTensor *q = a->query, *o = a->output;
    const int64_t row = even_rows(q), slice = (int64_t)in->plan.slice_tokens * in->heads,
                  there = (q->shape[0] - token0) * in->heads;
    char *work = s->workspace;
    p->in_order = 1;
    p->latent = even_rows(o) == in->latent
                    ? (uint16_t *)attn_data(o) + (int64_t)token0 * in->heads * in->latent
                    : (void *)work;
    if (!in->is_fp8_query && row >= in->latent &&
        row < INT64_C(1) << 39) { /* a tensor map's longest stride */
        p->absorbed = (const uint16_t *)attn_data(q) + token0 * q->strides[0];
        p->absorbed_row = row;
        p->absorbed_rows = (int32_t)(there < slice ? there : slice);
        return 0;
    }
    const int size = in->is_fp8_query ? 1 : 2;
    mla_copy_params c = {.counts = p->counts,
                         .from = (const char *)attn_data(q) + token0 * q->strides[0] * size,
                         .to = work,
                         .from_token = q->strides[0],
                         .from_head = q->strides[1],
                         .to_token = (int64_t)in->heads * in->latent,
                         .to_head = in->latent,
                         .token0 = token0,
                         .tokens = tokens,
                         .num_heads = in->heads,
                         .width = in->latent,
                         .is_e4m3 = in->is_fp8_query,
                         .dtype = in->dtype};
    int e = in->backend->device->copy_rows(in, &c, stream);
    if (e || !in->is_fp8_query) return e;
    c.from = (const char *)c.from + in->latent, c.to = work + in->rope_at;
    c.to_token = (int64_t)in->heads * in->rope, c.to_head = c.width = in->rope;
    return in->backend->device->copy_rows(in, &c, stream);
}

int mla_latent_end(const attn_instance_t *in, const attn_forward_t *a, int32_t token0, int32_t tokens,
                   const mla_attend_params *p, void *stream) {
    const DLTensor *o = a->output;
    const mla_copy_params c = {.counts = p->counts,
                               .from = p->latent,
                               .to = (uint16_t *)attn_data(o) + token0 * o->strides[0],
                               .from_token = (int64_t)in->heads * in->latent,
                               .from_head = in->latent,
                               .to_token = o->strides[0],
                               .to_head = o->strides[1],
                               .token0 = token0,
                               .tokens = tokens,
                               .num_heads = in->heads,
                               .width = in->latent,
                               .dtype = in->dtype};
    return even_rows(o) == in->latent ? 0 : in->backend->device->copy_rows(in, &c, stream);
}
