/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simple_cuda.cu: the example plugin on a GPU: paged decoder attention for libattn with one warp per query
 * row and head. float32, float16 and bfloat16, sliding window, soft cap, sinks, LSE. Written to be read; what
 * a real kernel adds is speed, not other calls. Hardware: any from sm_70 on. Build: see Makefile.
 */
#include <attn/attn_plugin_util.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <new>

static const uint64_t served_features = ATTN_F_SLIDING_WINDOW | ATTN_F_SOFT_CAP | ATTN_F_SINK |
                                        ATTN_F_NON_CAUSAL | ATTN_F_LSE | ATTN_F_BATCH_INVARIANT |
                                        ATTN_F_CAPTURE | ATTN_F_BLOCK_STRIDE;
enum { MAX_HEAD_SIZE = 256, WARP = 32, PER_LANE = MAX_HEAD_SIZE / WARP };

struct attn_instance {
    attn_problem_t p;
    int device;
    int64_t max_seqs, max_tokens, max_len;
};

/* The plan of a batch, in device memory. The launch shape does not depend on it, so a recorded graph serves
 * every batch within the limits: blocks behind num_tokens return at once. starts[B + 1] and lens[B]
 * follow. */
struct plan {
    int64_t num_reqs, num_tokens;
    const int32_t *block_table;
    int64_t table_stride;
};

/* Everything that the kernel needs besides the plan. Strides in elements. */
struct params {
    const plan *batch;
    const void *query, *cache;
    void *output;
    float *lse;
    const float *sinks;
    int64_t q_token, q_head, o_token, o_head, c_block, c_head, c_token, lse_head;
    int group, head_size, block_size, window, is_causal;
    float scale, soft_cap;
};

__device__ static float load(const float *p) {
    return *p;
}
__device__ static float load(const __half *p) {
    return __half2float(*p);
}
__device__ static float load(const __nv_bfloat16 *p) {
    return __bfloat162float(*p);
}
__device__ static void store(float *p, float x) {
    *p = x;
}
__device__ static void store(__half *p, float x) {
    *p = __float2half(x);
}
__device__ static void store(__nv_bfloat16 *p, float x) {
    *p = __float2bfloat16(x);
}

