/* SPDX-License-Identifier: Apache-2.0 */
/* Latent attention with projections (semantics 7.4): absorbs the queries of as many heads as the workspace
 * has room for, attends as feature latent does (7.11), and multiplies the latents with W_UV; then the next
 * heads. */
#include "../common/latent_weights.h"
#include "cpu_instance.h"
#include "cpu_threads.h"

#include <float.h>

enum {
    PASS_BYTES = 64 << 20, /* for the queries and latents of a pass, if one head of all tokens fits */
    SERIAL_PRODUCTS = 1 << 19
};
#define WEIGHT_MAGIC UINT64_C(0x30676574756d7063)

static size_t round_up(size_t n, size_t step) {
    return (n + step - 1) / step * step;
}

/* Floats of a row of absorbed queries, and of latents. */
static size_t query_floats(const attn_instance_t *in) {
    return round_up((size_t)in->shape.head_size, CPU_PROJECT_PAD);
}
static size_t latent_floats(const attn_instance_t *in) {
    return round_up(in->p.kv_lora_rank, CPU_PROJECT_PAD);
}
static size_t weight_row_bytes(const attn_instance_t *in, enum cpu_dtype type) {
    return latent_floats(in) * (size_t)cpu_dtype_size(type);
}

uint64_t cpu_latent_weight_bytes(const attn_instance_t *in) {
    return sizeof(latent_weights_t) +
           (uint64_t)latent_weights_rows(&in->p) * weight_row_bytes(in, cpu_dtype_of(in->p.dtype));
}

size_t cpu_latent_scratch_bytes(const attn_instance_t *in) {
    const size_t sizes = (size_t)in->p.qk_nope_head_dim + in->p.qk_rope_head_dim + in->p.v_head_dim;
    return CPU_PROJECT_TOKENS * (sizes + query_floats(in) + 2 * CPU_PROJECT_PAD) * sizeof(float);
}

size_t cpu_latent_row_bytes(const attn_instance_t *in) {
    return (query_floats(in) + latent_floats(in)) * sizeof(float);
}

size_t cpu_latent_workspace(const attn_instance_t *in) {
    const size_t one = (size_t)in->limits.max_tokens * cpu_latent_row_bytes(in), all = one * in->p.num_heads;
    return all < PASS_BYTES ? all : one > PASS_BYTES ? one : PASS_BYTES;
}

/* The largest divisor of num_heads for which `tokens` fit. The same number at any batch if a request's result
 * must not depend on its neighbours. */
int cpu_latent_heads(const attn_instance_t *in, int32_t tokens) {
    const size_t rows = (size_t)(in->limits.batch_invariant ? in->limits.max_tokens : tokens);
    const size_t room = cpu_latent_workspace(in) / cpu_latent_row_bytes(in);
    int heads = (int)in->p.num_heads;
    while (heads > 1 && (rows * (size_t)heads > room || in->p.num_heads % (uint32_t)heads != 0))
        heads--;
    return heads;
}

/* x, rounded once to the model's dtype. */
static void store_weight(uint32_t dtype, void *to, double x) {
    if (dtype == ATTN_DTYPE_FLOAT32)
        *(float *)to = (float)x;
    else
        *(uint16_t *)to = dtype == ATTN_DTYPE_FLOAT16 ? attn_to_f16(x) : attn_to_bf16(x);
}

