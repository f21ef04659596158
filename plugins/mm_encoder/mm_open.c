/* SPDX-License-Identifier: Apache-2.0 */
/* mm_open.c: opening, buffers, metadata: flash's, and room for the copied rows and the number of tokens. */
#include "mm_instance.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

int mm_supports(const attn_problem_t *problem, const attn_device_t *device, attn_reasons_t *reasons) {
    attn_problem_t p;
    char have[32];
    int status = attn_intake(&p, sizeof p, problem, "problem", NULL);
    if (status != ATTN_OK) return status;
    if (p.role != ATTN_ROLE_MM_ENCODER)
        attn_add_reason(reasons, ATTN_REASON_ATTN_TYPE, "role", attn_role_name(p.role), "mm_encoder",
                        "role %s is not served; this backend is for multimodal encoders",
                        attn_role_name(p.role));
    if (p.head_size == 0 || p.head_size > 256) {
        snprintf(have, sizeof have, "%u", p.head_size);
        attn_add_reason(reasons, ATTN_REASON_HEAD_SIZE, "head_size", have, "1 to 256",
                        "head_size is %u; 1 to 256 are served", p.head_size);
        return ATTN_OK; /* the padded size would say it a second time */
    }
    if (p.head_size_v != 0 && p.head_size_v != p.head_size) {
        snprintf(have, sizeof have, "%u", p.head_size_v);
        attn_add_reason(reasons, ATTN_REASON_HEAD_SIZE, "head_size_v", have, "0 or head_size",
                        "head_size_v is %u with head_size %u; values have the keys' size here", p.head_size_v,
                        p.head_size);
    }
    if (p.out_dtype != 0 && p.out_dtype != p.dtype)
        attn_add_reason(reasons, ATTN_REASON_OUT_DTYPE, "out_dtype", attn_dtype_name(p.out_dtype),
                        attn_dtype_name(p.dtype), "the output has the dtype of the query");
    attn_problem_t inner = mm_inner_problem(&p);
    return flash_supports(&inner, device, reasons);
}

static void lay_out(mm_instance_t *in) {
    attn_space_needed_t *n = &in->needed;
    *n = in->inner_needed;
    in->count_at = round_up(n->metadata_bytes, 256);
    in->header_at = round_up(n->host_bytes, 64);
    in->rows_at = round_up(n->workspace_bytes, 256);
    n->metadata_bytes = in->count_at + 256;
    n->host_bytes = in->header_at + sizeof(mm_host_header_t);
    if (in->layout.packs) n->workspace_bytes = in->rows_at + in->layout.bytes;
    n->weight_bytes = in->is_fp8 ? sizeof(attn_fp8_state_t) : 0;
}

static int prepare(mm_instance_t *in, attn_error_t *error) {
    gpu_device_guard guard;
    int status = gpu_enter(in->inner->device_id, &guard, error);
    if (status != ATTN_OK) return status;
    int e = (int)cudaDeviceGetAttribute(&in->num_sms, cudaDevAttrMultiProcessorCount, in->device_id);
    if (!e) e = mm_pack_prepare();
    gpu_leave(&guard);
    return e ? gpu_fail(error, e, "loading the kernels") : ATTN_OK;
}

int mm_open(const attn_problem_t *problem, const attn_device_t *device, const attn_option_value_t *options,
            uint32_t num_options, const attn_host_t *host, attn_instance_t **instance, attn_error_t *error) {
    attn_problem_t p;
    attn_device_t dev;
    int status = attn_intake(&p, sizeof p, problem, "problem", error);
    if (status == ATTN_OK) status = attn_intake_known(&dev, sizeof dev, device, "device", error);
    if (status == ATTN_OK)
        status = problem_check(&p, &dev, &mm_capabilities, "MM_ENCODER_ATTN", mm_supports, error);
    if (status != ATTN_OK) return status;
    mm_instance_t *in = calloc(1, sizeof *in);
    if (in == NULL)
        return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an instance of %zu bytes",
                         sizeof *in);
    attn_problem_t inner = mm_inner_problem(&p);
    in->problem = p;
    in->is_fp8 = (p.features & ATTN_F_FP8_ATTENTION) != 0;
    in->heads = p.num_heads;
    in->kv_heads = p.num_kv_heads != 0 ? p.num_kv_heads : p.num_heads;
    in->device_id = dev.id;
    in->inner_needed.struct_size = sizeof in->inner_needed;
    mm_layout_of(&p, &in->layout);
    status = flash_open(&mm_inner_backend, &inner, &dev, options, num_options, host, &in->inner, error);
    if (status == ATTN_OK) status = flash_space_needed(in->inner, &in->inner_needed, error);
    if (status == ATTN_OK) status = prepare(in, error);
    if (status != ATTN_OK) {
        flash_close(in->inner);
        free(in);
        return status;
    }
    lay_out(in);
    *instance = (attn_instance_t *)(void *)in;
    return ATTN_OK;
}