__device__ static float warp_sum(float x) {
    for (int i = WARP / 2; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

/* The request of token t: the last one that starts at or before it. */
__device__ static int request_of(const int32_t *starts, int num_reqs, int t) {
    int low = 0, high = num_reqs - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (starts[middle] <= t)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Grid (max_tokens, heads), one warp. Lane i holds numbers i, i + 32, .. of a row. One pass over the keys
 * with a running maximum (Milakov and Gimelshein 2018). */
template <typename T>
__global__ void attend(const params a) {
    const plan *batch = a.batch;
    int t = blockIdx.x, h = blockIdx.y, lane = threadIdx.x;
    if (t >= batch->num_tokens) return;
    const int32_t *starts = (const int32_t *)(batch + 1), *lens = starts + batch->num_reqs + 1;
    int r = request_of(starts, (int)batch->num_reqs, t), len = lens[r];
    int q = len - (starts[r + 1] - t); /* position of this row: the queries are the last tokens */
    const int32_t *blocks = batch->block_table + r * batch->table_stride;
    float query[PER_LANE], acc[PER_LANE] = {};
    for (int i = 0; i < PER_LANE; i++) {
        int e = i * WARP + lane;
        query[i] = e < a.head_size ? load((const T *)a.query + t * a.q_token + h * a.q_head + e) : 0;
    }
    float max = a.sinks ? a.sinks[h] : -INFINITY, sum = a.sinks ? 1 : 0;
    int first = a.window > 0 && q - a.window + 1 > 0 ? q - a.window + 1 : 0, end = len;
    if (a.is_causal && q + 1 < end) end = q + 1;
    if (!a.is_causal && a.window > 0 && q + a.window < end) end = q + a.window;
    for (int k = first; k < end; k++) {
        const T *row = (const T *)a.cache + blocks[k / a.block_size] * a.c_block + h / a.group * a.c_head +
                       k % a.block_size * a.c_token;
        float dot = 0;
        for (int i = 0; i < PER_LANE; i++)
            if (i * WARP + lane < a.head_size) dot += query[i] * load(row + i * WARP + lane);
        float s = a.scale * warp_sum(dot);
        if (a.soft_cap > 0) s = a.soft_cap * tanhf(s / a.soft_cap);
        if (s == -INFINITY) continue; /* hides its key; of infinities there is no difference */
        float new_max = fmaxf(max, s), keep = expf(max - new_max), p = expf(s - new_max);
        for (int i = 0; i < PER_LANE; i++)
            if (i * WARP + lane < a.head_size)
                acc[i] = acc[i] * keep + p * load(row + a.head_size + i * WARP + lane);
        sum = sum * keep + p;
        max = new_max;
    }
    for (int i = 0; i < PER_LANE; i++)
        if (i * WARP + lane < a.head_size)
            store((T *)a.output + t * a.o_token + h * a.o_head + i * WARP + lane,
                  sum == 0 ? 0 : acc[i] / sum);
    if (a.lse && lane == 0) a.lse[h * a.lse_head + t] = sum == 0 ? -INFINITY : max + logf(sum);
}

/* Grid (rows, KV heads). Row t of K and V to its slot; a negative slot is padding. */
template <typename T>
__global__ void scatter(const T *key, const T *value, T *cache, const int64_t *slots, int64_t k_token,
                        int64_t k_head, int64_t v_token, int64_t v_head, int64_t c_block, int64_t c_head,
                        int64_t c_token, int size, int block_size) {
    int64_t t = blockIdx.x, h = blockIdx.y, slot = slots[t];
    if (slot < 0) return;
    T *row = cache + slot / block_size * c_block + h * c_head + slot % block_size * c_token;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        row[i] = key[t * k_token + h * k_head + i];
        row[size + i] = value[t * v_token + h * v_head + i];
    }
}

/* ---------------------------------------------------------------- operations */

/* The calling thread's device is borrowed and given back. */
struct on_device {
    int before = 0;
    explicit on_device(int device) {
        cudaGetDevice(&before);
        cudaSetDevice(device);
    }
    ~on_device() { cudaSetDevice(before); }
};

static int cuda_status(cudaError_t code, const char *what, attn_error_t *error) {
    if (code == cudaSuccess) return ATTN_OK;
    return attn_fail(error, ATTN_E_DEVICE, what, "%s: %s", what, cudaGetErrorString(code));
}

static int simple_open(const attn_problem_t *problem, const attn_device_t *device,
                       const attn_option_value_t *, uint32_t, const attn_host_t *, attn_instance_t **instance,
                       attn_error_t *error) {
    attn_problem_t p;
    attn_device_t d;
    int rc = attn_intake(&p, sizeof p, problem, "problem", error);
    if (rc == ATTN_OK) rc = attn_intake_known(&d, sizeof d, device, "device", error);
    if (rc != ATTN_OK) return rc;
    if (d.type != kDLCUDA || d.id < 0)
        return attn_fail(error, ATTN_E_DEVICE, "device", "device type %d number %d is not a present GPU",
                         d.type, d.id);
    if (attn_problem_features(&p) & ~served_features)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "features",
                         "features 0x%llx has bits that are not served", (unsigned long long)p.features);
    if (p.role != ATTN_ROLE_DECODER)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "role", "role %s is not served", attn_role_name(p.role));
    if (p.mask != ATTN_MASK_CAUSAL && p.mask != ATTN_MASK_FULL)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "mask", "mask %u is not served", p.mask);
    if (p.dtype < ATTN_DTYPE_FLOAT32 || p.dtype > ATTN_DTYPE_BFLOAT16 ||
        (p.out_dtype != 0 && p.out_dtype != p.dtype))
        return attn_fail(error, ATTN_E_UNSUPPORTED, "dtype", "dtype %s with out_dtype %s is not served",
                         attn_dtype_name(p.dtype), attn_dtype_name(p.out_dtype));
    if (p.kv_cache_dtype > ATTN_KV_AUTO)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "kv_cache_dtype", "kv_cache_dtype %s is not served",
                         attn_kv_name(p.kv_cache_dtype));
    if (p.num_kv_heads == 0) p.num_kv_heads = p.num_heads;
    if (p.block_size == 0) p.block_size = 16;
    if (p.head_size == 0 || p.head_size > MAX_HEAD_SIZE || p.num_heads == 0 ||
        p.num_heads % p.num_kv_heads != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "head_size",
                         "head_size %u, num_heads %u, num_kv_heads %u: head "
                         "sizes up to %d and whole groups are served",
                         p.head_size, p.num_heads, p.num_kv_heads, MAX_HEAD_SIZE);
    attn_instance_t *self = new (std::nothrow) attn_instance_t();
    if (self == nullptr) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for an instance");
    self->p = p;
    self->device = d.id;
    self->max_seqs = p.max_num_seqs ? p.max_num_seqs : 256;
    self->max_tokens = p.max_num_batched_tokens ? p.max_num_batched_tokens : 8192;
    self->max_len = p.max_model_len ? p.max_model_len : 131072;
    *instance = self;
    return ATTN_OK;
}

