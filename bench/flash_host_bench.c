/* SPDX-License-Identifier: Apache-2.0 */
/* The host time of FLASH_ATTN itself: its own code of open, build_metadata and forward over a CUDA runtime and launchers that
 * do nothing, so that what is left is everything but the driver. Needs no GPU. Usage: flash_host_bench */
#include "flash/flash_instance.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The descriptor's part: flash_open checks problems against it. */
const attn_capabilities_t flash_diffkv_capabilities = {.struct_size = sizeof(attn_capabilities_t),
                                                       .roles = ATTN_BIT(ATTN_ROLE_DECODER),
                                                       .dtypes = ATTN_BIT(ATTN_DTYPE_BFLOAT16),
                                                       .features = ~UINT64_C(0)};
const attn_capabilities_t flash_capabilities = {.struct_size = sizeof(attn_capabilities_t),
                                                .preferred_block_size = 16};

/* An H200 that answers at once. */
cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    (void)device;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    (void)device;
    *value = attribute == cudaDevAttrComputeCapabilityMajor             ? 9
             : attribute == cudaDevAttrComputeCapabilityMinor           ? 0
             : attribute == cudaDevAttrMultiProcessorCount              ? 132
             : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin     ? 232448
             : attribute == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? 233472
                                                                        : 0;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t error) {
    (void)error;
    return "";
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    (void)to, (void)from, (void)bytes, (void)kind, (void)stream;
    return cudaSuccess;
}

static long launches;
static volatile int64_t seen; /* so that no argument is computed in vain */
static int launch_decode(const flash_params *p, const flash_decode_config *c, int items, void *stream) {
    (void)stream;
    if (p != NULL) launches++, seen += p->max_rows + c->warps + items;
    return 0;
}
flash_decode_func_t flash_decode_instance(int kv_dtype, int class_index) {
    (void)kv_dtype, (void)class_index;
    return launch_decode;
}
int flash_run_prefill(const flash_params *p, const flash_shape *s, const flash_prefill_config *c, int tiles,
                      const flash_runtime *r, void *stream) {
    (void)s, (void)c, (void)tiles, (void)r, (void)stream;
    launches += p != NULL;
    return 0;
}
int flash_run_prefill_more(const flash_params *p, const flash_prefill_more *m, const flash_shape *s,
                           const flash_prefill_config *c, int tiles, const flash_runtime *r, void *stream) {
    (void)m;
    return flash_run_prefill(p, s, c, tiles, r, stream);
}
int flash_runtime_init(flash_runtime *r, int num_sms, int needs_tensor_maps) {
    (void)needs_tensor_maps;
    r->num_sms = num_sms;
    return 0;
}
int flash_zero_rows(void *out, int64_t rows, int heads, int size, int64_t token, int64_t head, void *stream) {
    (void)out, (void)rows, (void)heads, (void)size, (void)token, (void)head, (void)stream;
    return 0;
}
int flash_merge(const flash_merge_params *p, void *stream) {
    (void)stream;
    launches += p != NULL;
    return 0;
}
int flash_write_cache(const flash_write_params *p, void *stream) {
    (void)stream;
    launches += p != NULL;
    return 0;
}

enum { REQUESTS = 64, KEYS = 8192, CALLS = 20000 };
static attn_error_t error = {.struct_size = sizeof error};
static void need(int status) {
    if (status == ATTN_OK) return;
    fprintf(stderr, "%s: %s\n", error.param, error.text);
    exit(1);
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static DLTensor tensor_of(void *data, uint32_t dtype, int ndim, int64_t *shape, int64_t *strides) {
    DLTensor t = {.data = data, .device = {kDLCUDA, 0}, .ndim = ndim, .shape = shape, .strides = strides};
    t.dtype = attn_dl_dtype(dtype);
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; stride *= shape[i--])
        strides[i] = stride;
    return t;
}

