/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the output and its scales, and the 16-bit output in the workspace where the caller's is
 * quantised. */
#include "../output_scales.h"
#include "mla_instance.h"

int mla_output_is_quantised(const attn_instance_t *in) {
    return output_is_quantised(attn_problem_features(&in->problem));
}

int mla_check_output(const attn_instance_t *in, const attn_forward_t *a, int64_t tokens,
                     attn_error_t *error) {
    const uint64_t features = in->problem.features;
    const int is_quantised = mla_output_is_quantised(in);
    const int step = (features & ATTN_F_OUT_NVFP4) != 0 ? 4 : is_quantised ? 8 : 16;
    int status =
        gpu_check_rows(a->output, "output", is_quantised ? output_storage(features) : in->problem.dtype,
                       in->heads, attn_output_columns(&in->problem), tokens, step, error);
    return status == ATTN_OK && tokens > 0
               ? gpu_check_output_scales(a, attn_problem_features(&in->problem),
                                         (int64_t)in->heads * in->value, tokens, error)
               : status;
}

void mla_output_begin(const attn_instance_t *in, const attn_space_t *s, gpu_output_view *view) {
    gpu_output_view_set(view, (char *)s->workspace + in->output_at, in->device_id, in->problem.dtype,
                        in->limits.max_tokens, in->heads, in->value);
}

int mla_output_finish(const attn_instance_t *in, const attn_forward_t *a, const gpu_output_view *view,
                      int64_t tokens, const mla_counts *counts, void *stream) {
    quantise_params p = gpu_output_params(a, in->problem.features, in->heads, in->value, in->dtype);
    if (counts != NULL)
        p.num_tokens = &counts->num_tokens, p.num_reqs = &counts->num_reqs, p.starts = &counts->starts;
    p.in = view->t.data;
    p.tokens = tokens;
    return in->backend->device->quantise(in, &p, stream);
}
