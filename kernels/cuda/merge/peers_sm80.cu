/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two exchanges of a layer over ranks (semantics 8.6) in peers' memory.
 *
 *   query  stores this rank's queries into the memory of all, in the order in which attention wants the
 *          heads, says so, and ends when those of all ranks are here
 *   join   says that this rank's results are there, waits until those of all ranks are, loads the rows of its
 *          own heads from each and merges them
 *
 * Exchanges are counted on the device, so that a replayed graph goes on counting. One set of buffers is
 * enough: who is in join e + 1 has queries e + 1 of all ranks, so all are through join e; who stores queries
 * e + 1 is through join e, so all have attended with queries e. Packed queries and packed results have rooms
 * of their own, since who has all results of e may send queries e + 1 while another still unpacks results e.
 *
 * Small messages are packed: every 8 bytes on their way are 4 of the message and the number of the exchange,
 * so who finds the number has the bytes, and neither side waits for a fence, a flag or a load over the link.
 * Queries are then unpacked where they arrive, and results are pushed instead of loaded. The parts of a batch
 * are not packed: they follow each other before anybody has said that he took the one before.
 *
 * A wait is bounded. After one that was not met this rank says nothing more, so that nobody takes what it
 * leaves for results, its own results are not numbers, and the host finds `failed`.
 */
#include "../ptx/launch_after.cuh"
#include "../ptx/lse_merge.cuh"
#include "merge_element_sm80.cuh"
#include "peers_params.h"

#include <atomic>
#include <cuda_runtime.h>

using namespace attn_cuda;

/* Ranks that are streams of one device wait for each other's attention there: all blocks that wait together
 * must leave it room, so MOST_BLOCKS are those of world - 1 ranks. Larger messages have more blocks, of which
 * one waits: a link is full when enough is under way. */
enum { THREADS = 256, MOST_BLOCKS = 64, LINK_BLOCKS = 512, EIGHT = 8 };

__device__ __forceinline__ uint32_t load_acquire(const uint32_t *at) {
    uint32_t x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
__device__ __forceinline__ void store_release(uint32_t *at, uint32_t x) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
__device__ __forceinline__ uint64_t nanoseconds() {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ peers_control *control_of(const peers_params &p, int rank) {
    return (peers_control *)p.base[rank];
}
__device__ __forceinline__ uint64_t failed_of(const peers_control *c) {
    return *(const volatile uint64_t *)&c->failed;
}

/* All threads of a block; the first ones each wait for a rank. */
__device__ void wait_for_all(const peers_params &p, peers_control *own, const uint32_t *words,
                             uint32_t epoch) {
    const int r = threadIdx.x;
    if (r < p.world && failed_of(own) == 0) {
        const uint64_t begin = nanoseconds();
        while ((int32_t)(load_acquire(words + r) - epoch) < 0)
            if (nanoseconds() - begin > p.limit_ns) {
                atomicOr((unsigned long long *)&own->failed, 1ull << r);
                break;
            }
    }
    __syncthreads();
}

/* The numbers of the exchange: of queries before they are told, of results those of its queries. All parts'
 * queries come before the first part's results. */
__device__ __forceinline__ uint32_t query_number(const peers_params &p, const peers_control *own) {
    return *(const volatile uint32_t *)&own->joined + 1 + (uint32_t)p.part;
}
__device__ __forceinline__ uint32_t join_number(const peers_params &p, const peers_control *own) {
    return *(const volatile uint32_t *)&own->epoch + 1 + (uint32_t)p.part - (uint32_t)p.parts;
}
/* What stands in packed messages, never 0: memory that nobody has written holds 0. */
__device__ __forceinline__ uint32_t mark_of(uint32_t number) {
    return number << 1 | 1;
}

/* -------------------------------------------------------------------- packed */

/* 8 bytes of a message at 16 of its room. */
__device__ __forceinline__ void put(char *at, uint64_t x, uint32_t epoch) {
    const uint64_t mark = (uint64_t)epoch << 32, low = (x & 0xffffffffu) | mark, high = x >> 32 | mark;
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(low), "l"(high) : "memory");
}
/* What a thread waits for, one message after the other. */
struct patience {
    peers_control *own;
    uint64_t begin, limit_ns;
    uint32_t epoch;
    bool is_over; /* a rank did not come */
};
__device__ __forceinline__ uint64_t take(patience *w, const char *at, int rank) {
    uint64_t low = 0, high = 0;
    for (uint32_t tries = 1; !w->is_over; tries++) {
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                     : "=l"(low), "=l"(high)
                     : "l"(at)
                     : "memory");
        if ((uint32_t)(low >> 32) == w->epoch && (uint32_t)(high >> 32) == w->epoch) break;
        if (tries % 64 != 0) continue;
        if (w->begin == 0) w->begin = nanoseconds();
        if (nanoseconds() - w->begin <= w->limit_ns) continue;
        atomicOr((unsigned long long *)&w->own->failed, 1ull << rank);
        w->is_over = true;
    }
    return (low & 0xffffffffu) | high << 32;
}
/* The room in the memory of rank `at` for messages of rank `from`. */
__device__ __forceinline__ char *room_of(const peers_params &p, int at, int from) {
    return p.base[at] + p.packed_at + (uint64_t)from * p.packed_bytes;
}

