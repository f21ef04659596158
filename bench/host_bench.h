/* SPDX-License-Identifier: Apache-2.0 */
/* host_bench.h: what the benches of a plugin's own host time share: a CUDA runtime that answers at once and
 * as an H200, the batches, a clock. Included by one file of a program, which defines launchers that do
 * nothing. */
#ifndef ATTN_BENCH_HOST_BENCH_H
#define ATTN_BENCH_HOST_BENCH_H

#include <attn/attn_plugin_util.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ------------------------------------------------------- no CUDA, at no cost */

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
const char *cudaGetErrorString(cudaError_t e) {
    (void)e;
    return "";
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    (void)to, (void)from, (void)bytes, (void)kind, (void)stream;
    return cudaSuccess;
}

/* ------------------------------------------------------------------- batches */

enum { HB_REQS = 1024, HB_TOKENS = 16384, HB_KEYS = 8192, HB_PAGE = 64, HB_PROMPT = 512 };
enum hb_batch { HB_EQUAL, HB_VARIED, HB_MIXED, HB_NUM_BATCHES };
static const char *const hb_batch_names[] = {"decode, lengths equal", "decode, lengths differ",
                                             "with prompts"};
static int32_t hb_starts[HB_REQS + 1], hb_lens[HB_REQS];
static attn_error_t error = {.struct_size = sizeof error};

static void need(int status) {
    if (status == ATTN_OK) return;
    fprintf(stderr, "%s: %s\n", error.param, error.text);
    exit(1);
}

/* Decoding requests of 8192 keys, or of 1 to 8192; or the latter with a prompt of 512 new tokens in every
 * eighth place (16 at most), at the end as engines order them. */
static attn_batch_t hb_batch_of(enum hb_batch kind, int32_t num_reqs, const DLTensor *table) {
    const int32_t eighth = (num_reqs + 7) / 8, prompts = kind != HB_MIXED ? 0 : eighth < 16 ? eighth : 16;
    uint32_t random = 12345;
    for (int32_t r = 0; r < num_reqs; r++) {
        random = random * 1664525u + 1013904223u;
        const int32_t query = r >= num_reqs - prompts ? HB_PROMPT : 1;
        const int32_t keys = kind == HB_EQUAL ? HB_KEYS : 1 + (int32_t)(random >> 19);
        hb_starts[r + 1] = hb_starts[r] + query;
        hb_lens[r] = keys < query ? query : keys;
    }
    return (attn_batch_t){.struct_size = sizeof(attn_batch_t),
                          .num_reqs = num_reqs,
                          .num_actual_tokens = hb_starts[num_reqs],
                          .query_start_loc_host = hb_starts,
                          .seq_lens_host = hb_lens,
                          .block_table = table};
}

static DLTensor tensor_of(void *data, uint32_t dtype, int ndim, int64_t *shape, int64_t *strides) {
    DLTensor t = {.data = data, .device = {kDLCUDA, 0}, .ndim = ndim, .shape = shape, .strides = strides};
    t.dtype = attn_dl_dtype(dtype);
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; stride *= shape[i--])
        strides[i] = stride;
    return t;
}

/* The tensor of an operation's calls and its buffers; nobody reads what lies on the device. */
static attn_space_t hb_space_of(const attn_space_needed_t *needed) {
    attn_space_t s = {.struct_size = sizeof s,
                      .metadata_bytes = needed->metadata_bytes,
                      .workspace_bytes = needed->workspace_bytes,
                      .host_bytes = needed->host_bytes};
    s.metadata = s.workspace = (void *)(uintptr_t)4096;
    s.host = aligned_alloc(256, (needed->host_bytes + 255) / 256 * 256);
    if (s.host == NULL) exit(1);
    return s;
}

/* ---------------------------------------------------------- what is measured */

static long launches;
static int launch(const void *params) {
    launches += params != NULL;
    return 0;
}

static attn_instance_t *in;
static attn_batch_t batch;
static attn_forward_t forward;
static attn_space_t space;
static DLTensor table;

static int build(void); /* the program's */
static void prepare(enum hb_batch kind, int32_t requests) {
    batch = hb_batch_of(kind, requests, &table);
    need(build());
}

/* ---------------------------------------------------------------------- time */

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Nanoseconds of a call, the fastest of seven rounds of about 3 ms: what the code costs when nobody disturbs
 * it. */
static double hb_time(int (*call)(void)) {
    double best = 1e30, first = now_ns();
    need(call());
    first = now_ns() - first;
    const int calls = first > 1e6 ? 3 : (int)(3e6 / (first + 100)) + 1;
    for (int round = 0; round < 7; round++) {
        double start = now_ns();
        for (int i = 0; i < calls; i++)
            need(call());
        const double ns = (now_ns() - start) / calls;
        if (ns < best) best = ns;
    }
    return best;
}

/* One line: a time for 1, 8, 64, 256 and 1024 requests, from prepare(kind, requests) and call. */
static void hb_row(const char *what, enum hb_batch kind, void (*prepare)(enum hb_batch, int32_t),
                   int (*call)(void)) {
    printf("%-16s %-22s", what, hb_batch_names[kind]);
    for (int32_t n = 1; n <= HB_REQS; n = n == 64 ? 256 : n == 256 ? 1024 : n * 8) {
        prepare(kind, n);
        printf(" %9.0f", hb_time(call));
    }
    printf("\n");
}

static void hb_head(const char *backend) {
    printf("%-39s %9s %9s %9s %9s %9s\n", backend, "1", "8", "64", "256", "1024");
}

#endif
