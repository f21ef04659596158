/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in double, the plain way, on the GPU: one block per (token, head), two passes over the keys. The
 * oracle of the flash kernel tests; it shares no code with them. Formulas: semantics 2.2, 2.3, 2.9, 2.10,
 * 2.13, 2.14. */
#ifndef FLASH_ORACLE_CUH
#define FLASH_ORACLE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

struct oracle_args {
    const uint16_t *q, *k, *v;             /* [T, Hq, D], [keys, Hkv, D], [keys, Hkv, Dv], 16-bit */
    const int *q_start, *k_start, *causal; /* prefix sums of query and key lengths; one flag a request */
    const float *alibi, *sinks;            /* NULL: none */
    double *scores;                        /* [gridDim.x, max_kv] */
    double *out, *lse;                     /* [T, Hq, Dv], [T, Hq] */
    int num_seqs, hq, hkv, d, dv, max_kv, bf16, e4m3, per_head;
    int window_left, window_right, chunk, lookback;
    double scale, cap;
    const float *k_scale, *v_scale; /* [1] or [Hkv], e4m3 only */
};

__device__ inline double oracle_value(uint16_t x, int bf16) {
    return bf16 ? (double)__bfloat162float(__ushort_as_bfloat16(x))
                : (double)__half2float(__ushort_as_half(x));
}
/* What a cache element is worth after the trip through e4m3. */
__device__ inline double oracle_cached(uint16_t x, const oracle_args &a, float scale) {
    double y = oracle_value(x, a.bf16);
    if (!a.e4m3) return y;
    return (double)(float)__nv_fp8_e4m3((float)y / scale) * (double)scale;
}

__global__ void oracle_kernel(oracle_args a) {
    __shared__ double part[128];
    double *s = a.scores + (size_t)blockIdx.x * a.max_kv;
    int total = a.q_start[a.num_seqs];
    for (int64_t row = blockIdx.x; row < (int64_t)total * a.hq; row += gridDim.x) {
        int t = (int)(row / a.hq), h = (int)(row % a.hq), seq = 0, kvh = h / (a.hq / a.hkv);
        while (a.q_start[seq + 1] <= t)
            seq++;
        int q_len = a.q_start[seq + 1] - a.q_start[seq], k0 = a.k_start[seq], n = a.k_start[seq + 1] - k0;
        int pos = n - q_len + (t - a.q_start[seq]);
        float ks = a.e4m3 ? a.k_scale[a.per_head ? kvh : 0] : 1.f,
              vs = a.e4m3 ? a.v_scale[a.per_head ? kvh : 0] : 1.f;
        double sink = a.sinks ? (double)a.sinks[h] : -INFINITY, m = sink;
        for (int k = threadIdx.x; k < n; k += blockDim.x) {
            bool ok = a.causal[seq] ? k <= pos : true;
            if (a.window_left >= 0 && pos - k > a.window_left) ok = false;
            if (!a.causal[seq] && a.window_right >= 0 && k - pos > a.window_right) ok = false;
            if (a.chunk > 0 && (k > pos || pos / a.chunk - k / a.chunk > a.lookback)) ok = false;
            double dot = 0;
            for (int d = 0; d < a.d && ok; d++)
                dot += oracle_value(a.q[(size_t)row * a.d + d], a.bf16) *
                       oracle_cached(a.k[((size_t)(k0 + k) * a.hkv + kvh) * a.d + d], a, ks);
            double x = a.scale * dot;
            if (a.cap > 0) x = a.cap * tanh(x / a.cap);
            if (a.alibi) x += (double)a.alibi[h] * (k - pos);
            s[k] = ok ? x : -INFINITY;
            m = fmax(m, s[k]);
        }
        part[threadIdx.x] = m;
        __syncthreads();
        for (int i = 0; i < (int)blockDim.x; i++)
            m = fmax(m, part[i]);
        double sum = m == -INFINITY ? 0 : exp(sink - m);
        for (int k = 0; k < n; k++)
            sum += m == -INFINITY ? 0 : exp(s[k] - m);
        for (int d = threadIdx.x; d < a.dv; d += blockDim.x) {
            double acc = 0;
            for (int k = 0; k < n && sum > 0; k++)
                if (s[k] != -INFINITY)
                    acc += exp(s[k] - m) *
                           oracle_cached(a.v[((size_t)(k0 + k) * a.hkv + kvh) * a.dv + d], a, vs);
            a.out[(size_t)row * a.dv + d] = sum > 0 ? acc / sum : 0;
        }
        if (threadIdx.x == 0) a.lse[row] = sum > 0 ? m + log(sum) : -INFINITY;
        __syncthreads();
    }
}

#endif