/* ------------------------------------------------------------------- queries */

/* Releases what the block has stored and acquires what those before it have: the last one's store_release
 * covers all. */
__device__ __forceinline__ uint32_t count_in(uint32_t *at) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(at) : "memory");
    return before;
}

template <class UNIT>
__global__ void __launch_bounds__(THREADS) query_kernel(const __grid_constant__ peers_params p) {
    __shared__ int is_last;
    pdl_wait();
    peers_control *own = control_of(p, p.rank);
    const uint64_t failed = failed_of(own);
    const uint32_t epoch = query_number(p, own);
    const int row = p.heads * p.size, count = p.from && !failed ? p.tokens * row : 0;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
        const int t = i / row, h = i % row / p.size, c = i % p.size, kv = h / p.group;
        const UNIT x = ((const UNIT *)p.from)[t * p.from_token + h * p.from_head + c];
        const int64_t head = ((int64_t)kv * p.world + p.rank) * p.group + h % p.group,
                      to = ((int64_t)t * p.heads * p.world + head) * p.size + c;
        for (int k = 0; k < p.world; k++) { /* not all ranks to the same one at once */
            const int r = (p.rank + 1 + k) % p.world;
            ((UNIT *)(p.base[r] + p.at))[to] = x;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) is_last = count_in(&own->arrived) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    if (threadIdx.x < p.world && !failed) store_release(&control_of(p, threadIdx.x)->query[p.rank], epoch);
    wait_for_all(p, own, own->query, epoch);
    if (threadIdx.x == 0) own->arrived = 0, own->epoch = epoch;
}

__device__ __forceinline__ uint64_t load_words(const uint4 *from, int64_t row, int c) {
    return ((const uint64_t *)(from + row))[c];
}
__device__ __forceinline__ uint64_t load_words(const uint16_t *from, int64_t row, int c) {
    uint64_t x = 0;
    for (int i = 0; i < 4; i++)
        x |= (uint64_t)from[row + c * 4 + i] << i * 16;
    return x;
}

template <class UNIT>
__global__ void __launch_bounds__(THREADS) query_packed_kernel(const __grid_constant__ peers_params p) {
    pdl_wait();
    peers_control *own = control_of(p, p.rank);
    const uint32_t number = query_number(p, own), epoch = mark_of(number);
    const int words = (int)(p.size * sizeof(UNIT) / 8), row = p.heads * words, count = p.tokens * row;
    uint64_t *const to = (uint64_t *)(p.base[p.rank] + p.at);
    patience w = {own, 0, p.limit_ns, epoch, failed_of(own) != 0};
    if (blockIdx.x == 0 && threadIdx.x == 0) own->epoch = number; /* nobody reads it here */
    if (w.is_over) return;
    const int first = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
    for (int from = p.rank, k = 0; k < 2; k++) /* first all that is sent, then all that comes */
        for (int i = first; i < count; i += step) {
            const int t = i / row, h = i % row / words, c = i % words, kv = h / p.group;
            const int64_t token = (int64_t)t * p.heads * p.world,
                          head = (int64_t)kv * p.world * p.group + h % p.group;
            if (k == 0) {
                const uint64_t x =
                    p.from ? load_words((const UNIT *)p.from, t * p.from_token + h * p.from_head, c) : 0;
                for (int n = 1; n < p.world; n++)
                    put(room_of(p, (from + n) % p.world, from) + (int64_t)i * 16, x, epoch);
                to[(token + head + from * p.group) * words + c] = x;
            } else
                for (int n = 1; n < p.world; n++) {
                    const int r = (from + n) % p.world;
                    to[(token + head + r * p.group) * words + c] =
                        take(&w, room_of(p, from, r) + (int64_t)i * 16, r);
                }
        }
}