static void simple_close(attn_instance_t *self) {
    delete self;
}

static int simple_kv_cache_shape(attn_instance_t *self, int64_t num_blocks, attn_kv_cache_shape_t *shape,
                                 attn_error_t *error) {
    attn_kv_cache_shape_t full;
    uint32_t layout = self->p.kv_layout ? self->p.kv_layout : (uint32_t)ATTN_LAYOUT_NHD;
    int rc = attn_dense_cache_shape(&self->p, layout, self->p.block_size,
                                    num_blocks ? num_blocks : self->p.num_blocks, &full, error);
    return rc == ATTN_OK ? attn_give(shape, &full, sizeof full, "shape", error) : rc;
}

static uint64_t plan_bytes(const attn_instance_t *self) {
    return sizeof(plan) + (2 * (uint64_t)self->max_seqs + 1) * sizeof(int32_t);
}

static int simple_space_needed(attn_instance_t *self, attn_space_needed_t *needed, attn_error_t *error) {
    attn_space_needed_t full;
    attn_zero(&full, sizeof full);
    full.alignment = 256;
    full.metadata_bytes = plan_bytes(self);
    full.host_bytes = plan_bytes(self); /* copied from there, so that the copy need not wait */
    return attn_give(needed, &full, sizeof full, "needed", error);
}

static int simple_build_metadata(attn_instance_t *self, const attn_batch_t *batch, const attn_space_t *space,
                                 void *stream, attn_error_t *error) {
    attn_batch_t b;
    attn_space_t s;
    int rc = attn_intake(&b, sizeof b, batch, "batch", error);
    if (rc == ATTN_OK) rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc != ATTN_OK) return rc;
    if (!s.metadata || s.metadata_bytes < plan_bytes(self) || !s.host || s.host_bytes < plan_bytes(self))
        return attn_fail(error, ATTN_E_SPACE, "metadata",
                         "metadata has %llu and host %llu bytes; %llu are needed",
                         (unsigned long long)s.metadata_bytes, (unsigned long long)s.host_bytes,
                         (unsigned long long)plan_bytes(self));
    if (b.num_reqs < 0 || b.num_reqs > self->max_seqs || b.num_actual_tokens < 0 ||
        b.num_actual_tokens > self->max_tokens)
        return attn_fail(error, ATTN_E_INVALID, "num_reqs",
                         "num_reqs %d with %d tokens; the problem declared up to "
                         "%lld with %lld",
                         b.num_reqs, b.num_actual_tokens, (long long)self->max_seqs,
                         (long long)self->max_tokens);
    if (b.common_prefix_len != 0)
        return attn_fail(error, ATTN_E_UNSUPPORTED, "common_prefix_len", "cascade is not served; give 0");
    if (!b.query_start_loc_host || !b.seq_lens_host)
        return attn_fail(error, ATTN_E_INVALID, b.seq_lens_host ? "query_start_loc_host" : "seq_lens_host",
                         "the host arrays of starts and lengths are required");
    int64_t rows[2] = {b.num_reqs, -1};
    rc = attn_check_tensor(b.block_table, "block_table", ATTN_DTYPE_INT32, 2, rows, error);
    if (rc != ATTN_OK) return rc;
    for (int r = 0; r < b.num_reqs; r++) {
        int64_t query_len = (int64_t)b.query_start_loc_host[r + 1] - b.query_start_loc_host[r],
                len = b.seq_lens_host[r];
        if (query_len < 0 || len < query_len || len > self->max_len ||
            len > b.block_table->shape[1] * (int64_t)self->p.block_size)
            return attn_fail(error, ATTN_E_INVALID, "seq_lens", "seq_lens[%d] is %lld with %lld queries", r,
                             (long long)len, (long long)query_len);
    }
    plan *out = (plan *)s.host;
    out->num_reqs = b.num_reqs;
    out->num_tokens = b.num_actual_tokens;
    out->block_table = (const int32_t *)attn_data(b.block_table);
    out->table_stride = b.block_table->strides[0];
    memcpy(out + 1, b.query_start_loc_host, ((size_t)b.num_reqs + 1) * 4);
    memcpy((int32_t *)(out + 1) + b.num_reqs + 1, b.seq_lens_host, (size_t)b.num_reqs * 4);
    on_device guard(self->device);
    return cuda_status(
        cudaMemcpyAsync(s.metadata, out, plan_bytes(self), cudaMemcpyHostToDevice, (cudaStream_t)stream),
        "metadata", error);
}

