/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised outputs (semantics 7.7): attention writes the model's type into the workspace, and every token's
 * row becomes e4m3 or e2m1 from there, in pieces of one scale. */
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
                                       attn_output_columns(&in->p), tokens, error);
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
    int64_t heads, size;
    size_t element;
    output_groups groups;
    float scale; /* of the tensor */
};

/* NaN is left out, but of 4-bit values, which have none, it is NaN where one is not finite. */
static float greatest(const float *x, int64_t n, int is_fp4) {
    float top = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(x[i]) > top) top = fabsf(x[i]);
        sum += x[i] - x[i]; /* NaN unless all are finite */
    }
    return is_fp4 && sum != 0 ? NAN : top;
}

/* The nearest e2m1 code, ties to the even one, 6 beyond; no NaN. A sum of comparisons, eight at once. */
static uint8_t e2m1_of(float x) {
    const float a = fabsf(x);
    const int code =
        (a > 0.25F) + (a >= 0.75F) + (a > 1.25F) + (a >= 1.75F) + (a > 2.5F) + (a >= 3.5F) + (a > 5);
    return (uint8_t)(code + (signbit(x) ? 8 : 0));
}

/* scale 0: zeros. */
static void write_pairs(const float *x, int64_t n, float scale, uint8_t *out) {
    uint8_t codes[MAX_GROUP] = {0};
    for (int64_t i = 0; scale > 0 && i < n; i++)
        codes[i] = e2m1_of(x[i] / scale);
    for (int64_t i = 0; i < n; i += 2)
        out[i / 2] = (uint8_t)(codes[i] | codes[i + 1] << 4);
}

/* Values [first, first + n) of a token's row. They may be of several heads, which lie apart in the output. */
static void quantise_group(const struct quantising *s, int64_t token, int64_t first, int64_t n) {
    float x[MAX_GROUP], scratch[MAX_GROUP], scale = s->scale;
    const struct cpu_kernels *k = s->in->k;
    const DLTensor *out = s->a->output;
    const int is_fp4 = s->groups.kind == OUTPUT_NVFP4;
    k->write_row(s->from, s->plain + (size_t)(token * s->heads * s->size + first) * s->element, (int)n,
                 CPU_F32, 1.0f, (char *)x, NULL, scratch);
    if (s->groups.size != 0) /* not static */
        scale = output_put_scale(&s->groups, token, first / s->groups.size, (double)greatest(x, n, is_fp4),
                                 s->scale);
    for (int64_t i = 0; i < n;) {
        const int64_t head = (first + i) / s->size, at = (first + i) % s->size;
        const int64_t piece = s->size - at < n - i ? s->size - at : n - i;
        char *to = (char *)attn_data(out) + token * out->strides[0] + head * out->strides[1];
        if (is_fp4)
            write_pairs(x + i, piece, scale, (uint8_t *)to + at / 2);
        else
            k->write_row(CPU_F32, (const char *)(x + i), (int)piece, CPU_E4M3, scale, to + at, NULL, scratch);
        i += piece;
    }
}

static void quantise_token(void *arg, int64_t token, int worker) {
    const struct quantising *s = arg;
    const int64_t width = s->heads * s->size, step = s->groups.size != 0 ? s->groups.size : MAX_GROUP;
    (void)worker;
    for (int64_t i = 0; i < width; i += step)
        quantise_group(s, token, i, width - i < step ? width - i : step);
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
                           .groups = output_groups_of(a, in->features, (int64_t)row_values(in)),
                           .scale = 1};
    if (a->output_scale != NULL) s.scale = *(const float *)attn_data(a->output_scale);
    const struct cpu_loop loop = {tokens, quantise_token};
    const int is_small = (size_t)tokens * row_values(in) < SERIAL_VALUES;
    cpu_run_loops(is_small ? 1 : in->limits.threads, &loop, 1, &s);
}