void mm_close(attn_instance_t *instance) {
    if (instance == NULL) return;
    flash_close(mm_of(instance)->inner);
    free(instance);
}

int mm_kv_cache_shape(attn_instance_t *instance, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                      attn_error_t *error) {
    return flash_kv_cache_shape(mm_of(instance)->inner, num_blocks, shape, error);
}

int mm_space_needed(attn_instance_t *instance, attn_space_needed_t *needed, attn_error_t *error) {
    return attn_give(needed, &mm_of(instance)->needed, sizeof mm_of(instance)->needed, "needed", error);
}

int mm_build_metadata(attn_instance_t *instance, const attn_batch_t *batch, const attn_space_t *space,
                      void *stream, attn_error_t *error) {
    mm_instance_t *in = mm_of(instance);
    attn_batch_t b;
    attn_space_t s;
    int status = attn_intake(&b, sizeof b, batch, "batch", error);
    if (status == ATTN_OK) status = attn_intake(&s, sizeof s, space, "space", error);
    if (status == ATTN_OK)
        status = gpu_check_space(&s, in->needed.metadata_bytes, in->needed.host_bytes, error);
    if (status != ATTN_OK) return status;
    mm_host_header_t *h = (mm_host_header_t *)(void *)((char *)s.host + in->header_at);
    h->magic = 0;
    status = flash_build_metadata(in->inner, batch, space, stream, error);
    if (status != ATTN_OK) return status;
    const int has_keys = (in->problem.features & ATTN_F_KEY_LENGTHS) != 0 && b.num_reqs > 0;
    h->count[0] = b.num_actual_tokens;
    h->count[1] = has_keys ? b.key_start_loc_host[b.num_reqs] : b.num_actual_tokens;
    h->flags = b.flags;
    gpu_device_guard guard;
    status = gpu_enter(in->inner->device_id, &guard, error);
    if (status != ATTN_OK) return status;
    cudaError_t e = in->layout.packs
                        ? cudaMemcpyAsync((char *)s.metadata + in->count_at, h->count, sizeof h->count,
                                          cudaMemcpyHostToDevice, (cudaStream_t)stream)
                        : cudaSuccess;
    gpu_leave(&guard);
    if (e != cudaSuccess) return gpu_fail(error, (int)e, "copying the metadata");
    h->magic = MM_MAGIC;
    return ATTN_OK;
}

int mm_prepare_weights(attn_instance_t *instance, const attn_weights_t *weights, void *stream,
                       attn_error_t *error) {
    mm_instance_t *in = mm_of(instance);
    attn_weights_t w;
    int status = attn_intake(&w, sizeof w, weights, "weights", error);
    if (status != ATTN_OK) return status;
    if (!in->is_fp8)
        return attn_fail(error, ATTN_E_STATE, "features",
                         "the problem has no fp8_attention, so a layer has nothing to prepare");
    if (w.kv_b_proj != NULL)
        return attn_fail(error, ATTN_E_INVALID, "kv_b_proj",
                         "kv_b_proj is given; role mm_encoder has no weights");
    if (w.weight_space == NULL || w.weight_space_bytes < sizeof(attn_fp8_state_t))
        return attn_fail(
            error, ATTN_E_SPACE, "weight_space", "weight_space has %llu bytes; space_needed says %zu",
            (unsigned long long)(w.weight_space ? w.weight_space_bytes : 0), sizeof(attn_fp8_state_t));
    gpu_device_guard guard;
    status = gpu_enter(in->inner->device_id, &guard, error);
    if (status != ATTN_OK) return status;
    cudaError_t e = cudaMemsetAsync(w.weight_space, 0, sizeof(attn_fp8_state_t), (cudaStream_t)stream);
    gpu_leave(&guard);
    return e == cudaSuccess ? ATTN_OK : gpu_fail(error, (int)e, "clearing the state");
}