static int check_cache(const attn_instance_t *self, const DLTensor *t, attn_error_t *error) {
    int64_t shape[4] = {-1, self->p.num_kv_heads, self->p.block_size, 2 * (int64_t)self->p.head_size};
    return attn_check_tensor(t, "kv_cache", self->p.dtype, 4, shape, error);
}

static int simple_update_kv_cache(attn_instance_t *self, const attn_kv_update_t *args, void *stream,
                                  attn_error_t *error) {
    attn_kv_update_t a;
    int64_t rows[3] = {-1, self->p.num_kv_heads, self->p.head_size};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.key, "key", self->p.dtype, 3, rows, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.value, "value", self->p.dtype, 3, rows, error);
    if (rc == ATTN_OK)
        rc = attn_check_tensor(a.slot_mapping, "slot_mapping", ATTN_DTYPE_INT64, 1, nullptr, error);
    if (rc == ATTN_OK) rc = check_cache(self, a.kv_cache, error);
    if (rc != ATTN_OK) return rc;
    int64_t n = a.slot_mapping->shape[0];
    if (n > a.key->shape[0] || n > a.value->shape[0])
        return attn_fail(error, ATTN_E_INVALID, "slot_mapping",
                         "slot_mapping has %lld rows, key and value fewer", (long long)n);
    if (n == 0) return ATTN_OK;
    on_device guard(self->device);
    dim3 grid((unsigned)n, self->p.num_kv_heads);
    const DLTensor *k = a.key, *v = a.value, *c = a.kv_cache;
#define SCATTER(T)                                                                                           \
    scatter<T><<<grid, 64, 0, (cudaStream_t)stream>>>(                                                       \
        (const T *)attn_data(k), (const T *)attn_data(v), (T *)attn_data(c),                                 \
        (const int64_t *)attn_data(a.slot_mapping), k->strides[0], k->strides[1], v->strides[0],             \
        v->strides[1], c->strides[0], c->strides[1], c->strides[2], (int)self->p.head_size,                  \
        (int)self->p.block_size)
    if (self->p.dtype == ATTN_DTYPE_FLOAT32)
        SCATTER(float);
    else if (self->p.dtype == ATTN_DTYPE_FLOAT16)
        SCATTER(__half);
    else
        SCATTER(__nv_bfloat16);
    return cuda_status(cudaGetLastError(), "update_kv_cache", error);
}

static int simple_forward(attn_instance_t *self, const attn_forward_t *args, const attn_space_t *space,
                          void *stream, attn_error_t *error) {
    const attn_problem_t &p = self->p;
    attn_forward_t a;
    attn_space_t s;
    int64_t rows[3] = {-1, p.num_heads, p.head_size}, lse_shape[2] = {p.num_heads, -1},
            sink_shape[1] = {p.num_heads};
    int rc = attn_intake(&a, sizeof a, args, "args", error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.query, "query", p.dtype, 3, rows, error);
    if (rc == ATTN_OK) rc = attn_check_tensor(a.output, "output", p.dtype, 3, rows, error);
    if (rc != ATTN_OK) return rc;
    on_device guard(self->device);
    size_t element = attn_dtype_size(p.dtype);
    if (space == nullptr) { /* the profiling run */
        for (int64_t t = 0; t < a.output->shape[0]; t++)
            for (int64_t h = 0; h < p.num_heads; h++) {
                char *row = (char *)attn_data(a.output) +
                            (t * a.output->strides[0] + h * a.output->strides[1]) * element;
                rc = cuda_status(cudaMemsetAsync(row, 0, p.head_size * element, (cudaStream_t)stream),
                                 "output", error);
                if (rc != ATTN_OK) return rc;
            }
        return ATTN_OK;
    }
    rc = attn_intake(&s, sizeof s, space, "space", error);
    if (rc == ATTN_OK && (!s.metadata || s.metadata_bytes < plan_bytes(self)))
        rc = attn_fail(error, ATTN_E_SPACE, "metadata", "metadata has %llu bytes; %llu are needed",
                       (unsigned long long)s.metadata_bytes, (unsigned long long)plan_bytes(self));
    if (rc == ATTN_OK) rc = check_cache(self, a.kv_cache, error);
    if (rc == ATTN_OK && a.lse) rc = attn_check_tensor(a.lse, "lse", ATTN_DTYPE_FLOAT32, 2, lse_shape, error);
    if (rc == ATTN_OK && (p.features & ATTN_F_SINK))
        rc = attn_check_tensor(a.sinks, "sinks", ATTN_DTYPE_FLOAT32, 1, sink_shape, error);
    if (rc != ATTN_OK) return rc;
    /* The number of tokens is in device memory; rows that the caller's tensors do not have must not be
     * reached. */
    int64_t tokens = a.query->shape[0] < a.output->shape[0] ? a.query->shape[0] : a.output->shape[0];
    if (tokens > self->max_tokens) tokens = self->max_tokens;
    if (a.lse && a.lse->shape[1] < tokens) tokens = a.lse->shape[1];
    if (tokens == 0) return ATTN_OK;

    params k;
    k.batch = (const plan *)s.metadata;
    k.query = attn_data(a.query);
    k.cache = attn_data(a.kv_cache);
    k.output = attn_data(a.output);
    k.lse = a.lse ? (float *)attn_data(a.lse) : nullptr;
    k.sinks = p.features & ATTN_F_SINK ? (const float *)attn_data(a.sinks) : nullptr;
    k.q_token = a.query->strides[0], k.q_head = a.query->strides[1];
    k.o_token = a.output->strides[0], k.o_head = a.output->strides[1];
    k.c_block = a.kv_cache->strides[0], k.c_head = a.kv_cache->strides[1], k.c_token = a.kv_cache->strides[2];
    k.lse_head = a.lse ? a.lse->strides[0] : 0;
    k.group = (int)(p.num_heads / p.num_kv_heads);
    k.head_size = (int)p.head_size, k.block_size = (int)p.block_size, k.window = (int)p.sliding_window;
    k.is_causal = p.mask == ATTN_MASK_CAUSAL;
    k.scale = (float)p.scale, k.soft_cap = (float)p.logits_soft_cap;
    dim3 grid((unsigned)tokens, p.num_heads);
    if (p.dtype == ATTN_DTYPE_FLOAT32)
        attend<float><<<grid, WARP, 0, (cudaStream_t)stream>>>(k);
    else if (p.dtype == ATTN_DTYPE_FLOAT16)
        attend<__half><<<grid, WARP, 0, (cudaStream_t)stream>>>(k);
    else
        attend<__nv_bfloat16><<<grid, WARP, 0, (cudaStream_t)stream>>>(k);
    return cuda_status(cudaGetLastError(), "forward", error);
}

