/* SPDX-License-Identifier: Apache-2.0 */
/* attn.draft.rope_write/0 of triton_like against the reference, bit for bit: the numbers of
 * tests/plugins/reference/rope_case.h are exact. Then a captured call with other positions, and what is
 * refused. TRITON_TEST_PLUGINS: folder of the plugins. */
#include "../plugins/reference/rope_case.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

static const attn_rope_extension_t *triton, *reference;
static attn_device_t gpu = {.struct_size = sizeof gpu, .type = kDLCUDA},
                     cpu = {.struct_size = sizeof cpu, .type = kDLCPU};

static void *host_alloc(size_t bytes) {
    return calloc(1, bytes + 64);
}
static void *managed_alloc(size_t bytes) {
    void *p = NULL;
    if (cudaMallocManaged(&p, bytes + 64, cudaMemAttachGlobal) != cudaSuccess) bail_out("no managed memory");
    memset(p, 0, bytes + 64);
    return p;
}
static const rope_memory_t host = {host_alloc, kDLCPU}, managed = {managed_alloc, kDLCUDAManaged};

static const attn_rope_extension_t *extension_of(const char *dir, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.so", dir, name);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const attn_plugin_t *plugin = so ? dlsym(so, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    const attn_rope_extension_t *x =
        plugin ? plugin->backends[0]->ops->get_extension(NULL, ATTN_ROPE_EXTENSION) : NULL;
    if (x == NULL) bail_out("%s has no %s", path, ATTN_ROPE_EXTENSION);
    return x;
}

static int equal(const rope_case_t *a, const rope_case_t *b) {
    return memcmp(a->query.t.data, b->query.t.data, a->query_bytes) == 0 &&
           memcmp(a->key.t.data, b->key.t.data, a->key_bytes) == 0 &&
           memcmp(a->value.t.data, b->value.t.data, a->value_bytes) == 0 &&
           memcmp(a->kv_cache.t.data, b->kv_cache.t.data, a->cache_bytes) == 0;
}

static float *scales;

/* Both on the same numbers; the first one captured and replayed with other positions where `stream` is
 * given. */
static void one(int i, uint64_t seed, cudaStream_t stream) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_rope_t *ours = NULL, *theirs = NULL;
    rope_case_t a, b;
    rope_choose(&a, i);
    rope_choose(&b, i);
    rope_fill(&a, &managed, seed);
    rope_fill(&b, &host, seed);
    a.problem.attention = &a.attention, b.problem.attention = &b.attention;
    int rc = triton->open(&a.problem, &gpu, NULL, 0, NULL, &ours, &e);
    if (rc == ATTN_OK) rc = reference->open(&b.problem, &cpu, NULL, 0, NULL, &theirs, &e);
    attn_rope_write_t write = rope_args(&a), want = rope_args(&b);
    rope_tensor_t s[4];
    for (int n = 0; n < 4; n++)
        rope_over(&s[n], scales + n % 2, ATTN_DTYPE_FLOAT32, n < 2 ? kDLCUDAManaged : kDLCPU, 1,
                  (const int64_t[]){1}, NULL);
    if (attn_kv_is_quantized(a.attention.kv_cache_dtype) &&
        !attn_kv_is_per_token_head(a.attention.kv_cache_dtype)) {
        write.scales.k = &s[0].t, write.scales.v = &s[1].t;
        want.scales.k = &s[2].t, want.scales.v = &s[3].t;
    }
    const int is_captured = stream != NULL;
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    if (rc == ATTN_OK && is_captured) {
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        rc = triton->write(ours, &write, stream, &e);
        if (cudaStreamEndCapture(stream, &graph) != cudaSuccess ||
            cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
            rc = ATTN_E_DEVICE;
        for (int t = 0; t < a.num_tokens; t++)
            for (int side = 0; side < 2; side++) {
                int64_t *position = (int64_t *)(side ? b.positions.t.data : a.positions.t.data) + t;
                *position = (*position + 7) % a.num_positions;
            }
        if (rc == ATTN_OK && cudaGraphLaunch(exec, stream) != cudaSuccess) rc = ATTN_E_DEVICE;
    } else if (rc == ATTN_OK)
        rc = triton->write(ours, &write, NULL, &e);
    if (rc == ATTN_OK) rc = reference->write(theirs, &want, NULL, &e);
    const int is_done = cudaDeviceSynchronize() == cudaSuccess;
    ok(rc == ATTN_OK && is_done && equal(&a, &b),
       "case %d%s: rotated rows and cache equal the reference's%s%s", i, is_captured ? ", captured" : "",
       rc ? ": " : "", rc ? e.text : "");
    if (exec != NULL) cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    triton->close(ours);
    reference->close(theirs);
}

static void refusals(void) {
    attn_error_t e = {.struct_size = sizeof e};
    attn_rope_t *rope = NULL;
    rope_case_t c, h;
    rope_choose(&c, 0);
    rope_choose(&h, 0);
    rope_fill(&c, &managed, 3);
    rope_fill(&h, &host, 3);
    c.problem.attention = &c.attention;
    c.attention.dtype = ATTN_DTYPE_FLOAT64;
    ok(triton->open(&c.problem, &gpu, NULL, 0, NULL, &rope, &e) == ATTN_E_UNSUPPORTED &&
           !strcmp(e.param, "dtype"),
       "a type that is not served");
    c.attention.dtype = ATTN_DTYPE_BFLOAT16;
    ok(triton->open(&c.problem, &cpu, NULL, 0, NULL, &rope, &e) == ATTN_E_DEVICE && rope == NULL,
       "another device");
    if (triton->open(&c.problem, &gpu, NULL, 0, NULL, &rope, &e) != ATTN_OK) bail_out("%s", e.text);
    attn_rope_write_t a = rope_args(&c);
    a.cos_sin = &h.table.t;
    ok(triton->write(rope, &a, NULL, &e) == ATTN_E_INVALID && !strcmp(e.param, "cos_sin"),
       "a table in host memory");
    a = rope_args(&c);
    a.kv_cache = &h.kv_cache.t;
    ok(triton->write(rope, &a, NULL, &e) == ATTN_E_INVALID && !strcmp(e.param, "kv_cache"),
       "a cache in host memory");
    a = rope_args(&c);
    c.query.t.byte_offset = 2;
    ok(triton->write(rope, &a, NULL, &e) == ATTN_E_INVALID && !strcmp(e.param, "query"),
       "a misaligned query");
    c.query.t.byte_offset = 0;
    ((int64_t *)c.positions.t.data)[0] = INT64_MAX;
    ((int64_t *)c.slots.t.data)[0] = INT64_MAX;
    ok(triton->write(rope, &a, NULL, &e) == ATTN_OK && cudaDeviceSynchronize() == cudaSuccess,
       "positions and slots beyond their tensors touch nothing");
    triton->close(rope);
    triton->close(NULL);
}

int main(void) {
    const char *dir = getenv("TRITON_TEST_PLUGINS") ? getenv("TRITON_TEST_PLUGINS") : "plugins-built";
    int count = 0, major = 0, minor = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) skip_all("no CUDA device");
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    gpu.compute_capability = 10 * major + minor;
    triton = extension_of(dir, "triton_like"), reference = extension_of(dir, "reference");
    scales = managed_alloc(8);
    scales[0] = .02f, scales[1] = .05f;
    uint64_t seed = tap_seed();
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    for (int i = 0; i < ROPE_CASES; i++)
        one(i, seed + (uint64_t)i, NULL);
    one(1, seed, stream);
    one(5, seed, stream);
    refusals();
    return tap_done();
}
