/* SPDX-License-Identifier: Apache-2.0 */
/* Timing of TRITON_ATTN through the plugin ABI: prefill by head size and by mask feature, decode by shape of
 * the batch and by cache format, the cache writers, cold and warm opens; graph replays after 200 ms of the
 * same load, beside this run's read ceiling. Usage: triton_bench PLUGIN.so [texts, one of which the name
 * contains; =text: is] TRITON_BENCH_CACHE=DIR: compiled kernels are taken from there and stay there; then
 * there are no cold opens. Build: nvcc -std=c++17 -O2 -arch=native -Iinclude bench/triton_bench.cu -o
 * triton_bench -ldl */
#include <attn/attn_plugin_util.h>
#include <attn/draft/attn_rope_write.h>

#include <algorithm>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <math.h>
#include <random>
#include <stdlib.h>
#include <string>
#include <time.h>
#include <unistd.h>
#include <vector>

#define CK(x)                                                                                                \
    do {                                                                                                     \
        cudaError_t e_ = (x);                                                                                \
        if (e_ != cudaSuccess) {                                                                             \
            fprintf(stderr, "%s, line %d: %s\n", #x, __LINE__, cudaGetErrorString(e_));                      \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

__global__ void fill(uint16_t *p, size_t n, uint32_t seed, int is_codes) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed, y;
        x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
        y = x * 0x9E3779B1u + 0x85ebca6bu, y ^= y >> 15, y *= 0x2c1b3c6du, y ^= y >> 13;
        float f = sqrtf(-2.f * logf(((x >> 8) + 1) * (1.f / 16777217.f))) *
                  cospif(2.f * (y >> 8) * (1.f / 16777216.f));
        p[i] = is_codes ? (uint16_t)((x & 0x8080) | 0x2828 | (x & 0x1717))
                        : (uint16_t)(__float_as_uint(f) >> 16);
    }
}
__global__ void read_all(const uint4 *p, size_t n, uint32_t *out) {
    uint32_t s = 0;
    for (size_t i = (blockIdx.x * (size_t)blockDim.x) * 4 + threadIdx.x; i + 3 * blockDim.x < n;
         i += (size_t)gridDim.x * blockDim.x * 4) {
        uint4 a = __ldcs(p + i), b = __ldcs(p + i + blockDim.x), c = __ldcs(p + i + 2 * blockDim.x),
              d = __ldcs(p + i + 3 * blockDim.x);
        s += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (s == 0x12345678) *out = s;
}

static cudaStream_t stream;
static uint8_t *pool;
static const size_t POOL = (size_t)6 << 30;
static const attn_backend_t *backend;
static std::vector<std::string> filters;
static char temporary_dir[] = "/tmp/attn-triton-bench-XXXXXX";
static const char *cache_dir = temporary_dir;
static double ceiling = 1;

static double seconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* us of one call of f, which launches on the stream: replays of a graph, after 200 ms of them. */
template <class F>
static double time_it(F f) {
    cudaEvent_t a, b;
    cudaGraph_t g;
    cudaGraphExec_t e;
    float ms;
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    f();
    CK(cudaStreamSynchronize(stream));
    CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 8; i++)
        f();
    CK(cudaStreamEndCapture(stream, &g));
    CK(cudaGraphInstantiate(&e, g, 0));
    std::vector<double> t;
    double spent = 0;
    while (spent < 350 || t.size() < 6) {
        CK(cudaEventRecord(a, stream));
        CK(cudaGraphLaunch(e, stream));
        CK(cudaEventRecord(b, stream));
        CK(cudaEventSynchronize(b));
        CK(cudaEventElapsedTime(&ms, a, b));
        spent += ms;
        if (spent > 200) t.push_back(ms * 1e3 / 8);
    }
    std::sort(t.begin(), t.end());
    CK(cudaGraphExecDestroy(e));
    CK(cudaGraphDestroy(g));
    return t[t.size() / 2];
}

struct work {
    std::string name;
    attn_problem_t p;
    std::vector<int> q, kv;
    int spans = 0;
};

static DLTensor tensor(void *data, DLDataType type, std::vector<int64_t> &shape,
                       std::vector<int64_t> &strides, int code = kDLCUDA) {
    DLTensor t = {};
    t.data = data, t.device.device_type = (DLDeviceType)code, t.ndim = (int)shape.size(), t.dtype = type;
    strides.assign(shape.size(), 1);
    for (int i = (int)shape.size() - 2; i >= 0; i--)
        strides[i] = strides[i + 1] * shape[i + 1];
    t.shape = shape.data(), t.strides = strides.data();
    return t;
}
template <class T>
static T *copy_of(const std::vector<T> &v) {
    T *p;
    CK(cudaMalloc(&p, v.size() * sizeof(T) + 16));
    CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

/* Scales of V's channels, for the formats that take them: those of normal numbers. */
struct channel_scales {
    std::vector<int64_t> shape, strides;
    DLTensor t;
    channel_scales(uint32_t kv, int64_t heads, int64_t size) {
        std::vector<float> by(attn_kv_has_channel_scales(kv) ? heads * size : 1, 0.03125f);
        shape = {heads, size};
        t = tensor(copy_of(by), attn_dl_dtype(ATTN_DTYPE_FLOAT32), shape, strides);
    }
    ~channel_scales() { CK(cudaFree(t.data)); }
    static const DLTensor *of(uint32_t kv, channel_scales &s) {
        return attn_kv_has_channel_scales(kv) ? &s.t : NULL;
    }
};

static bool is_wanted(const std::string &name) {
    return filters.empty() || std::any_of(filters.begin(), filters.end(), [&](const std::string &text) {
               return text[0] == '=' ? name == text.substr(1) : name.find(text) != std::string::npos;
           });
}

static void fill_by_writer(attn_instance_t *in, DLTensor *cache, int64_t tokens, uint32_t heads, uint32_t d,
                           uint32_t dv, const DLTensor *v_scale);

static void run(work w) {
    if (!is_wanted(w.name)) return;
    attn_error_t e = {sizeof e};
    attn_device_t device = {sizeof device};
    device.type = kDLCUDA, device.compute_capability = 90;
    attn_option_value_t options[3] = {};
    for (int i = 0; i < 3; i++)
        options[i].struct_size = sizeof options[i], options[i].s = i == 0 ? cache_dir : "";
    const int page = w.p.block_size ? (int)w.p.block_size : 16;
    int64_t tokens = 0, keys = 0, most = 1, pages = 1;
    double pairs = 0;
    std::vector<int32_t> start = {0}, lens;
    bool cached = attn_role_has_cache(w.p.role);
    for (size_t r = 0; r < w.q.size(); r++) {
        int q = w.q[r], kv = w.kv[r];
        tokens += q, keys += kv, most = std::max<int64_t>(most, kv), pages += (kv + page - 1) / page;
        start.push_back((int32_t)tokens), lens.push_back(kv);
        pairs +=
            w.p.mask == ATTN_MASK_CAUSAL ? (double)q * (kv - q) + (double)q * (q + 1) / 2 : (double)q * kv;
    }
    attn_problem_t &p = w.p;
    p.struct_size = sizeof p, p.max_num_seqs = (uint32_t)w.q.size(),
    p.max_num_batched_tokens = (uint32_t)tokens;
    p.max_model_len = most, p.features |= ATTN_F_CAPTURE, p.scale = 1 / sqrt((double)p.head_size);
    if (cached) p.block_size = page, p.num_blocks = pages;
    attn_instance_t *in;
    double cold = seconds();
    int rc = backend->ops->open(&p, &device, options, 3, NULL, &in, &e);
    cold = seconds() - cold;
    if (rc) {
        printf("%-34s open: %s\n", w.name.c_str(), e.text);
        return;
    }
    backend->ops->close(in);
    double warm = seconds();
    backend->ops->open(&p, &device, options, 3, NULL, &in, &e);
    warm = seconds() - warm;
    attn_kv_cache_shape_t cs = {sizeof cs};
    attn_space_needed_t need = {sizeof need};
    backend->ops->kv_cache_shape(in, pages, &cs, &e);
    backend->ops->space_needed(in, &need, &e);
    attn_space_t space = {sizeof space};
    space.metadata_bytes = need.metadata_bytes, space.workspace_bytes = need.workspace_bytes,
    space.host_bytes = need.host_bytes;
    CK(cudaMalloc(&space.metadata, need.metadata_bytes));
    CK(cudaMalloc(&space.workspace, need.workspace_bytes + 16));
    CK(cudaMallocHost(&space.host, need.host_bytes));
    int64_t columns = (most + page - 1) / page;
    std::vector<int32_t> order(pages - 1), table(w.q.size() * columns, 0);
    for (size_t i = 0; i < order.size(); i++)
        order[i] = (int32_t)i + 1;
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    for (size_t r = 0, n = 0; r < w.q.size(); r++)
        for (int i = 0; i < (w.kv[r] + page - 1) / page; i++)
            table[r * columns + i] = order[n++];
    int32_t *d_table = copy_of(table);
    std::vector<int64_t> s1 = {(int64_t)w.q.size(), columns}, t1, s2, t2, s3, t3, s4, t4, s5, t5, s6, t6, s7,
                         t7;
    DLTensor table_t = tensor(d_table, attn_dl_dtype(ATTN_DTYPE_INT32), s1, t1), cache_t = {}, key_t, value_t;
    if (cached) {
        s2.assign(cs.shape, cs.shape + 4);
        cache_t = tensor(pool, cs.dtype, s2, t2);
        for (int i = 0; i < 4; i++)
            t2[i] = cs.byte_strides[i] / (cs.dtype.bits / 8);
        if ((size_t)cs.total_bytes > POOL)
            exit(fprintf(stderr, "%s: the pool is too small\n", w.name.c_str()));
        fill<<<2048, 256, 0, stream>>>((uint16_t *)pool, cs.total_bytes / 2, 3, cs.dtype.bits == 8);
    }
    uint32_t hkv = p.num_kv_heads ? p.num_kv_heads : p.num_heads,
             dv = p.head_size_v ? p.head_size_v : p.head_size;
    channel_scales channels(p.kv_cache_dtype, hkv, dv);
    const DLTensor *v_scale = channel_scales::of(p.kv_cache_dtype, channels);
    if (cached && cs.dtype.code == kDLUInt)
        fill_by_writer(in, &cache_t, pages * page, hkv, p.head_size, dv, v_scale);
    uint16_t *q, *o, *kv;
    float *vec;
    CK(cudaMalloc(&q, tokens * p.num_heads * p.head_size * 2));
    CK(cudaMalloc(&o, tokens * p.num_heads * dv * 2));
    CK(cudaMalloc(&kv, tokens * hkv * (p.head_size + dv) * 2));
    CK(cudaMalloc(&vec, p.num_heads * 4));
    fill<<<2048, 256, 0, stream>>>(q, tokens * p.num_heads * p.head_size, 1, 0);
    fill<<<2048, 256, 0, stream>>>(kv, tokens * hkv * (p.head_size + dv), 2, 0);
    CK(cudaMemset(vec, 0, p.num_heads * 4));
    DLDataType type = attn_dl_dtype(p.dtype);
    s3 = {tokens, p.num_heads, p.head_size}, s4 = {tokens, p.num_heads, dv}, s5 = {tokens, hkv, p.head_size},
    s6 = {tokens, hkv, dv};
    s7 = {p.num_heads};
    std::vector<int64_t> s8 = {p.num_heads, 257}, t8;
    float *biases = copy_of(std::vector<float>(257 * p.num_heads, .5f));
    DLTensor rel_t = tensor(biases, attn_dl_dtype(ATTN_DTYPE_FLOAT32), s8, t8);
    DLTensor q_t = tensor(q, type, s3, t3), o_t = tensor(o, type, s4, t4),
             v_t = tensor(vec, attn_dl_dtype(ATTN_DTYPE_FLOAT32), s7, t7);
    key_t = tensor(kv, type, s5, t5), value_t = tensor(kv + tokens * hkv * p.head_size, type, s6, t6);
    std::vector<int32_t> spans, prefixes(w.q.size(), 64);
    for (size_t r = 0; r < w.q.size(); r++)
        for (int i = 0; i < w.spans; i++)
            spans.push_back(512 * i + 16), spans.push_back(512 * i + 200);
    attn_batch_t b = {sizeof b};
    b.num_reqs = (int)w.q.size(), b.num_actual_tokens = (int)tokens, b.query_start_loc_host = start.data();
    b.seq_lens_host = lens.data(), b.block_table = cached ? &table_t : NULL;
    b.mm_prefix_ranges_host = w.spans ? spans.data() : NULL, b.num_mm_ranges = w.spans;
    b.rswa_prefix_lens_host = p.rswa_window ? prefixes.data() : NULL;
    double built = seconds();
    rc = backend->ops->build_metadata(in, &b, &space, stream, &e);
    built = seconds() - built;
    if (rc) exit(fprintf(stderr, "%s: build: %s\n", w.name.c_str(), e.text));
    attn_forward_t f = {sizeof f};
    f.query = &q_t, f.output = &o_t, f.kv_cache = cached ? &cache_t : NULL, f.key = &key_t,
    f.value = &value_t;
    f.scales.v = v_scale;
    f.rel_bias = p.features & ATTN_F_REL_BIAS ? &rel_t : NULL;
    f.sinks = p.features & ATTN_F_SINK ? &v_t : NULL;
    f.alibi_slopes = p.features & (ATTN_F_ALIBI | ATTN_F_ALIBI_SQRT) ? &v_t : NULL;
    double us = time_it([&] {
        if (backend->ops->forward(in, &f, &space, stream, &e))
            exit(fprintf(stderr, "%s: forward: %s\n", w.name.c_str(), e.text));
    });
    double bytes = cached ? (double)keys * cs.page_bytes / page : 0,
           flops = 2.0 * p.num_heads * (p.head_size + dv) * pairs;
    if (tokens == (int64_t)w.q.size())
        printf("%-34s %9.2f us %7.0f GB/s %5.1f%% of the read ceiling", w.name.c_str(), us, bytes / us * 1e-3,
               bytes / us * 1e-1 / ceiling);
    else
        printf("%-34s %9.2f us %7.1f TFLOP/s                    ", w.name.c_str(), us, flops / us * 1e-6);
    printf("   open %.3f s, warm %.2f ms, build %.0f us\n", cold, warm * 1e3, built * 1e6);
    fflush(stdout);
    CK(cudaStreamSynchronize(stream));
    backend->ops->close(in);
    for (void *buffer : {(void *)q, (void *)o, (void *)kv, (void *)vec, (void *)d_table, (void *)biases,
                         space.metadata, space.workspace})
        CK(cudaFree(buffer));
    CK(cudaFreeHost(space.host));
}

/* The whole cache by the writer itself, from 8192 tokens of normal numbers: bytes of packed rows mean
 * something only together. */
static void fill_by_writer(attn_instance_t *in, DLTensor *cache, int64_t tokens, uint32_t heads, uint32_t d,
                           uint32_t dv, const DLTensor *v_scale) {
    const int64_t some = 8192;
    attn_error_t e = {sizeof e};
    uint16_t *rows;
    CK(cudaMalloc(&rows, some * heads * (d + dv) * 2));
    fill<<<2048, 256, 0, stream>>>(rows, some * heads * (d + dv), 5, 0);
    std::vector<int64_t> slots(some), s1 = {some, heads, d}, t1, s2 = {some, heads, dv}, t2, s3 = {some}, t3;
    DLDataType type = attn_dl_dtype(ATTN_DTYPE_BFLOAT16);
    DLTensor key = tensor(rows, type, s1, t1), value = tensor(rows + some * heads * d, type, s2, t2);
    for (int64_t at = 0; at < tokens; at += some) {
        for (int64_t i = 0; i < some; i++)
            slots[i] = at + i < tokens ? at + i : -1;
        int64_t *to = copy_of(slots);
        DLTensor slot = tensor(to, attn_dl_dtype(ATTN_DTYPE_INT64), s3, t3);
        attn_kv_update_t u = {sizeof u};
        u.key = &key, u.value = &value, u.kv_cache = cache, u.slot_mapping = &slot, u.scales.v = v_scale;
        if (backend->ops->update_kv_cache(in, &u, stream, &e)) exit(fprintf(stderr, "update: %s\n", e.text));
        CK(cudaStreamSynchronize(stream));
        CK(cudaFree(to));
    }
    CK(cudaFree(rows));
}

static work decoder(std::string name, std::vector<int> q, std::vector<int> kv, uint32_t hq = 32,
                    uint32_t hkv = 8, uint32_t d = 128, uint32_t cache = ATTN_KV_AUTO) {
    work w;
    w.name = name, w.q = q, w.kv = kv;
    w.p = {};
    w.p.role = ATTN_ROLE_DECODER, w.p.mask = ATTN_MASK_CAUSAL, w.p.dtype = ATTN_DTYPE_BFLOAT16,
    w.p.num_heads = hq;
    w.p.num_kv_heads = hkv, w.p.head_size = d, w.p.kv_cache_dtype = cache;
    return w;
}

/* 8192 tokens of 32/8 heads of 128 into random slots: the cache writer, and rotation with the cache write in
 * one call. Four caches and inputs in turn, 134 MB each way, so that the L2 does not hold them. */
static void writes(uint32_t kv = ATTN_KV_AUTO, const char *format = "") {
    const int64_t tokens = 8192, turns = 4, blocks = tokens / 16 + 1;
    attn_error_t e = {sizeof e};
    attn_device_t device = {sizeof device};
    device.type = kDLCUDA, device.compute_capability = 90;
    attn_option_value_t options[3] = {};
    for (int i = 0; i < 3; i++)
        options[i].struct_size = sizeof options[i], options[i].s = i == 0 ? cache_dir : "";
    attn_problem_t p = decoder("", {1}, {1}, 32, 8, 128, kv).p;
    p.struct_size = sizeof p, p.block_size = 16, p.num_blocks = blocks, p.scale = 1 / sqrt(128.),
    p.max_num_batched_tokens = tokens;
    attn_rope_problem_t rp = {sizeof rp};
    rp.attention = &p;
    const attn_rope_extension_t *x =
        (const attn_rope_extension_t *)backend->ops->get_extension(NULL, ATTN_ROPE_EXTENSION);
    attn_instance_t *in;
    attn_rope_t *rope = NULL;
    if (backend->ops->open(&p, &device, options, 3, NULL, &in, &e) ||
        (kv == ATTN_KV_AUTO && x->open(&rp, &device, options, 3, NULL, &rope, &e)))
        exit(fprintf(stderr, "cache write: open: %s\n", e.text));
    attn_kv_cache_shape_t cs = {sizeof cs};
    backend->ops->kv_cache_shape(in, blocks, &cs, &e);
    std::vector<int64_t> slots(tokens), positions(tokens);
    for (int64_t i = 0; i < tokens; i++)
        slots[i] = positions[i] = i;
    std::shuffle(slots.begin(), slots.end(), std::mt19937(3));
    std::vector<int64_t> sq = {tokens, 32, 128}, tq, sk = {tokens, 8, 128}, tk, sn = {tokens}, tn,
                         st = {tokens, 128}, tt, sc(cs.shape, cs.shape + 4), tc;
    channel_scales channels(kv, 8, 128);
    fill<<<2048, 256, 0, stream>>>((uint16_t *)pool, POOL / 2, 9, 0); /* rows, and not what was there */
    const size_t q_bytes = tokens * 32 * 256, k_bytes = tokens * 8 * 256,
                 all = q_bytes + 2 * k_bytes + (cs.total_bytes + 255) / 256 * 256;
    DLDataType type = attn_dl_dtype(ATTN_DTYPE_BFLOAT16), whole = attn_dl_dtype(ATTN_DTYPE_INT64);
    std::vector<float> ones(tokens * 128, 0.7f);
    DLTensor slots_t = tensor(copy_of(slots), whole, sn, tn),
             positions_t = tensor(copy_of(positions), whole, sn, tn);
    DLTensor table_t = tensor(copy_of(ones), attn_dl_dtype(ATTN_DTYPE_FLOAT32), st, tt), q_t[4], k_t[4],
             v_t[4], c_t[4];
    for (int i = 0; i < turns; i++) {
        uint8_t *at = pool + i * all;
        q_t[i] = tensor(at, type, sq, tq), k_t[i] = tensor(at + q_bytes, type, sk, tk),
        v_t[i] = tensor(at + q_bytes + k_bytes, type, sk, tk);
        c_t[i] = tensor(at + q_bytes + 2 * k_bytes, cs.dtype, sc, tc);
        for (int d = 0; d < 4; d++)
            tc[d] = cs.byte_strides[d] / (cs.dtype.bits / 8);
    }
    for (int i = 0, turn = 0; i < (kv == ATTN_KV_AUTO ? 3 : 1); i++) {
        static const char *const names[3] = {"write 8192 tokens", "rope and write 8192 tokens",
                                             "rope and write 8192 tokens, no queries"};
        double us = time_it([&] {
            turn = (turn + 1) % turns;
            attn_kv_update_t u = {sizeof u};
            u.key = &k_t[turn], u.value = &v_t[turn], u.kv_cache = &c_t[turn], u.slot_mapping = &slots_t;
            u.scales.v = channel_scales::of(kv, channels);
            attn_rope_write_t w = {sizeof w};
            w.query = i == 1 ? &q_t[turn] : NULL, w.key = u.key, w.value = u.value, w.kv_cache = u.kv_cache,
            w.slot_mapping = &slots_t;
            w.positions = &positions_t, w.cos_sin = &table_t;
            if (i == 0 ? backend->ops->update_kv_cache(in, &u, stream, &e) : x->write(rope, &w, stream, &e))
                exit(fprintf(stderr, "%s: %s\n", names[i], e.text));
        });
        double bytes = 2.0 * k_bytes + (double)tokens * cs.page_bytes / 16 + (i > 0 ? k_bytes : 0) +
                       (i == 1 ? 2.0 * q_bytes : 0); /* rotated keys go back to memory too */
        printf("%-38s %7.2f us %6.0f GB/s read and written\n", (std::string(names[i]) + " " + format).c_str(),
               us, bytes / us * 1e-3);
        fflush(stdout);
    }
    backend->ops->close(in);
    if (rope) x->close(rope);
}

/* Formats whose rows carry their scales, and the one beside which they are judged. */
struct format {
    const char *name;
    uint32_t kv;
};
static const format packed[] = {{"fp8", ATTN_KV_FP8_E4M3},
                                {"fp8 e5m2", ATTN_KV_FP8_E5M2},
                                {"fp8 token-head", ATTN_KV_FP8_PER_TOKEN_HEAD},
                                {"int8 token-head", ATTN_KV_INT8_PER_TOKEN_HEAD},
                                {"int4 token-head", ATTN_KV_INT4_PER_TOKEN_HEAD},
                                {"int8 static V", ATTN_KV_INT8_STATIC_V},
                                {"int8 K only", ATTN_KV_INT8_K_ONLY},
                                {"nvfp4", ATTN_KV_NVFP4},
                                {"turboquant k8v4", ATTN_KV_TURBOQUANT_K8V4},
                                {"turboquant 4bit", ATTN_KV_TURBOQUANT_4BIT_NC},
                                {"turboquant k3v4", ATTN_KV_TURBOQUANT_K3V4_NC},
                                {"turboquant 3bit", ATTN_KV_TURBOQUANT_3BIT_NC}};

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: triton_bench PLUGIN.so [name...]\n"), 2;
    filters.assign(argv + 2, argv + argc);
    if (getenv("TRITON_BENCH_CACHE")) cache_dir = getenv("TRITON_BENCH_CACHE");
    void *so = dlopen(argv[1], RTLD_NOW);
    const attn_plugin_t *plugin = so ? (const attn_plugin_t *)dlsym(so, ATTN_PLUGIN_SYMBOL_NAME) : NULL;
    if (!plugin || (cache_dir == temporary_dir && !mkdtemp(temporary_dir)))
        return fprintf(stderr, "%s: %s\n", argv[1], dlerror()), 2;
    backend = plugin->backends[0];
    CK(cudaStreamCreate(&stream));
    CK(cudaMalloc(&pool, POOL));
    fill<<<2048, 256, 0, stream>>>((uint16_t *)pool, POOL / 2, 9, 0);
    double read = time_it(
        [&] { read_all<<<132 * 16, 256, 0, stream>>>((const uint4 *)pool, POOL / 16, (uint32_t *)pool); });
    ceiling = POOL / read * 1e-3;
    printf("read ceiling of this run: %.0f GB/s\n", ceiling);
    auto same = [](int n, int v) { return std::vector<int>(n, v); };
    std::vector<int> mixed;
    std::mt19937 rng(7);
    for (int i = 0; i < 64; i++)
        mixed.push_back((int)(128 * exp(log(256.0) * (rng() / 4294967296.0))));
    run(decoder("decode 64x8192", same(64, 1), same(64, 8192)));
    run(decoder("decode 256x1024", same(256, 1), same(256, 1024)));
    run(decoder("decode 8x32768", same(8, 1), same(8, 32768)));
    run(decoder("decode 1x131072", {1}, {131072}));
    run(decoder("decode mixed 128..32768", same(64, 1), mixed));
    run(decoder("decode 64x8192 8q/1kv", same(64, 1), same(64, 8192), 8, 1));
    run(decoder("decode 64x8192 16q/1kv", same(64, 1), same(64, 8192), 16, 1));
    run(decoder("decode 64x8192 MHA 16/16", same(64, 1), same(64, 8192), 16, 16));
    run(decoder("decode 64x8192 d64", same(64, 1), same(64, 8192), 32, 8, 64));
    run(decoder("decode 64x8192 d256", same(64, 1), same(64, 8192), 16, 4, 256));
    for (const format &f : packed) {
        const std::string name = std::string(" ") + f.name;
        run(decoder("decode 64x8192" + name, same(64, 1), same(64, 8192), 32, 8, 128, f.kv));
        work w =
            decoder("decode 64x8192" + name + ", page 64", same(64, 1), same(64, 8192), 32, 8, 128, f.kv);
        w.p.block_size = 64;
        run(w);
        run(decoder("decode 1x131072" + name, {1}, {131072}, 32, 8, 128, f.kv));
        run(decoder("decode mixed 128..32768" + name, same(64, 1), mixed, 32, 8, 128, f.kv));
        run(decoder("prefill 4x4096 d128" + name, same(4, 4096), same(4, 4096), 32, 8, 128, f.kv));
        run(decoder("prefill 1x16384 d128" + name, {16384}, {16384}, 32, 8, 128, f.kv));
    }
    for (uint32_t d : {64, 256})
        for (const format &f : packed)
            if (f.kv == ATTN_KV_FP8_E4M3 || f.kv == ATTN_KV_FP8_PER_TOKEN_HEAD || f.kv == ATTN_KV_NVFP4 ||
                f.kv == ATTN_KV_INT4_PER_TOKEN_HEAD || f.kv == ATTN_KV_TURBOQUANT_4BIT_NC)
                run(decoder("prefill 4x4096 d" + std::to_string(d) + " " + f.name, same(4, 4096),
                            same(4, 4096), 4096 / d, 1024 / d, d, f.kv));
    run(decoder("decode 1x1024", {1}, {1024}));
    if (is_wanted("write 8192 tokens")) writes();
    for (const format &f : packed)
        if (is_wanted(std::string("write 8192 tokens ") + f.name)) writes(f.kv, f.name);
    for (uint32_t d : {64, 80, 96, 128, 192, 256})
        run(decoder("prefill 4x4096 d" + std::to_string(d), same(4, 4096), same(4, 4096), 4096 / d / 4 * 4,
                    1024 / d, d));
    run(decoder("prefill 1x16384 d128", same(1, 16384), same(1, 16384)));
    run(decoder("prefill 32x512 d128", same(32, 512), same(32, 512)));
    for (uint32_t d : {72, 80, 128}) {
        work w = decoder("vision 8x4096 d" + std::to_string(d), same(8, 4096), same(8, 4096), 16, 16, d);
        w.p.role = ATTN_ROLE_MM_ENCODER, w.p.mask = ATTN_MASK_FULL;
        run(w);
    }
    for (int decode = 0; decode < 2; decode++)
        for (int k = 0; k < 9; k++) {
            static const char *const names[9] = {"window 8192", "soft cap",       "alibi",
                                                 "alibi_sqrt",  "sinks",          "spans",
                                                 "rswa 8192",   "chunk_lookback", "rel_bias"};
            work w = decode ? decoder(std::string("decode 64x8192, ") + names[k], same(64, 1), same(64, 8192))
                            : decoder(std::string("prefill 4x4096 d128, ") + names[k], same(4, 4096),
                                      same(4, 4096));
            if (k == 0) w.p.sliding_window = 8192;
            if (k == 1) w.p.logits_soft_cap = 50;
            if (k == 2) w.p.features = ATTN_F_ALIBI;
            if (k == 3) w.p.features = ATTN_F_ALIBI_SQRT;
            if (k == 4) w.p.features = ATTN_F_SINK;
            if (k == 5) w.p.features = ATTN_F_MM_PREFIX, w.spans = 4;
            if (k == 6) w.p.rswa_window = 8192;
            if (k == 7)
                w.p.features = ATTN_F_CHUNK_LOOKBACK, w.p.sliding_window = 16384, w.p.chunk_lookback = 1;
            if (k == 8) w.p.features = ATTN_F_REL_BIAS;
            run(w);
        }
    std::string clean = std::string("rm -rf ") + temporary_dir;
    return cache_dir == temporary_dir && system(clean.c_str()) != 0;
}
