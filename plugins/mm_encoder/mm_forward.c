/* SPDX-License-Identifier: Apache-2.0 */
/* mm_forward.c: one call. Head sizes that the kernels take go straight to them, whatever the strides of a
 * fused QKV buffer are; fp8 and other head sizes go through dense rows in the workspace. */
#include "mm_instance.h"

/* A dense tensor over workspace rows. */
typedef struct dense {
    DLTensor t;
    int64_t shape[3], strides[3];
} dense_t;

static const DLTensor *make_dense(dense_t *d, void *data, const DLTensor *like, int64_t tokens, int64_t heads,
                                  int64_t size, uint32_t dtype) {
    d->shape[0] = tokens, d->shape[1] = heads, d->shape[2] = size;
    d->strides[0] = heads * size, d->strides[1] = size, d->strides[2] = 1;
    d->t = (DLTensor){.data = data,
                      .device = like->device,
                      .ndim = 3,
                      .dtype = attn_dl_dtype(dtype),
                      .shape = d->shape,
                      .strides = d->strides};
    return &d->t;
}

static int check_space(const mm_instance_t *in, const attn_space_t *s, attn_error_t *error) {
    const attn_space_needed_t *n = &in->needed;
    int status = gpu_check_space(s, n->metadata_bytes, n->host_bytes, error);
    if (status == ATTN_OK && n->workspace_bytes > 0 &&
        (s->workspace == NULL || s->workspace_bytes < n->workspace_bytes))
        status = attn_fail(error, ATTN_E_SPACE, "workspace",
                           "the workspace buffer has %llu bytes; space_needed says %llu",
                           (unsigned long long)(s->workspace ? s->workspace_bytes : 0),
                           (unsigned long long)n->workspace_bytes);
    return status;
}

/* Measure, pack, attend, unpack; the device is current. */
static int run_packed(mm_instance_t *in, const attn_forward_t *a, const attn_space_t *s, mm_call_t *call,
                      const mm_host_header_t *h, void *stream, attn_error_t *error) {
    const mm_layout_t *l = &in->layout;
    char *rows = (char *)s->workspace + in->rows_at;
    mm_pack_params_t *p = &call->pack;
    p->rows = (const int32_t *)(const void *)((const char *)s->metadata + in->count_at);
    p->to[0] = rows + l->q_at, p->to[1] = rows + l->k_at, p->to[2] = rows + l->v_at;
    int e = p->state != NULL ? mm_measure(p, in->num_sms, stream) : 0;
    if (!e) e = mm_pack(p, in->num_sms, stream);
    if (e) return gpu_fail(error, e, "packing rows");
    dense_t q, k, v, out;
    /* with lengths of their own all rows that there is room for, as a captured call wants them */
    const int64_t keys =
        (in->problem.features & ATTN_F_KEY_LENGTHS) != 0 ? batch_max_keys(&in->problem) : h->count[1];
    const uint32_t dtype = mm_inner_problem(&in->problem).dtype;
    attn_forward_t inner = *a;
    inner.scales = (attn_scales_t){NULL, NULL, NULL};
    inner.weight_space = NULL;
    inner.weight_space_bytes = 0;
    inner.query = make_dense(&q, p->to[0], a->query, h->count[0], in->heads, l->head_size, dtype);
    inner.key = make_dense(&k, p->to[1], a->key, keys, in->kv_heads, l->head_size, dtype);
    inner.value = make_dense(&v, p->to[2], a->value, keys, in->kv_heads, l->head_size, dtype);
    inner.output = make_dense(&out, rows + l->out_at, a->output, h->count[0], in->heads, l->head_size, dtype);
    int status = flash_forward(in->inner, &inner, s, stream, error);
    if (status != ATTN_OK) return status;
    e = mm_unpack(p, rows + l->out_at, &call->out, 0, in->num_sms, stream);
    return e ? gpu_fail(error, e, "unpacking rows") : ATTN_OK;
}

/* The profiling run of a head size or type that the kernels do not take. */
static int zero_output(mm_instance_t *in, const attn_forward_t *a, void *stream, attn_error_t *error) {
    mm_rows_t out;
    gpu_device_guard guard;
    int64_t rows =
        a->output != NULL && a->output->ndim == 3 && a->output->shape != NULL ? a->output->shape[0] : 0;
    int status = mm_read_output(in, a->output, rows, &out, error);
    if (status != ATTN_OK || rows == 0) return status;
    status = gpu_enter(in->inner->device_id, &guard, error);
    if (status != ATTN_OK) return status;
    const mm_pack_params_t p = {.d = (int32_t)in->problem.head_size, .padded = (int32_t)in->layout.head_size};
    int e = mm_unpack(&p, NULL, &out, rows, in->num_sms, stream);
    gpu_leave(&guard);
    return e ? gpu_fail(error, e, "the profiling run") : ATTN_OK;
}

int mm_forward(attn_instance_t *instance, const attn_forward_t *args, const attn_space_t *space, void *stream,
               attn_error_t *error) {
    mm_instance_t *in = mm_of(instance);
    attn_forward_t a;
    attn_space_t s;
    mm_call_t call;
    gpu_device_guard guard;
    int status = attn_intake(&a, sizeof a, args, "args", error);
    if (status == ATTN_OK && space != NULL) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status != ATTN_OK) return status;
    if (space == NULL)
        return in->layout.packs ? zero_output(in, &a, stream, error)
                                : flash_forward(in->inner, args, NULL, stream, error);
    status = check_space(in, &s, error);
    if (status != ATTN_OK) return status;
    if (!in->layout.packs) return flash_forward(in->inner, args, space, stream, error);
    const mm_host_header_t *h =
        (const mm_host_header_t *)(const void *)((const char *)s.host + in->header_at);
    if (h->magic != MM_MAGIC)
        return attn_fail(error, ATTN_E_STATE, "metadata",
                         "the metadata was never built, or building it failed; call build_metadata first");
    status = mm_read_call(in, &a, h, &call, error);
    if (status != ATTN_OK || h->count[0] == 0) return status;
    status = gpu_enter(in->inner->device_id, &guard, error);
    if (status != ATTN_OK) return status;
    status = run_packed(in, &a, &s, &call, h, stream, error);
    gpu_leave(&guard);
    return status;
}