/* A kernel that wants another share of an SM's memory as shared memory than one that runs may begin only when
 * that one has ended. Attention wants all there is, and so do those that wait for the attention of a rank on
 * the same device. Set once for each device. */
template <void (*KERNEL)(peers_params)>
static int launch(const peers_params *p, unsigned grid, unsigned threads, void *stream) {
    static std::atomic<uint64_t> is_set;
    int device = 0;
    cudaError_t e = cudaGetDevice(&device);
    const uint64_t bit = 1ull << (device & 63);
    if (e == cudaSuccess && !(is_set.load(std::memory_order_relaxed) & bit)) {
        e = cudaFuncSetAttribute(KERNEL, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
        is_set.fetch_or(bit, std::memory_order_relaxed);
    }
    return e != cudaSuccess ? (int)e
                            : launch_after(KERNEL, grid, (int)threads, 0, stream, *p, can_start_early());
}

static unsigned blocks_of(const peers_params *p, int64_t threads) {
    const int64_t blocks = (threads + THREADS - 1) / THREADS, most = MOST_BLOCKS / (p->world - 1);
    return (unsigned)(blocks < most ? blocks : most);
}

extern "C" int peers_query_run(const peers_params *p, void *stream) {
    const int64_t bytes = (int64_t)p->tokens * p->heads * p->size * p->unit;
    if (p->unit * p->size % 8 == 0 && 2 * (uint64_t)bytes <= p->packed_bytes) {
        const unsigned grid = blocks_of(p, bytes / 8);
        return p->unit == 16 ? launch<query_packed_kernel<uint4>>(p, grid, THREADS, stream)
                             : launch<query_packed_kernel<uint16_t>>(p, grid, THREADS, stream);
    }
    const int64_t units = p->from ? (int64_t)p->tokens * p->heads * p->size : 1,
                  blocks = (units + THREADS - 1) / THREADS;
    const unsigned grid = (unsigned)(blocks < LINK_BLOCKS ? blocks : LINK_BLOCKS); /* its last one waits */
    return p->unit == 16 ? launch<query_kernel<uint4>>(p, grid, THREADS, stream)
                         : launch<query_kernel<uint16_t>>(p, grid, THREADS, stream);
}

/* ------------------------------------------------------------------- results */

template <int TYPE>
struct eight {
    uint4 raw[TYPE == MERGE_F32 ? 2 : 1];
    __device__ void load(const char *at) {
#pragma unroll
        for (unsigned i = 0; i < sizeof raw / sizeof *raw; i++)
            raw[i] = __ldcg((const uint4 *)at + i);
    }
    __device__ float operator[](int e) const {
        if constexpr (TYPE == MERGE_F32) return ((const float *)raw)[e];
        const uint32_t word = ((const uint32_t *)raw)[e >> 1];
        const uint16_t bits = (uint16_t)(word >> (e & 1) * 16);
        if constexpr (TYPE == MERGE_F16) return __half2float(__ushort_as_half(bits));
        return __uint_as_float((uint32_t)bits << 16);
    }
};

/* The place of head h of rank r among those of all. */
__device__ __forceinline__ int64_t head_of(const peers_params &p, int h, int r) {
    return ((int64_t)(h / p.group) * p.world + r) * p.group + h % p.group;
}
/* Of the rank whose memory this is, if it has a key of token t. */
__device__ __forceinline__ float lse_in(const peers_params &p, const char *base, int64_t head, int t) {
    const float lse = __ldcg((const float *)(base + p.lse_at) + head * p.columns + t);
    return __ldcg((const long long *)(base + p.places_at) + t) != p.first + t ? -INFINITY : lse;
}

/* Eight values of a packed row: BYTES times 8 bytes, at c. */
template <int TYPE>
__device__ __forceinline__ void take_eight(eight<TYPE> *x, patience *w, const char *row, int c, int rank) {
    uint64_t *raw = (uint64_t *)x->raw;
#pragma unroll
    for (unsigned i = 0; i < sizeof x->raw / 8; i++)
        raw[i] = take(w, row + (c / EIGHT * (sizeof x->raw / 8) + i) * 16, rank);
}

/* This rank's results of the others' heads go there, row after row, the LSE behind its values. */
template <int TYPE>
__device__ __forceinline__ void send_packed(const peers_params &p, uint32_t epoch, int row_bytes) {
    constexpr int BYTES = TYPE == MERGE_F32 ? 4 : 2;
    const char *own = p.base[p.rank];
    const int rows = p.tokens * p.heads, lane = threadIdx.x & (p.lanes - 1), per_block = THREADS / p.lanes;
    for (int row = blockIdx.x * per_block + threadIdx.x / p.lanes; row < rows; row += gridDim.x * per_block)
        for (int n = 1; n < p.world; n++) {
            const int r = (p.rank + n) % p.world, t = row / p.heads;
            const int64_t head = head_of(p, row % p.heads, r),
                          at = ((int64_t)t * p.heads * p.world + head) * p.size;
            char *to = room_of(p, r, p.rank) + (int64_t)row * row_bytes;
            for (int c = lane * EIGHT; c < p.size; c += p.lanes * EIGHT) {
                eight<TYPE> x;
                x.load(own + p.at + (at + c) * BYTES);
#pragma unroll
                for (int i = 0; i < BYTES; i++)
                    put(to + (c / EIGHT * BYTES + i) * 16, ((const uint64_t *)x.raw)[i], epoch);
            }
            if (lane == 0)
                put(to + row_bytes - 16, (uint64_t)__float_as_uint(lse_in(p, own, head, t)), epoch);
        }
}

/* How results come: what every block waits for, or a kernel before this one. */
enum how { PACKED, BY_FLAGS, WAITED };

__device__ void tell_results(const peers_params &p, const peers_control *own, uint32_t number) {
    if (threadIdx.x < p.world && failed_of(own) == 0)
        store_release(&control_of(p, threadIdx.x)->result[p.rank], number);
}

__global__ void wait_kernel(const __grid_constant__ peers_params p) {
    pdl_wait();
    peers_control *own = control_of(p, p.rank);
    const uint32_t number = join_number(p, own);
    tell_results(p, own, number);
    wait_for_all(p, own, own->result, number);
}

template <int N, int TYPE, how HOW>
__global__ void __launch_bounds__(THREADS) join_kernel(const __grid_constant__ peers_params p) {
    constexpr int BYTES = TYPE == MERGE_F32 ? 4 : 2;
    constexpr bool IS_PACKED = HOW == PACKED;
    pdl_wait();
    peers_control *own = control_of(p, p.rank);
    const uint32_t number = join_number(p, own), epoch = IS_PACKED ? mark_of(number) : number;
    const int row_bytes = 2 * p.size * BYTES + 16; /* packed */
    patience w = {own, 0, p.limit_ns, epoch, failed_of(own) != 0};
    if (IS_PACKED) {
        if (!w.is_over) send_packed<TYPE>(p, epoch, row_bytes);
    } else if (HOW == BY_FLAGS) {
        if (blockIdx.x == 0) tell_results(p, own, number);
        wait_for_all(p, own, own->result, number);
        w.is_over = failed_of(own) != 0;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) own->joined = number; /* nobody reads it here */
    if (!IS_PACKED && !p.output) return;
    const int rows = p.tokens * p.heads, lane = threadIdx.x & (p.lanes - 1), per_block = THREADS / p.lanes;
    for (int row = blockIdx.x * per_block + threadIdx.x / p.lanes; row < rows; row += gridDim.x * per_block) {
        const int t = row / p.heads, h = row % p.heads;
        const int64_t head = ((int64_t)(h / p.group) * p.world + p.rank) * p.group + h % p.group,
                      at = ((int64_t)t * p.heads * p.world + head) * p.size;
        float lse[N];
        eight<TYPE> x[N];
#pragma unroll
        for (int i = 0; i < N; i++) { /* everything is on its way before the first is looked at */
            lse[i] = -INFINITY;
            if (i >= p.world || (IS_PACKED && i != p.rank)) continue;
            const char *base = p.base[i];
            if (lane * EIGHT < p.size) x[i].load(base + p.at + (at + lane * EIGHT) * BYTES);
            lse[i] = lse_in(p, base, head, t);
        }
        if (IS_PACKED) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (i >= p.world || i == p.rank) continue;
                const char *from = room_of(p, p.rank, i) + (int64_t)row * row_bytes;
                if (lane * EIGHT < p.size) take_eight(&x[i], &w, from, lane * EIGHT, i);
                lse[i] = __uint_as_float((uint32_t)take(&w, from + row_bytes - 16, i));
            }
            if (!p.output) continue;
        }
        const float sink = p.sinks ? p.sinks[h * p.sink] : -INFINITY;
        float top = sink, sum = 0.f, weight[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (isinf(lse[i])) lse[i] = -INFINITY; /* of either sign: no key */
            top = fmaxf(top, lse[i]);
        }
#pragma unroll
        for (int i = 0; i < N; i++) { /* one that is no number makes the sum so */
            weight[i] = lse[i] == -INFINITY ? 0.f : ex2((lse[i] - top) * LOG2E);
            sum += weight[i];
        }
        if (sink != -INFINITY) sum += ex2((sink - top) * LOG2E);
        if (w.is_over) sum = NAN;
        const float each = sum == 0.f ? 0.f : 1.f / sum;
#pragma unroll
        for (int i = 0; i < N; i++)
            weight[i] *= each; /* before the sum, which overflows at the end of the format else */
        for (int c = lane * EIGHT; c < p.size; c += p.lanes * EIGHT) {
            float y[EIGHT] = {};
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (i >= p.world || weight[i] == 0.f) continue;
                if (c != lane * EIGHT && (!IS_PACKED || i == p.rank))
                    x[i].load(p.base[i] + p.at + (at + c) * BYTES);
                else if (c != lane * EIGHT)
                    take_eight(&x[i], &w, room_of(p, p.rank, i) + (int64_t)row * row_bytes, c, i);
#pragma unroll
                for (int e = 0; e < EIGHT; e++)
                    y[e] = fmaf(weight[i], x[i][e], y[e]);
            }
            const int64_t to = t * p.token + h * p.head + c;
            double z[2][4];
#pragma unroll
            for (int e = 0; e < EIGHT; e++)
                z[e / 4][e % 4] = (double)y[e];
            if (p.is_aligned) {
                merge_store4(p.type, p.output, to, z[0]);
                merge_store4(p.type, p.output, to + 4, z[1]);
            } else
                for (int e = 0; e < EIGHT; e++)
                    merge_store(p.type, p.output, to + e, z[e / 4][e % 4]);
        }
        if (lane == 0 && p.lse)
            p.lse[h * p.lse_head + t * p.lse_token] = sum == 0.f ? -INFINITY : top + lg2(sum) * LN2;
    }
}

