/* SPDX-License-Identifier: Apache-2.0 */
/* n states of the same queries joined by their LSE (semantics 6.5, 2.14, 8.4): a warp takes a row of a token
 * and head, in double and in the order of the states, so that the sums are the host's. */
#include "../ptx/launch_after.cuh"
#include "merge_element_sm80.cuh"

#include <cuda_runtime.h>

using namespace attn_cuda;

enum { WARPS = 4, MOST_BLOCKS = 16384 };

/* ln of a sum of exponentials that grows term by term; no term: -inf. */
struct log_sum {
    double top = -INFINITY, sum = 0;
    __device__ void add(double x) {
        if (x == -INFINITY) return;
        if (sum == 0 || x > top) {
            sum *= sum == 0 ? 1 : exp(top - x);
            top = x;
        }
        sum += exp(x - top);
    }
    __device__ double total() const { return sum == 0 ? -INFINITY : top + log(sum); }
};

/* An infinite LSE of either sign says that there was no key. */
__device__ double lse_of(const merge_state &s, int64_t t, int h) {
    const float x = s.lse[h * s.lse_head + t * s.lse_token];
    return isinf(x) ? -INFINITY : (double)x;
}

template <int WIDTH>
__global__ void __launch_bounds__(WARPS * 32) merge_kernel(const __grid_constant__ merge_states_params p) {
    const int lane = threadIdx.x & 31;
    const int64_t rows = p.tokens * p.heads, step = (int64_t)gridDim.x * WARPS;
    pdl_wait(); /* first: who starts early behind this one may read what was written before it */
    pdl_launch();
    for (int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); row < rows; row += step) {
        const int64_t t = row / p.heads;
        const int h = (int)(row - t * p.heads);
        log_sum s;
        for (int i = 0; i < p.num_states; i++)
            s.add(lse_of(p.states[i], t, h));
        if (p.sinks) s.add(p.sinks[h * p.sink]);
        const double total = s.total();
        /* lane i has the weights of states first + i and first + 32 + i */
        double weight[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int i = p.first + 32 * j + lane;
            if (i >= p.last) continue;
            const double lse = lse_of(p.states[i], t, h);
            weight[j] = lse == -INFINITY ? 0 : exp(lse - total);
        }
        for (int c0 = 0; c0 < p.size; c0 += 32 * WIDTH) { /* all lanes: shuffles */
            const int c = c0 + lane * WIDTH;
            double sum[WIDTH] = {}, x[WIDTH];
            for (int i = p.first; i < p.last; i++) {
                const int k = i - p.first;
                const double w = __shfl_sync(~0u, weight[k >> 5], k & 31);
                if (w == 0 || c >= p.size) continue;
                const merge_state &from = p.states[i];
                const int64_t at = t * from.token + h * from.head + c;
                if constexpr (WIDTH == 4)
                    merge_load4(from.type, from.output, at, x);
                else
                    x[0] = merge_load(from.type, from.output, at);
#pragma unroll
                for (int e = 0; e < WIDTH; e++)
                    sum[e] = __dadd_rn(sum[e], __dmul_rn(w, x[e]));
            }
            if (c >= p.size) continue;
            const int64_t to = t * p.token + h * p.head + c;
            if constexpr (WIDTH == 4)
                merge_store4(p.type, p.output, to, sum);
            else
                merge_store(p.type, p.output, to, sum[0]);
        }
        __syncwarp(); /* lse may be that of a state */
        if (lane == 0 && p.lse) p.lse[h * p.lse_head + t * p.lse_token] = (float)total;
    }
}

extern "C" int merge_states_run(const merge_states_params *p, void *stream) {
    const int64_t blocks = (p->tokens * p->heads + WARPS - 1) / WARPS;
    if (blocks == 0) return 0;
    const unsigned grid = (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
    return p->width == 4 ? launch_after(merge_kernel<4>, grid, WARPS * 32, 0, stream, *p, can_start_early())
                         : launch_after(merge_kernel<1>, grid, WARPS * 32, 0, stream, *p, can_start_early());
}
