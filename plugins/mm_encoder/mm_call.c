/* SPDX-License-Identifier: Apache-2.0 */
/* mm_call.c: the tensors and scales of one call, checked and turned into what the copying kernels read. */
#include "mm_instance.h"

#include <math.h>

/* What the kernels write is what the header says. */
_Static_assert(sizeof(pack_fp8_state) == sizeof(attn_fp8_state_t) &&
                   offsetof(pack_fp8_state, scale) == offsetof(attn_fp8_state_t, scale) &&
                   offsetof(pack_fp8_state, calls) == offsetof(attn_fp8_state_t, calls),
               "pack_fp8_state is attn_fp8_state_t");

static int check_device(const DLTensor *t, const char *name, attn_error_t *error) {
    if (t->device.device_type == kDLCUDA || t->device.device_type == kDLCUDAManaged) return ATTN_OK;
    return attn_fail(error, ATTN_E_INVALID, name, "%s is on device type %d; expected a CUDA tensor", name,
                     (int)t->device.device_type);
}

/* Any strides and any address that the elements allow: these rows are copied. */
static int read_rows(const mm_instance_t *in, const DLTensor *t, const char *name, uint32_t heads,
                     int64_t tokens, mm_rows_t *rows, attn_error_t *error) {
    const int64_t shape[3] = {-1, heads, in->problem.head_size};
    int status = attn_check_tensor(t, name, in->problem.dtype, 3, shape, error);
    if (status != ATTN_OK) return status;
    if (t->shape[0] < tokens)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %lld rows; the batch has %lld", name,
                         (long long)t->shape[0], (long long)tokens);
    if (tokens == 0) return ATTN_OK;
    status = check_device(t, name, error);
    if (status != ATTN_OK) return status;
    rows->data = attn_data(t);
    rows->token = t->shape[0] > 1 ? t->strides[0] : 0;
    rows->head = heads > 1 ? t->strides[1] : 0;
    rows->heads = (int32_t)heads;
    if ((uintptr_t)rows->data % 2 != 0)
        return attn_fail(error, ATTN_E_INVALID, name, "%s begins at %p, between two elements", name,
                         rows->data);
    rows->is_aligned =
        ((uintptr_t)rows->data % 16 | (uint64_t)rows->token % 8 | (uint64_t)rows->head % 8) == 0;
    return ATTN_OK;
}

static int read_scale(const DLTensor *t, const char *name, float *value, const float **at,
                      attn_error_t *error) {
    *value = 1;
    *at = NULL;
    if (t == NULL) return ATTN_OK;
    int status = attn_check_tensor(t, name, ATTN_DTYPE_FLOAT32, 1, NULL, error);
    if (status != ATTN_OK) return status;
    if (t->shape[0] != 1)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %lld elements; fp8 attention takes 1", name,
                         (long long)t->shape[0]);
    if (t->device.device_type != kDLCPU && t->device.device_type != kDLCUDAHost) {
        *at = attn_data(t);
        return check_device(t, name, error);
    }
    *value = *(const float *)attn_data(t);
    if (!(*value > 0) || !isfinite(*value))
        return attn_fail(error, ATTN_E_INVALID, name, "%s is %g; expected a positive number", name,
                         (double)*value);
    return ATTN_OK;
}

static int read_scales(const mm_instance_t *in, const attn_forward_t *a, const mm_host_header_t *h,
                       mm_pack_params_t *p, attn_error_t *error) {
    const DLTensor *given[3] = {a->scales.q, a->scales.k, a->scales.v};
    static const char *const names[3] = {"q_scale", "k_scale", "v_scale"};
    int status = ATTN_OK;
    for (int i = 0; i < 3 && status == ATTN_OK; i++)
        status = read_scale(given[i], names[i], &p->scale[i], &p->scale_at[i], error);
    if (status != ATTN_OK || a->weight_space == NULL) return status;
    if (!in->is_fp8)
        return attn_fail(error, ATTN_E_INVALID, "weight_space",
                         "weight_space is given, but the problem has no fp8_attention");
    if (a->weight_space_bytes < sizeof(attn_fp8_state_t))
        return attn_fail(error, ATTN_E_SPACE, "weight_space",
                         "weight_space has %llu bytes; space_needed says %zu",
                         (unsigned long long)a->weight_space_bytes, sizeof(attn_fp8_state_t));
    if (given[0] != NULL || given[1] != NULL || given[2] != NULL)
        return attn_fail(error, ATTN_E_INVALID, "scales",
                         "scales and weight_space are both given; static scales or a state for dynamic ones");
    if (h->flags & ATTN_BATCH_CAPTURE)
        return attn_fail(
            error, ATTN_E_STATE, "weight_space",
            "dynamic fp8 scales do not go with a captured graph, whose replays nobody counts; give static "
            "scales");
    p->state = (pack_fp8_state *)(uintptr_t)a->weight_space; /* written in this one use of it */
    return ATTN_OK;
}

int mm_read_output(const mm_instance_t *in, const DLTensor *output, int64_t tokens, mm_rows_t *rows,
                   attn_error_t *error) {
    return read_rows(in, output, "output", in->heads, tokens, rows, error);
}

int mm_read_call(const mm_instance_t *in, const attn_forward_t *a, const mm_host_header_t *h, mm_call_t *call,
                 attn_error_t *error) {
    mm_pack_params_t *p = &call->pack;
    *call = (mm_call_t){.pack = {.d = (int32_t)in->problem.head_size,
                                 .padded = (int32_t)in->layout.head_size,
                                 .is_bf16 = in->problem.dtype == ATTN_DTYPE_BFLOAT16,
                                 .is_fp8 = in->is_fp8}};
    int status = read_rows(in, a->query, "query", in->heads, h->count[0], &p->from[0], error);
    if (status == ATTN_OK)
        status = read_rows(in, a->key, "key", in->kv_heads, h->count[1], &p->from[1], error);
    if (status == ATTN_OK)
        status = read_rows(in, a->value, "value", in->kv_heads, h->count[1], &p->from[2], error);
    if (status == ATTN_OK) status = mm_read_output(in, a->output, h->count[0], &call->out, error);
    return status == ATTN_OK ? read_scales(in, a, h, p, error) : status;
}