int cpu_prepare_weights(attn_instance_t *in, const attn_weights_t *weights, void *stream,
                        attn_error_t *error) {
    (void)stream;
    attn_weights_t w;
    latent_weights_t header;
    int status = attn_intake(&w, sizeof w, weights, "weights", error);
    if (status == ATTN_OK && !in->projects)
        status = attn_fail(error, ATTN_E_STATE, "role", "role %s has no absorbed weights%s",
                           attn_role_name(in->p.role),
                           in->is_latent ? " with feature latent: the caller projects" : "");
    if (status == ATTN_OK)
        status = latent_weights_intake(&in->p, &w, WEIGHT_MAGIC, cpu_latent_weight_bytes(in), &header, error);
    if (status != ATTN_OK) return status;
    const DLTensor *t = w.kv_b_proj;
    const int64_t rows = latent_weights_rows(&in->p), latent = in->p.kv_lora_rank;
    const DLTensor *blocks = latent_weights_blocks(&w);
    if (blocks != NULL) header.dtype = in->p.dtype; /* what they are kept in: sums know one scale only */
    const size_t size = attn_dtype_size(header.dtype);
    const size_t row_bytes = weight_row_bytes(in, cpu_dtype_of(header.dtype));
    char *to = (char *)w.weight_space + sizeof header;
    for (int64_t r = 0; r < rows; r++, to += row_bytes) {
        const char *from = (const char *)attn_data(t) + r * attn_byte_stride(t, 0);
        memset(to, 0, row_bytes);
        for (int64_t i = 0; i < latent; i++) {
            const char *x = from + i * attn_byte_stride(t, 1);
            if (blocks == NULL)
                memcpy(to + (size_t)i * size, x, size);
            else
                store_weight(header.dtype, to + (size_t)i * size,
                             attn_from_e4m3(*(const uint8_t *)x) *
                                 (double)latent_weights_block(blocks, r, i));
        }
    }
    memcpy(w.weight_space, &header, sizeof header);
    return ATTN_OK;
}

/* One pass: heads [head0, head0 + heads) of tokens [token0, token0 + tokens). */
struct pass {
    const attn_instance_t *in;
    const attn_forward_t *a;
    struct cpu_projection p;
    const char *weights;
    int32_t token0, tokens;
    int head0, heads;
    float q_scale;
    /* [tokens][heads], rows as far apart as floats are, of shape's q_dtype and out_dtype */
    char *query, *latents;
    char *scratch;
    size_t scratch_step;
};

static int64_t blocks_of(const struct pass *s) {
    return (s->tokens + CPU_PROJECT_TOKENS - 1) / CPU_PROJECT_TOKENS;
}

/* First row of head h in the weights: W_UK, and W_UV after P rows. */
static const char *head_weights(const struct pass *s, int head, int is_value) {
    const int64_t rows = (int64_t)s->p.nope + s->p.value;
    return s->weights + (head * rows + (is_value ? s->p.nope : 0)) * s->p.w_row;
}

static void absorb_block(void *arg, int64_t i, int worker) {
    const struct pass *s = arg;
    const int head = (int)(i / blocks_of(s)), first = (int)(i % blocks_of(s)) * CPU_PROJECT_TOKENS;
    const int tokens = s->tokens - first < CPU_PROJECT_TOKENS ? s->tokens - first : CPU_PROJECT_TOKENS;
    const size_t row = query_floats(s->in), step = row * (size_t)s->heads * sizeof(float);
    const enum cpu_dtype type = s->in->shape.q_dtype;
    const DLTensor *q = s->a->query;
    float *scratch = (float *)(void *)(s->scratch + (size_t)worker * s->scratch_step);
    float *rows = scratch + (size_t)CPU_PROJECT_TOKENS * ((size_t)s->p.nope + s->p.rope + CPU_PROJECT_PAD);
    char *to = s->query + (size_t)first * step + (size_t)head * row * sizeof(float);
    s->in->k->absorb(&s->p, tokens, head_weights(s, s->head0 + head, 0),
                     (const char *)attn_data(q) + (s->token0 + first) * attn_byte_stride(q, 0) +
                         (s->head0 + head) * attn_byte_stride(q, 1),
                     attn_byte_stride(q, 0), type != CPU_F32 ? rows : (float *)(void *)to,
                     (int64_t)(type != CPU_F32 ? row : step / sizeof(float)), scratch);
    for (int t = 0; type != CPU_F32 && t < tokens; t++)
        s->in->k->write_row(CPU_F32, (const char *)(rows + (size_t)t * row), s->in->shape.head_size, type,
                            s->q_scale, to + (size_t)t * step, NULL, scratch);
}

static void values_block(void *arg, int64_t i, int worker) {
    const struct pass *s = arg;
    const int head = (int)(i / blocks_of(s)), first = (int)(i % blocks_of(s)) * CPU_PROJECT_TOKENS;
    const int tokens = s->tokens - first < CPU_PROJECT_TOKENS ? s->tokens - first : CPU_PROJECT_TOKENS;
    const size_t row = latent_floats(s->in) * sizeof(float), step = row * (size_t)s->heads;
    const DLTensor *out = s->a->output;
    s->in->k->values(&s->p, tokens, head_weights(s, s->head0 + head, 1),
                     s->latents + (size_t)first * step + (size_t)head * row, (int64_t)step,
                     (char *)attn_data(out) + (s->token0 + first) * attn_byte_stride(out, 0) +
                         (s->head0 + head) * attn_byte_stride(out, 1),
                     attn_byte_stride(out, 0),
                     (float *)(void *)(s->scratch + (size_t)worker * s->scratch_step));
}