template <int TYPE, how HOW>
static int join(const peers_params *p, unsigned grid, void *stream) {
    return p->world <= 2   ? launch<join_kernel<2, TYPE, HOW>>(p, grid, THREADS, stream)
           : p->world <= 4 ? launch<join_kernel<4, TYPE, HOW>>(p, grid, THREADS, stream)
                           : launch<join_kernel<8, TYPE, HOW>>(p, grid, THREADS, stream);
}

template <int TYPE>
static int join_in(const peers_params *p, how way, void *stream) {
    const int64_t threads = p->output || way == PACKED ? (int64_t)p->tokens * p->heads * p->lanes : 1,
                  blocks = (threads + THREADS - 1) / THREADS;
    if (way == PACKED) return join<TYPE, PACKED>(p, blocks_of(p, threads), stream);
    if (blocks <= MOST_BLOCKS / (p->world - 1)) return join<TYPE, BY_FLAGS>(p, (unsigned)blocks, stream);
    const int e = launch<wait_kernel>(p, 1, 32, stream);
    return e ? e : join<TYPE, WAITED>(p, (unsigned)(blocks < LINK_BLOCKS ? blocks : LINK_BLOCKS), stream);
}

extern "C" int peers_join_run(const peers_params *p, void *stream) {
    const uint64_t rows = (uint64_t)p->tokens * p->heads,
                   row = 2 * (uint64_t)p->size * (p->partial == MERGE_F32 ? 4 : 2) + 16;
    const how way = rows * row <= p->packed_bytes ? PACKED : BY_FLAGS;
    return p->partial == MERGE_F32   ? join_in<MERGE_F32>(p, way, stream)
           : p->partial == MERGE_F16 ? join_in<MERGE_F16>(p, way, stream)
                                     : join_in<MERGE_BF16>(p, way, stream);
}