/* -------------------------------------------------------------------- tables */

static const attn_range_t head_sizes[] = {{1, MAX_HEAD_SIZE, 1}};

/* C++11 has no designated initialisers; a constant made by a function serves. */
static attn_capabilities_t make_capabilities() {
    attn_capabilities_t c = attn_capabilities_t();
    c.struct_size = sizeof c;
    c.graph_support = ATTN_GRAPH_ALWAYS;
    c.roles = ATTN_BIT(ATTN_ROLE_DECODER);
    c.dtypes = ATTN_BIT(ATTN_DTYPE_FLOAT32) | ATTN_BIT(ATTN_DTYPE_FLOAT16) | ATTN_BIT(ATTN_DTYPE_BFLOAT16);
    c.kv_cache_dtypes = ATTN_BIT(ATTN_KV_AUTO);
    c.features = served_features;
    c.device_types = ATTN_BIT(kDLCUDA);
    c.head_sizes = head_sizes;
    c.num_head_sizes = 1;
    c.query_len_support = ATTN_QUERY_LEN_VARLEN;
    return c;
}
static const attn_capabilities_t capabilities = make_capabilities();

static attn_backend_ops_t make_ops() {
    attn_backend_ops_t o = attn_backend_ops_t();
    o.struct_size = sizeof o;
    o.open = simple_open;
    o.close = simple_close;
    o.kv_cache_shape = simple_kv_cache_shape;
    o.space_needed = simple_space_needed;
    o.build_metadata = simple_build_metadata;
    o.update_kv_cache = simple_update_kv_cache;
    o.forward = simple_forward;
    return o;
}
static const attn_backend_ops_t ops = make_ops();

static const attn_backend_t backend = {sizeof(attn_backend_t),
                                       0,
                                       "SIMPLE_CUDA",
                                       "Example of a third party: one warp per row.",
                                       &capabilities,
                                       &ops,
                                       {0}};
static const attn_backend_t *const backends[] = {&backend};

ATTN_PLUGIN_EXPORT const attn_plugin_t ATTN_PLUGIN_SYMBOL = {ATTN_PLUGIN_MAGIC,
                                                             sizeof(attn_plugin_t),
                                                             ATTN_ABI_MAJOR,
                                                             ATTN_ABI_MINOR,
                                                             0,
                                                             "simple_cuda",
                                                             "1.0",
                                                             "Example Kernels",
                                                             "Apache-2.0",
                                                             "",
                                                             1,
                                                             0,
                                                             backends,
                                                             nullptr,
                                                             {0}};
