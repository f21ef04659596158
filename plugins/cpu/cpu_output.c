/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised outputs (semantics 7.7): attention writes the model's type into the workspace, and every token's
 * row becomes e4m3 from there, in pieces of one scale. */
#include "../common/output_scales.h"
#include "cpu_instance.h"
#include "cpu_threads.h"

#include <math.h>

enum { MAX_GROUP = 128, SERIAL_VALUES = 1 << 15 };

static size_t row_values(const attn_instance_t *in) {
    return (size_t)in->p.num_heads * attn_output_size(&in->p);
}

size_t cpu_output_bytes(const attn_instance_t *in) {
    if (!output_is_quantised(in->features)) return 0;
    return (size_t)in->limits.max_tokens * row_values(in) * attn_dtype_size(in->plain_dtype);
}

int cpu_output_check(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens,
                     attn_error_t *error) {
    const int status = call_check_rows(a->output, "output", in->out_dtype, in->p.num_heads,
                                       attn_output_size(&in->p), tokens, error);
    return status == ATTN_OK ? output_scales_check(a, in->features, (int64_t)row_values(in), tokens, error)
                             : status;
}

const DLTensor *cpu_output_plain(const attn_instance_t *in, const attn_forward_t *a, void *workspace,
                                 struct cpu_plain_output *plain) {
    if (!output_is_quantised(in->features)) return a->output;
    const int64_t size = attn_output_size(&in->p);
    *plain = (struct cpu_plain_output){.shape = {in->limits.max_tokens, in->p.num_heads, size},
                                       .strides = {in->p.num_heads * size, size, 1}};
    plain->t = (DLTensor){.data = (char *)workspace + in->output_at,
                          .device = {kDLCPU, 0},
                          .ndim = 3,
                          .dtype = attn_dl_dtype(in->plain_dtype),
                          .shape = plain->shape,
                          .strides = plain->strides};
    return &plain->t;
}

struct quantising {
    const attn_instance_t *in;
    const attn_forward_t *a;
    const char *plain; /* [tokens][heads][size] of the type `from` */
    enum cpu_dtype from;
    int64_t heads, size, group;
    size_t element;
    float scale; /* of the tensor; 0: one for each group */
};

/* absmax / 448 of a group, NaN left out. */
static float group_scale(const float *x, int64_t n) {
    float top = 1e-10f;
    for (int64_t i = 0; i < n; i++)
        if (fabsf(x[i]) > top) top = fabsf(x[i]);
    return (float)((double)top / (double)ATTN_E4M3_MAX);
}

/* Values [first, first + n) of a token's row. They may be of several heads, which lie apart in the output. */
static void quantise_group(const struct quantising *s, int64_t token, int64_t first, int64_t n) {
    float x[MAX_GROUP], scratch[MAX_GROUP];
    const struct cpu_kernels *k = s->in->k;
    const DLTensor *scales = s->a->output_block_scale, *out = s->a->output;
    float scale = s->scale;
    k->write_row(s->from, s->plain + (size_t)(token * s->heads * s->size + first) * s->element, (int)n,
                 CPU_F32, 1.0f, (char *)x, NULL, scratch);
    if (scale == 0.0f) {
        scale = group_scale(x, n);
        *((float *)attn_data(scales) + token * scales->strides[0] + first / s->group * scales->strides[1]) =
            scale;
    }
    for (int64_t i = 0; i < n;) {
        const int64_t head = (first + i) / s->size, at = (first + i) % s->size;
        const int64_t piece = s->size - at < n - i ? s->size - at : n - i;
        k->write_row(CPU_F32, (const char *)(x + i), (int)piece, CPU_E4M3, scale,
                     (char *)attn_data(out) + token * out->strides[0] + head * out->strides[1] + at, NULL,
                     scratch);
        i += piece;
    }
}

static void quantise_token(void *arg, int64_t token, int worker) {
    const struct quantising *s = arg;
    const int64_t width = s->heads * s->size;
    (void)worker;
    for (int64_t i = 0; i < width; i += s->group)
        quantise_group(s, token, i, width - i < s->group ? width - i : s->group);
}

void cpu_output_finish(const attn_instance_t *in, const attn_forward_t *a, int32_t tokens,
                       const void *workspace) {
    if (!output_is_quantised(in->features)) return;
    struct quantising s = {.in = in,
                           .a = a,
                           .plain = (const char *)workspace + in->output_at,
                           .from = cpu_dtype_of(in->plain_dtype),
                           .heads = in->p.num_heads,
                           .size = attn_output_size(&in->p),
                           .element = attn_dtype_size(in->plain_dtype),
                           .group = MAX_GROUP};
    if (a->output_scale != NULL)
        s.scale = *(const float *)attn_data(a->output_scale);
    else
        s.group = output_group(a, s.heads * s.size);
    const struct cpu_loop loop = {tokens, quantise_token};
    const int is_small = (size_t)tokens * row_values(in) < SERIAL_VALUES;
    cpu_run_loops(is_small ? 1 : in->limits.threads, &loop, 1, &s);
}