static void project(const struct pass *s, int size, void (*fn)(void *, int64_t, int)) {
    const struct cpu_loop loop = {s->heads * blocks_of(s), fn};
    const int64_t products = (int64_t)s->tokens * s->heads * size * s->p.latent;
    cpu_run_loops(products < SERIAL_PRODUCTS ? 1 : s->in->limits.threads, &loop, 1, (void *)s);
}

int cpu_latent_check(const attn_instance_t *in, const attn_forward_t *a, attn_error_t *error) {
    const int status = latent_weights_check(&in->p, a, WEIGHT_MAGIC, cpu_latent_weight_bytes(in), error);
    if (status != ATTN_OK || in->shape.q_dtype != CPU_E4M3) return status;
    const float scale = cpu_scale_at(a->scales.q, 0);
    if (scale > 0 && scale <= FLT_MAX) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, "q_scale", "q_scale is %g; expected a positive number",
                     (double)scale);
}

void cpu_latent_pass(const attn_instance_t *in, const attn_forward_t *a, const struct cpu_latent_part *part,
                     const struct cpu_plan *plan, struct cpu_attn *call, char *workspace) {
    const latent_weights_t *header = a->weight_space;
    const int heads = part->heads;
    struct pass s = {.in = in,
                     .a = a,
                     .weights = (const char *)(header + 1),
                     .token0 = part->token0,
                     .tokens = part->tokens,
                     .head0 = part->head0,
                     .heads = heads,
                     .q_scale = cpu_scale_at(a->scales.q, 0),
                     .scratch = workspace,
                     .scratch_step = round_up(in->tiling.scratch_bytes, 64)};
    s.p = (struct cpu_projection){.nope = (int)in->p.qk_nope_head_dim,
                                  .rope = (int)in->p.qk_rope_head_dim,
                                  .latent = (int)in->p.kv_lora_rank,
                                  .value = (int)in->p.v_head_dim,
                                  .q_type = cpu_dtype_of(in->p.dtype),
                                  .y_type = in->shape.out_dtype,
                                  .out_type = cpu_dtype_of(in->plain_dtype),
                                  .w_type = cpu_dtype_of(header->dtype),
                                  .w_scale = header->scale,
                                  .w_columns = (int)latent_floats(in)};
    s.p.w_row = (int64_t)weight_row_bytes(in, s.p.w_type);
    s.p.dots = in->tiling.fast_bf16 && s.p.w_type == CPU_BF16 && s.p.q_type == CPU_BF16;
    s.query = workspace + round_up(cpu_plan_workspace(&in->shape, &in->tiling, &in->limits), 64);
    s.latents = s.query + (size_t)s.tokens * (size_t)heads * query_floats(in) * sizeof(float);
    call->num_q_heads = heads;
    call->q = s.query;
    call->q_head = (int64_t)(query_floats(in) * sizeof(float));
    call->q_token = call->q_head * heads;
    call->out = s.latents;
    call->out_head = (int64_t)(latent_floats(in) * sizeof(float));
    call->out_token = call->out_head * heads;
    project(&s, s.p.nope, absorb_block);
    cpu_plan_run(plan, in->k, call, &in->tiling, &in->limits, workspace, 0);
    project(&s, s.p.value, values_block);
}

void cpu_latent_run(const attn_instance_t *in, const attn_forward_t *a, struct cpu_metadata *m,
                    const struct cpu_plan *plan, struct cpu_attn *call, char *workspace) {
    struct cpu_latent_part part = {.tokens = cpu_plan_tokens(plan), .heads = m->heads_per_pass};
    float *lse = call->lse;
    for (; part.head0 < (int)in->p.num_heads; part.head0 += part.heads) {
        if (lse != NULL) call->lse = lse + part.head0 * call->lse_head;
        cpu_latent_pass(in, a, &part, plan, call, workspace);
    }
}
