/* SPDX-License-Identifier: Apache-2.0 */
/* attn_merge.h on CUDA devices: tensors that the host has checked become the kernels' parameters. What is
 * checked here is only what the kernels' parameters cannot hold. */
#include "gpu_merge.h"
#include "gpu_device.h"
#include "kernels/cuda/merge/merge_params.h"

#include <string.h>

static int type_of(const DLTensor *t) {
    switch (attn_dtype_of(t->dtype)) {
    case ATTN_DTYPE_FLOAT32:
        return MERGE_F32;
    case ATTN_DTYPE_FLOAT16:
        return MERGE_F16;
    case ATTN_DTYPE_BFLOAT16:
        return MERGE_BF16;
    case ATTN_DTYPE_FP8_E4M3:
        return MERGE_E4M3;
    case ATTN_DTYPE_FP8_E5M2:
        return MERGE_E5M2;
    default:
        return MERGE_F64;
    }
}

/* Whether four neighbours can be loaded at once anywhere in a state's rows. */
static int is_in_fours(const DLTensor *t) {
    const uint64_t odd = (uint64_t)(t->dtype.bits / 8) * 4 - 1;
    return t->strides[2] == 1 && t->shape[2] % 4 == 0 && ((uintptr_t)attn_data(t) & odd) == 0 &&
           ((uint64_t)attn_byte_stride(t, 0) & odd) == 0 && ((uint64_t)attn_byte_stride(t, 1) & odd) == 0;
}

/* Entered on the device of t, and left again. */
static int run_states(const merge_states_params *p, const DLTensor *t, void *stream, attn_error_t *error) {
    gpu_device_guard guard;
    int code = gpu_enter(t->device.device_id, &guard, error);
    if (code != ATTN_OK) return code;
    const int e = merge_states_run(p, stream);
    gpu_leave(&guard);
    return e ? gpu_fail(error, e, "merging states") : ATTN_OK;
}

static void set_lse(merge_state *s, const DLTensor *lse) {
    s->lse = attn_data(lse), s->lse_head = lse->strides[0], s->lse_token = lse->strides[1];
}

static void set_output(merge_state *s, const DLTensor *output) {
    s->output = attn_data(output), s->type = type_of(output);
    s->token = output->strides[0], s->head = output->strides[1];
}

/* What both functions have; the states' LSE follow. */
static int begin(merge_states_params *p, int32_t num_states, int64_t num_tokens, const DLTensor *sinks,
                 const DLTensor *output, const DLTensor *lse, attn_error_t *error) {
    if (num_states > MERGE_MAX_STATES)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "num_states",
                         "num_states is %d; at most %d are merged at once on a device", (int)num_states,
                         MERGE_MAX_STATES);
    memset(p, 0, sizeof *p);
    p->output = attn_data(output), p->type = type_of(output);
    p->token = output->strides[0], p->head = output->strides[1];
    p->heads = (int32_t)output->shape[1], p->size = (int32_t)output->shape[2];
    p->tokens = num_tokens, p->num_states = num_states;
    p->width = is_in_fours(output) ? 4 : 1;
    if (sinks != NULL) p->sinks = attn_data(sinks), p->sink = sinks->strides[0];
    if (lse != NULL) p->lse = attn_data(lse), p->lse_head = lse->strides[0], p->lse_token = lse->strides[1];
    return ATTN_OK;
}

static int merge_states(const attn_state_t *states, int32_t num_states, int64_t num_tokens,
                        const DLTensor *sinks, const DLTensor *output, const DLTensor *lse, void *stream,
                        attn_error_t *error) {
    merge_states_params p;
    int code = begin(&p, num_states, num_tokens, sinks, output, lse, error);
    for (int32_t i = 0; i < num_states && code == ATTN_OK; i++) {
        set_output(&p.states[i], states[i].output);
        set_lse(&p.states[i], states[i].lse);
        if (!is_in_fours(states[i].output)) p.width = 1;
    }
    p.last = num_states;
    return code != ATTN_OK ? code : run_states(&p, output, stream, error);
}

static int merge_weigh(const DLTensor *output, const DLTensor *const *lses, int32_t num_states, int32_t own,
                       int64_t num_tokens, const DLTensor *sinks, const DLTensor *weighed,
                       const DLTensor *lse, void *stream, attn_error_t *error) {
    merge_states_params p;
    int code = begin(&p, num_states, num_tokens, sinks, weighed, lse, error);
    if (code != ATTN_OK) return code;
    for (int32_t i = 0; i < num_states; i++)
        set_lse(&p.states[i], lses[i]);
    set_output(&p.states[own], output);
    if (!is_in_fours(output)) p.width = 1;
    p.first = own, p.last = own + 1;
    return run_states(&p, weighed, stream, error);
}

/* ------------------------------------------------------------------------ rows */

/* The largest power of two, at most 16, of which the addresses and all strides but the last are multiples,
 * and the last dimension of `bytes`. */
static int32_t copy_unit(const merge_rows_params *p, int64_t bytes) {
    uint64_t all = (uint64_t)(uintptr_t)p->from | (uint64_t)(uintptr_t)p->to | (uint64_t)bytes | 16;
    for (int32_t d = 0; d + 1 < p->dims; d++)
        all |= (uint64_t)p->from_stride[d] | (uint64_t)p->to_stride[d];
    return (int32_t)(all & (~all + 1));
}

/* The dimensions of both sides without those of size 1, and neighbours joined where both sides allow; the
 * first stays where rows chooses of it. */