/* Fastest of seven rounds: what the code costs when nobody disturbs it. */
static void report(const char *what, int requests, attn_instance_t *in, const attn_batch_t *batch,
                   const attn_forward_t *call, const attn_space_t *space) {
    double best = 1e30;
    launches = 0;
    for (int round = 0; round < 7; round++) {
        double start = now_ns();
        for (int i = 0; i < CALLS / (call ? 1 : 20); i++)
            need(call ? flash_forward(in, call, space, NULL, &error)
                      : flash_build_metadata(in, batch, space, NULL, &error));
        double ns = (now_ns() - start) / (CALLS / (call ? 1 : 20));
        if (ns < best) best = ns;
    }
    printf("%-14s %2d requests %8.0f ns, %ld launches a call\n", what, requests, best,
           launches / (7L * CALLS));
}

int main(void) {
    const attn_problem_t problem = {.struct_size = sizeof problem,
                                    .role = ATTN_ROLE_DECODER,
                                    .mask = ATTN_MASK_CAUSAL,
                                    .dtype = ATTN_DTYPE_BFLOAT16,
                                    .num_heads = 32,
                                    .num_kv_heads = 8,
                                    .head_size = 128,
                                    .block_size = 16,
                                    .scale = 0.0883883,
                                    .max_num_seqs = REQUESTS,
                                    .max_num_batched_tokens = REQUESTS,
                                    .max_model_len = KEYS};
    const attn_device_t device = {.struct_size = sizeof device, .type = kDLCUDA, .compute_capability = 90};
    attn_instance_t *in;
    need(flash_open(&problem, &device, NULL, 0, NULL, &in, &error));
    attn_space_needed_t needed = {.struct_size = sizeof needed};
    need(flash_space_needed(in, &needed, &error));
    attn_space_t space = {.struct_size = sizeof space,
                          .metadata_bytes = needed.metadata_bytes,
                          .workspace_bytes = needed.workspace_bytes,
                          .host_bytes = needed.host_bytes};
    space.metadata = aligned_alloc(256, needed.metadata_bytes);
    space.workspace = (void *)(uintptr_t)4096; /* nobody reads it */
    space.host = aligned_alloc(256, (needed.host_bytes + 255) / 256 * 256);
    if (space.metadata == NULL || space.host == NULL) return 1;
    static int32_t start[REQUESTS + 1], lens[REQUESTS];
    for (int i = 0; i < REQUESTS; i++)
        start[i + 1] = i + 1, lens[i] = KEYS;
    int64_t table_shape[2] = {REQUESTS, KEYS / 16}, cache_shape[4] = {REQUESTS * KEYS / 16, 8, 16, 256},
            row_shape[3] = {REQUESTS, 32, 128}, strides[4][4];
    void *data = space.workspace;
    DLTensor table = tensor_of(data, ATTN_DTYPE_INT32, 2, table_shape, strides[0]),
             cache = tensor_of(data, ATTN_DTYPE_BFLOAT16, 4, cache_shape, strides[1]),
             query = tensor_of(data, ATTN_DTYPE_BFLOAT16, 3, row_shape, strides[2]),
             output = tensor_of(data, ATTN_DTYPE_BFLOAT16, 3, row_shape, strides[3]);
    const attn_forward_t call = {
        .struct_size = sizeof call, .query = &query, .kv_cache = &cache, .output = &output};
    for (int requests = 1; requests <= REQUESTS; requests *= 8) {
        const attn_batch_t batch = {.struct_size = sizeof batch,
                                    .num_reqs = requests,
                                    .num_actual_tokens = requests,
                                    .query_start_loc_host = start,
                                    .seq_lens_host = lens,
                                    .block_table = &table};
        report("build_metadata", requests, in, &batch, NULL, &space);
        report("forward", requests, in, &batch, &call, &space);
    }
    flash_close(in);
    free(space.metadata), free(space.host);
    return seen == 0;
}