static void set_dims(merge_rows_params *p, const DLTensor *from, const DLTensor *to, const int64_t *shape,
                     int has_rows) {
    p->dims = 0;
    for (int i = 0; i < to->ndim; i++) {
        const int64_t f = attn_byte_stride(from, i), t = attn_byte_stride(to, i);
        const int32_t last = p->dims - 1;
        if (shape[i] == 1 && !(i == 0 && has_rows)) continue;
        if (last >= (has_rows ? 1 : 0) && p->from_stride[last] == shape[i] * f &&
            p->to_stride[last] == shape[i] * t) {
            p->shape[last] *= shape[i], p->from_stride[last] = f, p->to_stride[last] = t;
            continue;
        }
        p->shape[p->dims] = shape[i], p->from_stride[p->dims] = f, p->to_stride[p->dims] = t;
        p->dims++;
    }
    if (p->dims == 0) p->dims = 1, p->shape[0] = 1;
}

/* Neighbours of the last dimension go in units, of bytes or of elements to convert. A unit is one entry of a
 * last dimension of its own where a list chooses of the only one. */
static void set_units(merge_rows_params *p, int32_t from_bytes, int32_t to_bytes, int has_rows) {
    const int32_t last = p->dims - 1;
    const int is_dense =
        !(has_rows && last == 0) && p->from_stride[last] == from_bytes && p->to_stride[last] == to_bytes;
    if (p->is_plain) {
        const int64_t bytes = p->shape[last] * from_bytes;
        p->unit = is_dense ? copy_unit(p, bytes) : from_bytes;
        if (!is_dense) return;
        p->shape[last] = bytes / p->unit;
        p->from_stride[last] = p->to_stride[last] = p->unit;
        return;
    }
    p->unit = is_dense && p->shape[last] % 8 == 0 ? 8 : 1;
    p->shape[last] /= p->unit, p->from_stride[last] *= p->unit, p->to_stride[last] *= p->unit;
}

static int move_rows(const DLTensor *from, const DLTensor *rows, int is_scatter, const DLTensor *scale,
                     const DLTensor *to, void *stream, attn_error_t *error) {
    int64_t shape[MERGE_MAX_DIMS];
    merge_rows_params p = {.from = attn_data(from),
                           .to = attn_data(to),
                           .rows = rows != NULL ? attn_data(rows) : NULL,
                           .scale = scale != NULL ? attn_data(scale) : NULL,
                           .indexed = is_scatter ? to->shape[0] : from->shape[0],
                           .is_scatter = is_scatter,
                           .is_plain =
                               from->dtype.code == to->dtype.code && from->dtype.bits == to->dtype.bits,
                           .from_type = type_of(from),
                           .to_type = type_of(to)};
    for (int i = 0; i < to->ndim; i++)
        shape[i] = from->shape[i];
    if (rows != NULL) shape[0] = rows->shape[0];
    if (p.is_plain && (from->dtype.bits > 64 || (from->dtype.bits & (from->dtype.bits - 1)) != 0))
        return attn_fail(error, ATTN_E_UNSUPPORTED, "from",
                         "from has elements of %d bits; 8, 16, 32 or 64 are copied on a device",
                         (int)from->dtype.bits);
    if (rows != NULL && rows->strides[0] != 1 && rows->shape[0] > 1)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "rows", "rows has stride %lld; on a device it must be 1",
                         (long long)rows->strides[0]);
    set_dims(&p, from, to, shape, rows != NULL);
    set_units(&p, from->dtype.bits / 8, to->dtype.bits / 8, rows != NULL);
    p.count = 1;
    for (int32_t d = 0; d < p.dims; d++)
        p.count *= p.shape[d];
    if (p.count == 0) return ATTN_OK;
    gpu_device_guard guard;
    int code = gpu_enter(to->device.device_id, &guard, error);
    if (code != ATTN_OK) return code;
    const int e = merge_rows_run(&p, stream);
    gpu_leave(&guard);
    return e ? gpu_fail(error, e, "copying rows") : ATTN_OK;
}

static int rows_copy(const DLTensor *from, const DLTensor *scale, const DLTensor *to, void *stream,
                     attn_error_t *error) {
    return move_rows(from, NULL, 0, scale, to, stream, error);
}
static int rows_gather(const DLTensor *from, const DLTensor *rows, const DLTensor *scale, const DLTensor *to,
                       void *stream, attn_error_t *error) {
    return move_rows(from, rows, 0, scale, to, stream, error);
}
static int rows_scatter(const DLTensor *from, const DLTensor *rows, const DLTensor *scale, const DLTensor *to,
                        void *stream, attn_error_t *error) {
    return move_rows(from, rows, 1, scale, to, stream, error);
}

const attn_merge_table_t gpu_merge_table = {.struct_size = sizeof(attn_merge_table_t),
                                            .device_type = kDLCUDA,
                                            .merge_states = merge_states,
                                            .merge_weigh = merge_weigh,
                                            .rows_copy = rows_copy,
                                            .rows_gather = rows_gather,
                                            .rows_scatter = rows_scatter,
                                            .peers_query = gpu_peers_query,
                                            .peers_join = gpu_peers_join};

const void *gpu_merge_extension(attn_instance_t *instance, const char *id) {
    (void)instance;
    return id != NULL && strcmp(id, ATTN_MERGE_EXTENSION) == 0 ? &gpu_merge_table : NULL;
}
